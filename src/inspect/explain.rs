//! Owns the explanation of one device in one fan-out: what became of it, or where it waits.
//! Must never know: how the facts were read. Why a device is no recipient is [`absence`](super::absence)'s.

use crate::domain::batch::FanoutState;
use crate::domain::catalogue::Catalogue;
use crate::domain::ids::DeviceId;
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::{DeviceState, KindMask};
use crate::store::{ChunkState, Explained, KeptFailure, Place, StoreError};
use crate::wire::{ExplainedDevice, Explanation, rfc3339};

use super::absence::{self, Reason};
use super::outcomes::{advice, held_by, meaning};

/// Explains `device` by what is kept.
///
/// # Errors
/// [`StoreError::Corrupt`] when what is kept contradicts itself.
pub fn explain(facts: &Explained, device: &DeviceId, catalogue: &Catalogue) -> Result<Explanation, StoreError> {
    let mut told = blank(facts, device)?;
    match &facts.place {
        Some(place) => {
            recipient(&mut told, facts, place)?;
            superseded(&mut told, facts);
        }
        None => {
            take(&mut told, absence::reason(facts, kinds(facts, catalogue)));
        }
    }
    Ok(told)
}

/// As the freeze asks: a type that has left the catalogue reaches those who follow everything.
pub(super) fn kinds(facts: &Explained, catalogue: &Catalogue) -> KindMask {
    let kind = catalogue.get(&facts.job.event.kind);
    kind.map_or(KindMask::ALL, |kind| KindMask::only(kind.bit))
}

fn blank(facts: &Explained, device: &DeviceId) -> Result<Explanation, StoreError> {
    let event = &facts.job.event;
    Ok(Explanation {
        fanout_id: facts.job.id.to_string(),
        device_id: device.to_string(),
        event_type: event.kind.clone(),
        match_id: event.match_id.to_string(),
        answer: String::new(),
        because: String::new(),
        certain: true,
        text: String::new(),
        todo: None,
        attempts: None,
        cause: None,
        status: None,
        provider_text: None,
        retryable: None,
        may_have_arrived: None,
        variant: None,
        device_version: None,
        ended_at: None,
        chunk: None,
        instance: None,
        device: shown(facts)?,
    })
}

/// The device as it is now: that of the id, else the one deleted last.
fn shown(facts: &Explained) -> Result<Option<ExplainedDevice>, StoreError> {
    if let Some(known) = &facts.device {
        let registered_at = Some(time(known.view.registered_ms)?);
        let (state, version) = (known.view.state.to_string(), Some(known.view.version));
        return Ok(Some(ExplainedDevice { state, version, registered_at, deleted_at: None }));
    }
    let deleted = |ms: i64| {
        let deleted_at = Some(time(ms)?);
        Ok(ExplainedDevice { state: "deleted".to_owned(), version: None, registered_at: None, deleted_at })
    };
    facts.former.first().map(|former| deleted(former.deleted_ms)).transpose()
}

fn time(ms: i64) -> Result<String, StoreError> {
    rfc3339(ms).ok_or_else(|| StoreError::Corrupt(format!("{ms} ms is not a time of four-digit years")))
}

fn take(told: &mut Explanation, reason: Reason) {
    told.answer = reason.answer.to_owned();
    told.because = reason.because.to_owned();
    told.certain = reason.certain;
    told.text = reason.text;
    told.todo = reason.todo.map(str::to_owned);
}

/// Cancelled by nobody: something else took its place.
fn superseded(told: &mut Explanation, facts: &Explained) {
    if let Some(by) = facts.superseded_by.filter(|_| told.because == Outcome::Cancelled.as_str()) {
        told.text = told.text.replace(
            meaning(Outcome::Cancelled),
            &format!("Fan-out {by} corrects this one and took its place before it was delivered."),
        );
    }
}

fn recipient(told: &mut Explanation, facts: &Explained, place: &Place) -> Result<(), StoreError> {
    told.chunk = Some(place.chunk.no);
    if place.ok {
        ended(told, Outcome::Delivered, Cause::None);
        return Ok(());
    }
    told.may_have_arrived = Some(place.maybe);
    if place.done {
        let lost = || StoreError::Corrupt(format!("a failed recipient of fan-out {} has no row", facts.job.id));
        return failed(told, facts, place, place.failure.as_ref().ok_or_else(lost)?);
    }
    match (place.state, place.rest) {
        (ChunkState::Closed, Some(rest)) => {
            ended(told, rest.outcome, rest.cause);
            // Whoever had the chunk before may have tried and been throttled, which leaves no mark.
            told.attempts = (place.epoch <= 1 && !place.maybe).then_some(0);
            if place.maybe {
                told.text.push_str(" An attempt of an instance that was lost may have reached it.");
            }
        }
        (ChunkState::Closed, None) => {
            let id = facts.job.id;
            return Err(StoreError::Corrupt(format!("the rest of a closed chunk of fan-out {id} has no outcome")));
        }
        (state, _) => take(told, waiting(facts, place, state)),
    }
    told.instance = place.owner.filter(|_| place.state == ChunkState::Owned).map(|(boot, _)| boot.to_string());
    Ok(())
}

