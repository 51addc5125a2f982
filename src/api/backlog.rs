//! Owns the limit on accepted fan-outs that are not settled yet.
//! Must never know: why they are not.
//!
//! The number lies in the database, all instances add to it, and counting it costs a query: it is read again when it
//! is a quarter of a second old. What this instance accepts meanwhile is added to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::problem::{Code, Refusal};
use crate::store::Store;

const FRESH: Duration = Duration::from_millis(250);

pub(super) struct Backlog {
    most: u64,
    known: AtomicU64,
    read_at: Mutex<Option<Instant>>,
}

impl Backlog {
    pub(super) fn new(most: u64) -> Self {
        Self { most, known: AtomicU64::new(0), read_at: Mutex::new(None) }
    }

    /// Refuses when the backlog is full.
    pub(super) async fn admit(&self, store: &dyn Store) -> Result<(), Refusal> {
        self.refresh(store).await?;
        let waiting = self.known.load(Ordering::Relaxed);
        if waiting < self.most {
            return Ok(());
        }
        Err(Refusal::new(Code::BacklogFull, format!("{waiting} fan-outs wait; {} are kept waiting at most", self.most)))
    }

    /// One fan-out more.
    pub(super) fn accepted(&self) {
        self.known.fetch_add(1, Ordering::Relaxed);
    }

    /// One request reads, the others go on with what is known: they must not queue behind a slow database here.
    async fn refresh(&self, store: &dyn Store) -> Result<(), Refusal> {
        let Ok(mut read_at) = self.read_at.try_lock() else { return Ok(()) };
        if read_at.is_none_or(|at| at.elapsed() >= FRESH) {
            self.known.store(store.backlog().await?, Ordering::Relaxed);
            *read_at = Some(Instant::now());
        }
        Ok(())
    }
}
