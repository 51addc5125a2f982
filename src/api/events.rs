//! Owns `POST /v1/events`: from a body to a committed event.
//! Must never know: how a fan-out is frozen or sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tokio::time::Instant;

use super::Api;
use super::body::{MAX_BODY_BYTES, json};
use super::deadline::Deadline;
use super::problem::{Code, Refusal};
use crate::domain::batch::Class;
use crate::domain::catalogue::Catalogue;
use crate::domain::event::{DeadlineError, Event, EventDraft};
use crate::domain::ids::{EventId, FanoutId};
use crate::door::Pass;
use crate::store::{ACCEPT_WITHIN, Accepted, FreezeJob, NewFanout};
use crate::wire::{EventAccepted, EventRequest};

/// Post an event: 202 with a new fan-out, 200 with the one an identical post made.
///
/// 202 means kept: event and fan-out are committed. The same `id` with the same content is the same fan-out, however
/// often it is posted, and its answer is 200, past the event's usefulness too: so whoever got no answer posts again.
/// Content is compared by meaning: order of subjects, spelling of numbers and white space do not count.
///
/// The same news under another id (the same match, type, minute, required fields and subjects, whatever `occurred_at`,
/// `data` and other fields say) while the first fan-out is neither superseded, cancelled nor past its deadline is that
/// fan-out: 202 with `duplicate_of`. If it was superseded, and what superseded it is not sent yet, the news takes the place
/// of that, as if it superseded it.
///
/// An event that `supersedes` another one stops it at once and is sent after 5 s, so that whoever changes their mind twice
/// sends only the last state. If the other one was superseded before, it takes the place of what superseded it. If it has
/// not come yet, it is accepted when it comes, and nobody is sent it (`superseded_by`).
#[utoipa::path(post, path = "/v1/events", operation_id = "postEvent", tag = "events",
    params(("X-Request-Timeout-Ms" = Option<u32>, Header, maximum = 3600000,
        description = "How long the caller waits for the answer, ms. Refused at once when that is too short.")),
    request_body = EventRequest,
    responses(
        (status = 202, description = "Accepted and kept; with `duplicate_of`, as the fan-out of an earlier event.", body = EventAccepted,
            headers(("Location" = String, description = "Where to read the fan-out's state."))),
        (status = 200, description = "The same event was accepted before.", body = EventAccepted,
            headers(("Location" = String, description = "Where to read the fan-out's state."))),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 408, description = "`body_timeout`"),
        (status = 409, description = "`event_conflict`: the id was used for other content. \
            `correction_sent`: what corrects it came first and was sent, not to the audience of what it corrects itself."),
        (status = 413, description = "`body_too_large`: over 64 KiB."),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`invalid` names every field at fault, `event_too_late`: past its usefulness."),
        (status = 503, description = "`overloaded`, `out_of_time`, `backlog_full`, `database_unavailable`"),
    ),
    security(("key" = ["events"])))]
