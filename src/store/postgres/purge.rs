//! Owns retention: what is old is deleted in small steps, by one instance at a time.
//! Must never know: how old is old, or when the next step is due.
//!
//! A fan-out that is due disappears first, with its event, in one statement: from then on there is no such fan-out, and
//! nobody can meet one whose rows are half gone. Its number stays in `doomed` until its rows are deleted too. Only
//! settled and reported fan-outs are touched, so no step waits for a row that sending uses, nor the other way round.

use sqlx::{Connection, PgConnection, Postgres, Transaction};

use super::fault::{Fault, count};
use crate::domain::ids::BootId;
use crate::store::Purge;

/// Most rows one step deletes.
const STEP: i64 = 1_000;

/// The lease on this work, taken or kept for a minute; a step takes far less.
pub(super) const TAKE: &str = "
UPDATE upkeep SET owner = $1, until_ms = fanfare_now_ms() + 60000
WHERE task = 'retention' AND (owner = $1 OR until_ms < fanfare_now_ms())";

pub(super) const FAILURES: &str = "
DELETE FROM failure WHERE ctid = ANY (ARRAY(
    SELECT x.ctid FROM doomed d JOIN failure x ON x.fanout_id = d.fanout_id LIMIT $1))";

pub(super) const PARTS: &str = "
DELETE FROM fanout_part WHERE ctid = ANY (ARRAY(
    SELECT x.ctid FROM doomed d JOIN fanout_part x ON x.fanout_id = d.fanout_id LIMIT $1))";

pub(super) const CHUNK_IDS: &str = "
DELETE FROM chunk_ids WHERE ctid = ANY (ARRAY(
    SELECT x.ctid FROM doomed d JOIN chunk_ids x ON x.fanout_id = d.fanout_id LIMIT $1))";

pub(super) const CHUNKS: &str = "
DELETE FROM chunk WHERE ctid = ANY (ARRAY(
    SELECT x.ctid FROM doomed d JOIN chunk x ON x.fanout_id = d.fanout_id LIMIT $1))";

pub(super) const BURIED: &str = "DELETE FROM doomed";

/// A fan-out goes only when none derives from it any more, so a parent is kept as long as its youngest child, and an
/// event as long as any fan-out of it.
pub(super) const CONDEMN: &str = "
WITH old AS (
    SELECT f.id, f.event_id FROM fanout f
    WHERE f.settled_ms < fanfare_now_ms() - $1 AND f.reported_ms IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM fanout c WHERE c.parent = f.id)
    ORDER BY f.settled_ms LIMIT 100 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM fanout f USING old WHERE f.id = old.id RETURNING f.id),
events AS (DELETE FROM event e USING old WHERE e.event_id = old.event_id AND e.fanout_id = old.id)
INSERT INTO doomed (fanout_id) SELECT id FROM gone";

/// Within this time the same news would have been told apart; long after it nobody asks.
pub(super) const WINDOWS: &str = "
DELETE FROM repeat_window WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM repeat_window WHERE until_ms < fanfare_now_ms() - $2 LIMIT $1))";

/// Names of events whose fan-out is gone: the same news under another id, and what a correction named that never came.
pub(super) const EVENTS: &str = "
DELETE FROM event WHERE ctid = ANY (ARRAY(
    SELECT e.ctid FROM event e
    WHERE e.accepted_ms < fanfare_now_ms() - $2 AND NOT EXISTS (SELECT 1 FROM fanout f WHERE f.id = e.fanout_id)
    ORDER BY e.accepted_ms LIMIT $1))";

/// Numbers are given in the order of acceptance, but for those accepted at the same time.
pub(super) const FORMER: &str = "
DELETE FROM former_device WHERE device_key = ANY (ARRAY(
    SELECT device_key FROM former_device
    WHERE deleted_ms < coalesce((SELECT accepted_ms - 60000 FROM fanout ORDER BY id LIMIT 1), fanfare_now_ms() - $2)
    ORDER BY deleted_ms LIMIT $1))";

pub(super) const INSTANCES: &str = "
DELETE FROM instance WHERE boot_id = ANY (ARRAY(
    SELECT boot_id FROM instance
    WHERE lease_until_ms < fanfare_now_ms() - $2 AND heartbeat_ms < fanfare_now_ms() - $2 LIMIT $1))";

pub(super) async fn step(conn: &mut PgConnection, boot: BootId, keep_ms: i64) -> Result<Purge, Fault> {
    let mut tx = conn.begin().await?;
    if sqlx::query(TAKE).bind(boot.0).execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(Purge::Elsewhere);
    }
    let mut rows = bury(&mut tx).await?;
    if rows == 0 {
        rows = old(&mut tx, keep_ms).await?;
    }
    tx.commit().await?;
    Ok(Purge::Deleted(count("rows deleted", rows)?))
}

/// Deletes what is left of doomed fan-outs.
async fn bury(tx: &mut Transaction<'_, Postgres>) -> Result<i64, Fault> {
    let mut left = STEP;
    for sql in [FAILURES, PARTS, CHUNK_IDS, CHUNKS] {
        left -= deleted(sqlx::query(sql).bind(left).execute(&mut **tx).await?.rows_affected());
        if left <= 0 {
            return Ok(STEP);
        }
    }
    left -= deleted(sqlx::query(BURIED).execute(&mut **tx).await?.rows_affected());
    Ok(STEP - left)
}

/// Finds what is old.
async fn old(tx: &mut Transaction<'_, Postgres>, keep_ms: i64) -> Result<i64, Fault> {
    let condemned = sqlx::query(CONDEMN).bind(keep_ms).execute(&mut **tx).await?.rows_affected();
    if condemned > 0 {
        return Ok(deleted(condemned));
    }
    let mut rows = 0;
    for sql in [WINDOWS, EVENTS, FORMER, INSTANCES] {
        rows += deleted(sqlx::query(sql).bind(STEP).bind(keep_ms).execute(&mut **tx).await?.rows_affected());
    }
    Ok(rows)
}

fn deleted(rows: u64) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
