//! Owns who gets a chunk, with its recipients as they are now, and how it is handed back.
//! Must never know: how many chunks an instance should hold.

use sqlx::PgConnection;

use super::fault::{Fault, explain};
use super::now_ms;
use super::rows::ClaimedRow;
use crate::domain::batch::{ClaimedChunk, Class};
use crate::domain::ids::{BootId, ChunkRef};
use crate::store::damaged::{LEFT_ALONE_MS, warn_of_chunks};
use crate::store::{ClaimRequest, FreezeStep, Open};

/// The live ones among the devices of `i.keys`. A device that is gone has no element.
/// Bitmaps of different length would end the statement for every chunk; one of them does not parse, later.
macro_rules! recipients {
    () => {
        "
SELECT k.fanout_id, k.chunk_no, k.epoch, k.class, k.rank, k.n, k.done::text AS done,
       (CASE WHEN k.unclean AND length(k.maybe) = length(k.done) THEN k.maybe | ~k.done ELSE k.maybe END)::text AS maybe, i.keys,
       d.live, d.tokens, d.fids, d.platforms, d.locales, d.versions
FROM k
JOIN chunk_ids i ON i.fanout_id = k.fanout_id AND i.chunk_no = k.chunk_no
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(v.device_key), '{}') AS live, coalesce(array_agg(v.token), '{}') AS tokens,
           coalesce(array_agg(v.fid), '{}') AS fids, coalesce(array_agg(v.platform), '{}') AS platforms,
           coalesce(array_agg(v.locale), '{}') AS locales, coalesce(array_agg(v.version), '{}') AS versions
    FROM device v WHERE v.device_key = ANY (i.keys) AND v.state = 0) d"
    };
}

macro_rules! with_recipients {
    ($head:literal) => {
        concat!($head, recipients!())
    };
}

/// Takes the chunks `c`.
macro_rules! taken {
    ($head:literal) => {
        concat!(
            $head,
            ",
k AS (
    UPDATE chunk k SET state = 1, owner = $1, epoch = k.epoch + 1
    FROM c WHERE k.fanout_id = c.fanout_id AND k.chunk_no = c.chunk_no
    RETURNING k.*)",
            recipients!()
        )
    };
}

/// The row locks are the fence between two claimers: the inner query locks, the outer one writes.
/// A chunk that was lost uncleanly shows all its unfinished recipients as `maybe`.
pub(super) const CLAIM: &str = taken!(
    "
WITH c AS (
    SELECT k.fanout_id, k.chunk_no FROM chunk k JOIN fanout f ON f.id = k.fanout_id
    WHERE k.state = 0 AND k.not_before_ms <= fanfare_now_ms() AND (k.class, k.rank) < (coalesce($3, 32767::smallint), coalesce($4, 9223372036854775807))
      AND f.state <> 3 AND (f.paused = 0 OR f.deadline_ms <= fanfare_now_ms())
    ORDER BY k.class, k.rank LIMIT $2 FOR UPDATE OF k SKIP LOCKED)"
);

/// Few are unsettled, so their chunks are found by key and not in the order of all open ones.
pub(super) const CLAIM_OVERDUE: &str = taken!(
    "
WITH over AS MATERIALIZED (
    SELECT id FROM fanout WHERE settled_ms IS NULL AND state <> 3 AND deadline_ms <= fanfare_now_ms()),
c AS (
    SELECT k.fanout_id, k.chunk_no FROM chunk k
    WHERE k.fanout_id IN (SELECT id FROM over) AND k.state = 0 AND k.not_before_ms <= fanfare_now_ms()
    LIMIT $2 FOR UPDATE OF k SKIP LOCKED)"
);

