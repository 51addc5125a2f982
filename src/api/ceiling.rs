//! Owns `GET /v1/ceiling`.
//! Must never know: how the ceiling is kept.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::Api;
use crate::wire::CeilingAnswer;

/// The numbers in force on the instance that is asked.
#[utoipa::path(get, path = "/v1/ceiling", operation_id = "getCeiling", tag = "operations",
    responses((status = 200, description = "Now.", body = CeilingAnswer)),
    security(("key" = ["ops"])))]
pub(super) async fn show(State(api): State<Arc<Api>>) -> Json<CeilingAnswer> {
    Json((api.state.ceiling)())
}
