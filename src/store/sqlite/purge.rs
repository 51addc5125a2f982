//! Owns retention: what is old is deleted in small steps, so small that the writer keeps no flush waiting.
//! Must never know: how old is old, or when the next step is due.
//!
//! A fan-out that is due disappears first, with its event, in one transaction: from then on there is no such fan-out,
//! and nobody can meet one whose rows are half gone. Its number stays in `doomed` until its rows are deleted too.

use sqlx::{SqliteConnection, query, query_as};

use super::fault::Answer;
use super::rows::{boot_bytes, now_ms, to_json};
use super::sql;
use crate::domain::ids::BootId;
use crate::store::Purge;

/// Most rows one step deletes; about the writes of one flush.
pub(super) const STEP: u32 = 250;

/// The lease on this work. One process has the file, so it is a formality that keeps both databases alike.
const LEASE_MS: i64 = 60_000;

/// One step.
pub(super) async fn step(conn: &mut SqliteConnection, boot: BootId, keep_ms: i64) -> Answer<Purge> {
    let now = now_ms();
    let take = query(sql::TAKE_UPKEEP).bind(boot_bytes(boot)).bind(now).bind(now + LEASE_MS);
    if take.execute(&mut *conn).await?.rows_affected() == 0 {
        return Ok(Purge::Elsewhere);
    }
    let mut rows = bury(conn).await?;
    if rows == 0 {
        rows = old(conn, now.saturating_sub(keep_ms)).await?;
    }
    Ok(Purge::Deleted(rows))
}

/// Deletes what is left of doomed fan-outs.
async fn bury(conn: &mut SqliteConnection) -> Answer<u64> {
    let mut left = u64::from(STEP);
    for sql in [sql::PURGE_FAILURES, sql::PURGE_PARTS, sql::PURGE_CHUNK_IDS, sql::PURGE_CHUNKS] {
        let bound = i64::try_from(left).unwrap_or(i64::MAX);
        left = left.saturating_sub(query(sql).bind(bound).execute(&mut *conn).await?.rows_affected());
        if left == 0 {
            return Ok(u64::from(STEP));
        }
    }
    let buried = query(sql::BURIED).execute(conn).await?.rows_affected();
    Ok(u64::from(STEP) - left + buried)
}

/// Finds what was settled, deleted or last alive before then.
async fn old(conn: &mut SqliteConnection, before_ms: i64) -> Answer<u64> {
    let due: Vec<(i64,)> = query_as(sql::DUE).bind(before_ms).fetch_all(&mut *conn).await?;
    if !due.is_empty() {
        let ids = to_json(&due.iter().map(|(id,)| id).collect::<Vec<_>>())?;
        for sql in [sql::CONDEMN_EVENTS, sql::CONDEMN_FANOUTS, sql::CONDEMN] {
            query(sql).bind(&ids).execute(&mut *conn).await?;
        }
        return Ok(due.len() as u64);
    }
    let mut rows = 0;
    for sql in [sql::PURGE_WINDOWS, sql::PURGE_EVENTS, sql::PURGE_FORMER, sql::PURGE_INSTANCES] {
        rows += query(sql).bind(before_ms).bind(STEP).execute(&mut *conn).await?.rows_affected();
    }
    Ok(rows)
}