pub(super) async fn accept(
    State(api): State<Arc<Api>>,
    Extension(pass): Extension<Pass>,
    Extension(deadline): Extension<Deadline>,
    request: Request,
) -> Result<Response, Refusal> {
    api.backlog.admit(&api.state.store).await?;
    let posted = json::<EventRequest>(request, MAX_BODY_BYTES).await?;
    // One catalogue for the whole post: a reload in between must not judge it by two.
    let catalogue = api.state.catalogue.now();
    let event = parse(&catalogue, posted)?;
    let (event_id, match_id) = (event.id.clone(), event.match_id.clone());
    let now_ms = api.state.clock.now_ms();
    measure_skew(&api, event.occurred_ms.saturating_sub(now_ms));
    let mut class = Class::Urgent;
    let accepted = match event.deadline_ms(now_ms) {
        Ok(deadline_ms) => {
            let new = check(&api, &catalogue, event, deadline_ms)?;
            class = new.class;
            api.backlog.admit_class(class, (api.state.ceiling)().pace)?;
            deadline.bound(commit(&api, new, pass, deadline.or(Instant::now() + ACCEPT_WITHIN))).await?
        }
        Err(late) => deadline.bound(repeat(&api, event, late, pass)).await?,
    };
    match accepted {
        Accepted::New(freeze) | Accepted::Correction { freeze, .. } => {
            let held_ms = u64::try_from(freeze.hold_ms).unwrap_or(0);
            let expected_ms = held_ms.saturating_add(expected_start_ms(&api, class));
            Ok(answer(StatusCode::ACCEPTED, Told::of(freeze.job.id, expected_ms)))
        }
        Accepted::Repeat(fanout) => Ok(answer(StatusCode::OK, Told::of(fanout, 0))),
        Accepted::Duplicate { fanout, of } => {
            Ok(answer(StatusCode::ACCEPTED, Told { duplicate_of: Some(of), ..Told::of(fanout, 0) }))
        }
        Accepted::Superseded { fanout, by, .. } => {
            Ok(answer(StatusCode::ACCEPTED, Told { superseded_by: Some(by), ..Told::of(fanout, 0) }))
        }
        Accepted::OtherMatch(theirs) => Err(Refusal::field(
            "/supersedes/event_id",
            format!("is an event of match {theirs}, and this one is of {match_id}; name one of the same match"),
        )),
        Accepted::CorrectedBefore(by) => Err(Refusal::new(
            Code::CorrectionSent,
            format!(
                "fan-out {by}, which corrects {event_id}, came before it and was sent, to nobody who saw what {event_id} \
                 corrects; post the event of {by} again under a new id, with the `supersedes` of {event_id}"
            ),
        )),
        Accepted::Conflict(fanout) => Err(Refusal::new(
            Code::EventConflict,
            format!("the id {event_id} was used with other content; its fan-out is {fanout}. Choose a new id"),
        )),
    }
}

pub(super) fn parse(catalogue: &Catalogue, posted: EventRequest) -> Result<Event, Refusal> {
    Ok(Event::parse(draft(posted), catalogue)?)
}

fn check(api: &Api, catalogue: &Catalogue, event: Event, deadline_ms: i64) -> Result<NewFanout, Refusal> {
    (api.state.fits)(catalogue, &event).map_err(|fault| vec![fault])?;
    let kind = catalogue.known(&event.kind).map_err(|unknown| Refusal::field("/type", unknown.to_string()))?;
    let (class, shown) = (kind.class, kind.required.clone());
    let names = event.supersedes.as_ref().map_or(&event.id, |correction| &correction.event_id);
    let collapse_key = kind.collapse_key_under(&event, names);
    Ok(NewFanout { content_hash: event.content_hash(), collapse_key, shown, class, deadline_ms, event })
}

fn draft(posted: EventRequest) -> EventDraft {
    EventDraft {
        id: posted.id,
        kind: posted.kind,
        match_id: posted.match_id,
        occurred_at: posted.occurred_at,
        subjects: posted.subjects,
        fields: posted.fields,
        data: posted.data,
        useful_for_s: posted.useful_for_s,
        supersedes: posted.supersedes.map(|given| (given.event_id, given.mode)),
    }
}

/// Out of time: refused, unless it was accepted while it had time. A caller whose answer was lost asks again, and must
/// not be told that what reached everybody was refused.
async fn repeat(api: &Arc<Api>, event: Event, error: DeadlineError, place: Pass) -> Result<Accepted, Refusal> {
    let (api, id) = (Arc::clone(api), event.id.clone());
    match held(place, async move { Ok(api.state.store.seen(id).await?) }).await? {
        Some((fanout, hash)) if hash == event.content_hash() => Ok(Accepted::Repeat(fanout)),
        Some((fanout, _)) => Ok(Accepted::Conflict(fanout)),
        None => Err(out_of_time(error)),
    }
}

/// An `occurred_at` ahead of our clock says that one of the two is wrong; it is read as now, and the error is measured.
fn measure_skew(api: &Api, ahead_ms: i64) {
    if ahead_ms > 0 {
        api.state.measured.ahead.observe(ahead_ms as f64 / 1000.0);
    }
}

