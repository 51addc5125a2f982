//! Owns the leases: heartbeats, what is taken from an instance whose lease has expired, and orderly leaving.
//! Must never know: what an instance does with its chunks.

use sqlx::{Connection, PgConnection};

use super::cancel;
use super::fault::{Fault, count, explain};
use crate::domain::ids::BootId;
use crate::store::{Heartbeat, MAX_TAKEOVERS};

pub(super) const BEAT: &str = "
WITH t AS (SELECT fanfare_now_ms() AS now)
INSERT INTO instance (boot_id, started_ms, heartbeat_ms, lease_until_ms)
SELECT $1, now, now, now + $2 FROM t
ON CONFLICT (boot_id) DO UPDATE
    SET heartbeat_ms = EXCLUDED.heartbeat_ms, lease_until_ms = EXCLUDED.lease_until_ms
RETURNING heartbeat_ms";

/// Reads the small partial indexes of owned chunks and open fan-outs only.
pub(super) const LOOK: &str = "
WITH live AS (SELECT boot_id FROM instance WHERE lease_until_ms > $1)
SELECT (SELECT count(*) FROM live),
       EXISTS (SELECT 1 FROM chunk k WHERE k.state = 1 AND NOT EXISTS (SELECT 1 FROM live WHERE boot_id = k.owner))
       OR EXISTS (SELECT 1 FROM fanout f
                  WHERE f.settled_ms IS NULL AND f.state = 0 AND f.freeze_owner IS NOT NULL
                    AND NOT EXISTS (SELECT 1 FROM live WHERE boot_id = f.freeze_owner))";

/// One instance at a time frees what is lost. Whoever does not get the lock has nothing to do and does not wait.
pub(super) const ALONE: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('fanfare takeover', 0))";

/// One time (`$2`) decides for all chunks of an instance, so that it is lost once, and with all it held.
/// `mark` = bits done at the last takeover: progress since then forgives the takeovers before.
/// A fan-out still freezing stays so: its last step looks for chunks set aside.
pub(super) const FREE_CHUNKS: &str = "
WITH lost AS (
    SELECT fanout_id, chunk_no, owner FROM chunk k
    WHERE k.state = 1
      AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.boot_id = k.owner AND i.lease_until_ms > $2)
    ORDER BY fanout_id, chunk_no FOR UPDATE),
freed AS (
    UPDATE chunk k
    SET state = CASE WHEN bit_count(k.done) <= k.mark AND k.takeovers + 1 >= $1 THEN 3 ELSE 0 END,
        takeovers = CASE WHEN bit_count(k.done) > k.mark THEN 0 ELSE k.takeovers + 1 END,
        mark = bit_count(k.done)::smallint,
        owner = NULL, epoch = k.epoch + 1, unclean = true
    FROM lost WHERE k.fanout_id = lost.fanout_id AND k.chunk_no = lost.chunk_no
    RETURNING k.fanout_id, k.state, lost.owner),
per_fanout AS (
    SELECT fanout_id, count(DISTINCT owner) AS owners, bool_or(state = 3) AS aside FROM freed GROUP BY fanout_id),
noted AS (
    UPDATE fanout f
    SET interrupted = f.interrupted + p.owners,
        state = CASE WHEN p.aside AND f.state = 1 THEN 4 ELSE f.state END
    FROM per_fanout p WHERE f.id = p.fanout_id)
SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 3) FROM freed";

pub(super) const FREE_FREEZES: &str = "
UPDATE fanout f SET freeze_owner = NULL
WHERE f.settled_ms IS NULL AND f.state = 0 AND f.freeze_owner IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.boot_id = f.freeze_owner AND i.lease_until_ms > $1)";

pub(super) const LEAVE: &str = "
WITH chunks AS (UPDATE chunk SET state = 0, owner = NULL WHERE state = 1 AND owner = $1),
freezes AS (UPDATE fanout SET freeze_owner = NULL
            WHERE settled_ms IS NULL AND state = 0 AND freeze_owner = $1)
DELETE FROM instance WHERE boot_id = $1";

pub(super) async fn heartbeat(conn: &mut PgConnection, boot: BootId, lease_ms: i64) -> Result<Heartbeat, Fault> {
    let now_ms: i64 = sqlx::query_scalar(BEAT).bind(boot.0).bind(lease_ms).fetch_one(&mut *conn).await?;
    let (live, lost): (i64, bool) = sqlx::query_as(LOOK).bind(now_ms).fetch_one(&mut *conn).await?;
    let cancelled = cancel::in_hand(conn, boot).await?;
    let (freed, set_aside) = if lost { free_or_warn(conn, now_ms).await } else { (0, 0) };
    Ok(Heartbeat {
        now_ms,
        live_instances: count("live instances", live)?,
        freed_chunks: count("freed chunks", freed)?,
        set_aside: count("chunks set aside", set_aside)?,
        cancelled,
    })
}

/// The lease is renewed already, and an instance that lives must not stop because another one cannot be buried:
/// the next heartbeat, of whichever instance, tries again.
async fn free_or_warn(conn: &mut PgConnection, now_ms: i64) -> (i64, i64) {
    match free(conn, now_ms).await {
        Ok(counts) => counts,
        Err(fault) => {
            let error = explain("takeover", fault);
            tracing::warn!(target: "fanfare::store", %error, "chunks of a lost instance could not be freed");
            (0, 0)
        }
    }
}

async fn free(conn: &mut PgConnection, now_ms: i64) -> Result<(i64, i64), Fault> {
    let mut tx = conn.begin().await?;
    let alone: bool = sqlx::query_scalar(ALONE).fetch_one(&mut *tx).await?;
    if !alone {
        return Ok((0, 0));
    }
    let counts = sqlx::query_as(FREE_CHUNKS).bind(MAX_TAKEOVERS).bind(now_ms).fetch_one(&mut *tx).await?;
    sqlx::query(FREE_FREEZES).bind(now_ms).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(counts)
}

pub(super) async fn leave(conn: &mut PgConnection, boot: BootId) -> Result<(), Fault> {
    sqlx::query(LEAVE).bind(boot.0).execute(&mut *conn).await?;
    Ok(())
}
