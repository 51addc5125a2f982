//! Owns `POST /v1/fanouts/{id}/cancel`.
//! Must never know: how what is in flight ends.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::fanouts::{absent, fanout_id};
use super::path::Id;
use super::problem::{Code, Refusal};
use super::{Api, shown};
use crate::domain::batch::FanoutState;
use crate::store::CancelReply;
use crate::wire;

/// Cancel a fan-out: whoever has not been sent to ends as `cancelled`.
///
/// The first caller gets the fan-out as it stands then; whoever comes later, or too late, a 409. Nothing more is
/// launched: at once by the instance that is asked, by others with their next flush (half a second while they send) or
/// heartbeat (3 s). What is in flight keeps its true outcome; `settled_at` tells that all of it has ended.
#[utoipa::path(post, path = "/v1/fanouts/{id}/cancel", operation_id = "cancelFanout", tag = "fan-outs",
    params(("id" = String, Path, description = "The fan-out's id.", example = "17")),
    responses(
        (status = 200, description = "Cancelled by this call.", body = wire::Fanout),
        (status = 404, description = "`fanout_not_found`"),
        (status = 409, description = "`fanout_cancelled`: by an earlier call. `fanout_settled`: it has ended."),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn run(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Json<wire::Fanout>, Refusal> {
    let id = fanout_id(&id)?;
    match api.state.store.cancel(id).await? {
        CancelReply::Cancelled => {
            tracing::info!(target: "fanfare::api", fanout_id = %id, "fan-out cancelled");
            (api.state.cancelled)(id);
            let view = api.state.store.fanout(id).await?.ok_or_else(absent)?;
            Ok(Json(shown::fanout(&view, api.state.clock.now_ms())?))
        }
        CancelReply::Ended(FanoutState::Cancelled) => {
            Err(Refusal::new(Code::FanoutCancelled, format!("GET /v1/fanouts/{id} shows how far it came")))
        }
        CancelReply::Ended(state) => {
            let detail = format!("it is {state}: all its recipients have an outcome, and nothing is left to cancel");
            Err(Refusal::new(Code::FanoutSettled, detail))
        }
        CancelReply::Unknown => Err(absent()),
    }
}
