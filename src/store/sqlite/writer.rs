//! Owns the one connection that writes: a task that takes every waiting job, runs each in a savepoint, commits once.
//! Must never know: what a job writes.
//!
//! One `fsync` then serves all callers that arrived during the one before. A job that fails undoes only itself; a
//! commit that fails fails all its jobs. A caller who gives up drops the reply, never the job.

use std::fs::File;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection, query_scalar};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::counts::{Counts, WriteCounts};
use super::fault::Answer;
use super::file::OpenFile;
use super::job::{Job, Pending, Turn, closed, too_late, whole_transaction};
use super::load::Load;
use crate::mutant;
use crate::store::StoreError;
use crate::telemetry::Outage;

/// Jobs waiting for the writer; callers beyond it wait to hand theirs over.
const QUEUE: usize = 1_024;
/// Most jobs of one commit: the answer to the first waits for the last.
const BATCH_JOBS: usize = 64;
/// Rows after which a batch takes no further job.
const BATCH_ROWS: usize = 1_000;

/// The handle callers write through. The writer ends when the last handle is gone, after what it was given.
pub(super) struct Writer {
    inbox: mpsc::Sender<Message>,
    counts: Arc<Counts>,
}

enum Message {
    Job(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the task. `lock` is held until the task has closed its connection.
    pub(super) async fn start(options: SqliteConnectOptions, path: &Path, lock: File) -> Answer<Self> {
        let conn = options.connect().await?;
        let file = OpenFile::at(path).await?;
        // From here on a file that is missing is one that was taken away, and an empty one in its place would forget all.
        let options = options.create_if_missing(false);
        let (inbox, waiting) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let task = Task {
            options,
            file,
            conn: Some(conn),
            counts: Arc::clone(&counts),
            load: Load::default(),
            outage: Outage::default(),
            _lock: lock,
        };
        tokio::spawn(task.serve(waiting));
        Ok(Self { inbox, counts })
    }

    /// One that takes no work.
    pub(super) fn none() -> Self {
        Self { inbox: mpsc::channel(1).0, counts: Arc::default() }
    }

    /// Runs `work` in the next transaction and answers when that has ended. `rows` = how many it writes, roughly.
    pub(super) async fn run<T, F>(&self, rows: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        self.hand_over(rows, Turn::default(), work).await
    }

    /// The same for a piece of bulk work. While nobody else waits, the pieces that do share a transaction: rows of many
    /// share pages, and a page is written into the log once for a transaction. They are kept or lost together.
    pub(super) async fn run_bulk<T, F>(&self, rows: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        self.hand_over(rows, Turn { bulk: true, taken: None }, work).await
    }

    async fn hand_over<T, F>(&self, rows: usize, turn: Turn, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let (job, answer) = Pending::new(rows, turn, work);
        self.inbox.send(Message::Job(Box::new(job))).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// The same for a caller who is told at `start_by` if its turn has not come by then: another program may hold the file.
    /// Whoever takes the turn first, the writer to run it or the caller to give it up, decides.
    pub(super) async fn run_by<T, F>(&self, start_by: Instant, rows: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let turn = Arc::new(AtomicBool::new(false));
        let writers = Arc::clone(&turn);
        let shown = Turn { bulk: false, taken: Some(Arc::clone(&turn)) };
        let mut answer = pin!(self.hand_over(rows, shown, move |conn| {
            let given_up = writers.swap(true, Ordering::Relaxed) || Instant::now() > start_by;
            if given_up { async { Err(too_late().into()) }.boxed() } else { work(conn) }
        }));
        match timeout_at(start_by, &mut answer).await {
            Ok(answer) => answer,
            Err(_) if turn.swap(true, Ordering::Relaxed) => answer.await,
            Err(_) => Err(too_late()),
        }
    }

    /// Waits for every job handed over so far, then closes the connection and gives the lock back.
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.inbox.send(Message::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// Jobs handed over that the writer has not taken yet.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.inbox.max_capacity() - self.inbox.capacity()
    }

    pub(super) fn counts(&self) -> WriteCounts {
        self.counts.read()
    }
}

/// The next piece of bulk work, if there is one and nobody else waits.
type More<'a> = dyn FnMut() -> Option<Box<dyn Job>> + Send + 'a;

struct Task {
    options: SqliteConnectOptions,
    file: OpenFile,
    /// `None` after a failed transaction: the next one starts on a fresh connection, whatever state this one was in.
    conn: Option<SqliteConnection>,
    counts: Arc<Counts>,
    load: Load,
    outage: Outage,
    _lock: File,
}

impl Task {
    async fn serve(mut self, mut waiting: mpsc::Receiver<Message>) {
        let (mut closing, mut left) = (Vec::new(), None);
        while let Some(first) = match left.take() {
            Some(message) => Some(message),
            None => waiting.recv().await,
        } {
            let (mut batch, mut rows, mut next) = (Vec::new(), 0, Some(first));
            while let Some(message) = next.take() {
                match message {
                    Message::Job(job) if job.bulk() && batch.is_empty() => left = self.load(job, &mut waiting).await,
                    // After what came before it is kept.
                    Message::Job(job) if job.bulk() => left = Some(Message::Job(job)),
                    // They would keep those out that wait, while another program holds the file.
                    Message::Job(job) if job.given_up() => drop(job),
                    Message::Job(job) => {
                        rows += job.rows();
                        batch.push(job);
                    }
                    Message::Close(done) => {
                        waiting.close();
                        closing.push(done);
                    }
                }
                if left.is_none() && batch.len() < BATCH_JOBS && rows < BATCH_ROWS {
                    next = waiting.try_recv().ok();
                }
            }
            if !batch.is_empty() {
                self.commit(batch).await;
            }
        }
        self.disconnect().await;
        drop(self);
        for done in closing {
            let _ = done.send(());
        }
    }

    async fn commit(&mut self, mut batch: Vec<Box<dyn Job>>) {
        let ended = match batch.len() {
            1 => self.transact_whole(&mut batch, &mut || None).await,
            _ => self.transact(&mut batch).await,
        };
        let told = self.ended(ended, batch.len()).await;
        batch.into_iter().for_each(|job| job.answer(&told));
    }

    /// Runs bulk work in one transaction for as long as there is some and nobody else waits; what came instead.
    async fn load(&mut self, first: Box<dyn Job>, waiting: &mut mpsc::Receiver<Message>) -> Option<Message> {
        let (mut load, mut left) = (vec![first], None);
        let mut more = || match waiting.try_recv().ok()? {
            Message::Job(job) if job.bulk() => Some(job),
            other => {
                left = Some(other);
                None
            }
        };
        let ended = self.transact_whole(&mut load, &mut more).await;
        let told = self.ended(ended, load.len()).await;
        load.into_iter().for_each(|job| job.answer(&told));
        left
    }

    /// What is told to the jobs of a transaction.
    async fn ended(&mut self, ended: Answer<()>, jobs: usize) -> Result<(), StoreError> {
        let ended = ended.map_err(whole_transaction);
        match &ended {
            Ok(()) if self.outage.is_on() => self.end_outage().await,
            Ok(()) => {}
            Err(error) => {
                if self.outage.begins() {
                    tracing::warn!(target: "fanfare::store", jobs, %error, "sqlite transaction failed");
                }
                self.disconnect().await;
            }
        }
        if mutant::on("answer_before_commit") { Ok(()) } else { ended }
    }

    /// One that changed nothing says nothing of a full disk. The connection is newer than the outage.
    async fn end_outage(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        if query_scalar::<_, i64>("SELECT total_changes()").fetch_one(conn).await.is_ok_and(|changes| changes > 0) {
            self.outage.over();
            tracing::info!(target: "fanfare::store", what = "file", "sqlite writes again");
        }
    }

    async fn connect(&mut self) -> Answer<()> {
        if self.conn.is_none() {
            self.file.check().await?;
            self.conn = Some(self.options.connect().await?);
        }
        Ok(())
    }

    async fn transact(&mut self, batch: &mut [Box<dyn Job>]) -> Answer<()> {
        self.connect().await?;
        let Some(conn) = &mut self.conn else { return Err(closed().into()) };
        // IMMEDIATE: a transaction that becomes a writer later is refused at once, busy timeout or not.
        let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
        for job in batch.iter_mut() {
            let mut savepoint = transaction.begin().await?;
            let keep = job.run(&mut savepoint).await;
            let ended = if keep { savepoint.commit().await } else { savepoint.rollback().await };
            // SQLite undoes the whole transaction by itself after some errors; the savepoint is gone then.
            ended?;
            self.counts.jobs.fetch_add(1, Ordering::Relaxed);
        }
        self.file.check().await?;
        transaction.commit().await?;
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// One job, or as many pieces of bulk work as there are. When one fails none is kept: the transaction serves for a
    /// savepoint, and SQLite need not keep what each page was before.
    async fn transact_whole(&mut self, load: &mut Vec<Box<dyn Job>>, more: &mut More<'_>) -> Answer<()> {
        self.connect().await?;
        let Some(conn) = &mut self.conn else { return Err(closed().into()) };
        let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
        let (mut rows, mut at) = (0, 0);
        while let Some(job) = load.get_mut(at) {
            rows += job.rows();
            let keep = job.run(&mut transaction).await;
            self.counts.jobs.fetch_add(1, Ordering::Relaxed);
            if !keep {
                // SQLite undoes the transaction by itself after some errors, a full disk say; what the job says stands.
                if transaction.rollback().await.is_err() {
                    self.disconnect().await;
                }
                let failed = load.swap_remove(at);
                failed.answer(&Ok(()));
                let other = StoreError::Unavailable("another piece of the same transaction failed".to_owned());
                return if load.is_empty() { Ok(()) } else { Err(other.into()) };
            }
            if !self.load.is_full(rows) {
                load.extend(more());
            }
            at += 1;
        }
        self.file.check().await?;
        let begun = Instant::now();
        transaction.commit().await?;
        self.load.committed(rows, begun.elapsed());
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn disconnect(&mut self) {
        if let Some(conn) = self.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::warn!(target: "fanfare::store", %error, "sqlite connection did not close");
        }
    }
}
