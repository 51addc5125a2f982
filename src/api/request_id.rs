//! Owns the id by which caller and log speak of one request: `X-Request-Id`.
//! Must never know: what the request is about.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;
use uuid::Uuid;

pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Gives the request an id, the caller's own when it is harmless, and sends it back with whatever is answered.
pub(super) async fn tag(request: Request, next: Next) -> Response {
    let id = given(request.headers()).cloned().or_else(|| HeaderValue::from_str(&Uuid::now_v7().to_string()).ok());
    let shown = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let span = tracing::info_span!(target: "fanfare::api", "request", request_id = shown);
    let mut response = next.run(request).instrument(span).await;
    if let Some(id) = id {
        response.headers_mut().insert(HEADER, id);
    }
    response
}

/// The caller's id goes into our log, so it is taken only when it cannot be anything but an id.
pub(super) fn given(headers: &HeaderMap) -> Option<&HeaderValue> {
    let id = headers.get(HEADER)?;
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/');
    ((1..=64).contains(&id.len()) && id.as_bytes().iter().all(plain)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_ids_are_taken() {
        let read = |value: &'static str| {
            let headers = HeaderMap::from_iter([(HEADER, HeaderValue::from_static(value))]);
            given(&headers).map(|id| id.to_str().expect("plain").to_owned())
        };
        assert_eq!(read("req-1.a/b:c_D").as_deref(), Some("req-1.a/b:c_D"));
        let long = "x".repeat(65);
        for bad in ["", "a b", "\"},{\"", "a;b", Box::leak(long.into_boxed_str())] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(given(&HeaderMap::new()), None);
    }
}
