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
use crate::domain::ids::FanoutId;
use crate::door::Pass;
use crate::store::{ACCEPT_WITHIN, Accepted, FreezeJob, NewFanout};
use crate::wire::{EventAccepted, EventRequest};

/// Post an event: 202 with a new fan-out, 200 with the one an identical post made.
///
/// 202 means kept: event and fan-out are committed. The same `id` with the same content is the same fan-out, however
/// often it is posted, and its answer is 200, past the event's usefulness too: so whoever got no answer posts again.
/// Content is compared by meaning: order of subjects, spelling of numbers and white space do not count.
#[utoipa::path(post, path = "/v1/events", operation_id = "postEvent", tag = "events",
    params(("X-Request-Timeout-Ms" = Option<u32>, Header, maximum = 3600000,
        description = "How long the caller waits for the answer, ms. Refused at once when that is too short.")),
    request_body = EventRequest,
    responses(
        (status = 202, description = "Accepted and kept.", body = EventAccepted,
            headers(("Location" = String, description = "Where to read the fan-out's state."))),
        (status = 200, description = "The same event was accepted before.", body = EventAccepted,
            headers(("Location" = String, description = "Where to read the fan-out's state."))),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 408, description = "`body_timeout`"),
        (status = 409, description = "`event_conflict`: the id was used for other content."),
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
    api.backlog.admit(&*api.state.store).await?;
    let posted = json::<EventRequest>(request, MAX_BODY_BYTES).await?;
    // One catalogue for the whole post: a reload in between must not judge it by two.
    let catalogue = api.state.catalogue.now();
    let event = parse(&catalogue, posted)?;
    let event_id = event.id.clone();
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
        Err(late) => repeat(&api, &event, late).await?,
    };
    match accepted {
        Accepted::New(freeze) => Ok(answer(StatusCode::ACCEPTED, freeze.job.id, expected_start_ms(&api, class))),
        Accepted::Repeat(fanout) => Ok(answer(StatusCode::OK, fanout, 0)),
        Accepted::Conflict(fanout) => Err(Refusal::new(
            Code::EventConflict,
            format!("the id {event_id} was used with other content; its fan-out is {fanout}. Choose a new id"),
        )),
    }
}

fn parse(catalogue: &Catalogue, posted: EventRequest) -> Result<Event, Refusal> {
    if posted.supersedes.is_some() {
        return Err(Refusal::field("/supersedes", "corrections are not served by this version"));
    }
    Ok(Event::parse(draft(posted), catalogue)?)
}

fn check(api: &Api, catalogue: &Catalogue, event: Event, deadline_ms: i64) -> Result<NewFanout, Refusal> {
    (api.state.fits)(catalogue, &event).map_err(|fault| vec![fault])?;
    let class = catalogue.known(&event.kind).map_err(|unknown| Refusal::field("/type", unknown.to_string()))?.class;
    Ok(NewFanout { content_hash: event.content_hash(), class, deadline_ms, event })
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
    }
}

/// Out of time: refused, unless it was accepted while it had time. A caller whose answer was lost asks again, and must
/// not be told that what reached everybody was refused.
async fn repeat(api: &Api, event: &Event, error: DeadlineError) -> Result<Accepted, Refusal> {
    match api.state.store.seen(event.id.clone()).await? {
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

fn out_of_time(error: DeadlineError) -> Refusal {
    match error {
        DeadlineError::TooLate { .. } => Refusal::new(Code::EventTooLate, error.to_string()),
        DeadlineError::Future { .. } => Refusal::field("/occurred_at", error.to_string()),
    }
}

/// Commits and hands over in a task of its own: a goal must not wait for the sweeper because its caller hung up in
/// between.
///
/// The place at the gate is held to the end of the write, not of the caller's patience: in flight is what is in flight.
async fn commit(api: &Arc<Api>, new: NewFanout, place: Pass, start_by: Instant) -> Result<Accepted, Refusal> {
    let api = Arc::clone(api);
    let task = async move {
        let _place = place;
        let accepted = api.state.store.accept_by(api.state.boot, new, start_by).await?;
        if let Accepted::New(freeze) = &accepted {
            api.backlog.accepted();
            hand_over(&api, freeze.clone());
        }
        Ok(accepted)
    };
    tokio::spawn(task).await.unwrap_or_else(|fault| Err(Refusal::internal(&fault.to_string())))
}

/// A queue that is full or closed is no error: the freeze is in the store, where the sweeper finds what nobody runs.
fn hand_over(api: &Api, freeze: FreezeJob) {
    let (fanout_id, event_id) = (freeze.job.id.0, freeze.job.event.id.to_string());
    let handed_over = api.state.handover.try_send(freeze).is_ok();
    tracing::debug!(target: "fanfare::api", fanout_id, event_id, handed_over, "event accepted");
}

/// What goes before it, here and in nobody's hands, at the pace in force.
fn expected_start_ms(api: &Api, class: Class) -> u64 {
    let waiting = api.state.load.load(Ordering::Relaxed).saturating_add(api.backlog.ahead(class)) as f64;
    let ceiling = (api.state.ceiling)();
    let ms = if ceiling.pace > 0.0 { waiting / ceiling.pace * 1000.0 } else { 0.0 };
    // A float to an integer saturates, so an absurd load reads as very long.
    (ms as u64).saturating_add(ceiling.paused_for_ms)
}

fn answer(status: StatusCode, fanout: FanoutId, expected_start_ms: u64) -> Response {
    let status_url = format!("/v1/fanouts/{fanout}");
    let body = EventAccepted { fanout_id: fanout.to_string(), status_url: status_url.clone(), expected_start_ms };
    (status, [(LOCATION, status_url)], Json(body)).into_response()
}
