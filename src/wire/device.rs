//! Owns the shapes of registering, following and importing devices.
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

/// One line of `POST /v1/devices/import`: a device and what it follows, in one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "id": "d1", "user_id": "u1", "token": "THE-REGISTRATION-TOKEN-OF-THE-APP", "platform": "ios", "locale": "pt-BR",
    "follows": ["team:ars", "match:4711"], "muted": ["corner"]
}))]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "imported": 2, "updated": 1, "rejected_total": 1,
    "rejected": [{"line": 4, "code": "invalid", "reason": "/token: is missing"}]
}))]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"line": 4, "code": "invalid", "reason": "/token: is missing"}))]
pub struct Reject {
    /// From 1.
    pub line: u64,
    /// Stable.
    pub code: String,
    /// For people.
    pub reason: String,
}
