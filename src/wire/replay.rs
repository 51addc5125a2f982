//! Owns the shapes of replaying a fan-out and of resuming one that is paused.
//! Must never know: who failed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/fanouts/{id}/replay`. An empty body is an empty object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"request_id": "ticket-77", "useful_for_s": 600, "dry_run": true}))]
pub struct ReplayRequest {
    /// What the caller calls it: the same name again is the same replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Those too whom an attempt may have reached without an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_unconfirmed: bool,
    /// Seconds it is useful, from now on; without it the deadline of what it repeats holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_for_s: Option<u32>,
    /// Most HTTP requests it may make, failures included; twice its recipients when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u64>,
    /// Only say how many it would be, and how long it would take.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Answer to a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "fanout_id": "18", "status_url": "/v1/fanouts/18", "parent": "17", "recipients": 212, "expected_ms": 24,
    "deadline_at": "2026-11-30T15:13:12Z", "in_time": true, "max_attempts": 424
}))]
pub struct ReplayAnswer {
    /// The replay; absent when it was only asked what it would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fanout_id: Option<String>,
    /// Where to read its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_url: Option<String>,
    /// What it repeats.
    pub parent: String,
    /// Devices it is for, as far as they are live now.
    pub recipients: u64,
    /// How long sending to them takes at the pace in force, ms.
    pub expected_ms: u64,
    /// Its deadline, RFC 3339.
    pub deadline_at: String,
    /// Whether that allows it.
    pub in_time: bool,
    /// Most HTTP requests it may make.
    pub max_attempts: u64,
}

/// `POST /v1/fanouts/{id}/resume`. An empty body is an empty object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"max_attempts": 500}))]
pub struct ResumeRequest {
    /// HTTP requests it may make beside those it made; when absent twice as many as devices have no outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u64>,
}
