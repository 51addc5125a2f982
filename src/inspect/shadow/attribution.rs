//! Owns why a device is on one list and not on the other, as far as what is kept can tell.
//! Must never know: how many there are.

use crate::domain::catalogue::Catalogue;
use crate::domain::derived::Source;
use crate::domain::ids::DeviceId;
use crate::domain::recipient::DeviceState;
use crate::inspect::absence;
use crate::inspect::explain::{explain, kinds};
use crate::store::{Explained, KnownDevice, StoreError};
use crate::wire::rfc3339;

/// What a difference is put down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// It follows nothing of the event, or not for its type.
    NoFollow,
    /// It has muted the type.
    Muted,
    /// It is dead, or was then.
    Dead,
    /// It came, or began to follow, after the event.
    RegisteredAfter,
    /// The other system's list is older or newer than ours, or has a device that is gone.
    TheirsStale,
    /// The fan-out is for others: it derives from another one, or was cancelled first.
    NotMeant,
    /// What is kept explains nothing: somebody has to look.
    Unexplained,
}

impl Group {
    /// Its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoFollow => "no_follow",
            Self::Muted => "muted",
            Self::Dead => "dead",
            Self::RegisteredAfter => "registered_after",
            Self::TheirsStale => "theirs_stale",
            Self::NotMeant => "not_meant",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Why a device is on one list alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribution {
    /// What it is put down to.
    pub group: Group,
    /// Stable reason.
    pub because: String,
    /// What is kept proves it.
    pub certain: bool,
    /// For people.
    pub text: String,
}

fn of(group: Group, because: &str, certain: bool, text: String) -> Attribution {
    Attribution { group, because: because.to_owned(), certain, text }
}

/// An address of the other list that no device of ours has.
#[must_use]
pub fn stranger() -> Attribution {
    let text = "No device has this token: it was never registered here, or has been replaced or deleted since.";
    of(Group::Unexplained, "unknown_token", false, text.to_owned())
}

/// Why a device of the other list is no recipient of ours.
///
/// # Errors
/// [`StoreError::Corrupt`] when what is kept contradicts itself.
pub fn absent(facts: &Explained, device: &DeviceId, catalogue: &Catalogue) -> Result<Attribution, StoreError> {
    let told = explain(facts, device, catalogue)?;
    let group = match told.because.as_str() {
        "no_follow" | "type_not_wanted" => Group::NoFollow,
        "type_muted" => Group::Muted,
        "device_dead" => Group::Dead,
        "registered_later" | "followed_later" => Group::RegisteredAfter,
        // Whoever sends to a device that was deleted before the event does not know of it yet.
        "deleted" => Group::TheirsStale,
        "cancelled_before" | "not_derived" => Group::NotMeant,
        _ => Group::Unexplained,
    };
    Ok(of(group, &told.because, told.certain, told.text))
}

/// Why a recipient of ours is not on the other list, which was made at `theirs_ms`, where that is known.
#[must_use]
pub fn extra(facts: &Explained, theirs_ms: Option<i64>, catalogue: &Catalogue) -> Attribution {
    let Some(known) = &facts.device else { return deleted(facts, theirs_ms) };
    let place = facts.place.as_ref();
    if place.is_some_and(|place| place.key != known.view.key) {
        return deleted(facts, theirs_ms);
    }
    if known.view.state != DeviceState::Live {
        let at = time(known.state_ms);
        let text = format!("It is {} since {at}: the other system may have known that before us.", known.view.state);
        return of(Group::Dead, "dead_since", knew(known.state_ms, theirs_ms), text);
    }
    let failure = place.and_then(|place| place.failure.as_ref());
    if let Some(failure) = failure.filter(|failure| failure.outcome.against_device()) {
        let text = format!("It ended as {} and has registered again since.", failure.outcome);
        return of(Group::Dead, "revived_since", false, text);
    }
    stale(facts, known, theirs_ms, catalogue)
}

/// What the other system could not know yet, or knew later than we.
fn stale(facts: &Explained, known: &KnownDevice, theirs_ms: Option<i64>, catalogue: &Catalogue) -> Attribution {
    let stale = |because, certain, text| of(Group::TheirsStale, because, certain, text);
    if let Some(theirs) = theirs_ms {
        let (list, created, follows) = (time(theirs), time(known.created_ms), time(known.follows_ms));
        if known.created_ms > theirs {
            return stale(
                "registered_after_theirs",
                true,
                format!("It was registered at {created}, after their list of {list}."),
            );
        }
        if known.follows_ms > theirs {
            let text = format!("What it follows was written at {follows}, after their list of {list}.");
            return stale("followed_after_theirs", false, text);
        }
    }
    if !absence::wants(facts, known, kinds(facts, catalogue)) {
        return no_longer(facts, known);
    }
    let text = "It follows this and is live; nothing kept says why the other system leaves it out.".to_owned();
    of(Group::Unexplained, "unexplained", false, text)
}

/// A recipient that does not want it as it stands now.
fn no_longer(facts: &Explained, known: &KnownDevice) -> Attribution {
    if matches!(facts.job.origin.source, Source::Reached | Source::Audience) {
        let text = "It does not follow this; it has seen what this corrects.".to_owned();
        return of(Group::NotMeant, "saw_the_original", false, text);
    }
    let at = time(known.follows_ms);
    let text =
        format!("It does not follow this any more: that was written at {at}, after it was fixed as a recipient.");
    of(Group::TheirsStale, "unfollowed_since", false, text)
}

fn deleted(facts: &Explained, theirs_ms: Option<i64>) -> Attribution {
    let key = facts.place.as_ref().map(|place| place.key);
    let Some(former) = facts.former.iter().find(|former| Some(former.key) == key) else {
        return of(Group::Unexplained, "unexplained", false, "Nothing is kept of this device.".to_owned());
    };
    let text = format!("It was deleted at {}, after it was fixed as a recipient.", time(former.deleted_ms));
    of(Group::TheirsStale, "deleted_since", knew(former.deleted_ms, theirs_ms), text)
}

/// Whether their list was surely made after something of ours.
fn knew(at_ms: i64, theirs_ms: Option<i64>) -> bool {
    theirs_ms.is_some_and(|theirs| theirs >= at_ms)
}

fn time(ms: i64) -> String {
    rfc3339(ms).unwrap_or_else(|| format!("{ms} ms"))
}
