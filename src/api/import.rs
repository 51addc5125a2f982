//! Owns `POST /v1/devices/import`: a stream of NDJSON or CSV in bounded memory.
//! Must never know: what a line must look like.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use futures_util::StreamExt;
use tokio::time::Instant;

use super::guard::Caller;
use super::problem::{Code, Refusal};
use super::query::{Given, flag, read};
use super::{Api, body};
use crate::devices::{Import, Stopped, Verdict};
use crate::store::StoreError;
use crate::wire::{Format, ImportAnswer, ImportLine};

/// Longest silence of the sender.
const SILENCE: Duration = Duration::from_secs(30);

/// Import devices, one per line: NDJSON or CSV.
///
/// Lines that are wrong are told by number, the others are kept. It can be sent again whole: a line that is there already
/// changes nothing. When not one line was kept the answer is a refusal with the same account in it, so that a file that
/// is wrong throughout looks like no success.
#[utoipa::path(post, path = "/v1/devices/import", operation_id = "importDevices", tag = "devices",
    params(("revive" = Option<bool>, Query, description = "Whether a dead device that a line names lives again, whatever \
        `state` the line says; else the line is rejected.")),
    request_body(
        description = "One device per line, in one stream of any length. CSV has a header of the same names; lists are \
            separated by `|`.",
        content((ImportLine = "application/x-ndjson"), (String = "text/csv")),
    ),
    responses(
        (status = 200, description = "What became of the lines.", body = ImportAnswer),
        (status = 408, description = "`body_timeout`: silent for 30 s."),
        (status = 415, description = "`unsupported_media_type`"),
        (status = 422, description = "`nothing_imported`: every line was rejected; `empty_import`: there is none; \
            `unreadable_file`: it is not of this format at all. The account is in the body."),
    ),
    security(("key" = ["devices"])))]
pub(super) async fn run(
    State(api): State<Arc<Api>>,
    Extension(Caller(caller)): Extension<Caller>,
    given: Given,
    request: Request,
) -> Result<Json<ImportAnswer>, Refusal> {
    let [revive] = read(given, ["revive"])?;
    let revive = flag("revive", revive)?;
    let mut format = None;
    let hint = "send NDJSON as application/x-ndjson, or CSV as text/csv";
    body::kind(request.headers(), hint, |kind| {
        format = Format::of_kind(kind);
        format.is_some()
    })?;
    let format = format.ok_or_else(|| Refusal::new(Code::UnsupportedMediaType, hint))?;
    let begun = Instant::now();
    let import = Import::new(Arc::clone(&api.state.store), api.state.catalogue.now(), format, revive);
    let (answer, verdict) = stream(import, request).await?;
    let ImportAnswer { imported, updated, moved, revived, rejected_total: rejected, .. } = answer;
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        target: "fanfare::api",
        caller, imported, updated, moved, revived, rejected, duration_ms, format = format.as_str(), "devices imported"
    );
    judged(answer, verdict)
}

async fn stream(mut import: Import, request: Request) -> Result<(ImportAnswer, Verdict), Refusal> {
    let mut pieces = request.into_body().into_data_stream();
    loop {
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(bytes))) => {
                if import.feed(&bytes).await.map_err(stopped)?.is_break() {
                    return import.finish().await.map_err(stopped);
                }
            }
            Ok(Some(Err(_))) => {
                let refusal = Refusal::new(Code::BadRequest, "the body broke off; send it again");
                return Err(refusal.import(import.so_far().await));
            }
            Ok(None) => return import.finish().await.map_err(stopped),
            Err(_) => return Err(body::slow(SILENCE).import(import.so_far().await)),
        }
    }
}

fn judged(answer: ImportAnswer, verdict: Verdict) -> Result<Json<ImportAnswer>, Refusal> {
    let (code, detail) = match verdict {
        Verdict::Kept => return Ok(Json(answer)),
        Verdict::NothingKept => {
            let lines = match answer.rejected_total {
                1 => "the only line was".to_owned(),
                n => format!("all {n} lines were"),
            };
            (Code::NothingImported, format!("nothing was kept: {lines} rejected, see `import`"))
        }
        Verdict::Empty => (Code::EmptyImport, "there is no line with a device in it".to_owned()),
        Verdict::Unreadable => {
            let last = answer.rejected.last();
            (Code::UnreadableFile, last.map_or_else(String::new, |r| format!("line {}: {}", r.line, r.reason)))
        }
    };
    Err(Refusal::new(code, detail).import(answer))
}

fn stopped(stop: Stopped) -> Refusal {
    let kept = stop.so_far.kept_through;
    let refusal = match stop.error {
        StoreError::Unavailable(why) => {
            tracing::warn!(target: "fanfare::api", error = %why, kept_through = kept, "import stopped");
            Refusal::database(why, &format!("lines up to {kept} are kept; send the rest, or all of it, again"))
        }
        other => other.into(),
    };
    refusal.import(*stop.so_far)
}
