//! Owns `POST /v1/devices/import`: a stream of NDJSON in bounded memory.
//! Must never know: what a line must look like.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use futures_util::StreamExt;
use tokio::time::Instant;

use super::guard::Caller;
use super::problem::{Code, Refusal};
use super::{Api, body};
use crate::devices::{Import, Stopped};
use crate::door::Pass;
use crate::store::StoreError;
use crate::wire::{ImportAnswer, ImportLine};

/// Longest silence of the sender.
const SILENCE: Duration = Duration::from_secs(30);

const KINDS: [&str; 5] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
    "application/json-lines",
];

/// Import devices, one JSON object per line.
///
/// Lines that are wrong are told by number, the others are kept. It can be sent again whole: a line that is there already
/// changes nothing.
#[utoipa::path(post, path = "/v1/devices/import", operation_id = "importDevices", tag = "devices",
    request_body(content = ImportLine, content_type = "application/x-ndjson",
        description = "NDJSON: one such object per line, in one stream of any length."),
    responses(
        (status = 200, description = "What became of the lines.", body = ImportAnswer),
        (status = 408, description = "`body_timeout`: silent for 30 s."),
        (status = 415, description = "`unsupported_media_type`"),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn run(
    State(api): State<Arc<Api>>,
    Extension(pass): Extension<Pass>,
    Extension(Caller(caller)): Extension<Caller>,
    request: Request,
) -> Result<Json<ImportAnswer>, Refusal> {
    body::kind(request.headers(), "send NDJSON as application/x-ndjson; CSV is not read by this version", |kind| {
        KINDS.contains(&kind)
    })?;
    let busy = || Refusal::new(Code::Overloaded, "as many imports run as this instance does at once");
    let _place = api.imports.enter().map_err(|_| busy())?;
    // An import lasts as long as its sender likes; it has a limit of its own and must not take the small calls' places.
    pass.step_out();
    let begun = Instant::now();
    let answer = stream(&api, request).await?;
    let ImportAnswer { imported, updated, rejected_total: rejected, .. } = answer;
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(target: "fanfare::api", caller, imported, updated, rejected, duration_ms, "devices imported");
    Ok(Json(answer))
}

async fn stream(api: &Api, request: Request) -> Result<ImportAnswer, Refusal> {
    let mut import = Import::new(Arc::clone(&api.state.store), api.state.catalogue.now());
    let mut pieces = request.into_body().into_data_stream();
    loop {
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(bytes))) => import.feed(&bytes).await.map_err(stopped)?,
            Ok(Some(Err(_))) => return Err(Refusal::new(Code::BadRequest, "the body broke off; send it again")),
            Ok(None) => return import.finish().await.map_err(stopped),
            Err(_) => return Err(body::slow(SILENCE)),
        }
    }
}

fn stopped(stop: Stopped) -> Refusal {
    let kept = stop.kept_through;
    match stop.error {
        StoreError::Unavailable(why) => {
            tracing::warn!(target: "fanfare::api", error = %why, kept_through = kept, "import stopped");
            let detail = format!("lines up to {kept} are kept; send the rest, or all of it, again");
            Refusal::new(Code::DatabaseUnavailable, detail)
        }
        other => other.into(),
    }
}
