//! Owns the paths: FCM's own, the token endpoint, and everything about the emulator itself under `/emulator/`.
//! Must never know: connections and TLS.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Frame, Incoming};
use serde_json::json;

use super::answer::{ANSWERS, AnswerId};
use super::book::{Arrival, Book};
use super::conduct::Control;
use super::message::{self, Message};
use super::oauth::{Account, Refusal};
use super::reply::{self, Body, JSON, Reply};

/// The largest request body read, bytes; far above what FCM takes.
const BODY_MAX: usize = 256 * 1024;
/// Log entries fetched per hold of the lock.
const LOG_PAGE: usize = 1000;

/// What every request may need.
pub(super) struct Shared {
    pub(super) book: Book,
    pub(super) account: Account,
    pub(super) project: String,
    pub(super) ca_pem: Option<String>,
}

/// Answers one request that came over this connection.
pub(super) async fn handle(shared: Arc<Shared>, connection: u32, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if let Some(project) = send_path(path) {
        if head.method != Method::POST {
            return Ok(not_found());
        }
        return send(&shared, Sender { project, connection, headers: &head.headers }, body).await;
    }
    let query = head.uri.query().unwrap_or("");
    match (&head.method, path) {
        (&Method::POST, "/token") => token(&shared, body).await,
        (&Method::POST, "/emulator/control") => control(&shared, body).await,
        (&Method::GET, path) => Ok(show(&shared, path, query)),
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
    connection: u32,
    headers: &'a HeaderMap,
}

async fn send(shared: &Shared, sender: Sender<'_>, body: Incoming) -> Reply {
    let Some(body) = collect(body).await? else { return Ok(too_large()) };
    let message = message::read(&body, unix_now());
    let refusal = refusal(shared, &sender, &message);
    let Sender { project, connection, .. } = sender;
    let decision = shared.book.decide(&Arrival { project, message: &message, connection, refusal });
    if !decision.wait.is_zero() {
        tokio::time::sleep(decision.wait).await;
    }
    if let (AnswerId::BAD_REQUEST, Some(fault)) = (decision.play.id, &message.fault) {
        return Ok(reply::bad_request(fault));
    }
    let name = format!("projects/{project}/messages/{}", decision.message_id);
    reply::play(decision.play.id.answer(), decision.play.retry_after, &name).await
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

async fn token(shared: &Shared, body: Incoming) -> Reply {
    let Some(body) = collect(body).await? else { return Ok(too_large()) };
    let scripted = shared.book.oauth_call();
    if scripted != AnswerId::OK {
        return reply::play(scripted.answer(), None, "").await;
    }
    Ok(match shared.account.check(&body, unix_now()) {
        Ok(()) => {
            let (token, lifetime_s) = shared.book.issue_token();
            let answer = json!({"access_token": token, "expires_in": lifetime_s, "token_type": "Bearer"});
            reply::text(200, JSON, answer.to_string())
        }
        Err(Refusal(error, words)) => {
            reply::text(400, JSON, json!({"error": error, "error_description": words}).to_string())
        }
    })
}

async fn control(shared: &Shared, body: Incoming) -> Reply {
    let Some(body) = collect(body).await? else { return Ok(too_large()) };
    let change = serde_json::from_slice::<Control>(&body).map_err(|fault| fault.to_string());
    let applied = change.and_then(|change| shared.book.control(&change).map_err(|fault| fault.to_string()));
    Ok(match applied {
        Ok(()) => reply::text(200, JSON, shared.book.in_force().to_string()),
        Err(fault) => reply::text(400, JSON, json!({ "error": fault }).to_string()),
    })
}

fn show(shared: &Arc<Shared>, path: &str, query: &str) -> Response<Body> {
    match (path, &shared.ca_pem) {
        ("/emulator/healthz", _) => reply::text(200, JSON, "{\"status\":\"ok\"}"),
        ("/emulator/stats", _) => reply::text(200, JSON, json!(shared.book.stats()).to_string()),
        ("/emulator/control", _) => reply::text(200, JSON, shared.book.in_force().to_string()),
        ("/emulator/key.json", _) => reply::text(200, JSON, shared.account.key_json()),
        ("/emulator/answers", _) => {
            let table: Vec<_> = ANSWERS.iter().map(|a| json!({"name": a.name, "about": a.about})).collect();
            reply::text(200, JSON, json!(table).to_string())
        }
        ("/emulator/ca.pem", Some(pem)) => reply::text(200, "application/x-pem-file", pem.clone()),
        ("/emulator/log", _) => log(shared.clone(), query),
        _ => not_found(),
    }
}

/// The log up to now as NDJSON, page by page, so that a long log neither holds the lock nor fills the memory.
fn log(shared: Arc<Shared>, query: &str) -> Response<Body> {
    let since = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "since");
    let since = match since.map(|(_, value)| value.parse::<u64>()).transpose() {
        Ok(since) => since.unwrap_or(0),
        Err(fault) => return reply::text(400, JSON, json!({"error": format!("since: {fault}")}).to_string()),
    };
    let end = shared.book.log_len();
    reply::streamed(futures_util::stream::unfold(since, move |seq| {
        let left = usize::try_from(end.saturating_sub(seq)).unwrap_or(usize::MAX);
        let page = shared.book.log_after(seq, left.min(LOG_PAGE));
        let last = page.last().map(|last| last.seq);
        std::future::ready(last.map(|last| (Ok(Frame::data(ndjson(&page))), last)))
    }))
}

fn ndjson(entries: &[super::LogEntry]) -> Bytes {
    let mut lines = Vec::new();
    for entry in entries {
        // Writing plain fields into memory cannot fail.
        let _ = serde_json::to_writer(&mut lines, entry);
        lines.push(b'\n');
    }
    lines.into()
}

/// The whole body; none when it is larger than [`BODY_MAX`]; an error when the client went away.
async fn collect(body: Incoming) -> Result<Option<Bytes>, h2::Error> {
    match Limited::new(body, BODY_MAX).collect().await {
        Ok(whole) => Ok(Some(whole.to_bytes())),
        Err(fault) if fault.is::<http_body_util::LengthLimitError>() => Ok(None),
        Err(_) => Err(h2::Reason::CANCEL.into()),
    }
}

fn too_large() -> Response<Body> {
    reply::text(413, "text/html; charset=UTF-8", "<p>Your client issued a request that was too large.</p>")
}

fn not_found() -> Response<Body> {
    reply::text(404, "text/html; charset=UTF-8", "<p>The requested URL was not found on this server.</p>")
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
