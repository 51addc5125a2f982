//! Owns what all differences come to: counts by reason, the unexplained ones by name, what was not looked at.
//! Must never know: why a single device is on one list alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Attribution, Group};

/// Which list a device is missing on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// It is on theirs, and no recipient of ours.
    Absent,
    /// It is a recipient of ours, and not on theirs.
    Extra,
}

/// How many differences have one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Proved by what is kept.
    pub certain: u64,
    /// Likely: something has changed since, so that it is not proved.
    pub likely: u64,
}

/// A difference nothing explains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unexplained {
    /// The event.
    pub event_id: String,
    /// The device; of a token nobody has, a hash of it.
    pub device: String,
    /// Where it is missing.
    pub side: Side,
    /// Stable reason.
    pub because: String,
    /// For people.
    pub text: String,
}

/// What was looked at, and what not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Coverage {
    /// Events compared.
    pub events: u64,
    /// Their types.
    pub types: BTreeSet<String>,
    /// Types of the catalogue that no compared event had.
    pub types_not_seen: BTreeSet<String>,
    /// Events of the file that were not accepted here.
    pub not_accepted: Vec<String>,
    /// Events whose recipients are not all fixed yet.
    pub freezing: Vec<String>,
    /// Recipients of ours in the largest fan-out compared.
    pub largest: u64,
    /// Rows of theirs about events that are not in the file of events.
    pub rows_of_other_events: u64,
    /// Devices that were a recipient of ours in at least one.
    pub devices_seen: u64,
    /// Devices that are live.
    pub devices_live: u64,
}

/// Everything found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Comparison {
    /// Recipients of ours, all events.
    pub ours: u64,
    /// Recipients of theirs, all compared events, each once.
    pub theirs: u64,
    /// On both.
    pub both: u64,
    /// On theirs alone, by group and reason.
    pub absent: BTreeMap<String, BTreeMap<String, Counts>>,
    /// On ours alone, by group and reason.
    pub extra: BTreeMap<String, BTreeMap<String, Counts>>,
    /// How many nothing explains.
    pub unexplained: u64,
    /// The first of them.
    pub listed: Vec<Unexplained>,
    /// What was looked at.
    pub coverage: Coverage,
}

impl Comparison {
    /// Counts a difference; of those nothing explains, `list` are kept by name.
    pub fn count(&mut self, side: Side, (event, device): (&str, &str), why: Attribution, list: usize) {
        let reasons = if side == Side::Absent { &mut self.absent } else { &mut self.extra };
        let group = reasons.entry(why.group.as_str().to_owned()).or_default();
        let counts = group.entry(why.because.clone()).or_default();
        if why.certain {
            counts.certain += 1
        } else {
            counts.likely += 1
        }
        if why.group != Group::Unexplained {
            return;
        }
        self.unexplained += 1;
        if self.listed.len() < list {
            let (event_id, device) = (event.to_owned(), device.to_owned());
            self.listed.push(Unexplained { event_id, device, side, because: why.because, text: why.text });
        }
    }

    /// What a verdict on these lists does not say, for people.
    #[must_use]
    pub fn cannot_say(&self) -> Vec<String> {
        let seen = &self.coverage;
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let mut words = vec![
            format!(
                "the largest fan-out compared had {} recipients, {} events were compared: nothing is said of larger ones, \
                 of more at once, or of how fast they are. A clean verdict on the list is no verdict on volume",
                seen.largest, seen.events
            ),
            format!(
                "{} of {} live devices were a recipient in one of them: nothing is said of what the others follow",
                seen.devices_seen, seen.devices_live
            ),
        ];
        let mut add = |some: bool, text: String| words.extend(some.then_some(text));
        add(!seen.types_not_seen.is_empty(), format!("types that did not occur: {}", list(&seen.types_not_seen)));
        add(!seen.not_accepted.is_empty(), format!("{} events were not accepted here", seen.not_accepted.len()));
        add(!seen.freezing.is_empty(), format!("{} events have no complete list yet", seen.freezing.len()));
        let other = seen.rows_of_other_events;
        add(other > 0, format!("{other} rows of theirs are about events that are not in the file of events"));
        words
    }
}
