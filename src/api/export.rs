//! Owns `GET /v1/devices/export`: all devices as a stream, as fast as they are read.
//! Must never know: how a device is written down.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Api;
use super::guard::Caller;
use super::problem::Refusal;
use super::query::{Given, one_of, read};
use crate::devices::Export;
use crate::domain::recipient::DeviceState;
use crate::door::Pass;
use crate::store::StoreError;
use crate::wire::{Format, ImportLine};

/// Longest time a reader may leave one piece unread: it holds one of few places meanwhile.
const UNREAD: Duration = Duration::from_secs(30);

/// A piece of the answer, or its proper end. A channel that closes without one was broken off.
enum Piece {
    Lines(Bytes),
    End,
}

/// Export all devices with what they follow, as an import reads them.
///
/// A stream, page by page; between two pages nothing of the database is held. A failure in the middle breaks the body off,
/// and a file that was kept all the same lacks the last line that counts the devices.
#[utoipa::path(get, path = "/v1/devices/export", operation_id = "exportDevices", tag = "devices",
    params(
        ("format" = Option<String>, Query, description = "`ndjson` or `csv`; else what `Accept` asks for, else NDJSON."),
        ("state" = Option<String>, Query, description = "Only devices in it: `live`, `tombstoned`, `suspended`."),
    ),
    responses((status = 200, description = "One device per line, in the order they were added; the last line is \
        `{\"end\":N}` or `#end,N`.", content((ImportLine = "application/x-ndjson"), (String = "text/csv")))),
    security(("key" = ["devices"])))]
pub(super) async fn run(
    State(api): State<Arc<Api>>,
    Extension(pass): Extension<Pass>,
    Extension(Caller(caller)): Extension<Caller>,
    given: Given,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let [format, state] = read(given, ["format", "state"])?;
    let format = one_of("format", format, &["ndjson", "csv"], Format::parse)?.unwrap_or_else(|| accepted(&headers));
    let known = |name: &str| DeviceState::ALL.iter().find(|state| state.as_str() == name).copied();
    let state = one_of("state", state, &["live", "tombstoned", "suspended"], known)?;
    let mut export = Export::new(Arc::clone(&api.state.store), api.state.catalogue.now(), format, state);
    // A database that is away is an answer, not an answer that breaks off.
    let first = export.next().await?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        give(export, first, &sender, &caller).await;
        // Its place is held to the end of the stream, not of the head.
        drop(pass);
    });
    Ok(([(CONTENT_TYPE, format.content_type())], Body::from_stream(pieces(receiver))).into_response())
}

fn accepted(headers: &HeaderMap) -> Format {
    let wants_csv = |value: &str| value.to_ascii_lowercase().contains("text/csv");
    let csv = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(wants_csv);
    if csv { Format::Csv } else { Format::Ndjson }
}

async fn give(mut export: Export, first: Option<String>, sender: &mpsc::Sender<Piece>, caller: &str) {
    let begun = Instant::now();
    let mut next: Result<Option<String>, StoreError> = Ok(first);
    let why = loop {
        let piece = match next {
            Ok(Some(text)) => Piece::Lines(text.into()),
            Ok(None) => Piece::End,
            Err(error) => break error.to_string(),
        };
        let ended = matches!(piece, Piece::End);
        if sender.send_timeout(piece, UNREAD).await.is_err() {
            break "the reader went away or stopped reading".to_owned();
        }
        if ended {
            let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let devices = export.devices();
            tracing::info!(target: "fanfare::api", caller, devices, duration_ms, "devices exported");
            return;
        }
        next = export.next().await;
    };
    tracing::warn!(target: "fanfare::api", caller, error = why, devices = export.devices(), "export broke off");
}

fn pieces(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = io::Result<Bytes>> {
    stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Lines(bytes)) => Some((Ok(bytes), Some(receiver))),
            Some(Piece::End) => None,
            None => Some((Err(io::Error::other("the export broke off")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn an_export_that_breaks_off_ends_with_an_error_and_a_whole_one_does_not() {
        for (last, whole) in [(Some(Piece::End), true), (None, false)] {
            let (sender, receiver) = mpsc::channel(2);
            for piece in [Some(Piece::Lines("x".into())), last].into_iter().flatten() {
                assert!(sender.try_send(piece).is_ok());
            }
            drop(sender);
            let read: Vec<io::Result<Bytes>> = pieces(receiver).collect().await;
            assert_eq!(read.iter().all(Result::is_ok), whole);
            assert_eq!(read.len(), if whole { 1 } else { 2 });
        }
    }
}
