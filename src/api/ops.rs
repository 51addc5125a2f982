//! Owns the operations listener: liveness, readiness, metrics. No keys, no limit, no database: it must answer when
//! nothing else does, so it is given what is known and asks nobody.
//! Must never know: what readiness is made of.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;

use super::problem;

/// How one part of the service does, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// As it should.
    Well(String),
    /// Worse than it should, and events are taken all the same.
    Degraded(String),
    /// So that no event can be taken.
    Failed(String),
}

/// Parts of readiness by name.
pub type Parts = Vec<(String, Part)>;

/// What the operations listener tells.
#[derive(Clone)]
pub struct OpsState {
    /// What readiness is made of. Must not block.
    pub parts: Arc<dyn Fn() -> Parts + Send + Sync>,
    /// The metrics as [`crate::metrics::CONTENT_TYPE`] says.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// `/livez`: the process answers. `/readyz` and `/healthz`: it can take events now (503 otherwise), with `?verbose`
/// part by part, `[+]` well, `[~]` degraded, `[-]` failed. Being idle is healthy, and so is being at the limit.
/// `/metrics`: Prometheus' text format.
pub fn ops_router(state: OpsState) -> Router {
    Router::new()
        .route("/livez", get(async || ([(CACHE_CONTROL, "no-store")], "ok\n")))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .with_state(state)
}

async fn ready(State(ops): State<OpsState>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let parts = (ops.parts)();
    let verbose = query.is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    let (mut text, mut failed) = (String::new(), false);
    for (part, state) in &parts {
        let (mark, says) = match state {
            Part::Well(says) => ('+', says),
            Part::Degraded(says) => ('~', says),
            Part::Failed(says) => ('-', says),
        };
        failed |= mark == '-';
        // A failing part is told even when nobody asked: it is what the reader wants to know next.
        if verbose || mark == '-' {
            let _ = writeln!(text, "[{mark}] {part}: {says}");
        }
    }
    text.push_str(if failed { "not ready\n" } else { "ready\n" });
    let status = if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, [(CACHE_CONTROL, "no-store")], text)
}

async fn metrics(State(ops): State<OpsState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], (ops.metrics)())
}