fn ended(told: &mut Explanation, outcome: Outcome, cause: Cause) {
    let answer = if outcome == Outcome::Delivered { "delivered" } else { "failed" };
    told.answer = answer.to_owned();
    told.because = outcome.as_str().to_owned();
    told.text = meaning(outcome).to_owned();
    told.todo = advice(outcome).map(str::to_owned);
    told.retryable = (outcome != Outcome::Delivered).then(|| outcome.retryable());
    if let Some((what, look)) = held_by(cause) {
        told.cause = Some(cause.as_str().to_owned());
        told.text = format!("{} {what}", told.text);
        if outcome == Outcome::Expired {
            told.todo = Some(look.to_owned());
        }
    }
}

fn failed(told: &mut Explanation, facts: &Explained, place: &Place, failure: &KeptFailure) -> Result<(), StoreError> {
    ended(told, failure.outcome, failure.cause);
    told.attempts = Some(failure.attempts);
    told.status = (failure.status != 0).then_some(failure.status);
    told.provider_text = (!failure.text.is_empty()).then(|| failure.text.clone());
    told.ended_at = Some(time(failure.at_ms)?);
    if failure.outcome == Outcome::Gone {
        told.text = format!("{} {}", told.text, gone(facts, place)?);
        return Ok(());
    }
    told.variant = (!failure.variant.is_empty()).then(|| failure.variant.clone());
    told.device_version = (failure.device_version != 0).then_some(failure.device_version);
    Ok(())
}

/// Why a recipient was gone, by what is known of its device now.
fn gone(facts: &Explained, place: &Place) -> Result<String, StoreError> {
    if let Some(former) = facts.former.iter().find(|former| former.key == place.key) {
        let at = time(former.deleted_ms)?;
        return Ok(format!("It was deleted at {at}, or its token went to another device then."));
    }
    match &facts.device {
        Some(known) if known.view.state != DeviceState::Live => {
            Ok(format!("It is {} since {}.", known.view.state, time(known.state_ms)?))
        }
        _ => Ok("It was tombstoned or suspended then, and has registered again since.".to_owned()),
    }
}

/// Where a recipient without an outcome is.
fn waiting(facts: &Explained, place: &Place, state: ChunkState) -> Reason {
    let no = place.chunk.no;
    let pending = |because, text| Reason { answer: "pending", because, certain: true, text, todo: None };
    let late = facts.job.deadline_ms <= facts.now_ms;
    let cancelled = facts.state == FanoutState::Cancelled;
    if let (ChunkState::Open, Some(why), false, false) = (state, facts.paused, late, cancelled) {
        return Reason {
            todo: Some("`fanfare fanout resume` lets it go on"),
            ..pending("paused", format!("The fan-out is paused ({why}); its chunk {no} waits until it is resumed."))
        };
    }
    match (state, place.owner) {
        (ChunkState::SetAside, _) => Reason {
            todo: Some("find out what kills the instances that take it; the chunk is not tried again by itself"),
            ..pending(
                "set_aside",
                format!("Its chunk {no} was taken over too often without progress and is set aside."),
            )
        },
        (ChunkState::Owned, Some((boot, true))) => {
            let text = format!(
                "Its chunk {no} is in the hands of instance {boot}: it waits for its turn, is in flight, or waits for a \
                 retry. Which of these only that instance knows."
            );
            pending("in_hand", text)
        }
        (ChunkState::Owned, Some((boot, false))) => {
            let text = format!(
                "Its chunk {no} was in the hands of instance {boot}, whose lease has run out: another instance takes it \
                 over with its next heartbeat."
            );
            pending("owner_lost", text)
        }
        _ if cancelled => {
            pending("ending", format!("The fan-out is cancelled; its chunk {no} ends as `cancelled` in a moment."))
        }
        _ if late => {
            let text = format!("Its chunk {no} waits to be claimed, past its deadline: it ends as `expired` then.");
            pending("waiting", text)
        }
        _ => pending("waiting", format!("Its chunk {no} waits to be claimed, in order of urgency and age.")),
    }
}
