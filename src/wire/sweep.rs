//! Owns the shapes of asking for a sweep and of looking at one.
//! Must never know: how FCM is asked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/sweeps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"max_attempts": 50000, "resume": "23"}))]
pub struct SweepRequest {
    /// HTTP requests it may make, failed ones too, each under the ceiling; 10,000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub max_attempts: Option<u64>,
    /// Id of an earlier sweep to go on from; absent = from the first device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// Only say what it would do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Share of dead devices, in per cent, to be taken for true; absent = 30, above which none of a platform is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 95)]
    pub accept_dead_share: Option<u8>,
}

/// A sweep, or what one would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "24", "state": "paused", "reason": "budget", "devices": 50000, "asked": 50000, "valid": 49310, "dead": 650,
    "suspended": 40, "unknown": 0, "attempts": 50000, "left": 912033
}))]
pub struct Sweep {
    /// The sweep, which is a fan-out of kind `sweep`; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `running`; `done`: every device there was when it began was asked about; `paused`: stopped before that, to be resumed;
    /// `cancelled`; `dry_run`.
    pub state: String,
    /// Why it is paused: `budget`, `throttle`, `deadline` (it lasts a day).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Devices it asks about, as far as they are fixed.
    pub devices: u64,
    /// Of them, those with an answer.
    pub asked: u64,
    /// FCM would take a message to them.
    pub valid: u64,
    /// FCM calls their token dead: tombstoned at the end, if there are not too many.
    pub dead: u64,
    /// FCM calls their token invalid or another sender's: suspended at the end, if there are not too many.
    pub suspended: u64,
    /// Asked about without learning anything of the device.
    pub unknown: u64,
    /// HTTP requests made.
    pub attempts: u64,
    /// Dead and bad devices of each platform that were not judged, because there are too many of them or nobody of the
    /// platform was accepted. Resumed, a sweep with any begins where this one began, and `accept_dead_share` says what
    /// to take for true.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub withheld: BTreeMap<String, u64>,
    /// Live devices after the last one with an answer; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}
