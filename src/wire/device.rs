//! Owns the shapes of registering and following.
//! Must never know: what makes a device valid.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::FollowEntry;

/// `PUT /v1/devices/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"user_id": "u1", "token": "THE-REGISTRATION-TOKEN-OF-THE-APP", "platform": "android", "locale": "pt-BR"}))]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"id": "phone-1", "created": true, "revived": false}))]
pub struct DeviceRegistered {
    /// The device.
    pub id: String,
    /// It was not there before.
    pub created: bool,
    /// It was tombstoned or suspended and is live again.
    pub revived: bool,
    /// The device its token was taken over from; that one is gone, with what it followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<String>,
}

/// `GET /v1/devices/{id}`. The token itself is never given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "id": "phone-1", "user_id": "u1", "addressed_by": "token", "address_hash": "2e1d3fb7b7a9", "platform": "android",
    "locale": "pt-BR", "state": "live",
    "follows": [{"subject": "match:4711"}, {"subject": "team:ars", "types": ["full_time", "goal"]}],
    "muted": ["corner"], "registered_at": "2026-11-30T08:45:08.512Z"
}))]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"follows": [{"subject": "team:ars", "types": ["goal", "full_time"]}, "match:4711"], "muted": ["corner"]}))]
pub struct FollowsRequest {
    /// The whole set; replaces what was there.
    pub follows: Vec<FollowEntry>,
    /// Event types never wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub muted: Vec<String>,
}
