//! Owns the import of many devices: lines in, batches to the store, a reason for each line that was not taken.
//! Must never know: where the bytes come from.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use super::lines::{Line, Lines};
use super::row::{Found, Reader, Refused};
use crate::domain::catalogue::Catalogue;
use crate::domain::ids::DeviceId;
use crate::domain::recipient::Address;
use crate::store::{ImportRow, Imported, Store, StoreError};
use crate::wire::{Format, ImportAnswer};

/// Rows of one batch, which share pages of the trees they go to. With more, a flush would wait too long behind the one
/// writer of SQLite.
const BATCH_ROWS: usize = 2000;
/// Database rows after which a batch is written although it has fewer lines: somebody may follow thousands.
const BATCH_WRITTEN: usize = 5 * BATCH_ROWS;
/// Bytes of lines after which a batch is written although it has fewer rows.
const BATCH_BYTES: usize = 1024 * 1024;

/// The store failed in the middle.
#[derive(Debug, Clone, thiserror::Error)]
#[error("stopped after line {}: {error}", .so_far.kept_through)]
pub struct Stopped {
    /// What was done before.
    pub so_far: Box<ImportAnswer>,
    /// Why.
    pub error: StoreError,
}

/// How an import went as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// At least one line was kept; or there was none, and the file says that there should be none.
    Kept,
    /// There were lines, and all of them were rejected.
    NothingKept,
    /// There was no line with a device.
    Empty,
    /// It is no file of this format; what comes after the line that told was not read.
    Unreadable,
}

/// One import in progress. Memory: one line, the batch that is filled and those that are written meanwhile.
pub struct Import {
    store: Arc<dyn Store>,
    catalogue: Arc<Catalogue>,
    revive: bool,
    lines: Lines,
    reader: Reader,
    batch: Batch,
    /// In the order of the file.
    writing: VecDeque<Writing>,
    answer: ImportAnswer,
    end_seen: bool,
    unreadable: bool,
}

/// A batch on its way into the store: the next one is read meanwhile, which is nearly half of the work.
struct Writing {
    task: BoxFuture<'static, Result<Imported, StoreError>>,
    last_line: u64,
    /// The last line about a device, and an earlier one.
    repeats: Vec<(u64, u64)>,
}

/// Rows to be written at once. Each device and each address is in it once: which of two came last would be lost.
#[derive(Default)]
struct Batch {
    rows: Vec<ImportRow>,
    written: usize,
    bytes: usize,
    last_line: u64,
    by_id: HashMap<DeviceId, usize>,
    by_address: HashMap<Address, usize>,
    /// Earlier lines of a row that said the same device at the same address.
    earlier: Vec<(usize, u64)>,
}

impl Batch {
    fn full(&self) -> bool {
        self.rows.len() + self.earlier.len() >= BATCH_ROWS || self.written >= BATCH_WRITTEN || self.bytes >= BATCH_BYTES
    }

    /// Takes a row if the batch has neither its device nor its address. A later line about a device at the same address
    /// replaces the earlier one: files made by a join have many of them in a row. Gives back a row it does not take.
    fn push(&mut self, row: ImportRow) -> Option<ImportRow> {
        self.written += row.written();
        match (self.by_id.get(row.id()), self.by_address.get(&row.device.address)) {
            (None, None) => {
                self.by_id.insert(row.id().clone(), self.rows.len());
                self.by_address.insert(row.device.address.clone(), self.rows.len());
                self.rows.push(row);
                None
            }
            (Some(same), Some(place)) if same == place && self.rows[*same].state == row.state => {
                let at = *same;
                let replaced = std::mem::replace(&mut self.rows[at], row);
                self.earlier.push((at, replaced.line));
                if self.rows[at].follows.is_none() {
                    self.rows[at].follows = replaced.follows;
                }
                None
            }
            _ => Some(row),
        }
    }
}

