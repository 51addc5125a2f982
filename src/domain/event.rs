//! Owns what an event is and every rule it must meet before it is accepted.
//! Must never know: HTTP, or how an event is stored and sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::catalogue::Catalogue;
use super::ids::{EventId, MatchId};

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
}

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
        /// Seconds ahead.
        ahead_s: i64,
    },
}

/// An `occurred_at` this far ahead is taken for clock skew and read as now.
pub const MAX_AHEAD_MS: i64 = 300_000;

impl Event {
    /// Checks every field and names each that is wrong.
    ///
    /// # Errors
    /// All faults found, in the order of the fields.
    pub fn parse(_draft: EventDraft, _catalogue: &Catalogue) -> Result<Self, Vec<FieldError>> {
        unimplemented!()
    }

    /// Last instant at which sending it makes sense, in database ms.
    ///
    /// # Errors
    /// [`DeadlineError`] when that is past, or when the event claims to be from the future.
    pub fn deadline_ms(&self, _now_ms: i64) -> Result<i64, DeadlineError> {
        unimplemented!()
    }

    /// SHA-256 of the parsed event: two posts with the same meaning have the same hash, whatever their spelling.
    #[must_use]
    pub fn content_hash(&self) -> [u8; 32] {
        unimplemented!()
    }
}
