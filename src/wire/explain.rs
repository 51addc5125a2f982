//! Owns the shape of an explanation: what became of one device in one fan-out, and why.
//! Must never know: how it was found out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/fanouts/{id}/recipients/{device}`. What is absent is not known, or has no meaning for this answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "fanout_id": "17", "device_id": "phone-1", "type": "goal", "match_id": "4711", "answer": "failed",
    "because": "token_dead", "certain": true,
    "text": "FCM says that the app is gone from the device (UNREGISTERED).",
    "todo": "nothing here: it comes back when the app registers again", "attempts": 1, "status": 404,
    "provider_text": "404 UNREGISTERED: Requested entity was not found.", "retryable": false, "may_have_arrived": false,
    "variant": "goal/en/android", "device_version": 1, "ended_at": "2026-11-30T15:03:13.071Z", "chunk": 0,
    "device": {"state": "tombstoned", "version": 2, "registered_at": "2026-11-30T08:45:08.512Z"}
}))]
pub struct Explanation {
    /// The fan-out.
    pub fanout_id: String,
    /// The device, by the caller's name for it.
    pub device_id: String,
    /// Event type of the fan-out.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The match.
    pub match_id: String,
    /// `delivered`, `failed`, `pending`, `not_a_recipient`.
    pub answer: String,
    /// Stable reason: the outcome of a recipient that has one, else where it waits, else why it was no recipient.
    pub because: String,
    /// `false`: what is kept does not prove it; the text says what is missing.
    pub certain: bool,
    /// For people, one or two sentences.
    pub text: String,
    /// What to do about it, when there is anything to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
    /// HTTP requests made for it; absent = not kept. Delivered ones are only counted for the whole fan-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u16>,
    /// Beside `expired` and `cancelled`: what kept it from being reached before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// HTTP status of the provider's last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What the provider said, sanitised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_text: Option<String>,
    /// Whether a replay would try it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// An attempt may have reached the device although it has no such outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_have_arrived: Option<bool>,
    /// What it would have read, or read: `type/locale/platform`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Version of the device at the send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_version: Option<i64>,
    /// When the outcome was written down, RFC 3339; kept for failures of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Number of its chunk, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<i32>,
    /// The instance that has its chunk in hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The device as it is now; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<ExplainedDevice>,
}

/// The device as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"state": "tombstoned", "version": 2, "registered_at": "2026-11-30T08:45:08.512Z"}))]
pub struct ExplainedDevice {
    /// `live`, `tombstoned`, `suspended`, `deleted`.
    pub state: String,
    /// Row version; a verdict holds only for the version it was found on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Last registered, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_at: Option<String>,
    /// Deleted, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<String>,
}