impl Import {
    /// An import into `store`; with `revive` a line also wakes a device that is tombstoned or suspended.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, catalogue: Arc<Catalogue>, format: Format, revive: bool) -> Self {
        Self {
            store,
            catalogue,
            revive,
            lines: Lines::default(),
            reader: Reader::new(format),
            batch: Batch::default(),
            writing: VecDeque::new(),
            answer: ImportAnswer::default(),
            end_seen: false,
            unreadable: false,
        }
    }

    /// Takes the next bytes, cut anywhere. Returns once all but the last full batches are
    /// committed, so a fast sender waits.
    /// After a `Break` nothing more need be fed.
    ///
    /// # Errors
    /// [`Stopped`] when the store failed.
    pub async fn feed(&mut self, mut bytes: &[u8]) -> Result<ControlFlow<()>, Stopped> {
        while !self.unreadable
            && let Some(line) = self.lines.next(&mut bytes)
        {
            self.take(line).await?;
        }
        Ok(if self.unreadable { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// [`Stopped`] when the store failed.
    pub async fn finish(mut self) -> Result<(ImportAnswer, Verdict), Stopped> {
        if !self.unreadable
            && let Some(line) = self.lines.finish()
        {
            self.take(line).await?;
        }
        self.write().await?;
        self.written(0).await?;
        self.answer.kept_through = self.answer.kept_through.max(self.lines.ended());
        let verdict = self.verdict();
        Ok((self.told(), verdict))
    }

    /// What was done so far, when its sender is lost.
    pub async fn so_far(mut self) -> ImportAnswer {
        match self.written(0).await {
            Ok(()) => self.told(),
            Err(stopped) => *stopped.so_far,
        }
    }

    fn told(mut self) -> ImportAnswer {
        self.answer.rejected.sort_by_key(|reject| reject.line);
        self.answer.ignored_columns = self.reader.ignored_columns().to_vec();
        self.answer
    }

    fn verdict(&self) -> Verdict {
        let ImportAnswer { imported, updated, rejected_total, .. } = self.answer;
        match (imported + updated, rejected_total) {
            _ if self.unreadable => Verdict::Unreadable,
            (0, 0) if !self.end_seen => Verdict::Empty,
            (0, 1..) => Verdict::NothingKept,
            _ => Verdict::Kept,
        }
    }

    async fn take(&mut self, line: Line) -> Result<(), Stopped> {
        match self.reader.read(&line, &self.catalogue) {
            Ok(Found::Device(row)) => {
                if let Some(row) = self.batch.push(*row) {
                    self.write().await?;
                    // The batch is empty now, so there is nothing it could collide with.
                    self.batch.push(row);
                }
                self.batch.bytes += line.text.len();
            }
            Ok(Found::End) => self.end_seen = true,
            Ok(Found::Nothing) => {}
            Err(Refused { code, reason, whole_file }) => {
                self.unreadable |= whole_file;
                self.answer.reject(line.no, code, reason);
            }
        }
        self.batch.last_line = line.no;
        if self.batch.full() { self.write().await } else { Ok(()) }
    }

    /// Hands the batch to the store, once it has no more than it takes at once.
    async fn write(&mut self) -> Result<(), Stopped> {
        self.written(self.store.imports_at_once() - 1).await?;
        let Batch { rows, last_line, earlier, .. } = std::mem::take(&mut self.batch);
        if rows.is_empty() {
            self.written(0).await?;
            self.answer.kept_through = self.answer.kept_through.max(last_line);
            return Ok(());
        }
        let repeats = earlier.into_iter().map(|(at, line)| (rows[at].line, line)).collect();
        let (store, revive) = (Arc::clone(&self.store), self.revive);
        let mut task = async move { store.import(rows, revive).await }.boxed();
        // Polled once, the store has it, after those before.
        let task = match futures_util::poll!(&mut task) {
            Poll::Ready(done) => ready(done).boxed(),
            Poll::Pending => task,
        };
        self.writing.push_back(Writing { task, last_line, repeats });
        Ok(())
    }

    /// Waits until no more than `left` batches are being written.
    async fn written(&mut self, left: usize) -> Result<(), Stopped> {
        while self.writing.len() > left
            && let Some(Writing { task, last_line, repeats }) = self.writing.pop_front()
        {
            match task.await {
                Ok(done) => self.count(done, &repeats),
                Err(error) => return Err(Stopped { so_far: Box::new(std::mem::take(&mut self.answer)), error }),
            }
            self.answer.kept_through = self.answer.kept_through.max(last_line);
        }
        Ok(())
    }

    /// Counts as if the lines had come one by one.
    fn count(&mut self, done: Imported, repeats: &[(u64, u64)]) {
        self.answer.imported += done.imported;
        self.answer.updated += done.updated + repeats.len() as u64;
        self.answer.moved += done.moved;
        self.answer.revived += done.revived;
        for reject in done.rejected {
            for (_, line) in repeats.iter().filter(|(last, _)| *last == reject.line) {
                self.answer.updated -= 1;
                self.answer.reject(*line, reject.code, reject.reason.clone());
            }
            self.answer.reject(reject.line, reject.code, reject.reason);
        }
    }
}
