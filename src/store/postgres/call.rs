//! Owns how one call runs: on a connection of its own, within a time, and what becomes of the connection afterwards.
//! Must never know: what a call asks.
//!
//! A peer that vanishes says nothing, and the kernel waits a quarter of an hour for it. So each of the three waits has
//! an end: for a connection (the pool's own limit), for the answers, and for the test on the way back into the pool.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::timeout;

use super::fault::{Fault, explain, lost_a_race};
use crate::store::StoreError;

/// A call with its connection in hand takes no longer than this. More than the 10 s the server gives a statement, so
/// that a server that lives answers for itself; with the wait for a connection, less than a lease of 15 s.
pub(super) const LIMIT: Duration = Duration::from_secs(12);

/// Longest test of a connection on its way back: one round trip, and the end of what a failed call left open.
const RETURN_LIMIT: Duration = Duration::from_secs(1);

/// Tries of one operation: the first and two more, for faults that are over by themselves.
const TRIES: u32 = 3;

/// A pool, and how long a call on one of its connections may take.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) pool: PgPool,
    pub(super) limit: Duration,
}

impl Lane {
    /// For a call that may take longer than others.
    pub(super) fn longer_by(&self, time: Duration) -> Self {
        Self { pool: self.pool.clone(), limit: self.limit + time }
    }

    /// Whether a call may take a second connection: one more is left for whoever comes then.
    pub(super) fn has_room(&self) -> bool {
        let (open, idle) = (self.pool.size(), u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX));
        open.saturating_sub(idle) + 3 <= self.pool.options().get_max_connections()
    }

    /// Runs one call. A connection whose call did not come to its end is closed, never used again: it may be inside an
    /// open transaction, and the next answer on it may be that of this call.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when there was no connection or no answer in time; those of the call.
    pub(super) async fn call<T, F>(self, operation: &'static str, ask: F) -> Result<T, StoreError>
    where
        F: AsyncFnMut(&mut PgConnection) -> Result<T, Fault>,
    {
        let mut connection = self.pool.acquire().await.map_err(|e| explain(operation, e.into()))?;
        connection.close_on_drop();
        match timeout(self.limit, retrying(operation, &mut connection, ask)).await {
            Ok(answer) => {
                give_back(connection);
                answer
            }
            Err(_) => Err(StoreError::Unavailable(format!("{operation}: no answer within {:?}", self.limit))),
        }
    }
}

/// Puts a connection back while the caller has its answer already. The pool tests it first, and would wait for a peer
/// that has vanished with one of its few places taken: given up in time, the place is free for a fresh connection.
fn give_back(mut connection: PoolConnection<Postgres>) {
    tokio::spawn(timeout(RETURN_LIMIT, connection.return_to_pool()));
}

/// Asks, and again at once when the call lost a race against another transaction. Names the operation in its error.
async fn retrying<T, F>(operation: &'static str, connection: &mut PgConnection, mut ask: F) -> Result<T, StoreError>
where
    F: AsyncFnMut(&mut PgConnection) -> Result<T, Fault>,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match ask(&mut *connection).await {
            Ok(value) => return Ok(value),
            Err(fault) if tries < TRIES && lost_a_race(&fault) => {
                tracing::debug!(target: "fanfare::store", operation, tries, "lost a race, trying again");
            }
            Err(fault) => return Err(explain(operation, fault)),
        }
    }
}
