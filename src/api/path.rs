//! Owns how the ids in a path are read, and how a path is shown.
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

/// A path as it may stand in an answer or a line of the log: its first 100 characters, all but ASCII escaped. HTTP lets
/// through what turns a terminal's line round, or begins a command to it.
pub(super) fn shown(path: &str) -> String {
    path.chars().take(100).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_a_cursor_is_shown_as_what_it_is() {
        assert_eq!(shown("/v1/events?x=%1b"), "/v1/events?x=%1b");
        assert_eq!(shown("/\u{9b}31m\u{202e}\u{1b}"), r"/\u{9b}31m\u{202e}\u{1b}");
        assert_eq!(shown(&"a".repeat(200)).len(), 100);
    }
}
