//! Owns the JSON of the API: its shapes, as sent and received by server and client alike, and how JSON is read.
//! Must never know: what the values mean; the rooms behind check them, the domain gives them meaning.

mod follow;
mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use follow::FollowEntry;
pub use read::{ReadError, read};

/// `POST /v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRequest {
    /// The caller's id: the same id with the same content is the same fan-out.
    pub id: String,
    /// Name of an event type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The match.
    pub match_id: String,
    /// RFC 3339 with an offset.
    pub occurred_at: String,
    /// What must be followed: `match:4711`, `team:ars`.
    pub subjects: Vec<String>,
    /// Values for the texts.
    #[serde(default)]
    pub fields: BTreeMap<String, Value>,
    /// Passed to the app as strings.
    #[serde(default)]
    pub data: BTreeMap<String, Value>,
    /// Reserved for corrections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Value>,
    /// Overrides the type's usefulness, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_for_s: Option<u32>,
}

/// Answer to an accepted event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAccepted {
    /// The fan-out.
    pub fanout_id: String,
    /// Where to read its state.
    pub status_url: String,
    /// Estimate of the time until the first send, ms.
    pub expected_start_ms: u64,
}

/// `GET /v1/fanouts/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fanout {
    /// The fan-out.
    pub id: String,
    /// The caller's event id.
    pub event_id: String,
    /// Event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The match.
    pub match_id: String,
    /// `original`, `correction`, `replay`.
    pub kind: String,
    /// `freezing`, `sending`, `done`, `cancelled`, `set_aside`.
    pub state: String,
    /// Devices the event must reach, as frozen so far.
    pub recipients: u64,
    /// Accepted by FCM.
    pub delivered: u64,
    /// Any other outcome.
    pub failed: u64,
    /// No outcome yet.
    pub pending: u64,
    /// One key per outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// HTTP requests, one grant each.
    pub attempts: u64,
    /// Second attempts.
    pub retried: u64,
    /// Throttled answers.
    pub throttled: u64,
    /// Attempts the provider did not process.
    pub unprocessed: u64,
    /// Attempts that never left.
    pub unsent: u64,
    /// Attempts resent after a refresh of the access token.
    pub reauthed: u64,
    /// Attempts that stalled.
    pub stalled: u64,
    /// RFC 3339.
    pub accepted_at: String,
    /// RFC 3339.
    pub deadline_at: String,
    /// RFC 3339; absent until settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<String>,
    /// From acceptance to settling, or to now, ms.
    pub duration_ms: i64,
    /// Slowest answered attempt, ms.
    pub slowest_send_ms: u64,
    /// `exact`, or `lower_bound` after an instance was lost.
    pub ledger: String,
    /// Ceiling while it was sent.
    pub ceiling: FanoutCeiling,
}

/// The ceiling a fan-out was sent under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FanoutCeiling {
    /// `shared`, `split`, `single`.
    pub mode: String,
    /// Per second.
    pub rate: f64,
    /// Lowest pace applied, per second.
    pub pace: f64,
}

/// `GET /v1/fanouts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FanoutList {
    /// Newest first.
    pub fanouts: Vec<Fanout>,
    /// Pass as `cursor` for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `PUT /v1/devices/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRequest {
    /// Owner.
    pub user_id: String,
    /// Registration token; exactly one of `token` and `fid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Firebase installation id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fid: Option<String>,
    /// `android`, `ios`, `web`.
    pub platform: String,
    /// `pt-BR`; the default is the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
}

/// Answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRegistered {
    /// The device.
    pub id: String,
    /// It was not there before.
    pub created: bool,
    /// It was tombstoned or suspended and is live again.
    pub revived: bool,
}

/// `GET /v1/devices/{id}`. The token itself is never given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAnswer {
    /// The device.
    pub id: String,
    /// Owner.
    pub user_id: String,
    /// `token` or `fid`.
    pub addressed_by: String,
    /// First 12 hex digits of SHA-256 of the token, to compare without showing it.
    pub address_hash: String,
    /// Platform.
    pub platform: String,
    /// Locale.
    pub locale: String,
    /// `live`, `tombstoned`, `suspended`.
    pub state: String,
    /// What it follows.
    pub follows: Vec<FollowEntry>,
    /// Muted event types.
    pub muted: Vec<String>,
    /// RFC 3339.
    pub registered_at: String,
}

/// `PUT /v1/devices/{id}/follows`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowsRequest {
    /// The whole set; replaces what was there.
    pub follows: Vec<FollowEntry>,
    /// Event types never wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub muted: Vec<String>,
}

/// One line of `POST /v1/devices/import`: a device and what it follows, in one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportLine {
    /// The caller's name for the device.
    pub id: String,
    /// Owner.
    pub user_id: String,
    /// Registration token; exactly one of `token` and `fid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Firebase installation id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fid: Option<String>,
    /// `android`, `ios`, `web`.
    pub platform: String,
    /// `pt-BR`; the default is the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// The whole set of what it follows; absent leaves that as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Vec<FollowEntry>>,
    /// Event types never wanted; part of the set, so it needs `follows` beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muted: Option<Vec<String>>,
}

/// Answer to an import.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImportAnswer {
    /// New devices.
    pub imported: u64,
    /// Devices that were there.
    pub updated: u64,
    /// The first rejected lines, at most 1,000.
    pub rejected: Vec<Reject>,
    /// All rejected lines.
    pub rejected_total: u64,
}

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// From 1.
    pub line: u64,
    /// Stable.
    pub code: String,
    /// For people.
    pub reason: String,
}

/// `GET /v1/ceiling`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingAnswer {
    /// `shared`, `split`, `single`.
    pub mode: String,
    /// Ceiling of the fleet, per second.
    pub rate: f64,
    /// Pace of the fleet, per second.
    pub pace: f64,
    /// What this instance may use, per second.
    pub share: f64,
    /// Used by this instance in the last full second.
    pub used_per_s: f64,
    /// Grants wanted now.
    pub waiting: u64,
    /// Forfeited since start.
    pub forfeited: u64,
    /// 0 = not paused.
    pub paused_for_ms: u64,
    /// Empty when nothing is out of the ordinary.
    pub reason: String,
}

/// RFC 9457 problem, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `about:blank`: the code says more than a page would.
    #[serde(rename = "type")]
    pub kind: String,
    /// Short, the same for every problem of this code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What is wrong here and how to mend it.
    pub detail: String,
    /// Stable, for programs.
    pub code: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// When, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// Faults by field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldProblem {
    /// JSON pointer, `/fields/player`.
    pub field: String,
    /// What is wrong and how to mend it.
    pub problem: String,
}
