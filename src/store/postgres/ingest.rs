//! Owns the lane of events: connections that nothing else uses, and a short wait for one of them.
//! Must never know: what is written.
//!
//! Events have a pool of their own because readings and imports would otherwise take all connections just when a goal
//! comes in.

use std::sync::Arc;

use sqlx::PgConnection;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::call::Lane;
use super::fault::Fault;
use crate::store::StoreError;

/// A lane with as many turns as connections.
#[derive(Clone)]
pub(super) struct Ingest {
    pub(super) lane: Lane,
    turns: Arc<Semaphore>,
}

impl Ingest {
    pub(super) fn new(lane: Lane, connections: u32) -> Self {
        let turns = usize::try_from(connections).unwrap_or(Semaphore::MAX_PERMITS);
        Self { lane, turns: Arc::new(Semaphore::new(turns)) }
    }

    /// Runs one call, whose turn has to come by `start_by`. A turn is not a connection: opening one, which happens only
    /// after a time without events, has the time any connection has.
    ///
    /// # Errors
    /// As [`Lane::call`]; [`StoreError::Unavailable`] when its turn did not come.
    pub(super) async fn call<T, F>(self, operation: &'static str, start_by: Instant, ask: F) -> Result<T, StoreError>
    where
        F: AsyncFnMut(&mut PgConnection) -> Result<T, Fault>,
    {
        let turn = timeout_at(start_by, self.turns.acquire()).await;
        match turn {
            Ok(Ok(_turn)) if Instant::now() <= start_by => self.lane.call(operation, ask).await,
            _ => Err(StoreError::Unavailable(format!("{operation}: no connection in time"))),
        }
    }
}
