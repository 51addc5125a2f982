//! Owns instances: their leases, and what becomes of the chunks of one that died.
//! Must never know: how an instance measures its own lease.

use std::collections::BTreeSet;

use sqlx::{FromRow, SqliteConnection, query, query_as, query_scalar};

use super::cancel;
use super::fault::Answer;
use super::rows::{boot_bytes, count, now_ms};
use super::sql;
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::BootId;
use crate::store::{Heartbeat, MAX_TAKEOVERS};

const OPEN: i64 = 0;
const SET_ASIDE: i64 = 3;

/// Ends every lease in the file. Called when it is opened: the lock on it proves that who held them is dead.
pub(super) async fn expire_all(conn: &mut SqliteConnection) -> Answer<()> {
    query(sql::EXPIRE_LEASES).execute(conn).await?;
    Ok(())
}

#[derive(FromRow)]
struct LostChunk {
    fanout_id: i64,
    chunk_no: i32,
    n: i64,
    done: Vec<u8>,
    takeovers: i64,
    mark: i64,
    owner: Option<Vec<u8>>,
}

impl LostChunk {
    /// Recipients done; `None` when the bits do not parse: that is no progress, and must stop no heartbeat.
    fn done(&self) -> Option<i64> {
        let bits = Bitmap::from_bytes(&self.done, usize::try_from(self.n).ok()?).ok()?;
        i64::try_from(bits.count()).ok()
    }
}

/// Extends the lease of `boot` and frees what instances without one held.
pub(super) async fn heartbeat(conn: &mut SqliteConnection, boot: BootId, lease_ms: i64) -> Answer<Heartbeat> {
    let now = now_ms();
    query(sql::BEAT).bind(boot_bytes(boot)).bind(now).bind(now + lease_ms).execute(&mut *conn).await?;
    let lost: Vec<LostChunk> = query_as(sql::LOST_CHUNKS).bind(now).fetch_all(&mut *conn).await?;
    let (mut freed_chunks, mut set_aside) = (0, 0);
    let mut interrupted = BTreeSet::new();
    for chunk in lost {
        if free(conn, &chunk).await? {
            freed_chunks += 1
        } else {
            set_aside += 1
        }
        interrupted.insert((chunk.fanout_id, chunk.owner));
    }
    for (fanout, _) in interrupted {
        query(sql::COUNT_INTERRUPTED).bind(fanout).execute(&mut *conn).await?;
    }
    let live: i64 = query_scalar(sql::LIVE_INSTANCES).bind(now).fetch_one(&mut *conn).await?;
    let live_instances = count("live instances", live)?;
    let cancelled = cancel::in_hand(conn, boot).await?;
    Ok(Heartbeat { now_ms: now, live_instances, freed_chunks, set_aside, cancelled })
}

/// Frees one chunk, or sets it aside when it was lost too often without progress; whether it is open again.
async fn free(conn: &mut SqliteConnection, chunk: &LostChunk) -> Answer<bool> {
    let done = chunk.done().unwrap_or(chunk.mark);
    let takeovers = if done > chunk.mark { 0 } else { chunk.takeovers + 1 };
    let open = takeovers < i64::from(MAX_TAKEOVERS);
    query(sql::FREE_LOST)
        .bind(chunk.fanout_id)
        .bind(chunk.chunk_no)
        .bind(if open { OPEN } else { SET_ASIDE })
        .bind(takeovers)
        .bind(done)
        .execute(&mut *conn)
        .await?;
    if !open {
        query(sql::SET_FANOUT_ASIDE).bind(chunk.fanout_id).execute(conn).await?;
    }
    Ok(open)
}

/// Hands back all that `boot` holds, as nobody's, and ends its lease.
pub(super) async fn leave(conn: &mut SqliteConnection, boot: BootId) -> Answer<()> {
    for statement in [sql::LEAVE_CHUNKS, sql::LEAVE_FREEZES, sql::LEAVE] {
        query(statement).bind(boot_bytes(boot)).execute(&mut *conn).await?;
    }
    Ok(())
}
