//! Owns reading fan-outs: one, many, and waiting for one to settle.
//! Must never know: how one gets there.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::guard::Caller;
use super::path::Id;
use super::problem::{Code, Refusal};
use super::query::{self, Given};
use super::{Api, shown};
use crate::domain::batch::FanoutState;
use crate::domain::ids::FanoutId;
use crate::door::{Pass, Reason};
use crate::store::{FanoutQuery, FanoutView};
use crate::wire;

/// Longest long poll, ms. Most proxies give up on an answer after 60 s.
const MAX_WAIT_MS: u32 = 60_000;
/// A fan-out may be settled by another instance, of which no nudge comes.
const TICK: Duration = Duration::from_secs(1);
const MAX_PAGE: u32 = 100;
const PAGE: u32 = 20;

/// One fan-out; with `wait_ms` once it is settled, or as it is when that time has passed.
///
/// `delivered + failed + pending == recipients` at every reading. A fan-out with `settled_at` never changes again.
#[utoipa::path(get, path = "/v1/fanouts/{id}", operation_id = "getFanout", tag = "fan-outs",
    params(
        ("id" = String, Path, description = "The fan-out's id.", example = "17"),
        ("wait_ms" = Option<u32>, Query, maximum = 60000,
            description = "Longest wait until it is settled, set aside or paused, ms; 0 = answer at once."),
    ),
    responses(
        (status = 200, description = "As it stands.", body = wire::Fanout),
        (status = 404, description = "`fanout_not_found`"),
        (status = 422, description = "`invalid`: a parameter is unknown, given twice or out of range."),
    ),
    security(("key" = ["events"]), ("key" = ["ops"])))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Extension(pass): Extension<Pass>,
    Extension(Caller(caller)): Extension<Caller>,
    Id(id): Id,
    given: Given,
) -> Result<Json<wire::Fanout>, Refusal> {
    let [wait_ms] = query::read(given, ["wait_ms"])?;
    let wait_ms = query::number("wait_ms", wait_ms, 0..=MAX_WAIT_MS)?.unwrap_or(0);
    let id = fanout_id(&id)?;
    // Subscribed before the first reading: what settles after that reading is heard.
    let mut settled = api.state.settled.subscribe();
    let until = Instant::now() + Duration::from_millis(wait_ms.into());
    let mut poll = None;
    loop {
        let view = api.state.store.fanout(id).await?.ok_or_else(absent)?;
        if ended(&view) || Instant::now() >= until || api.state.draining.is_cancelled() {
            return Ok(Json(shown::fanout(&view, api.state.clock.now_ms())?));
        }
        if poll.is_none() {
            poll = Some(api.polls.take(&caller).ok_or_else(too_many)?);
        }
        pass.step_out();
        tokio::select! {
            () = heard(&mut settled, id) => {}
            () = tokio::time::sleep_until(until.min(Instant::now() + TICK)) => {}
            () = api.state.draining.cancelled() => {}
        }
        // As many as wait for one fan-out wake when it settles. Until its time is over a poll takes only a place that is
        // free, so that it keeps no new request waiting.
        let mut inside = pass.step_in_if_free();
        while !inside && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rand::random_range(2..20))).await;
            inside = pass.step_in_if_free();
        }
        if !inside {
            pass.step_in().await;
        }
    }
}

/// The fan-out a path names. What is no number names none.
pub(super) fn fanout_id(raw: &str) -> Result<FanoutId, Refusal> {
    raw.parse().map_err(|_| absent())
}

pub(super) fn absent() -> Refusal {
    let detail = "no fan-out has this id; GET /v1/fanouts lists them";
    Refusal::new(Code::FanoutNotFound, detail)
}

fn too_many() -> Refusal {
    let detail = "as many calls of this key wait for fan-outs as this instance lets wait; ask without wait_ms";
    Refusal::new(Code::Overloaded, detail).counted_as(Reason::Parked)
}

const fn ended(view: &FanoutView) -> bool {
    view.settled_ms.is_some() || matches!(view.state, FanoutState::SetAside | FanoutState::Paused)
}

/// Ends when `id` is settled here, or may have been while we fell behind. A closed channel leaves it to the ticker.
async fn heard(settled: &mut broadcast::Receiver<FanoutId>, id: FanoutId) {
    loop {
        match settled.recv().await {
            Ok(other) if other != id => {}
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Fan-outs, newest first, a page at a time.
#[utoipa::path(get, path = "/v1/fanouts", operation_id = "listFanouts", tag = "fan-outs",
    params(
        ("state" = Option<String>, Query, description = "Only of this state."),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Most of them; 20 when absent."),
    ),
    responses(
        (status = 200, description = "A page.", body = wire::FanoutList),
        (status = 422, description = "`invalid`: a parameter is unknown, given twice or out of range."),
    ),
    security(("key" = ["events"]), ("key" = ["ops"])))]
pub(super) async fn list(State(api): State<Arc<Api>>, given: Given) -> Result<Json<wire::FanoutList>, Refusal> {
    let [state, cursor, limit] = query::read(given, ["state", "cursor", "limit"])?;
    let state = state.map(|name| parse_state(&name)).transpose()?;
    let foreign = || Refusal::field("cursor", "pass the `next_cursor` of the page before");
    let before = cursor.map(|raw| raw.parse::<FanoutId>().map_err(|_| foreign())).transpose()?;
    let limit = query::number("limit", limit, 1..=MAX_PAGE)?.unwrap_or(PAGE);
    // One more than asked tells whether there is a next page.
    let mut views = api.state.store.fanouts(FanoutQuery { state, before, limit: limit + 1, accepted: None }).await?;
    let more = views.len() > limit as usize;
    views.truncate(limit as usize);
    let next_cursor = views.last().filter(|_| more).map(|last| last.id.to_string());
    let now_ms = api.state.clock.now_ms();
    let fanouts = views.iter().map(|view| shown::fanout(view, now_ms)).collect::<Result<_, _>>()?;
    Ok(Json(wire::FanoutList { fanouts, next_cursor }))
}

fn parse_state(name: &str) -> Result<FanoutState, Refusal> {
    let names: Vec<&str> = FanoutState::ALL.iter().map(|s| s.as_str()).collect();
    let found = FanoutState::ALL.iter().copied().find(|s| s.as_str() == name);
    found.ok_or_else(|| Refusal::field("state", format!("must be one of {}", names.join(", "))))
}
