//! Owns `POST /v1/fanouts/{id}/replay` and `/resume`.
//! Must never know: how recipients are chosen or sent to.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};

use super::body::{MAX_BODY_BYTES, json_or_default};
use super::fanouts::{absent, fanout_id};
use super::path::Id;
use super::problem::{Code, Refusal};
use super::{Api, shown};
use crate::domain::batch::{FanoutKind, FanoutState};
use crate::domain::derived::{PauseReason, Source};
use crate::domain::event::USEFUL_RANGE_S;
use crate::domain::ids::{DeviceKey, EventId, FanoutId};
use crate::store::{FanoutView, FreezeJob, FrozenPage, NewReplay, ReplayReply, ResumeReply};
use crate::wire::{self, ReplayAnswer, ReplayRequest, ResumeRequest};

/// Recipients counted at once.
const PAGE: u32 = 10_000;
const ATTEMPTS: RangeInclusive<u64> = 1..=1_000_000_000;

/// Replay a fan-out: send again to those it failed to reach, as a new fan-out.
///
/// It is for the recipients that ended as `credential`, `transient`, `protocol`, `expired` or `internal` (and
/// `unconfirmed` when asked), whose device is live, and whom no earlier replay has reached. Of a fan-out that is
/// `set_aside` what was set aside ends as `internal` first, and is replayed. One replay of a fan-out at a time. It stops as
/// `paused` when it has made `max_attempts` requests, failures included, or when FCM throttles the project. Several
/// instances may overshoot by what they make in one second. The same `request_id` is the same replay, whatever has become
/// of the fan-out since.
#[utoipa::path(post, path = "/v1/fanouts/{id}/replay", operation_id = "replayFanout", tag = "fan-outs",
    params(("id" = String, Path, description = "The fan-out's id.", example = "17")),
    request_body = ReplayRequest,
    responses(
        (status = 202, description = "A new fan-out, kept.", body = ReplayAnswer,
            headers(("Location" = String, description = "Where to read its state."))),
        (status = 200, description = "A dry run, or the replay that the same `request_id` made before.", body = ReplayAnswer),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 404, description = "`fanout_not_found`"),
        (status = 408, description = "`body_timeout`"),
        (status = 409, description = "`fanout_open`: it has not ended. `fanout_superseded`: a correction has taken its place. \
            `replay_running`: one has not ended. `not_replayable`: a sweep. `past_retention`: whom its earlier replays \
            reached may be deleted before this one has ended."),
        (status = 413, description = "`body_too_large`"),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`invalid`: of useful_for_s, too, when its deadline is past and none was given."),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn run(State(api): State<Arc<Api>>, Id(id): Id, request: Request) -> Result<Response, Refusal> {
    let asked = json_or_default::<ReplayRequest>(request, MAX_BODY_BYTES).await?;
    let id = fanout_id(&id)?;
    let parent = api.state.store.fanout(id).await?.ok_or_else(absent)?;
    if let Some(name) = &asked.request_id {
        EventId::parse(name).map_err(|fault| Refusal::field("/request_id", fault.to_string()))?;
    }
    if let Some(name) = asked.request_id.clone().filter(|_| !asked.dry_run)
        && let Some(same) = api.state.store.replay_named(id, name).await?
    {
        return again(&api, id, same).await;
    }
    may_be_replayed(&parent)?;
    let source = if asked.include_unconfirmed { Source::FailedOrUnconfirmed } else { Source::Failed };
    let deadline_ms = deadline(&asked, &parent, api.state.clock.now_ms())?;
    remembered(&parent, deadline_ms, api.state.keep_ms)?;
    let recipients = count(&api, id, source).await?;
    let max_attempts = attempts(asked.max_attempts)?.unwrap_or_else(|| recipients.saturating_mul(2).max(1));
    let told = |fanout: Option<FanoutId>| answer(&api, fanout, (id, recipients), (deadline_ms, max_attempts));
    if asked.dry_run {
        return Ok(Json(told(None)?).into_response());
    }
    let new = NewReplay { parent: id, request_id: asked.request_id, source, deadline_ms, max_attempts };
    match commit(&api, new).await? {
        ReplayReply::New(freeze) => {
            let body = told(Some(freeze.job.id))?;
            let at = [(LOCATION, body.status_url.clone().unwrap_or_default())];
            Ok((StatusCode::ACCEPTED, at, Json(body)).into_response())
        }
        ReplayReply::Repeat(fanout) => again(&api, id, fanout).await,
        ReplayReply::Running(running) => Err(Refusal::new(
            Code::ReplayRunning,
            format!(
                "its replay {running} has not ended; wait for it (GET /v1/fanouts/{running}?wait_ms=60000), resume it or cancel it"
            ),
        )),
        ReplayReply::Superseded(by) => Err(superseded(by)),
        ReplayReply::Open(state) => Err(open(state)),
        ReplayReply::Unknown => Err(absent()),
    }
}

