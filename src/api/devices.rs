//! Owns the calls about one device.
//! Must never know: what makes a device valid, or how it is stored.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::body::{MAX_BODY_BYTES, json};
use super::path::Id;
use super::problem::{Code, Refusal};
use super::{Api, shown};
use crate::devices::{DeviceDraft, FollowsDraft, address_hash, show_follows};
use crate::domain::ids::DeviceId;
use crate::wire::{DeviceAnswer, DeviceRegistered, DeviceRequest, FollowsRequest};

/// Largest set of follows, bytes: 1,000 subjects with types named for each.
const MAX_FOLLOWS_BYTES: usize = 256 * 1024;

/// Register or update a device: 201 when it is new, 200 when it was there.
///
/// What it follows stays as it is. A tombstoned or suspended device is live again. A token that another device had moves
/// here, and that device is deleted.
#[utoipa::path(put, path = "/v1/devices/{id}", operation_id = "putDevice", tag = "devices",
    params(("id" = String, Path, description = "Your id for it, 1 to 128 bytes.", example = "phone-1")),
    request_body = DeviceRequest,
    responses(
        (status = 201, description = "New.", body = DeviceRegistered),
        (status = 200, description = "Updated.", body = DeviceRegistered),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 408, description = "`body_timeout`"),
        (status = 413, description = "`body_too_large`"),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`invalid` names every field at fault."),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn register(State(api): State<Arc<Api>>, Id(id): Id, request: Request) -> Result<Response, Refusal> {
    let asked = json::<DeviceRequest>(request, MAX_BODY_BYTES).await?;
    let draft = DeviceDraft {
        id: &id,
        user_id: &asked.user_id,
        token: asked.token.as_deref(),
        fid: asked.fid.as_deref(),
        platform: &asked.platform,
        locale: asked.locale.as_deref(),
    };
    let device = draft.parse(&api.state.catalogue.now().default_locale)?;
    let put = api.state.store.put_device(device).await?;
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    let moved_from = put.moved_from.map(String::from);
    Ok((status, Json(DeviceRegistered { id, created: put.created, revived: put.revived, moved_from })).into_response())
}

/// Replace what a device follows and mutes.
#[utoipa::path(put, path = "/v1/devices/{id}/follows", operation_id = "putFollows", tag = "devices",
    params(("id" = String, Path, description = "The device's id.", example = "phone-1")),
    request_body = FollowsRequest,
    responses(
        (status = 204, description = "Replaced."),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 404, description = "`device_not_found`"),
        (status = 408, description = "`body_timeout`"),
        (status = 413, description = "`body_too_large`: over 256 KiB."),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`invalid` names every field at fault."),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn follow(State(api): State<Arc<Api>>, Id(id): Id, request: Request) -> Result<StatusCode, Refusal> {
    let id = device_id(&id)?;
    let asked = json::<FollowsRequest>(request, MAX_FOLLOWS_BYTES).await?;
    let follows = FollowsDraft { follows: &asked.follows, muted: &asked.muted }.parse(&api.state.catalogue.now())?;
    if api.state.store.put_follows(id, follows).await? { Ok(StatusCode::NO_CONTENT) } else { Err(absent()) }
}

/// One device with what it follows; never its token.
#[utoipa::path(get, path = "/v1/devices/{id}", operation_id = "getDevice", tag = "devices",
    params(("id" = String, Path, description = "The device's id.", example = "phone-1")),
    responses(
        (status = 200, description = "As it is.", body = DeviceAnswer),
        (status = 404, description = "`device_not_found`"),
        (status = 422, description = "`invalid`: what cannot be a device's id."),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn show(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Json<DeviceAnswer>, Refusal> {
    let view = api.state.store.device(device_id(&id)?).await?.ok_or_else(absent)?;
    let (follows, muted) = show_follows(&view.follows, &api.state.catalogue.now());
    Ok(Json(DeviceAnswer {
        id: view.device.id.to_string(),
        user_id: view.device.user.to_string(),
        addressed_by: view.device.address.field().to_owned(),
        address_hash: address_hash(&view.device.address),
        platform: view.device.platform.to_string(),
        locale: view.device.locale.as_str().to_owned(),
        state: view.state.to_string(),
        follows,
        muted,
        registered_at: shown::rfc3339(view.registered_ms)?,
    }))
}

/// Delete a device with what it follows.
///
/// 204 whether or not it was there: what the caller wants is that it is gone, and a repeated request finds it so.
#[utoipa::path(delete, path = "/v1/devices/{id}", operation_id = "deleteDevice", tag = "devices",
    params(("id" = String, Path, description = "The device's id.", example = "phone-1")),
    responses(
        (status = 204, description = "It is not there any more."),
        (status = 422, description = "`invalid`: what cannot be a device's id."),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn delete(State(api): State<Arc<Api>>, Id(id): Id) -> Result<StatusCode, Refusal> {
    api.state.store.delete_device(device_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn device_id(raw: &str) -> Result<DeviceId, Refusal> {
    DeviceId::parse(raw).map_err(|fault| Refusal::field("/id", fault.to_string()))
}

fn absent() -> Refusal {
    Refusal::new(Code::DeviceNotFound, "no device has this id; PUT /v1/devices/{id} registers it")
}
