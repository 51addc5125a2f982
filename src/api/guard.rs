//! Owns who gets in: the gate, then key, scope and quota. All before the body is read.
//! Must never know: what is asked for.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::time::Instant;

use super::Api;
use super::keys::{Key, Scope};
use super::problem::{Code, Refusal};

/// Who calls; for logs.
#[derive(Debug, Clone)]
pub(super) struct Caller(pub String);

/// Lets the request in or sheds it. A panic behind this door becomes an answer and a log line.
pub(super) async fn enter(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let Ok(pass) = api.gate.enter() else {
        return Refusal::new(Code::Overloaded, "as many requests in flight as this instance serves at once")
            .into_response();
    };
    request.extensions_mut().insert(pass.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let begun = Instant::now();
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    drop(pass);
    let response = answer.unwrap_or_else(|_| Refusal::internal("a handler panicked").into_response());
    let (status, ms) = (response.status().as_u16(), begun.elapsed().as_millis());
    tracing::debug!(target: "fanfare::api", %method, path, status, ms, "request served");
    response
}

/// Wants a known key with one of `scopes` that is within its quota.
pub(super) async fn require(
    State((api, scopes)): State<(Arc<Api>, &'static [Scope])>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&api, scopes, request.headers()) {
        Ok(key) => {
            request.extensions_mut().insert(Caller(key.name.clone()));
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn admit<'a>(api: &'a Api, scopes: &[Scope], headers: &HeaderMap) -> Result<&'a Key, Refusal> {
    let send = "send `Authorization: Bearer KEY`";
    let unknown = |detail: String| Refusal::new(Code::Unauthenticated, detail);
    let secret = bearer(headers).ok_or_else(|| unknown(format!("no key was sent; {send}")))?;
    let key = api.state.keys.find(secret).ok_or_else(|| unknown(format!("the key is not known here; {send}")))?;
    if !scopes.iter().any(|s| key.scopes.contains(s)) {
        let needed: Vec<&str> = scopes.iter().map(|s| s.as_str()).collect();
        let detail = format!("the key `{}` needs the scope {}", key.name, needed.join(" or "));
        return Err(Refusal::new(Code::Forbidden, detail));
    }
    api.quota.take(&key.name, Instant::now()).map_err(|wait| {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let limit = api.state.limits.requests_per_s_per_key;
        let detail = format!("the key `{}` may make {limit} requests per second", key.name);
        Refusal::new(Code::QuotaExceeded, detail).retry_after_s(seconds)
    })?;
    Ok(key)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}