/// Of fan-outs of which this instance owns nothing, in order.
pub(super) const CLAIM_OTHERS: &str = taken!(
    "
WITH other AS MATERIALIZED (
    SELECT id FROM fanout f
    WHERE settled_ms IS NULL AND state <> 3 AND (paused = 0 OR deadline_ms <= fanfare_now_ms())
      AND NOT EXISTS (SELECT 1 FROM chunk o WHERE o.fanout_id = f.id AND o.state = 1 AND o.owner = $1)),
c AS (
    SELECT k.fanout_id, k.chunk_no FROM chunk k
    WHERE k.fanout_id IN (SELECT id FROM other) AND k.state = 0 AND k.not_before_ms <= fanfare_now_ms()
    ORDER BY k.class, k.rank LIMIT $2 FOR UPDATE OF k SKIP LOCKED)"
);

/// The least urgent class is at the far end of the index of open chunks.
pub(super) const CLAIM_FLOOR: &str = taken!(
    "
WITH least AS (
    SELECT k.class FROM chunk k JOIN fanout f ON f.id = k.fanout_id
    WHERE k.state = 0 AND k.not_before_ms <= fanfare_now_ms()
      AND f.state <> 3 AND (f.paused = 0 OR f.deadline_ms <= fanfare_now_ms())
    ORDER BY k.class DESC, k.rank DESC LIMIT 1),
c AS (
    SELECT k.fanout_id, k.chunk_no FROM chunk k JOIN fanout f ON f.id = k.fanout_id
    WHERE k.state = 0 AND k.not_before_ms <= fanfare_now_ms() AND k.class = (SELECT class FROM least)
      AND k.class > $2 AND f.state <> 3 AND (f.paused = 0 OR f.deadline_ms <= fanfare_now_ms())
    ORDER BY k.class, k.rank LIMIT 1 FOR UPDATE OF k SKIP LOCKED)"
);

/// Chunks that a freeze step created owned, and that are so still.
pub(super) const OF_A_STEP: &str = with_recipients!(
    "
WITH k AS (
    SELECT * FROM chunk
    WHERE fanout_id = $2 AND chunk_no >= $3 AND chunk_no < $4 AND state = 1 AND owner = $1 AND epoch = 1)"
);

/// Reads the small partial index of owned chunks only.
pub(super) const OWNED: &str = with_recipients!(
    "
WITH k AS (SELECT * FROM chunk WHERE state = 1 AND owner = $1)"
);

pub(super) const RELEASE: &str = "
UPDATE chunk k SET state = 0, owner = NULL, not_before_ms = $5
FROM unnest($2::bigint[], $3::int[], $4::int[]) AS r(fanout_id, chunk_no, epoch)
WHERE k.fanout_id = r.fanout_id AND k.chunk_no = r.chunk_no AND k.epoch = r.epoch AND k.state = 1 AND k.owner = $1";

/// What somebody else works on is passed over, so that no two can wait for each other; it is open at its own time.
pub(super) const RECALL: &str = "
WITH c AS (
    SELECT k.fanout_id, k.chunk_no
    FROM unnest($1::bigint[], $2::int[], $3::int[]) AS r(fanout_id, chunk_no, epoch)
    JOIN chunk k ON k.fanout_id = r.fanout_id AND k.chunk_no = r.chunk_no AND k.epoch = r.epoch
    WHERE k.state = 0 FOR UPDATE OF k SKIP LOCKED)
UPDATE chunk k SET not_before_ms = 0 FROM c WHERE k.fanout_id = c.fanout_id AND k.chunk_no = c.chunk_no";

