//! Owns how a request's body is read: of the right kind, not too large, not too slowly.
//! Must never know: what it says.

use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::guard::{SlowBodies, crowded};
use super::problem::{Code, Refusal};
use crate::door::{Pass, Reason};
use crate::wire::{self, FieldProblem, ReadError};

/// Largest event or device, bytes: FCM takes 4096 of them.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// Longest wait for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A body that takes longer than this waits for its bytes without a place at the gate: a few slow callers would
/// otherwise have all of them. A body of 64 KiB on its way takes one or two round trips.
const PROMPT: Duration = Duration::from_millis(20);

/// Reads a JSON body of at most `limit` bytes.
pub(super) async fn json<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Refusal> {
    let (head, body) = request.into_parts();
    kind(&head.headers, "send `Content-Type: application/json`", |kind| {
        kind.is_empty() || kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
    })?;
    let bytes = whole(&head, body, limit).await?;
    wire::read(&bytes).map_err(unreadable)
}

/// The same of a call whose body may be left out: then it is all defaults.
pub(super) async fn json_or_default<T: DeserializeOwned + Default>(
    request: Request,
    limit: usize,
) -> Result<T, Refusal> {
    if request.body().is_end_stream() { Ok(T::default()) } else { json(request, limit).await }
}

/// Wants a kind of body that `fits`, and no encoding. The kind is lower case, without parameters, empty when absent.
pub(super) fn kind(headers: &HeaderMap, hint: &str, fits: impl FnOnce(&str) -> bool) -> Result<(), Refusal> {
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

async fn whole(head: &Parts, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let too_large = || Refusal::new(Code::BodyTooLarge, format!("this call takes at most {limit} bytes"));
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    let mut reading = std::pin::pin!(to_bytes(body, limit));
    let read = match timeout(PROMPT, &mut reading).await {
        Ok(read) => read,
        Err(_) => outside(&head.extensions, reading).await?,
    };
    read.map_err(|error| match over_limit(&error) {
        true => too_large(),
        false => Refusal::new(Code::BadRequest, "the body broke off before its end"),
    })
}

/// Reads on without a place at the gate, and queues for one when the body is there.
async fn outside<T>(extensions: &Extensions, reading: impl Future<Output = T>) -> Result<T, Refusal> {
    let detail = "as many bodies of this key come in slowly as this instance waits for";
    let busy = || Refusal::new(Code::Overloaded, detail).counted_as(Reason::Parked);
    let _slow = match extensions.get::<SlowBodies>() {
        Some(SlowBodies(cap, caller)) => Some(cap.take(caller).ok_or_else(busy)?),
        None => None,
    };
    let pass = extensions.get::<Pass>();
    if let Some(pass) = pass {
        pass.step_out();
    }
    let read = timeout(BODY_TIMEOUT.saturating_sub(PROMPT), reading).await.map_err(|_| slow(BODY_TIMEOUT))?;
    if let Some(pass) = pass {
        pass.queue().await.map_err(crowded)?;
    }
    Ok(read)
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
        ReadError::Syntax { ref field, ref reason, .. } => {
            let refusal = Refusal::new(Code::BadJson, error.to_string());
            if field.is_empty() { refusal } else { refusal.at(field.clone(), reason.clone()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use serde_json::Value;
    use tokio::time::Instant;

    fn request(body: Body) -> Request {
        Request::builder().body(body).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up_as_a_whole() {
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let start = Instant::now();
        let refusal = json::<Value>(request(Body::from_stream(trickle)), 1000).await.unwrap_err();
        assert_eq!((refusal, start.elapsed()), (slow(BODY_TIMEOUT), BODY_TIMEOUT));
    }

    #[tokio::test]
    async fn the_limit_is_exact_whether_or_not_the_size_is_announced() {
        let unannounced = |size: usize| {
            let pieces = vec![Ok::<_, std::io::Error>(Bytes::from(format!("{{{}}}", " ".repeat(size - 2))))];
            request(Body::from_stream(stream::iter(pieces)))
        };
        let too_large = Refusal::new(Code::BodyTooLarge, "this call takes at most 8 bytes");
        assert_eq!(json::<Value>(unannounced(8), 8).await, Ok(serde_json::json!({})));
        assert_eq!(json::<Value>(unannounced(9), 8).await, Err(too_large.clone()));
        let mut announced = request(Body::empty());
        announced.headers_mut().insert(CONTENT_LENGTH, 9.into());
        assert_eq!(json::<Value>(announced, 8).await, Err(too_large));
    }

    #[test]
    fn kinds_are_compared_without_case_and_parameters() {
        let read = |value: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, axum::http::HeaderValue::from_static(value))]);
            kind(&headers, "hint", |kind| kind == "application/json").is_ok()
        };
        assert!(read("Application/JSON; charset=utf-8"));
        assert!(!read("application/jsonl") && !read(""));
    }
}
