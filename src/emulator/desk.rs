//! Owns the pages about the emulator itself, under `/emulator/`: control, log, counts, key, authority.
//! Must never know: how sends are answered.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use hyper::body::{Frame, Incoming};
use serde_json::json;

use super::LogEntry;
use super::conduct::Control;
use super::reply::{self, Body, JSON, Reply};
use super::routes::{Shared, collect, not_found, too_large};
use super::table::ANSWERS;
use super::token_answers::TOKEN_ANSWERS;

/// Log entries fetched per hold of the lock.
const LOG_PAGE: usize = 1000;

/// Answers a request for a page.
pub(super) async fn page(shared: &Arc<Shared>, method: &Method, uri: &http::Uri, body: Incoming) -> Reply {
    match (method, uri.path()) {
        (&Method::POST, "/emulator/control") => control(shared, body).await,
        (&Method::GET, path) => Ok(show(shared, path, uri.query().unwrap_or(""))),
        _ => Ok(not_found()),
    }
}

async fn control(shared: &Shared, body: Incoming) -> Reply {
    let Some(body) = collect(body).await? else { return Ok(too_large()) };
    let change = read(&body).map_err(|fault| fault.to_string());
    let applied = change.and_then(|change| shared.control(&change).map_err(|fault| fault.to_string()));
    Ok(match applied {
        Ok(()) => reply::text(200, JSON, shared.in_force().to_string()),
        Err(fault) => reply::text(400, JSON, json!({ "error": fault }).to_string()),
    })
}

/// By name only: a list would be read as the fields in their order.
fn read(body: &[u8]) -> serde_json::Result<Control> {
    serde_json::from_value(serde_json::Value::Object(serde_json::from_slice(body)?))
}

fn show(shared: &Arc<Shared>, path: &str, query: &str) -> Response<Body> {
    let json = |value: serde_json::Value| reply::text(200, JSON, value.to_string());
    match (path, &shared.ca_pem) {
        ("/emulator/healthz", _) => reply::text(200, JSON, "{\"status\":\"ok\"}"),
        ("/emulator/stats", _) => json(json!(shared.stats())),
        ("/emulator/control", _) => json(shared.in_force()),
        ("/emulator/key.json", _) => reply::text(200, JSON, shared.account.key_json()),
        ("/emulator/answers", _) => json(ANSWERS.iter().map(|a| json!({"name": a.name, "about": a.about})).collect()),
        ("/emulator/token-answers", _) => {
            json(TOKEN_ANSWERS.iter().map(|(name, about, _)| json!({"name": name, "about": about})).collect())
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

fn ndjson(entries: &[LogEntry]) -> Bytes {
    let mut lines = Vec::new();
    for entry in entries {
        // Writing plain fields into memory cannot fail.
        let _ = serde_json::to_writer(&mut lines, entry);
        lines.push(b'\n');
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_an_object_of_known_names() {
        assert_eq!(read(br#"{"latency_ms":5}"#).unwrap().latency_ms, Some(5));
        for wrong in ["[]", "[5]", "5", "null", r#"{"latency":5}"#, ""] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
