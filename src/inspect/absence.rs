//! Owns why a device is no recipient of a fan-out, as far as what is kept can tell: follows and devices are kept as they
//! are now, with the time of their last change, and not as they were.
//! Must never know: recipients; nothing here was frozen.

use crate::domain::batch::FanoutState;
use crate::domain::derived::Source;
use crate::domain::recipient::{DeviceState, KindMask};
use crate::store::{Explained, KnownDevice};
use crate::wire::rfc3339;

/// An answer, its stable reason, and the words for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) answer: &'static str,
    pub(super) because: &'static str,
    /// What is kept proves it.
    pub(super) certain: bool,
    pub(super) text: String,
    pub(super) todo: Option<&'static str>,
}

/// How what a device follows meets an event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Meets {
    /// It follows none of the subjects.
    NoSubject,
    /// It follows this subject, for other types.
    OtherTypes(String),
    /// It follows this subject, and has muted the type.
    Muted(String),
    /// It wants this.
    Wants(String),
}

/// Why it is no recipient, or not yet.
pub(super) fn reason(facts: &Explained, kinds: KindMask) -> Reason {
    let Some(known) = &facts.device else { return unknown(facts) };
    if let Some(reason) = not_derived(facts, known) {
        return reason;
    }
    let meets = meets(facts, known, kinds);
    let wanted = matches!(meets, Meets::Wants(_)) && known.view.state == DeviceState::Live;
    // Followers are looked at in the order of their keys.
    if known.view.key > facts.cursor && wanted {
        if facts.state == FanoutState::Freezing {
            return not_reached();
        }
        if facts.cut {
            return no(
                "cancelled_before",
                true,
                "The fan-out was cancelled before its freeze came to this device.".into(),
            );
        }
    }
    if known.created_ms >= facts.job.accepted_ms {
        return registered_later(facts, known);
    }
    dead(facts, known, &meets).unwrap_or_else(|| followed(facts, known, meets))
}

fn no(because: &'static str, certain: bool, text: String) -> Reason {
    Reason { answer: "not_a_recipient", because, certain, text, todo: None }
}

/// The recipients of a derived fan-out come from what another one did, not from what devices follow.
fn not_derived(facts: &Explained, known: &KnownDevice) -> Option<Reason> {
    let of = facts.job.origin.parent.map_or_else(String::new, |parent| format!(" (fan-out {parent})"));
    let text = match facts.job.origin.source {
        Source::Followers | Source::Audience => return None,
        Source::Devices => {
            "This sweep asks about devices that were live, from where it began and as many as it may: this one \
                            was not among them."
                .to_owned()
        }
        Source::Reached => {
            format!("This retraction is for those who got, or may have got, what it corrects{of}: it did not.")
        }
        Source::Failed | Source::FailedOrUnconfirmed => {
            format!(
                "This replay is for those whom the earlier fan-out failed to reach and could still reach{of}: it was not one of them, or had been reached since."
            )
        }
    };
    let looked_at = known.view.key <= facts.cursor || facts.state != FanoutState::Freezing;
    Some(if looked_at { no("not_derived", true, text) } else { not_reached() })
}

fn not_reached() -> Reason {
    let text = "The followers are being read, and its turn has not come: it will be a recipient if it still follows \
                then."
        .to_owned();
    Reason { answer: "pending", because: "freeze_not_reached", certain: false, text, todo: None }
}

fn unknown(facts: &Explained) -> Reason {
    let Some(former) = facts.former.first() else {
        let text = "No device has this id, and none is known to have had it.".to_owned();
        let todo = Some("check the id; PUT /v1/devices/{id} registers a device");
        return Reason { todo, ..no("unknown_device", false, text) };
    };
    let at = time(former.deleted_ms);
    if former.deleted_ms < facts.job.accepted_ms {
        return no(
            "deleted",
            true,
            format!(
                "The device was deleted at {at}, or its token went to another device then; the event was accepted later."
            ),
        );
    }
    let text = format!(
        "The device was deleted at {at}, or its token went to another device then, after the event was accepted. What it followed is not kept."
    );
    no("deleted", false, text)
}