/// The same request, whatever has become of the fan-out since: what its replay is.
async fn again(api: &Api, parent: FanoutId, replay: FanoutId) -> Result<Response, Refusal> {
    let view = api.state.store.fanout(replay).await?.ok_or_else(absent)?;
    let most = view.kin.max_attempts.unwrap_or(0);
    let told = answer(api, Some(replay), (parent, view.tally.recipients()), (view.deadline_ms, most))?;
    Ok(Json(told).into_response())
}

/// Asked before anything is counted; the store asks again, when nobody can come in between.
fn may_be_replayed(parent: &FanoutView) -> Result<(), Refusal> {
    if parent.kind == FanoutKind::Sweep {
        let detail = "it is a sweep, which shows nobody anything; begin a new one (POST /v1/sweeps)".to_owned();
        return Err(Refusal::new(Code::NotReplayable, detail));
    }
    match (parent.kin.superseded_by, parent.settled_ms, parent.state) {
        (Some(by), ..) => Err(superseded(by)),
        (None, Some(_), _) | (None, None, FanoutState::SetAside) => Ok(()),
        (None, None, state) => Err(open(state)),
    }
}

/// Whom earlier replays have reached is known as long as these are kept. They were all made after what they repeat, so
/// nothing of them is deleted before then; a fan-out that is kept longer, for one that derives from it, knows no more.
fn remembered(parent: &FanoutView, deadline_ms: i64, keep_ms: i64) -> Result<(), Refusal> {
    let until = parent.accepted_ms.saturating_add(keep_ms);
    if deadline_ms <= until {
        return Ok(());
    }
    let until = shown::rfc3339(until)?;
    let detail = format!(
        "whom its earlier replays have reached is surely known until {until}, and this one could go on for longer: \
         whoever got it might get it twice. Give a shorter useful_for_s, or post the news as an event of its own"
    );
    Err(Refusal::new(Code::PastRetention, detail))
}

fn superseded(by: FanoutId) -> Refusal {
    Refusal::new(
        Code::FanoutSuperseded,
        format!("it was corrected by fan-out {by}, which is what people have to get; replay that one"),
    )
}

fn open(state: FanoutState) -> Refusal {
    let what = match state {
        FanoutState::Paused => "resume it (POST /v1/fanouts/{id}/resume)",
        _ => "wait until it has ended (GET /v1/fanouts/{id}?wait_ms=60000)",
    };
    Refusal::new(Code::FanoutOpen, format!("it is {state}: {what}, or cancel it first"))
}

fn deadline(asked: &ReplayRequest, parent: &FanoutView, now_ms: i64) -> Result<i64, Refusal> {
    let (from, to) = (USEFUL_RANGE_S.start(), USEFUL_RANGE_S.end());
    match asked.useful_for_s {
        Some(seconds) if USEFUL_RANGE_S.contains(&seconds) => Ok(now_ms + i64::from(seconds) * 1000),
        Some(seconds) => {
            Err(Refusal::field("/useful_for_s", format!("is {seconds} and must be {from} to {to} seconds")))
        }
        None if parent.deadline_ms > now_ms => Ok(parent.deadline_ms),
        None => {
            let ago = (now_ms - parent.deadline_ms) / 1000;
            let problem = format!(
                "the event stopped being useful {ago} s ago; say for how long it still is, {from} to {to} seconds from now"
            );
            Err(Refusal::field("/useful_for_s", problem))
        }
    }
}

fn attempts(asked: Option<u64>) -> Result<Option<u64>, Refusal> {
    match asked.filter(|n| !ATTEMPTS.contains(n)) {
        Some(n) => Err(Refusal::field(
            "/max_attempts",
            format!("is {n} and must be {} to {}", ATTEMPTS.start(), ATTEMPTS.end()),
        )),
        None => Ok(asked),
    }
}

async fn count(api: &Api, of: FanoutId, source: Source) -> Result<u64, Refusal> {
    let (mut after, mut recipients) = (DeviceKey(0), 0);
    loop {
        let keys = api.state.store.failed_page(FrozenPage { of, after, limit: PAGE }, source).await?;
        recipients += keys.len() as u64;
        match keys.last() {
            Some(last) if keys.len() >= PAGE as usize => after = *last,
            _ => return Ok(recipients),
        }
    }
}

