//! Owns one caller's work on its way through the writer: when it may run, its result, and what the caller is told.
//! Must never know: what a job writes, or which others share its transaction.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use tokio::sync::oneshot;

use super::fault::{Answer, Fault};
use crate::store::StoreError;

/// When a job may run.
#[derive(Default)]
pub(super) struct Turn {
    /// After everybody else.
    pub(super) bulk: bool,
    /// Taken by the writer, which takes this job out of its queue only once, or by the caller.
    pub(super) taken: Option<Arc<AtomicBool>>,
}

/// One caller's work, its result held back until the commit.
#[async_trait]
pub(super) trait Job: Send {
    fn rows(&self) -> usize;
    fn bulk(&self) -> bool;
    /// Whether its caller has been told that its turn did not come in time.
    fn given_up(&self) -> bool;
    /// Whether what it wrote is to be kept.
    async fn run(&mut self, conn: &mut SqliteConnection) -> bool;
    fn answer(self: Box<Self>, commit: &Result<(), StoreError>);
}

pub(super) struct Pending<T, F> {
    rows: usize,
    work: Option<F>,
    result: Option<Result<T, StoreError>>,
    turn: Turn,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Pending<T, F> {
    /// A job, and where its answer comes.
    pub(super) fn new(rows: usize, turn: Turn, work: F) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { rows, work: Some(work), result: None, turn, reply }, answer)
    }
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

    fn bulk(&self) -> bool {
        self.turn.bulk
    }

    fn given_up(&self) -> bool {
        self.turn.taken.as_ref().is_some_and(|turn| turn.load(Ordering::Relaxed))
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

/// The writer is gone.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// No job is to blame when the transaction fails: each may be tried again.
pub(super) fn whole_transaction(fault: Fault) -> StoreError {
    match fault.0 {
        StoreError::Statement(text) => StoreError::Unavailable(text),
        other => other,
    }
}

/// Its turn did not come in time.
pub(super) fn too_late() -> StoreError {
    StoreError::Unavailable("the writer was busy for too long".to_owned())
}
