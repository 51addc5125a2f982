//! Owns the shapes of reading fan-outs and the numbers in force.
//! Must never know: how the counts come about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/fanouts/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "17", "event_id": "evt-8841", "type": "goal", "match_id": "4711", "kind": "original", "state": "done",
    "recipients": 2417, "delivered": 2405, "failed": 12, "pending": 0,
    "outcomes": {
        "cancelled": 0, "credential": 0, "delivered": 2405, "expired": 0, "gone": 1, "internal": 0, "payload": 0,
        "protocol": 0, "token_dead": 11, "token_foreign": 0, "token_invalid": 0, "transient": 0, "unconfirmed": 0
    },
    "attempts": 2436, "retried": 20, "throttled": 0, "unprocessed": 0, "unsent": 0, "reauthed": 0, "stalled": 0,
    "accepted_at": "2026-11-30T15:03:12.204Z", "deadline_at": "2026-11-30T15:05:12Z",
    "settled_at": "2026-11-30T15:03:13.918Z", "duration_ms": 1714, "slowest_send_ms": 80, "ledger": "exact",
    "ceiling": {"mode": "shared", "rate": 9000.0, "pace": 9000.0}
}))]
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
    /// `original`, `correction`, `replay`, `sweep`.
    pub kind: String,
    /// `freezing`, `sending`, `done`, `cancelled`, `set_aside`, `paused`.
    pub state: String,
    /// The fan-out it corrects or repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The fan-out of the correction that has taken its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
    /// Of a correction: devices that were to get what it corrects and were not sent it, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_saw: Option<u64>,
    /// Why it is `paused`: `budget`, `throttle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// Most HTTP requests it may make, failures included; absent = no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u64>,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"mode": "shared", "rate": 9000.0, "pace": 9000.0}))]
pub struct FanoutCeiling {
    /// `shared`, `split`, `single`.
    pub mode: String,
    /// Per second.
    pub rate: f64,
    /// Lowest pace applied, per second.
    pub pace: f64,
}

/// `GET /v1/fanouts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FanoutList {
    /// Newest first.
    pub fanouts: Vec<Fanout>,
    /// Pass as `cursor` for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `GET /v1/ceiling`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "mode": "shared", "rate": 9000.0, "pace": 9000.0, "share": 9000.0, "used_per_s": 412.0, "waiting": 0,
    "used": 48210, "forfeited": 3, "held_ms": 120, "throttled_ms": 0, "paused_for_ms": 0, "reason": ""
}))]
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
    /// Grants used by this instance since start: HTTP requests of its deliveries.
    pub used: u64,
    /// Forfeited since start.
    pub forfeited: u64,
    /// Time since start in which grants were wanted and the ceiling had none left: held by our own ceiling.
    pub held_ms: u64,
    /// Time since start in which a pause of the provider was in force.
    pub throttled_ms: u64,
    /// 0 = not paused.
    pub paused_for_ms: u64,
    /// Empty when nothing is out of the ordinary.
    pub reason: String,
}
