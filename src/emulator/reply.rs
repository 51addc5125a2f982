//! Owns how an answer becomes an HTTP response, or the end of a stream without one.
//! Must never know: why this answer was chosen.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::answer::{Answer, Detail, Number, Wire};
use super::schema::Fault;

/// Response bodies; an error ends the stream with its reason.
pub(super) type Body = UnsyncBoxBody<Bytes, h2::Error>;
/// A response, or the reason the stream is reset with.
pub(super) type Reply = Result<Response<Body>, h2::Error>;

/// As Google labels its JSON.
pub(super) const JSON: &str = "application/json; charset=UTF-8";

/// From half a body to its reset.
const CUT_AFTER: Duration = Duration::from_millis(50);

/// Plays an answer; `retry_after` in seconds, `name` of the message for those that accept it.
pub(super) async fn play(answer: &Answer, retry_after: Option<u32>, name: &str) -> Reply {
    let mut response = match answer.wire {
        Wire::Accept => text(200, JSON, json!({ "name": name }).to_string()),
        Wire::Error(status, grpc, words, details) => {
            text(status, JSON, envelope(status, grpc, words, details.iter().map(|d| detail(*d)).collect()))
        }
        Wire::Raw(status, kind, body) => text(status, kind, body),
        Wire::Repeat(status, kind, body, times) => text(status, kind, body.repeat(times)),
        Wire::Reset(reason) => return Err(reason.into()),
        Wire::Hang => return std::future::pending().await,
        Wire::Stall => streamed(futures_util::stream::pending()),
        Wire::Cut => streamed(cut()),
    };
    for (name, value) in answer.headers {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(value) = retry_after.and_then(|s| retry_value(answer.number, s)) {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    Ok(response)
}

/// 400 for a body that is at fault: without FcmError where it could not be parsed, with it where it makes no sense.
pub(super) fn bad_request(fault: &Fault) -> Response<Body> {
    let words = if fault.parse && !fault.field.is_empty() {
        format!("Invalid JSON payload received. Invalid value at '{}' {}", fault.field, fault.text)
    } else {
        fault.text.clone()
    };
    let violation = json!({"@type": BAD_REQUEST, "fieldViolations": [{"field": fault.field, "description": words}]});
    let mut details = vec![violation];
    if !fault.parse {
        details.insert(0, detail(Detail::Fcm("INVALID_ARGUMENT")));
    }
    text(400, JSON, envelope(400, "INVALID_ARGUMENT", &words, details))
}

/// A whole body.
pub(super) fn text(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let full = Full::new(body.into()).map_err(|never| match never {});
    let mut response = Response::new(full.boxed_unsync());
    // Statuses are those of the table, all of them valid.
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// 200 with a body that comes in pieces.
pub(super) fn streamed<S>(frames: S) -> Response<Body>
where
    S: Stream<Item = Result<Frame<Bytes>, h2::Error>> + Send + 'static,
{
    let mut response = Response::new(StreamBody::new(frames.boxed()).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// Half a body, then the reset. It has to wait for the half to leave: what is still queued when a stream is reset is
/// thrown away.
fn cut() -> impl Stream<Item = Result<Frame<Bytes>, h2::Error>> {
    let half = Frame::data(Bytes::from_static(b"{\"name\":\"projects/"));
    let reset = async {
        tokio::time::sleep(CUT_AFTER).await;
        Err(h2::Reason::INTERNAL_ERROR.into())
    };
    futures_util::stream::iter([Ok(half)]).chain(futures_util::stream::once(reset))
}

const BAD_REQUEST: &str = "type.googleapis.com/google.rpc.BadRequest";

fn envelope(status: u16, grpc: &str, words: &str, details: Vec<Value>) -> String {
    let mut error = json!({"code": status, "message": words, "status": grpc});
    if !details.is_empty() {
        error["details"] = details.into();
    }
    json!({ "error": error }).to_string()
}

fn detail(detail: Detail) -> Value {
    match detail {
        Detail::Fcm(code) => json!({"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}),
        Detail::Apns(status, reason) => json!({
            "@type": "type.googleapis.com/google.firebase.fcm.v1.ApnsError", "statusCode": status, "reason": reason
        }),
        Detail::Field(field) => json!({
            "@type": BAD_REQUEST, "fieldViolations": [{"field": field, "description": "Invalid value"}]
        }),
        Detail::Info(reason) => json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com",
            "metadata": {"service": "fcm.googleapis.com", "method": "google.firebase.fcm.v1.FcmService.SendMessage"}
        }),
    }
}

fn retry_value(number: Number, seconds: u32) -> Option<HeaderValue> {
    match number {
        Number::RetryAfter => Some(HeaderValue::from(seconds)),
        Number::RetryDate => {
            let then = SystemTime::now() + Duration::from_secs(u64::from(seconds));
            HeaderValue::from_str(&httpdate::fmt_http_date(then)).ok()
        }
        Number::Nothing | Number::DelayMs => None,
    }
}
