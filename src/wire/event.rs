//! Owns the shapes of posting an event.
//! Must never know: which types and fields there are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// `POST /v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "id": "evt-8841", "type": "goal", "match_id": "4711", "occurred_at": "2026-11-30T15:03:12Z",
    "subjects": ["match:4711", "team:ars", "team:che"],
    "fields": {"home": "Arsenal", "away": "Chelsea", "score": "2-1", "minute": 67, "player": "Saka"},
    "data": {"deeplink": "app://match/4711"}, "useful_for_s": 120
}))]
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
    /// The event it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<SupersedesRequest>,
    /// Overrides the type's usefulness, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useful_for_s: Option<u32>,
}

/// Which event another one corrects: that one stops at once, and the correction is sent after 5 s, unless it is corrected
/// itself by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event_id": "evt-8840", "mode": "retract"}))]
pub struct SupersedesRequest {
    /// The event that is wrong, of the same match; it may come later.
    pub event_id: String,
    /// Who is told: `retract` whoever got, or may have got, what is wrong; `replace` the whole audience.
    pub mode: String,
}

/// Answer to an accepted event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"fanout_id": "1", "status_url": "/v1/fanouts/1", "expected_start_ms": 0}))]
pub struct EventAccepted {
    /// The fan-out.
    pub fanout_id: String,
    /// Where to read its state.
    pub status_url: String,
    /// Estimate of the time until the first send, ms.
    pub expected_start_ms: u64,
    /// The event whose fan-out this is: it tells the same news under another id and is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<String>,
    /// The fan-out that has taken its place already: its correction came first, and nobody is sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
}
