//! Owns the shape of a refusal.
//! Must never know: which codes there are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ImportAnswer;

/// RFC 9457 problem, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "about:blank", "title": "Some fields are wrong", "status": 422, "detail": "see `errors`: /fields/player",
    "code": "invalid", "retryable": false,
    "errors": [{"field": "/fields/player", "problem": "is missing; goal needs home, away, score, minute, player"}]
}))]
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
    /// What an import had done when it was refused or stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<Box<ImportAnswer>>,
    /// Which quota is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaLimit>,
}

/// A quota: `limit` requests in `window_s` for all that counts as `scope`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"limit": 50, "window_s": 1, "scope": "key:backend"}))]
pub struct QuotaLimit {
    /// Requests.
    pub limit: u64,
    /// In this time, seconds.
    pub window_s: u64,
    /// Who shares it: `key:` and the key's name.
    pub scope: String,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"field": "/fields/player", "problem": "is missing; goal needs home, away, score, minute, player"}))]
pub struct FieldProblem {
    /// JSON pointer, `/fields/player`.
    pub field: String,
    /// What is wrong and how to mend it.
    pub problem: String,
}