pub(super) fn out_of_time(error: DeadlineError) -> Refusal {
    match error {
        DeadlineError::TooLate { .. } => Refusal::new(Code::EventTooLate, error.to_string()),
        DeadlineError::Future { .. } => Refusal::field("/occurred_at", error.to_string()),
    }
}

/// Does `work` in a task of its own and holds the place at the gate to its end, not to that of the caller's patience: in
/// flight is what is in flight.
async fn held<T: Send + 'static>(
    place: Pass,
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let task = tokio::spawn(async move {
        let done = work.await;
        drop(place);
        done
    });
    task.await.unwrap_or_else(|fault| Err(Refusal::internal(&fault.to_string())))
}

/// Commits and hands over: a goal must not wait for the sweeper because its caller hung up in between.
async fn commit(api: &Arc<Api>, new: NewFanout, place: Pass, start_by: Instant) -> Result<Accepted, Refusal> {
    let api = Arc::clone(api);
    let class = new.class;
    held(place, async move {
        let accepted = api.state.store.accept_by(api.state.boot, new, start_by).await?;
        match &accepted {
            Accepted::New(freeze) => hand_over(&api, freeze.clone()),
            Accepted::Correction { freeze, stopped } => {
                // First of all nobody more is to be told what is wrong.
                stopped.iter().for_each(|id| superseded(&api, *id, freeze.job.id));
                hand_over(&api, freeze.clone());
            }
            Accepted::Superseded { fanout, by, stopped } => {
                stopped.iter().for_each(|id| superseded(&api, *id, *by));
                api.backlog.accepted(class);
                superseded(&api, *fanout, *by);
            }
            _ => {}
        }
        Ok(accepted)
    })
    .await
}

/// A queue that is full or closed is no error: the freeze is in the store, where the sweeper finds what nobody runs.
fn hand_over(api: &Api, freeze: FreezeJob) {
    api.backlog.accepted(freeze.job.class);
    let (fanout_id, event_id) = (freeze.job.id.0, freeze.job.event.id.to_string());
    let handed_over = api.state.handover.try_send(freeze).is_ok();
    tracing::debug!(target: "fanfare::api", fanout_id, event_id, handed_over, "event accepted");
}

fn superseded(api: &Api, id: FanoutId, by: FanoutId) {
    tracing::info!(target: "fanfare::api", fanout_id = %id, superseded_by = %by, "fan-out superseded");
    (api.state.cancelled)(id);
}

/// What goes before it, here and in nobody's hands, at the pace in force.
fn expected_start_ms(api: &Api, class: Class) -> u64 {
    let waiting = api.state.load.load(Ordering::Relaxed).saturating_add(api.backlog.ahead(class)) as f64;
    let ceiling = (api.state.ceiling)();
    let ms = if ceiling.pace > 0.0 { waiting / ceiling.pace * 1000.0 } else { 0.0 };
    // A float to an integer saturates, so an absurd load reads as very long.
    (ms as u64).saturating_add(ceiling.paused_for_ms)
}

/// What an answer says.
struct Told {
    fanout: FanoutId,
    expected_start_ms: u64,
    duplicate_of: Option<EventId>,
    superseded_by: Option<FanoutId>,
}

impl Told {
    const fn of(fanout: FanoutId, expected_start_ms: u64) -> Self {
        Self { fanout, expected_start_ms, duplicate_of: None, superseded_by: None }
    }
}

fn answer(status: StatusCode, told: Told) -> Response {
    let status_url = format!("/v1/fanouts/{}", told.fanout);
    let body = EventAccepted {
        fanout_id: told.fanout.to_string(),
        status_url: status_url.clone(),
        expected_start_ms: told.expected_start_ms,
        duplicate_of: told.duplicate_of.map(String::from),
        superseded_by: told.superseded_by.map(|id| id.to_string()),
    };
    (status, [(LOCATION, status_url)], Json(body)).into_response()
}
