//! Owns the import of many devices: lines in, batches to the store, a reason for each line that was not taken.
//! Must never know: where the bytes come from.

use std::collections::HashSet;
use std::sync::Arc;

use super::fault;
use super::follows::FollowsDraft;
use super::lines::{Line, Lines, MAX_LINE_BYTES};
use super::register::DeviceDraft;
use crate::domain::catalogue::Catalogue;
use crate::domain::event::FieldError;
use crate::domain::ids::DeviceId;
use crate::domain::recipient::{Address, Device, Follows};
use crate::store::{ImportRow, Store, StoreError};
use crate::wire::{self, ImportAnswer, ImportLine, ReadError, Reject};

/// Rejected lines that are told one by one; more are only counted.
pub const MAX_REJECTS_SHOWN: usize = 1000;

/// Rows of one batch, one transaction.
const BATCH_ROWS: usize = 1000;
/// Bytes of lines after which a batch is written although it has fewer rows.
const BATCH_BYTES: usize = 1024 * 1024;

/// The store failed in the middle.
#[derive(Debug, Clone, thiserror::Error)]
#[error("stopped after line {kept_through}: {error}")]
pub struct Stopped {
    /// Lines up to and with this one are dealt with; sending them again changes nothing.
    pub kept_through: u64,
    /// Why.
    pub error: StoreError,
}

/// One import in progress. Memory: one line and one batch.
pub struct Import {
    store: Arc<dyn Store>,
    catalogue: Arc<Catalogue>,
    lines: Lines,
    batch: Batch,
    kept_through: u64,
    answer: ImportAnswer,
}

#[derive(Default)]
struct Batch {
    rows: Vec<ImportRow>,
    bytes: usize,
    last_line: u64,
    ids: HashSet<DeviceId>,
    addresses: HashSet<Address>,
}

impl Batch {
    fn full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// A batch is written at once, so which of two lines about one device or token comes last would be lost.
    fn knows(&self, device: &Device) -> bool {
        self.ids.contains(&device.id) || self.addresses.contains(&device.address)
    }

    fn push(&mut self, row: ImportRow, bytes: usize) {
        self.ids.insert(row.device.id.clone());
        self.addresses.insert(row.device.address.clone());
        self.bytes += bytes;
        self.rows.push(row);
    }
}

impl Import {
    /// An import into `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, catalogue: Arc<Catalogue>) -> Self {
        let answer = ImportAnswer::default();
        Self { store, catalogue, lines: Lines::default(), batch: Batch::default(), kept_through: 0, answer }
    }

    /// Takes the next bytes, cut anywhere. Returns once what became a full batch is committed, so a fast sender waits.
    ///
    /// # Errors
    /// [`Stopped`] when the store failed.
    pub async fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Stopped> {
        while let Some(line) = self.lines.next(&mut bytes) {
            self.take(line).await?;
        }
        Ok(())
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// [`Stopped`] when the store failed.
    pub async fn finish(mut self) -> Result<ImportAnswer, Stopped> {
        if let Some(line) = self.lines.finish() {
            self.take(line).await?;
        }
        self.write().await?;
        self.answer.rejected.sort_by_key(|reject| reject.line);
        Ok(self.answer)
    }

    async fn take(&mut self, line: Line) -> Result<(), Stopped> {
        let no = line.no;
        match row(&line, &self.catalogue) {
            Ok(row) => {
                if self.batch.knows(&row.device) {
                    self.write().await?;
                }
                self.batch.push(row, line.text.map_or(0, |text| text.len()));
            }
            Err((code, reason)) => self.reject(no, code, reason),
        }
        self.batch.last_line = no;
        if self.batch.full() { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> Result<(), Stopped> {
        let Batch { rows, last_line, .. } = std::mem::take(&mut self.batch);
        if !rows.is_empty() {
            let kept_through = self.kept_through;
            let done = self.store.import(rows).await.map_err(|error| Stopped { kept_through, error })?;
            self.answer.imported += done.imported;
            self.answer.updated += done.updated;
            for reject in done.rejected {
                self.reject(reject.line, reject.code, reject.reason);
            }
        }
        self.kept_through = self.kept_through.max(last_line);
        Ok(())
    }

    fn reject(&mut self, line: u64, code: &str, reason: String) {
        self.answer.rejected_total += 1;
        if self.answer.rejected.len() < MAX_REJECTS_SHOWN {
            self.answer.rejected.push(Reject { line, code: code.to_owned(), reason });
        }
    }
}

fn row(line: &Line, catalogue: &Catalogue) -> Result<ImportRow, (&'static str, String)> {
    let too_long = || ("line_too_long", format!("a line has at most {MAX_LINE_BYTES} bytes"));
    let text = line.text.as_deref().ok_or_else(too_long)?;
    let read: ImportLine = wire::read(text).map_err(|fault| match fault {
        ReadError::Syntax { reason, column, .. } => ("bad_json", format!("{reason} at column {column}")),
        ReadError::Field(found) => ("invalid", format!("{}: {}", found.field, found.problem)),
    })?;
    check(&read, catalogue).map(|(device, follows)| ImportRow { line: line.no, device, follows }).map_err(|faults| {
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        ("invalid", told.join("; "))
    })
}

fn check(read: &ImportLine, catalogue: &Catalogue) -> Result<(Device, Option<Follows>), Vec<FieldError>> {
    let draft = DeviceDraft {
        id: &read.id,
        user_id: &read.user_id,
        token: read.token.as_deref(),
        fid: read.fid.as_deref(),
        platform: &read.platform,
        locale: read.locale.as_deref(),
    };
    let device = draft.parse(&catalogue.default_locale)?;
    let muted = read.muted.as_deref().unwrap_or_default();
    let follows = match &read.follows {
        Some(follows) => Some(FollowsDraft { follows, muted }.parse(catalogue)?),
        None if read.muted.is_some() => {
            return Err(vec![fault("/muted", "is part of the set of follows: give `follows` beside it")]);
        }
        None => None,
    };
    Ok((device, follows))
}
