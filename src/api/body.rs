//! Owns how a request's body is read: of the right kind, not too large, not too slowly.
//! Must never know: what it says.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::problem::{Code, Refusal};
use crate::wire::{self, FieldProblem, ReadError};

/// Largest event or device, bytes: FCM takes 4096 of them.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// Longest wait for a whole body. The request holds its place at the gate meanwhile.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a JSON body of at most `limit` bytes.
pub(super) async fn json<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Refusal> {
    let (head, body) = request.into_parts();
    kind(&head.headers, "send `Content-Type: application/json`", |kind| {
        kind.is_empty() || kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
    })?;
    let bytes = whole(&head.headers, body, limit).await?;
    wire::read(&bytes).map_err(unreadable)
}

/// Wants a kind of body that `fits`, and no encoding. The kind is lower case, without parameters, empty when absent.
pub(super) fn kind(headers: &HeaderMap, hint: &str, fits: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    let refused = |detail: String| Err(Refusal::new(Code::UnsupportedMediaType, detail));
    let text = |value: Option<&axum::http::HeaderValue>| {
        let value = value.map(|v| v.to_str().unwrap_or("?").to_ascii_lowercase()).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_owned()
    };
    let encoding = text(headers.get(CONTENT_ENCODING));
    if !encoding.is_empty() && encoding != "identity" {
        return refused("the body must not be compressed: send it without Content-Encoding".to_owned());
    }
    if fits(&text(headers.get(CONTENT_TYPE))) { Ok(()) } else { refused(hint.to_owned()) }
}

async fn whole(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let too_large = || Refusal::new(Code::BodyTooLarge, format!("this call takes at most {limit} bytes"));
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if over_limit(&error) => Err(too_large()),
        Ok(Err(_)) => Err(Refusal::new(Code::BadRequest, "the body broke off before its end")),
        Err(_) => Err(slow(BODY_TIMEOUT)),
    }
}

/// The body did not come within `patience`.
pub(super) fn slow(patience: Duration) -> Refusal {
    Refusal::new(Code::BodyTimeout, format!("nothing, or not all of it, came within {} s", patience.as_secs()))
}

fn over_limit(error: &axum::Error) -> bool {
    std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source())
        .any(|e| e.is::<http_body_util::LengthLimitError>())
}

fn unreadable(error: ReadError) -> Refusal {
    match error {
        ReadError::Field(FieldProblem { field, problem }) => Refusal::field(&field, problem),
        ReadError::Syntax { .. } => Refusal::new(Code::BadJson, error.to_string()),
    }
}
