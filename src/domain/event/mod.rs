//! Owns what an event is and every rule it must meet before it is accepted.
//! Must never know: HTTP, or how an event is stored and sent.

mod parse;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::catalogue::Catalogue;
use super::ids::{EventId, MatchId};
use super::outcome::coded_enum;

/// An event as a caller wrote it, nothing checked yet.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventDraft {
    /// The caller's id.
    pub id: String,
    /// Name of an event type of the catalogue.
    pub kind: String,
    /// The match it happened in.
    pub match_id: String,
    /// RFC 3339 with an offset.
    pub occurred_at: String,
    /// What must be followed to receive it.
    pub subjects: Vec<String>,
    /// Values its texts need.
    pub fields: BTreeMap<String, Value>,
    /// Passed to the app; values reach the wire as strings.
    pub data: BTreeMap<String, Value>,
    /// Overrides the type's usefulness, seconds.
    pub useful_for_s: Option<u32>,
    /// What it corrects: the event's id and a mode.
    pub supersedes: Option<(String, String)>,
}

/// A valid event. Made only by [`Event::parse`], so nothing behind the door checks it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The caller's id.
    pub id: EventId,
    /// Name of its type in the catalogue.
    pub kind: String,
    /// The match it happened in.
    pub match_id: MatchId,
    /// When it happened, ms since the epoch, as the caller said.
    pub occurred_ms: i64,
    /// Followed subjects, sorted, each once.
    pub subjects: Vec<String>,
    /// Values its texts need, as text.
    pub fields: BTreeMap<String, String>,
    /// Passed to the app.
    pub data: BTreeMap<String, String>,
    /// Seconds it stays useful after it happened.
    pub useful_for_s: u32,
    /// What it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Supersedes>,
}

/// Which event another one corrects, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supersedes {
    /// The event that is wrong; it may not have come yet.
    pub event_id: EventId,
    /// Who is told.
    pub mode: CorrectionMode,
}

coded_enum!(
    /// Who is told of a correction.
    CorrectionMode ("correction mode") {
        /// Whoever got, or may have got, what it corrects.
        Retract = 1 "retract",
        /// Its whole audience.
        Replace = 2 "replace",
    }
);

/// One thing wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// JSON pointer of the field, `/fields/player`.
    pub field: String,
    /// What is wrong and how to mend it.
    pub problem: String,
}

/// The event is too old, or from too far in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeadlineError {
    /// Its usefulness has passed.
    #[error("the event stopped being useful {late_s} s ago (occurred_at + {useful_for_s} s)")]
    TooLate {
        /// Seconds since the deadline.
        late_s: i64,
        /// Its usefulness.
        useful_for_s: u32,
    },
    /// More than [`MAX_AHEAD_MS`] ahead of the database clock.
    #[error("occurred_at lies {ahead_s} s in the future; at most 300 s are taken for clock skew")]
    Future {
        /// Seconds ahead, rounded up.
        ahead_s: i64,
    },
}

/// An `occurred_at` this far ahead is taken for clock skew and read as now.
pub const MAX_AHEAD_MS: i64 = 300_000;

/// Seconds an event may stay useful.
pub const USEFUL_RANGE_S: RangeInclusive<u32> = 5..=86_400;

/// Most subjects of one event: the freeze keeps a cursor for each.
pub const MAX_SUBJECTS: usize = 16;

/// Most fields of one event.
pub const MAX_FIELDS: usize = 32;

/// Longest value of a field, in bytes of its text.
pub const MAX_FIELD_BYTES: usize = 256;

/// Most keys in `data`.
pub const MAX_DATA_KEYS: usize = 32;

/// Most bytes of `data`, keys and values counted, [`OWN_DATA_KEYS`] with their values among them: FCM's limit of a
/// message (Firebase, "FCM error codes", `INVALID_ARGUMENT`).
pub const MAX_DATA_BYTES: usize = 4096;

/// Keys every message carries in `data` beside the caller's own, so that an app can tell a repeat.
pub const OWN_DATA_KEYS: [&str; 3] = ["event_id", "match_id", "type"];

impl Event {
    /// Checks every field and names each that is wrong.
    ///
    /// `fields` and `data` take strings, numbers and booleans; the last two are kept as JSON writes them, so `67` and
    /// `"67"` mean the same. Whole numbers keep every digit up to 64 bits and are refused beyond, fractions are 64-bit
    /// floats (`1.0`, and `1e5` as `100000.0`). `null` is refused in both: whoever means "nothing" leaves the key out.
    /// An array or object in `data` is kept as compact JSON text with sorted keys; in `fields` it is refused, since
    /// people would read it. A field that the type does not require is kept and shown nowhere, so that a caller may send
    /// the same fields with every type, and a later catalogue may use them.
    ///
    /// # Errors
    /// All faults found, in the order of the fields. Of a list that is too long only that is said.
    pub fn parse(draft: EventDraft, catalogue: &Catalogue) -> Result<Self, Vec<FieldError>> {
        parse::parse(draft, catalogue)
    }

    /// Last instant at which sending it makes sense, in database ms.
    ///
    /// # Errors
    /// [`DeadlineError`] when that is past, or when the event claims to be from the future.
    pub fn deadline_ms(&self, now_ms: i64) -> Result<i64, DeadlineError> {
        let ahead_ms = self.occurred_ms.saturating_sub(now_ms);
        if ahead_ms > MAX_AHEAD_MS {
            return Err(DeadlineError::Future { ahead_s: ahead_ms / 1000 + i64::from(ahead_ms % 1000 != 0) });
        }
        let happened_ms = self.occurred_ms.min(now_ms);
        let deadline_ms = happened_ms.saturating_add(i64::from(self.useful_for_s) * 1000);
        if deadline_ms <= now_ms {
            let late_s = now_ms.saturating_sub(deadline_ms) / 1000;
            return Err(DeadlineError::TooLate { late_s, useful_for_s: self.useful_for_s });
        }
        Ok(deadline_ms)
    }

    /// SHA-256 of the parsed event: two posts with the same meaning have the same hash, whatever their spelling. The
    /// usefulness counts as parsed, so a type whose usefulness changes makes an old post, repeated, another event.
    #[must_use]
    pub fn content_hash(&self) -> [u8; 32] {
        let Self { id, kind, match_id, occurred_ms, subjects, fields, data, useful_for_s, supersedes } = self;
        let mut meaning = serde_json::json!([id, kind, match_id, occurred_ms, subjects, fields, data, useful_for_s]);
        // Only when it is there: what was accepted before corrections were known keeps its hash.
        if let (Some(correction), Some(parts)) = (supersedes, meaning.as_array_mut()) {
            parts.push(serde_json::json!(correction));
        }
        Sha256::digest(meaning.to_string()).into()
    }

    /// SHA-256 of what people would read and who would read it: the match, the type, the minute, the fields that are
    /// `shown` (those its type requires) and the subjects. Two feeds that report the same corner differ in id, time,
    /// `data` and in fields nobody reads, and mean the same.
    #[must_use]
    pub fn news_hash(&self, shown: &[String]) -> [u8; 32] {
        let Self { kind, match_id, subjects, fields, .. } = self;
        let read = |name: &String| name == "minute" || shown.contains(name);
        let fields: BTreeMap<&String, &String> = fields.iter().filter(|(name, _)| read(name)).collect();
        Sha256::digest(serde_json::json!([kind, match_id, subjects, fields]).to_string()).into()
    }
}

#[cfg(test)]
pub(crate) mod tests;