fn answer(
    api: &Api,
    fanout: Option<FanoutId>,
    (parent, recipients): (FanoutId, u64),
    (deadline_ms, max_attempts): (i64, u64),
) -> Result<ReplayAnswer, Refusal> {
    let ceiling = (api.state.ceiling)();
    let sending = if ceiling.pace > 0.0 { recipients as f64 / ceiling.pace * 1000.0 } else { 0.0 };
    // A float to an integer saturates.
    let expected_ms = (sending as u64).saturating_add(ceiling.paused_for_ms);
    let ends_ms = api.state.clock.now_ms().saturating_add(i64::try_from(expected_ms).unwrap_or(i64::MAX));
    Ok(ReplayAnswer {
        status_url: fanout.map(|id| format!("/v1/fanouts/{id}")),
        fanout_id: fanout.map(|id| id.to_string()),
        parent: parent.to_string(),
        recipients,
        expected_ms,
        deadline_at: shown::rfc3339(deadline_ms)?,
        in_time: ends_ms <= deadline_ms,
        max_attempts,
    })
}

/// Commits and hands over in a task of its own, as an event is.
async fn commit(api: &Arc<Api>, new: NewReplay) -> Result<ReplayReply, Refusal> {
    let api = Arc::clone(api);
    let task = async move {
        let parent = new.parent;
        let reply = api.state.store.replay(api.state.boot, new).await?;
        if let ReplayReply::New(freeze) = &reply {
            hand_over(&api, freeze, parent);
        }
        Ok(reply)
    };
    tokio::spawn(task).await.unwrap_or_else(|fault| Err(Refusal::internal(&fault.to_string())))
}

fn hand_over(api: &Api, freeze: &FreezeJob, parent: FanoutId) {
    api.backlog.accepted(freeze.job.class);
    let handed_over = api.state.handover.try_send(freeze.clone()).is_ok();
    tracing::info!(target: "fanfare::api", fanout_id = %freeze.job.id, %parent, handed_over, "replay accepted");
    // What was set aside of it has ended.
    (api.state.complete)(parent);
}

/// Resume a fan-out that is `paused`, with more attempts.
#[utoipa::path(post, path = "/v1/fanouts/{id}/resume", operation_id = "resumeFanout", tag = "fan-outs",
    params(("id" = String, Path, description = "The fan-out's id.", example = "18")),
    request_body = ResumeRequest,
    responses(
        (status = 200, description = "It goes on.", body = wire::Fanout),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 404, description = "`fanout_not_found`"),
        (status = 408, description = "`body_timeout`"),
        (status = 409, description = "`fanout_not_paused`"),
        (status = 413, description = "`body_too_large`"),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`invalid`, `event_too_late`: its deadline is past; replay it instead."),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Id(id): Id,
    request: Request,
) -> Result<Json<wire::Fanout>, Refusal> {
    let asked = json_or_default::<ResumeRequest>(request, MAX_BODY_BYTES).await?;
    let id = fanout_id(&id)?;
    let view = api.state.store.fanout(id).await?.ok_or_else(absent)?;
    let late_ms = api.state.clock.now_ms() - view.deadline_ms;
    if view.state == FanoutState::Paused && late_ms >= 0 {
        let detail =
            format!("its deadline was {} s ago, and it ends by itself; when it has, replay it", late_ms / 1000);
        return Err(Refusal::new(Code::EventTooLate, detail));
    }
    let left = view.kin.max_attempts.unwrap_or(0).saturating_sub(view.counters.attempts);
    // What was saved by a throttle is still to be spent.
    let enough = view.tally.pending().saturating_mul(2).max(1).saturating_sub(left);
    let spent = view.kin.paused == Some(PauseReason::Budget);
    let more = attempts(asked.max_attempts)?.unwrap_or(if spent { enough.max(1) } else { enough });
    match api.state.store.resume(id, more).await? {
        ResumeReply::Resumed => {
            tracing::info!(target: "fanfare::api", fanout_id = %id, more, "fan-out resumed");
            let view = api.state.store.fanout(id).await?.ok_or_else(absent)?;
            Ok(Json(shown::fanout(&view, api.state.clock.now_ms())?))
        }
        ResumeReply::NotPaused(state) => Err(Refusal::new(Code::FanoutNotPaused, format!("it is {state}"))),
        ResumeReply::Unknown => Err(absent()),
    }
}
