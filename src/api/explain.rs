//! Owns `GET /v1/fanouts/{id}/recipients/{device}`.
//! Must never know: why a device was reached or not.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::Api;
use super::fanouts::{absent, fanout_id};
use super::path::Ids;
use super::problem::Refusal;
use crate::domain::ids::DeviceId;
use crate::inspect;
use crate::wire::Explanation;

/// What became of one device in a fan-out, or why it was no recipient.
///
/// A device that is not known is answered too: it may have been a recipient and deleted since. Devices and follows are
/// kept as they are now, with the time of their last change: where that does not prove the answer, `certain` is false.
#[utoipa::path(get, path = "/v1/fanouts/{id}/recipients/{device}", operation_id = "explainRecipient", tag = "fan-outs",
    params(
        ("id" = String, Path, description = "The fan-out's id.", example = "17"),
        ("device" = String, Path, description = "The caller's id of the device.", example = "phone-1"),
    ),
    responses(
        (status = 200, description = "What is known.", body = Explanation),
        (status = 404, description = "`fanout_not_found`"),
        (status = 422, description = "`invalid`: what cannot be a device's id."),
    ),
    security(("key" = ["events"]), ("key" = ["ops"])))]
pub(super) async fn show(State(api): State<Arc<Api>>, Ids(fanout, device): Ids) -> Result<Json<Explanation>, Refusal> {
    let fanout = fanout_id(&fanout)?;
    let device = DeviceId::parse(&device).map_err(|fault| Refusal::field("/device", fault.to_string()))?;
    let facts = api.state.store.explain(fanout, device.clone()).await?.ok_or_else(absent)?;
    Ok(Json(inspect::explain(&facts, &device, &api.state.catalogue.now())?))
}
