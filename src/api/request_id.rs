//! Owns the id by which caller and log speak of one request: `X-Request-Id`.
//! Must never know: what the request is about.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;
use uuid::Uuid;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Gives the request an id, the caller's own when it is harmless, and sends it back with whatever is answered.
pub(super) async fn tag(request: Request, next: Next) -> Response {
    let id = given(request.headers()).unwrap_or_else(|| Uuid::now_v7().to_string());
    let span = tracing::info_span!(target: "fanfare::api", "request", request_id = %id);
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// The caller's id goes into our log, so it is taken only when it cannot be anything but an id.
fn given(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(HEADER)?.to_str().ok()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/');
    ((1..=64).contains(&id.len()) && id.bytes().all(plain)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_ids_are_taken() {
        let read = |value: &'static str| given(&HeaderMap::from_iter([(HEADER, HeaderValue::from_static(value))]));
        assert_eq!(read("req-1.a/b:c_D").as_deref(), Some("req-1.a/b:c_D"));
        let long = "x".repeat(65);
        for bad in ["", "a b", "\"},{\"", "a;b", Box::leak(long.into_boxed_str())] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(given(&HeaderMap::new()), None);
    }
}
