//! Owns the shapes of `GET /v1/stats`.
//! Must never know: how the counts come about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/stats`: what was accepted in a window of time, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// First time of the window, RFC 3339.
    pub from: String,
    /// First time after it, RFC 3339.
    pub to: String,
    /// Nothing accepted before this time can change any more, RFC 3339: the acceptance of the oldest fan-out that is not
    /// settled, and at least 15 s ago.
    pub complete_through: String,
    /// `exact` when the window ended before `complete_through`: the same question is then answered the same for ever
    /// (as long as `retention.keep_days` says). Else `lower_bound`: what is accepted or still being sent adds to it.
    pub counts: String,
    /// Everything but sweeps.
    pub total: StatsGroup,
    /// By urgency: `urgent`, `normal`, `bulk`.
    pub classes: BTreeMap<String, StatsGroup>,
    /// By event type.
    pub types: BTreeMap<String, StatsGroup>,
    /// Sweeps: they ask FCM about devices, and send nothing.
    pub sweeps: StatsGroup,
}

/// Totals of some fan-outs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "fanouts": 12, "open": 0, "interrupted": 0, "recipients": 48210, "delivered": 48007, "failed": 203, "pending": 0,
    "outcomes": {"delivered": 48007, "token_dead": 203}, "attempts": 48391, "retried": 181, "throttled": 0,
    "unprocessed": 0, "unsent": 3, "reauthed": 0, "stalled": 2, "delivered_per_s": 13.3, "attempts_per_s": 13.4,
    "mean_duration_ms": 1714, "p50_send_ms": 96, "p99_send_ms": 181, "slowest_send_ms": 372,
    "behind_pitch_p50_ms": 2110, "behind_pitch_p99_ms": 4380
}))]
pub struct StatsGroup {
    /// Fan-outs accepted in the window.
    pub fanouts: u64,
    /// Of these, not settled.
    pub open: u64,
    /// Of these, those an instance was lost in: what they count beside outcomes is a lower bound.
    pub interrupted: u64,
    /// Devices to be reached.
    pub recipients: u64,
    /// Accepted by FCM.
    pub delivered: u64,
    /// Any other outcome.
    pub failed: u64,
    /// No outcome yet.
    pub pending: u64,
    /// By outcome, those that are not 0.
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
    /// Deliveries by the length of the window.
    pub delivered_per_s: f64,
    /// HTTP requests by the length of the window.
    pub attempts_per_s: f64,
    /// From acceptance to settling, of those settled, mean, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_duration_ms: Option<u64>,
    /// Median of answered attempts, ms.
    pub p50_send_ms: u64,
    /// Their 99th percentile, ms.
    pub p99_send_ms: u64,
    /// Slowest answered attempt, ms.
    pub slowest_send_ms: u64,
    /// From what happened to acceptance by FCM, median, ms.
    pub behind_pitch_p50_ms: u64,
    /// Its 99th percentile, ms.
    pub behind_pitch_p99_ms: u64,
}
