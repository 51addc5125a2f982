//! Owns `POST /v1/sweeps` and `GET /v1/sweeps/{id}`.
//! Must never know: how a sweep is carried out; it is a fan-out like any other, of kind `sweep`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::body::{self, MAX_BODY_BYTES};
use super::path::Id;
use super::problem::{Code, Refusal};
use crate::domain::batch::{FanoutKind, FanoutState};
use crate::domain::event::Event;
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId, IdError, MatchId};
use crate::domain::outcome::Outcome;
use crate::store::{FanoutView, NewSweep, StoreError, SweepBegun, SweepEnd};
use crate::wire;

/// Attempts when none are named: half an hour at the 5 % that bulk work keeps of a default ceiling is 80 times as much.
const DEFAULT_ATTEMPTS: u64 = 10_000;
/// What one sweep finds is judged in one transaction, which has a minute.
const MOST_ATTEMPTS: u64 = 1_000_000;
/// Above this there is hardly anybody left who shows that the provider is well.
const MOST_ACCEPTED_PERCENT: u8 = 95;
/// What is not asked about by then is left for the next sweep.
const LASTS_MS: i64 = 86_400_000;

/// Ask FCM which devices are dead, without sending anything.
///
/// Live devices are asked about with `validate_only`, in order, under the ceiling and behind everything else, until the
/// attempts are used up. Dead ones are tombstoned and bad ones suspended at the end, unless there are too many of a
/// platform. `validate_only` does not ask APNs: of iOS it finds what FCM itself knows. One sweep at a time.
#[utoipa::path(post, path = "/v1/sweeps", operation_id = "beginSweep", tag = "devices",
    request_body = wire::SweepRequest,
    responses(
        (status = 200, description = "A dry run: what it would do.", body = wire::Sweep),
        (status = 202, description = "Begun; `Location` is where to look at it.", body = wire::Sweep),
        (status = 404, description = "`sweep_not_found`: the one to resume."),
        (status = 409, description = "`sweep_running`: another one is under way."),
        (status = 422, description = "`invalid` names every field at fault."),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn begin(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Refusal> {
    let asked: wire::SweepRequest = body::json(request, MAX_BODY_BYTES).await?;
    check(&asked)?;
    let max_attempts = asked.max_attempts.unwrap_or(DEFAULT_ATTEMPTS);
    let store = &api.state.store;
    let after = match &asked.resume {
        Some(id) => store.sweep_end(sweep_id(id)?).await?.ok_or_else(absent)?.resumes_after(),
        None => DeviceKey(0),
    };
    if asked.dry_run {
        let left = store.live_count(after).await?;
        return Ok(Json(dry_run(left, max_attempts)).into_response());
    }
    let event = stand_in(api.state.clock.now_ms())?;
    let accept_dead_percent = asked.accept_dead_share;
    let new = NewSweep { event, after, max_attempts, accept_dead_percent, lasts_ms: LASTS_MS };
    match store.begin_sweep(api.state.boot, new).await? {
        SweepBegun::Begun(freeze) => {
            let id = freeze.job.id;
            tracing::info!(target: "fanfare::api", fanout_id = %id, max_attempts, after = after.0, "sweep begun");
            // When the hand-over is full the freezer finds it by itself.
            let _ = api.state.handover.try_send(*freeze);
            let shown = look(&api, id).await?;
            Ok((StatusCode::ACCEPTED, [(LOCATION, format!("/v1/sweeps/{id}"))], Json(shown)).into_response())
        }
        SweepBegun::Running(id) => {
            let detail = format!("sweep {id} is under way; GET /v1/sweeps/{id} shows how far it is");
            Err(Refusal::new(Code::SweepRunning, detail))
        }
    }
}

/// Look at a sweep.
#[utoipa::path(get, path = "/v1/sweeps/{id}", operation_id = "getSweep", tag = "devices",
    params(("id" = String, Path, description = "The sweep's id.", example = "24")),
    responses(
        (status = 200, description = "As it stands.", body = wire::Sweep),
        (status = 404, description = "`sweep_not_found`"),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn show(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Json<wire::Sweep>, Refusal> {
    Ok(Json(look(&api, sweep_id(&id)?).await?))
}

async fn look(api: &Api, id: FanoutId) -> Result<wire::Sweep, Refusal> {
    // In this order: what is withheld is fixed together with the end, so it is known to whoever has seen the end.
    let view = api.state.store.fanout(id).await?.filter(|view| view.kind == FanoutKind::Sweep).ok_or_else(absent)?;
    let end = api.state.store.sweep_end(id).await?.ok_or_else(absent)?;
    // Counting them reads a good part of the table: once, at the end.
    let left = match view.settled_ms {
        Some(_) => Some(api.state.store.live_count(end.after).await?),
        None => None,
    };
    Ok(shown(&view, &end, left))
}

fn check(asked: &wire::SweepRequest) -> Result<(), Refusal> {
    if asked.max_attempts.is_some_and(|n| !(1..=MOST_ATTEMPTS).contains(&n)) {
        return Err(Refusal::field("/max_attempts", format!("must be 1 to {MOST_ATTEMPTS}")));
    }
    if asked.accept_dead_share.is_some_and(|n| !(1..=MOST_ACCEPTED_PERCENT).contains(&n)) {
        return Err(Refusal::field("/accept_dead_share", format!("must be 1 to {MOST_ACCEPTED_PERCENT} per cent")));
    }
    Ok(())
}

fn sweep_id(raw: &str) -> Result<FanoutId, Refusal> {
    raw.parse().map_err(|_| absent())
}

fn absent() -> Refusal {
    Refusal::new(Code::SweepNotFound, "no sweep has this id; GET /v1/fanouts lists those of the last days")
}

/// A sweep has no event; what stands in for it names nobody and says nothing.
fn stand_in(now_ms: i64) -> Result<Event, StoreError> {
    let name = format!("sweep-{}", BootId::fresh());
    let odd = |error: IdError| StoreError::Corrupt(format!("the name of a sweep: {error}"));
    let match_id = MatchId::parse("sweep").map_err(odd)?;
    Ok(Event {
        id: EventId::parse(&name).map_err(odd)?,
        kind: "sweep".to_owned(),
        match_id,
        occurred_ms: now_ms,
        subjects: Vec::new(),
        fields: BTreeMap::new(),
        data: BTreeMap::new(),
        useful_for_s: 86_400,
        supersedes: None,
    })
}

fn dry_run(left: u64, max_attempts: u64) -> wire::Sweep {
    wire::Sweep {
        id: None,
        state: "dry_run".to_owned(),
        reason: None,
        devices: left.min(max_attempts),
        asked: 0,
        valid: 0,
        dead: 0,
        suspended: 0,
        unknown: 0,
        attempts: 0,
        withheld: BTreeMap::new(),
        left: Some(left),
    }
}

/// Where it stands and, when it is paused, why. It is done when it came to the last device there was when it was frozen
/// and every one has an outcome; devices that registered since are the next one's.
fn state(view: &FanoutView, left: Option<u64>) -> (&'static str, Option<String>) {
    let Some(left) = left else { return ("running", None) };
    let (cancelled, expired) = (view.tally.count(Outcome::Cancelled), view.tally.count(Outcome::Expired));
    let all_frozen = view.state != FanoutState::Cancelled
        && view.kin.max_attempts.is_some_and(|most| view.tally.recipients() < most);
    let reason = match view.kin.paused {
        None if view.state == FanoutState::Cancelled => return ("cancelled", None),
        _ if left == 0 || (all_frozen && cancelled + expired == 0) => return ("done", None),
        Some(reason) => reason.to_string(),
        None if expired > 0 => "deadline".to_owned(),
        None => "budget".to_owned(),
    };
    ("paused", Some(reason))
}

fn shown(view: &FanoutView, end: &SweepEnd, left: Option<u64>) -> wire::Sweep {
    let tally = &view.tally;
    let (state, reason) = state(view, left);
    let dead = tally.count(Outcome::TokenDead);
    let suspended = tally.count(Outcome::TokenInvalid) + tally.count(Outcome::TokenForeign);
    let never_asked = tally.count(Outcome::Cancelled) + tally.count(Outcome::Expired);
    let asked = tally.finished().saturating_sub(never_asked);
    wire::Sweep {
        id: Some(view.id.to_string()),
        state: state.to_owned(),
        reason,
        devices: tally.recipients(),
        asked,
        valid: tally.delivered(),
        dead,
        suspended,
        unknown: asked - tally.delivered() - dead - suspended,
        attempts: view.counters.attempts,
        withheld: end.withheld.iter().map(|of| (of.platform.as_str().to_owned(), of.against)).collect(),
        left,
    }
}