pub(super) async fn claim(conn: &mut PgConnection, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, Fault> {
    let place = match request.of {
        Open::All => (None, None),
        Open::AheadOf(class, rank) => (Some(class.code()), Some(rank)),
        Open::Overdue => return by_fanout(conn, CLAIM_OVERDUE, request).await,
        Open::Others => return by_fanout(conn, CLAIM_OTHERS, request).await,
    };
    let rows: Vec<ClaimedRow> = sqlx::query_as(CLAIM)
        .bind(request.boot.0)
        .bind(i64::from(request.want))
        .bind(place.0)
        .bind(place.1)
        .fetch_all(&mut *conn)
        .await?;
    readable(conn, request.boot, rows).await
}

async fn by_fanout(
    conn: &mut PgConnection,
    statement: &'static str,
    request: ClaimRequest,
) -> Result<Vec<ClaimedChunk>, Fault> {
    let rows: Vec<ClaimedRow> =
        sqlx::query_as(statement).bind(request.boot.0).bind(i64::from(request.want)).fetch_all(&mut *conn).await?;
    readable(conn, request.boot, rows).await
}

pub(super) async fn claim_floor(
    conn: &mut PgConnection,
    boot: BootId,
    than: Class,
) -> Result<Vec<ClaimedChunk>, Fault> {
    let rows: Vec<ClaimedRow> =
        sqlx::query_as(CLAIM_FLOOR).bind(boot.0).bind(than.code()).fetch_all(&mut *conn).await?;
    readable(conn, boot, rows).await
}

pub(super) async fn of_a_step(
    conn: &mut PgConnection,
    step: &FreezeStep,
    end: i32,
) -> Result<Vec<ClaimedChunk>, Fault> {
    let rows: Vec<ClaimedRow> = sqlx::query_as(OF_A_STEP)
        .bind(step.boot.0)
        .bind(step.fanout.0)
        .bind(step.first_chunk)
        .bind(end)
        .fetch_all(&mut *conn)
        .await?;
    readable(conn, step.boot, rows).await
}

pub(super) async fn owned(conn: &mut PgConnection, boot: BootId) -> Result<Vec<ClaimedChunk>, Fault> {
    let rows: Vec<ClaimedRow> = sqlx::query_as(OWNED).bind(boot.0).fetch_all(&mut *conn).await?;
    readable(conn, boot, rows).await
}

/// Chunks in their order (`RETURNING` promises none). One that does not parse is handed back for a while, so that it
/// neither stays ours without anybody working on it nor keeps the others from being claimed; a newer build may read it.
async fn readable(conn: &mut PgConnection, boot: BootId, rows: Vec<ClaimedRow>) -> Result<Vec<ClaimedChunk>, Fault> {
    let (mut chunks, mut damaged) = (Vec::new(), Vec::new());
    for row in rows {
        let hold = row.hold();
        match row.parse() {
            Ok(chunk) => chunks.push(chunk),
            Err(fault) => damaged.push((hold, explain("claim", fault))),
        }
    }
    chunks.sort_by_key(|c| (c.class, c.rank, c.chunk));
    if !damaged.is_empty() {
        warn_of_chunks(&damaged);
        let until = now_ms(conn).await? + LEFT_ALONE_MS;
        let holds: Vec<_> = damaged.iter().map(|(hold, _)| *hold).collect();
        release(conn, boot, &holds, until).await?;
    }
    Ok(chunks)
}

pub(super) async fn release(
    conn: &mut PgConnection,
    boot: BootId,
    chunks: &[(ChunkRef, i32)],
    not_before_ms: i64,
) -> Result<(), Fault> {
    let (fanouts, numbers, epochs) = columns(chunks);
    sqlx::query(RELEASE)
        .bind(boot.0)
        .bind(fanouts)
        .bind(numbers)
        .bind(epochs)
        .bind(not_before_ms)
        .execute(&mut *conn)
        .await?;
    Ok(())
}

pub(super) async fn recall(conn: &mut PgConnection, chunks: &[(ChunkRef, i32)]) -> Result<(), Fault> {
    let (fanouts, numbers, epochs) = columns(chunks);
    sqlx::query(RECALL).bind(fanouts).bind(numbers).bind(epochs).execute(&mut *conn).await?;
    Ok(())
}

fn columns(chunks: &[(ChunkRef, i32)]) -> (Vec<i64>, Vec<i32>, Vec<i32>) {
    chunks.iter().map(|(chunk, epoch)| (chunk.fanout.0, chunk.no, *epoch)).collect()
}
