//! Owns moving many devices through our own API: a stream of lines in, pieces of a file out.
//! Must never know: files, or how progress is shown.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use http_body_util::StreamBody;
use hyper::body::Frame;
use reqwest::{Method, RequestBuilder, Response};

use super::{Client, ClientError, unreachable};
use crate::wire::{Format, ImportAnswer};

/// Longest wait for the answer to a part of a file: it is some ten thousand lines.
const PART_PATIENCE: Duration = Duration::from_secs(600);

/// Longest silence in the middle of an export.
const SILENCE: Duration = Duration::from_secs(60);

impl Client {
    /// Imports devices from a stream of NDJSON in one request. No time limit: the service is as fast as its database.
    ///
    /// # Errors
    /// [`ClientError`]; what was imported before it stays.
    pub async fn import<S>(&self, ndjson: S) -> Result<ImportAnswer, ClientError>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send + Sync + 'static,
    {
        let body = reqwest::Body::wrap(StreamBody::new(ndjson.map_ok(Frame::data)));
        self.call(self.importing(Format::Ndjson, false).timeout(Duration::MAX).body(body)).await
    }

    /// Imports whole lines; of CSV with the header before them. `revive` also wakes devices that are dead.
    ///
    /// # Errors
    /// [`ClientError`]; a refusal says in `import` what was done before it.
    pub async fn import_part(&self, format: Format, revive: bool, lines: Vec<u8>) -> Result<ImportAnswer, ClientError> {
        self.call(self.importing(format, revive).timeout(PART_PATIENCE).body(lines)).await
    }

    /// Exports all devices, or those in `state`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn export(&self, format: Format, state: Option<&String>) -> Result<Pieces, ClientError> {
        let name = format.as_str().to_owned();
        let request = self.asking(&["devices", "export"], &[("format", Some(&name)), ("state", state)]);
        self.answer(request.timeout(Duration::MAX)).await.map(Pieces)
    }

    fn importing(&self, format: Format, revive: bool) -> RequestBuilder {
        let mut url = self.url(&["devices", "import"]);
        if revive {
            url.query_pairs_mut().append_pair("revive", "true");
        }
        self.to(Method::POST, url).header("content-type", format.content_type())
    }
}

/// An export as it comes in.
#[derive(Debug)]
pub struct Pieces(Response);

impl Pieces {
    /// The next piece; `None` at the proper end.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when it broke off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match tokio::time::timeout(SILENCE, self.0.chunk()).await {
            Ok(piece) => piece.map_err(|fault| unreachable(&fault)),
            Err(_) => Err(ClientError::Unreachable(format!("nothing came for {} s", SILENCE.as_secs()))),
        }
    }
}
