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

use super::answer::{Answer, Cut, Detail, Number, Wire};
use super::schema::Fault;

/// Response bodies; an error ends the stream with its reason.
pub(super) type Body = UnsyncBoxBody<Bytes, h2::Error>;
/// A response, or the reason the stream is reset with.
pub(super) type Reply = Result<Response<Body>, h2::Error>;

/// As Google labels its JSON.
pub(super) const JSON: &str = "application/json; charset=UTF-8";

/// From half a body to its reset.
const CUT_AFTER: Duration = Duration::from_millis(50);

/// The end of a body without end, bytes at a time.
const PIECE: &[u8] = &[b' '; 16 * 1024];

/// What a reply may need of the world around it.
pub(super) trait Stage {
    /// Ends the connection below the request.
    fn sever(&self, cut: Cut);
    /// Waits until everything that is held is released.
    fn released(&self) -> impl Future<Output = ()> + Send;
}

/// Plays an answer with its number, as far as it has one; `name` of the message for those that accept it.
pub(super) async fn play(answer: &Answer, number: Option<u32>, name: &str, stage: &impl Stage) -> Reply {
    if let Some(reason) = answer.reset(number) {
        return Err(reason.into());
    }
    let accepted = || json!({ "name": name }).to_string();
    let mut response = match answer.wire {
        Wire::Accept => text(200, JSON, accepted()),
        Wire::Held => {
            stage.released().await;
            text(200, JSON, accepted())
        }
        Wire::Drip => streamed(drip(accepted(), number.unwrap_or(1))),
        Wire::Error(status, grpc, words, details) => {
            text(status, JSON, envelope(status, grpc, words, details.iter().map(|d| detail(*d)).collect()))
        }
        Wire::Raw(status, kind, body) => text(status, kind, Bytes::from_static(body)),
        Wire::Repeat(status, kind, body, times) => text(status, kind, body.repeat(times)),
        Wire::Sever(cut) => {
            stage.sever(cut);
            return std::future::pending().await;
        }
        Wire::Hang | Wire::Reset(_) | Wire::ResetBy => return std::future::pending().await,
        Wire::Endless => streamed(futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(PIECE))))),
        Wire::Stall => streamed(futures_util::stream::pending()),
        Wire::Cut => streamed(cut()),
    };
    for (name, value) in answer.headers {
        response.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(value) = number.and_then(|s| retry_value(answer.number, s)) {
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

/// One byte at a time, so many a second.
fn drip(body: String, per_s: u32) -> impl Stream<Item = Result<Frame<Bytes>, h2::Error>> {
    let gap = Duration::from_secs(1) / per_s.max(1);
    futures_util::stream::iter(body.into_bytes()).then(move |byte| async move {
        tokio::time::sleep(gap).await;
        Ok(Frame::data(Bytes::from(vec![byte])))
    })
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
        Detail::Quota(subject) => json!({
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"subject": subject, "description": "Message rate exceeded"}]
        }),
        Detail::Typed(kind, code) => json!({"@type": kind, "errorCode": code}),
    }
}

fn retry_value(number: Number, seconds: u32) -> Option<HeaderValue> {
    match number {
        Number::RetryAfter => Some(HeaderValue::from(seconds)),
        Number::RetryDate => {
            let then = SystemTime::now() + Duration::from_secs(u64::from(seconds));
            HeaderValue::from_str(&httpdate::fmt_http_date(then)).ok()
        }
        Number::Nothing | Number::DelayMs | Number::Code | Number::Speed => None,
    }
}
