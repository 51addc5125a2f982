//! Owns how the ids in a path are read.
//! Must never know: whose id it is.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::problem::{Code, Refusal};

/// The one id in the path, unescaped.
pub(super) struct Id(pub String);

/// The two ids in the path, unescaped: that of the fan-out and that of the device.
pub(super) struct Ids(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for Ids {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Path::<(String, String)>::from_request_parts(parts, state).await;
        read.map(|Path((first, second))| Self(first, second))
            .map_err(|_| Refusal::new(Code::BadRequest, "the ids in the path must be UTF-8"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Path::<String>::from_request_parts(parts, state).await;
        // The only way to fail: bytes that are no text once unescaped.
        read.map(|Path(id)| Self(id)).map_err(|_| Refusal::new(Code::BadRequest, "the id in the path must be UTF-8"))
    }
}
