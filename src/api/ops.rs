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

/// How a part of readiness is, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// As it should be.
    Fine(String),
    /// Events are taken, but something holds the sending: that passes, or needs a person, but no restart.
    Degraded(String),
    /// Not ready.
    Failed(String),
}

impl Part {
    const fn shown(&self) -> (&'static str, &String) {
        match self {
            Self::Fine(says) => ("+", says),
            Self::Degraded(says) => ("!", says),
            Self::Failed(says) => ("-", says),
        }
    }
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
/// part by part: `[+]` fine, `[!]` degraded, `[-]` not ready. Being idle is healthy. `/metrics`: Prometheus' text format.
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
    let fails = |part: &Part| matches!(part, Part::Failed(_));
    let failed = parts.iter().any(|(_, part)| fails(part));
    let verbose = query.is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    let mut text = String::new();
    for (name, part) in &parts {
        // A failing part is told even when nobody asked: it is what the reader wants to know next.
        if verbose || fails(part) {
            let (mark, says) = part.shown();
            let _ = writeln!(text, "[{mark}] {name}: {says}");
        }
    }
    text.push_str(if failed { "not ready\n" } else { "ready\n" });
    let status = if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, [(CACHE_CONTROL, "no-store")], text)
}

async fn metrics(State(ops): State<OpsState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], (ops.metrics)())
}
