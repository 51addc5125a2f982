//! Owns the one connection that writes: a task that takes every waiting job, runs each in a savepoint, commits once.
//! Must never know: what a job writes.
//!
//! One `fsync` then serves all callers that arrived during the one before. A job that fails undoes only itself; a
//! commit that fails fails all its jobs. A caller who gives up drops the reply, never the job.

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection, query_scalar};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::counts::{Counts, WriteCounts};
use super::fault::{Answer, Fault};
use super::file::OpenFile;
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
        self.hand_over(rows, None, work).await
    }

    async fn hand_over<T, F>(&self, rows: usize, turn: Option<Arc<AtomicBool>>, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending { rows, work: Some(work), result: None, turn, reply });
        self.inbox.send(Message::Job(job)).await.map_err(|_| closed())?;
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
        let shown = Some(Arc::clone(&turn));
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

/// No job is to blame when the transaction fails: each may be tried again.
fn whole_transaction(fault: Fault) -> StoreError {
    match fault.0 {
        StoreError::Statement(text) => StoreError::Unavailable(text),
        other => other,
    }
}

fn too_late() -> StoreError {
    StoreError::Unavailable("the writer was busy for too long".to_owned())
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// One caller's work, its result held back until the commit.
#[async_trait]
trait Job: Send {
    fn rows(&self) -> usize;
    /// Whether its caller has been told that its turn did not come in time.
    fn given_up(&self) -> bool;
    /// Whether what it wrote is to be kept.
    async fn run(&mut self, conn: &mut SqliteConnection) -> bool;
    fn answer(self: Box<Self>, commit: &Result<(), StoreError>);
}

struct Pending<T, F> {
    rows: usize,
    work: Option<F>,
    result: Option<Result<T, StoreError>>,
    /// Taken by the writer, which takes this job out of its queue only once, or by the caller.
    turn: Option<Arc<AtomicBool>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

#[async_trait]
impl<T, F> Job for Pending<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
{
    fn rows(&self) -> usize {
        self.rows
    }

    fn given_up(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.load(Ordering::Relaxed))
    }

    async fn run(&mut self, conn: &mut SqliteConnection) -> bool {
        let Some(work) = self.work.take() else { return false };
        // A panic in one job must not take the writer, and with it the service, down.
        let result = AssertUnwindSafe(async { work(conn).await }).catch_unwind().await;
        let result = match result {
            Ok(result) => result.map_err(|fault| fault.0),
            Err(_) => Err(StoreError::Statement("a store job panicked".to_owned())),
        };
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, commit: &Result<(), StoreError>) {
        let answer = match (commit, self.result) {
            (Err(failed), _) => Err(failed.clone()),
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => Err(closed()),
        };
        // Nobody waits any more when the caller gave up; the job is done all the same.
        let _ = self.reply.send(answer);
    }
}

struct Task {
    options: SqliteConnectOptions,
    file: OpenFile,
    /// `None` after a failed transaction: the next one starts on a fresh connection, whatever state this one was in.
    conn: Option<SqliteConnection>,
    counts: Arc<Counts>,
    outage: Outage,
    _lock: File,
}

impl Task {
    async fn serve(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut closing = Vec::new();
        while let Some(first) = waiting.recv().await {
            let (mut batch, mut rows, mut next) = (Vec::new(), 0, Some(first));
            while let Some(message) = next.take() {
                match message {
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
                if batch.len() < BATCH_JOBS && rows < BATCH_ROWS {
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
        let ended = self.transact(&mut batch).await.map_err(whole_transaction);
        match &ended {
            Ok(()) if self.outage.is_on() => self.end_outage().await,
            Ok(()) => {}
            Err(error) => {
                if self.outage.begins() {
                    tracing::warn!(target: "fanfare::store", jobs = batch.len(), %error, "sqlite transaction failed");
                }
                self.disconnect().await;
            }
        }
        let told = if mutant::on("answer_before_commit") { Ok(()) } else { ended };
        for job in batch {
            job.answer(&told);
        }
    }

    /// One that changed nothing says nothing of a full disk. The connection is newer than the outage.
    async fn end_outage(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        if query_scalar::<_, i64>("SELECT total_changes()").fetch_one(conn).await.is_ok_and(|changes| changes > 0) {
            self.outage.over();
            tracing::info!(target: "fanfare::store", what = "file", "sqlite writes again");
        }
    }

    async fn transact(&mut self, batch: &mut [Box<dyn Job>]) -> Answer<()> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => {
                self.file.check().await?;
                self.options.connect().await?
            }
        };
        let conn = self.conn.insert(conn);
        // IMMEDIATE: a transaction that becomes a writer later is refused at once, busy timeout or not.
        let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
        // Alone, a job has the transaction for a savepoint: SQLite need not keep what each page was before.
        if let [alone] = batch {
            let keep = alone.run(&mut transaction).await;
            self.counts.jobs.fetch_add(1, Ordering::Relaxed);
            if !keep {
                // SQLite undoes the transaction by itself after some errors, a full disk say; what the job says stands.
                if transaction.rollback().await.is_err() {
                    self.disconnect().await;
                }
                return Ok(());
            }
        } else {
            for job in batch.iter_mut() {
                let mut savepoint = transaction.begin().await?;
                let keep = job.run(&mut savepoint).await;
                let ended = if keep { savepoint.commit().await } else { savepoint.rollback().await };
                // SQLite undoes the whole transaction by itself after some errors; the savepoint is gone then.
                ended?;
                self.counts.jobs.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.file.check().await?;
        transaction.commit().await?;
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
