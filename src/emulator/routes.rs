//! Owns the paths: FCM's own, those that give out tokens, and the way to the pages about the emulator itself.
//! Must never know: connections and TLS.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{AUTHORIZATION, DATE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::EmulatorError;
use super::answer::{AnswerId, Cut};
use super::book::{Arrival, Book};
use super::conduct::Control;
use super::message::{self, Message};
use super::network::{Fate, Wire, Wires};
use super::oauth::Account;
use super::reply::{self, Body, Reply, Stage};
use super::stats::Stats;
use super::{desk, grant};

/// The largest request body read, bytes; far above what FCM takes.
const BODY_MAX: usize = 256 * 1024;

/// What every request may need.
pub(super) struct Shared {
    pub(super) book: Book,
    pub(super) wires: Arc<Wires>,
    pub(super) account: Account,
    pub(super) project: String,
    pub(super) ca_pem: Option<String>,
}

impl Shared {
    /// All of it or, when something in it cannot be, nothing.
    pub(super) fn control(&self, change: &Control) -> Result<(), EmulatorError> {
        self.book.control(change)?;
        if change.calm {
            self.wires.calm();
        }
        if change.reset {
            self.wires.reset();
        }
        self.wires.change(&change.network);
        Ok(())
    }

    /// What is in force, for people.
    pub(super) fn in_force(&self) -> serde_json::Value {
        let mut shown = self.book.in_force();
        shown["network"] = self.wires.in_force();
        shown
    }

    /// All counts.
    pub(super) fn stats(&self) -> Stats {
        self.wires.count(self.book.stats())
    }
}

/// What an answer can do to the world around its request.
struct Around<'a> {
    book: &'a Book,
    wire: &'a Wire,
    /// Releases before the request, so that one right after it was logged is not missed.
    releases: u64,
}

impl Stage for Around<'_> {
    fn sever(&self, cut: Cut) {
        self.wire.meet(match cut {
            Cut::Fin => Fate::Fin,
            Cut::Rst => Fate::Rst,
        });
    }

    fn released(&self) -> impl Future<Output = ()> + Send {
        self.book.released(self.releases)
    }
}

/// Answers one request that came over this connection.
pub(super) async fn handle(shared: Arc<Shared>, wire: Arc<Wire>, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let reply = if head.uri.path().starts_with("/emulator/") {
        desk::page(&shared, &head.method, &head.uri, body).await
    } else {
        provider(&shared, &wire, &head, body).await
    };
    let skew_s = shared.book.clock_skew_s();
    reply.map(|mut response| {
        if skew_s != 0 {
            response.headers_mut().insert(DATE, date(unix_now().saturating_add(skew_s)));
        }
        response
    })
}

/// Answers one request on the listener that no fault touches.
pub(super) async fn handle_control(shared: Arc<Shared>, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    desk::page(&shared, &head.method, &head.uri, body).await
}

async fn provider(shared: &Shared, wire: &Wire, head: &Parts, body: Incoming) -> Reply {
    let path = head.uri.path();
    let around = Around { book: &shared.book, wire, releases: shared.book.releases() };
    match (&head.method, send_path(path)) {
        (&Method::POST, Some(project)) => send(shared, Sender { project, headers: &head.headers, around }, body).await,
        (&Method::POST, None) if path == "/token" => {
            let Some(form) = collect(body).await? else { return Ok(too_large()) };
            let now_s = unix_now().saturating_add(shared.book.clock_skew_s());
            grant::token(&shared.book, &shared.account, &form, now_s, &around).await
        }
        (&Method::GET, None) => {
            let known = grant::metadata(&shared.book, &shared.account, (path, &head.headers), &around).await;
            known.unwrap_or_else(|| Ok(not_found()))
        }
        _ => Ok(not_found()),
    }
}

/// `/v1/projects/{project}/messages:send`.
fn send_path(path: &str) -> Option<&str> {
    let project = path.strip_prefix("/v1/projects/")?.strip_suffix("/messages:send")?;
    (!project.is_empty() && !project.contains('/')).then_some(project)
}

struct Sender<'a> {
    project: &'a str,
    headers: &'a HeaderMap,
    around: Around<'a>,
}

async fn send(shared: &Shared, sender: Sender<'_>, body: Incoming) -> Reply {
    let Some(body) = collect(body).await? else { return Ok(too_large()) };
    let message = message::read(&body, unix_now());
    let refusal = refusal(shared, &sender, &message);
    let Sender { project, around, .. } = sender;
    let arrival = Arrival { project, message: &message, connection: around.wire.number, refusal };
    let decision = shared.book.decide(&arrival);
    if !decision.wait.is_zero() {
        tokio::time::sleep(decision.wait).await;
    }
    if let (AnswerId::BAD_REQUEST, Some(fault)) = (decision.play.id, &message.fault) {
        return Ok(reply::bad_request(fault));
    }
    let name = format!("projects/{project}/messages/{}", decision.message_id);
    let reply = reply::play(decision.play.id.answer(), decision.play.number, &name, &around).await;
    reply.map(|mut response| {
        if let Some(value) = decision.retry_after {
            response.headers_mut().insert(RETRY_AFTER, value);
        }
        response
    })
}

fn refusal(shared: &Shared, sender: &Sender<'_>, message: &Message) -> Option<AnswerId> {
    if let Err(answer) = shared.book.admits(bearer(sender.headers)) {
        return Some(answer);
    }
    if sender.project != shared.project {
        return Some(AnswerId::WRONG_PROJECT);
    }
    message.fault.is_some().then_some(AnswerId::BAD_REQUEST)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// The whole body; none when it is larger than [`BODY_MAX`]; an error when the client went away.
pub(super) async fn collect(body: Incoming) -> Result<Option<Bytes>, h2::Error> {
    match Limited::new(body, BODY_MAX).collect().await {
        Ok(whole) => Ok(Some(whole.to_bytes())),
        Err(fault) if fault.is::<http_body_util::LengthLimitError>() => Ok(None),
        Err(_) => Err(h2::Reason::CANCEL.into()),
    }
}

pub(super) fn too_large() -> Response<Body> {
    reply::text(413, "text/html; charset=UTF-8", "<p>Your client issued a request that was too large.</p>")
}

pub(super) fn not_found() -> Response<Body> {
    reply::text(404, "text/html; charset=UTF-8", "<p>The requested URL was not found on this server.</p>")
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// An HTTP-date; those a date cannot say are the first one it can.
fn date(unix_s: i64) -> HeaderValue {
    /// 31 December 9999.
    const LAST: u64 = 253_402_300_799;
    let since = Duration::from_secs(u64::try_from(unix_s).unwrap_or(0).min(LAST));
    let text = httpdate::fmt_http_date(UNIX_EPOCH + since);
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}
