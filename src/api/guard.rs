//! Owns who gets in: the gate, then key, scope, class and quota. All before the body is read.
//! Must never know: what is asked for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::deadline::Deadline;
use super::keys::{Key, Scope};
use super::path::shown;
use super::problem::{Cause, Code, Refusal};
use super::whole::whole;
use super::{Api, pools};
use crate::door::gate::LONGEST_WAIT;
use crate::door::{Cap, Pass, Pool, Reason};
use crate::wire::QuotaLimit;

/// Who calls; for logs.
#[derive(Debug, Clone)]
pub(super) struct Caller(pub String);

/// Room for bodies that come slowly, and who sends this one. They hold no place meanwhile, so they are counted apart.
#[derive(Debug, Clone)]
pub(super) struct SlowBodies(pub Cap, pub String);

/// Lets the request in or sheds it. A panic behind this door becomes an answer and a log line.
pub(super) async fn enter(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let arrived = Instant::now();
    let pool = pools::pool(request.uri().path());
    let (pass, deadline) = match admit(&api, pool, request.headers(), arrived).await {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal.into_response(),
    };
    let extensions = request.extensions_mut();
    extensions.insert(pass.clone());
    extensions.insert(deadline);
    let (method, path) = (request.method().clone(), request.uri().clone());
    let served = async move |pass: Pass| {
        let begun = Instant::now();
        let response = next.run(request).await;
        account(&api, &pass, &response, begun.elapsed());
        let (status, ms) = (response.status().as_u16(), arrived.elapsed().as_millis());
        tracing::debug!(target: "fanfare::api", %method, path = shown(path.path()), status, ms, "request served");
        response
    };
    let answer = whole(pass.clone(), served(pass)).await;
    answer.unwrap_or_else(|| Refusal::internal("a handler panicked").into_response())
}

async fn admit(api: &Api, pool: Pool, headers: &HeaderMap, arrived: Instant) -> Result<(Pass, Deadline), Refusal> {
    let deadline = Deadline::read(headers, arrived)?;
    let in_time = || {
        let allowed = deadline.allows(api.gate.typical(pool), Instant::now());
        allowed.inspect_err(|_| {
            // No time at all is too short for any estimate, so it says nothing against this one.
            if deadline.has_time(Instant::now()) {
                api.gate.doubt(pool);
            }
            api.shedding.note(pool, Reason::Deadline);
        })
    };
    in_time()?;
    let pass = api.gate.enter(pool).await.map_err(|reason| {
        api.shedding.note(pool, reason);
        crowded(reason)
    })?;
    in_time()?;
    Ok((pass, deadline))
}

/// No place at the gate.
pub(super) fn crowded(reason: Reason) -> Refusal {
    let detail = match reason {
        Reason::Waited => format!("no place became free within {} ms", LONGEST_WAIT.as_millis()),
        _ => "as many requests of this kind in flight as this instance serves at once".to_owned(),
    };
    Refusal::new(Code::Overloaded, detail).counted_as(reason)
}

/// Takes note of how a request that was let in ended.
fn account(api: &Api, pass: &Pass, response: &Response, took: Duration) {
    let refused = response.extensions().get::<Code>();
    // Who ran out of time took at least that long.
    let told = response.status().is_success() || refused == Some(&Code::OutOfTime);
    if told && pass.pool() != Pool::Bulk {
        pass.served(took);
    }
    let reason = match refused {
        Some(Code::Overloaded) => response.extensions().get().copied().unwrap_or(Reason::Full),
        Some(Code::OutOfTime) => Reason::Deadline,
        Some(Code::BacklogFull) => Reason::Backlog,
        Some(Code::DatabaseUnavailable) => Reason::Database,
        _ => return,
    };
    let cause = response.extensions().get::<Cause>().map_or("", |Cause(why)| why);
    api.shedding.note_because(pass.pool(), reason, cause);
}

/// Wants a known key with one of `scopes` that is within its quota.
pub(super) async fn require(
    State((api, scopes)): State<(Arc<Api>, &'static [Scope])>,
    mut request: Request,
    next: Next,
) -> Response {
    let pass = request.extensions().get::<Pass>().cloned();
    match known(&api, scopes, request.headers(), pass.as_ref()).await {
        Ok(key) => {
            request.extensions_mut().insert(SlowBodies(api.slow_bodies.clone(), key.name.clone()));
            request.extensions_mut().insert(Caller(key.name.clone()));
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn known<'a>(
    api: &'a Api,
    scopes: &[Scope],
    headers: &HeaderMap,
    pass: Option<&Pass>,
) -> Result<&'a Key, Refusal> {
    let key = permitted(api, scopes, headers)?;
    // The path has chosen the pool; a key can only narrow that. Before its quota is asked for, which may take a while: bulk
    // work must not wait in a place of others.
    if let Some(pass) = pass.filter(|pass| key.bulk && pass.pool() != Pool::Bulk) {
        pass.move_to(Pool::Bulk).await.map_err(crowded)?;
    }
    within_quota(api, key).await?;
    Ok(key)
}

fn permitted<'a>(api: &'a Api, scopes: &[Scope], headers: &HeaderMap) -> Result<&'a Key, Refusal> {
    let send = "send `Authorization: Bearer KEY`";
    let unknown = |detail: String| Refusal::new(Code::Unauthenticated, detail);
    let secret = bearer(headers).ok_or_else(|| unknown(format!("no key was sent; {send}")))?;
    let key = api.state.keys.find(secret).ok_or_else(|| unknown(format!("the key is not known here; {send}")))?;
    if scopes.iter().any(|s| key.scopes.contains(s)) {
        return Ok(key);
    }
    let needed: Vec<&str> = scopes.iter().map(|s| s.as_str()).collect();
    let detail = format!("the key `{}` needs the scope {}", key.name, needed.join(" or "));
    Err(Refusal::new(Code::Forbidden, detail))
}

async fn within_quota(api: &Api, key: &Key) -> Result<(), Refusal> {
    let Some(wait) = used_up(api, key).await else { return Ok(()) };
    api.state.measured.over_quota.get_or_create(&[("key", key.name.clone())]).inc();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let limit = api.state.limits.requests_per_s_per_key;
    let detail = format!("the key `{}` may make {limit} requests per second on all instances together", key.name);
    let quota = QuotaLimit { limit: limit.into(), window_s: 1, scope: format!("key:{}", key.name) };
    Err(Refusal::new(Code::QuotaExceeded, detail).retry_after_s(seconds).quota(quota))
}

/// How long until the key may ask again; `None` when it may now, which is counted. Kept for the fleet where that is
/// possible; else this instance has its share.
async fn used_up(api: &Api, key: &Key) -> Option<Duration> {
    let per_s = api.state.limits.requests_per_s_per_key;
    if let Some(fleet) = api.state.quotas.as_ref().filter(|_| per_s > 0)
        && let Ok(answer) = fleet.take(&key.name, per_s).await
    {
        api.quota.counted_elsewhere(&key.name, Instant::now());
        return answer;
    }
    let instances = *api.state.live.borrow();
    api.quota.take(&key.name, instances, Instant::now()).err()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}