fn registered_later(facts: &Explained, known: &KnownDevice) -> Reason {
    let (created, accepted) = (time(known.created_ms), time(facts.job.accepted_ms));
    let text = format!("It was first registered at {created}; the event was accepted at {accepted}.");
    let before = facts.former.iter().any(|former| former.deleted_ms >= facts.job.accepted_ms);
    if before {
        let text =
            format!("{text} A device with the same id was deleted in between; what that one followed is not kept.");
        return no("registered_later", false, text);
    }
    no("registered_later", true, text)
}

/// Whether it was dead, as far as the time of its last death or return shows.
fn dead(facts: &Explained, known: &KnownDevice, meets: &Meets) -> Option<Reason> {
    let (state, at) = (known.view.state, time(known.state_ms));
    let before = known.state_ms < facts.job.accepted_ms;
    let wants = matches!(meets, Meets::Wants(_));
    let todo = Some("nothing here: it comes back when the app registers again");
    match state {
        DeviceState::Live if !before && wants && !changed(facts, known) => {
            Some(no("device_dead", true, format!("It was tombstoned or suspended then, and came back at {at}.")))
        }
        DeviceState::Live => None,
        _ if before => Some(Reason { todo, ..no("device_dead", true, format!("It is {state} since {at}.")) }),
        // It died after the event: something else kept it out, unless that was not its first death.
        _ if wants => {
            let text =
                format!("It is {state} since {at}, which is after the event; it may have been dead before, too.");
            Some(Reason { todo, ..no("device_dead", false, text) })
        }
        _ => None,
    }
}

/// What it follows may have been written since: then what is kept proves nothing of that time.
fn changed(facts: &Explained, known: &KnownDevice) -> bool {
    known.follows_ms >= facts.job.accepted_ms
}

fn followed(facts: &Explained, known: &KnownDevice, meets: Meets) -> Reason {
    let (kind, subjects) = (&facts.job.event.kind, facts.job.event.subjects.join(", "));
    let changed = changed(facts, known);
    let (because, text) = match meets {
        Meets::NoSubject => ("no_follow", format!("It follows none of {subjects}.")),
        Meets::OtherTypes(subject) => {
            ("type_not_wanted", format!("It follows {subject}, but not for events of type {kind}."))
        }
        Meets::Muted(subject) => ("type_muted", format!("It follows {subject}, and has muted events of type {kind}.")),
        Meets::Wants(subject) if changed => ("followed_later", format!("It follows {subject} now.")),
        Meets::Wants(subject) => {
            let text = format!(
                "It follows {subject} and nothing about it has changed since: by what is kept it should have been a \
                 recipient. The event types may have been changed."
            );
            let todo = Some("compare types.file with what was in force then; if it was the same, report this");
            return Reason { todo, ..no("unexplained", false, text) };
        }
    };
    if changed {
        let at = time(known.follows_ms);
        let text = format!("{text} What it follows was last written at {at}, after the event was accepted.");
        return no(because, false, text);
    }
    no(because, true, text)
}

/// Whether it wants events of this kind now.
pub(super) fn wants(facts: &Explained, known: &KnownDevice, kinds: KindMask) -> bool {
    matches!(meets(facts, known, kinds), Meets::Wants(_))
}

fn meets(facts: &Explained, known: &KnownDevice, kinds: KindMask) -> Meets {
    let follows = &known.view.follows;
    let wanted = &facts.job.event.subjects;
    let mut best = Meets::NoSubject;
    for (subject, mask) in follows.subjects.iter().filter(|(subject, _)| wanted.contains(subject)) {
        if mask.without(follows.muted).meets(kinds) {
            return Meets::Wants(subject.clone());
        }
        if mask.meets(kinds) {
            best = Meets::Muted(subject.clone());
        } else if best == Meets::NoSubject {
            best = Meets::OtherTypes(subject.clone());
        }
    }
    best
}

/// A time that cannot be written is shown as it is kept: an explanation must not fail for it.
fn time(ms: i64) -> String {
    rfc3339(ms).unwrap_or_else(|| format!("{ms} ms"))
}
