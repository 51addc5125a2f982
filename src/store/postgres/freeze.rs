//! Owns the freeze: who may do it, pages of followers, and the step that fixes them into chunks.
//! Must never know: how pages of several subjects are merged.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::claim;
use super::fault::{Fault, count, explain};
use super::rows::{FreezeRow, job_columns};
use crate::domain::batch::ClaimedChunk;
use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::store::damaged::warn_of_fanouts;
use crate::store::{FollowerPage, FreezeJob, FreezeReply, FreezeStep, HANDOVER_MS, StoreError};

/// Freezes of nobody alive, and own ones that are not running (`$4`) although their hand-over is long past; none of `$5`.
/// None that is held: its hold is over sooner or later, and then it is found here.
pub(super) const FREE: &str = concat!(
    "
SELECT ",
    job_columns!(),
    ",
       f.freeze_epoch, f.freeze_cursor, f.freeze_chunks
FROM fanout f JOIN event e ON e.event_id = f.event_id
WHERE f.settled_ms IS NULL AND f.state = 0 AND f.id <> ALL($5) AND f.hold_until_ms <= fanfare_now_ms()
  AND (NOT EXISTS (SELECT 1 FROM instance i
                   WHERE i.boot_id = f.freeze_owner AND i.lease_until_ms > fanfare_now_ms())
       OR (f.freeze_owner = $1 AND f.accepted_ms <= fanfare_now_ms() - $3 AND f.id <> ALL($4)))
ORDER BY f.class, f.id LIMIT $2"
);

/// Whoever takes a freeze moves its epoch, so of several that saw it free one gets it. The owner may have come back to
/// life and moved on meanwhile: where the freeze stands is read here, under the lock.
pub(super) const TAKE: &str = "
WITH free AS (
    SELECT f.id FROM fanout f JOIN unnest($2::bigint[], $3::int[]) AS x(id, epoch) ON f.id = x.id
    WHERE f.freeze_epoch = x.epoch AND f.state = 0
    ORDER BY f.id FOR UPDATE OF f SKIP LOCKED)
UPDATE fanout f SET freeze_owner = $1, freeze_epoch = f.freeze_epoch + 1
FROM free WHERE f.id = free.id
RETURNING f.id, f.freeze_epoch, f.freeze_cursor, f.freeze_chunks";

/// The primary key in its order, `kinds` included: an index-only range.
pub(super) const FOLLOWERS: &str = "
SELECT device_key FROM follow
WHERE subject = $1 AND device_key > $2 AND kinds & $3 <> 0
ORDER BY device_key LIMIT $4";

/// Cursor, ids and chunks in one statement. The guard is the whole protection against a second freezer and against
/// a repetition. While it is paused nobody sends any of it. `$6` holds the keys of all chunks in a row; `$8` says how many each chunk has, `$9` where they begin.
pub(super) const STEP: &str = "
WITH f AS (
    UPDATE fanout
    SET freeze_cursor = $5,
        freeze_chunks = freeze_chunks + cardinality($7::int[]),
        recipients = recipients + cardinality($6::bigint[]),
        never_saw = CASE WHEN $14::bigint IS NULL THEN never_saw ELSE coalesce(never_saw, 0) + $14 END,
        state = CASE WHEN NOT $12 THEN 0
                     WHEN EXISTS (SELECT 1 FROM chunk k WHERE k.fanout_id = fanout.id AND k.state = 3) THEN 4
                     ELSE 1 END
    WHERE id = $1 AND freeze_owner = $2 AND freeze_epoch = $3 AND freeze_cursor = $4 AND state = 0
      AND freeze_chunks = $13
    RETURNING id, class, paused),
c AS (
    SELECT f.id, f.class, u.no, u.n, u.start, u.rank, u.claimed AND f.paused = 0 AS claimed FROM f,
        unnest($7::int[], $8::smallint[], $9::int[], $10::bigint[], $11::bool[]) AS u(no, n, start, rank, claimed)),
ids AS (
    INSERT INTO chunk_ids (fanout_id, chunk_no, keys)
    SELECT c.id, c.no, ($6::bigint[])[c.start : c.start + c.n - 1] FROM c),
chunks AS (
    INSERT INTO chunk (fanout_id, chunk_no, n, class, rank, state, owner, epoch, done, ok, maybe)
    SELECT c.id, c.no, c.n, c.class, c.rank,
           CASE WHEN c.claimed THEN 1 ELSE 0 END, CASE WHEN c.claimed THEN $2 END, CASE WHEN c.claimed THEN 1 ELSE 0 END,
           repeat('0', c.n)::varbit, repeat('0', c.n)::varbit, repeat('0', c.n)::varbit
    FROM c)
SELECT count(*) FROM f";

/// Whether the fan-out stands exactly where this step leaves it: then it was written, and its answer was lost.
pub(super) const STANDS: &str = "
SELECT EXISTS (
    SELECT 1 FROM fanout
    WHERE id = $1 AND freeze_owner = $2 AND freeze_epoch = $3 AND freeze_cursor = $4 AND freeze_chunks = $5
      AND (state <> 0) = $6 AND state <> 3)";

/// One whose event does not parse is not taken, and takes no other's place: it is looked at again next time.
pub(super) async fn take(
    conn: &mut PgConnection,
    boot: BootId,
    running: &[FanoutId],
    limit: u32,
) -> Result<Vec<FreezeJob>, Fault> {
    let (mut jobs, mut seen, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let left = i64::from(limit) - jobs.len() as i64;
        let rows = free(conn, boot, [running, &seen], left).await?;
        seen.extend(rows.iter().map(FreezeRow::fanout));
        let (readable, unreadable) = sort_out(rows);
        let all_readable = unreadable.is_empty();
        damaged.extend(unreadable);
        jobs.extend(lease(conn, boot, readable).await?);
        if all_readable {
            break;
        }
    }
    warn_of_fanouts("take_freezes", &damaged);
    jobs.sort_by_key(|job: &FreezeJob| (job.job.class, job.job.id));
    Ok(jobs)
}

async fn free(
    conn: &mut PgConnection,
    boot: BootId,
    [running, seen]: [&[FanoutId]; 2],
    limit: i64,
) -> Result<Vec<FreezeRow>, Fault> {
    let ids = |fanouts: &[FanoutId]| fanouts.iter().map(|id| id.0).collect::<Vec<_>>();
    let query = sqlx::query_as(FREE).bind(boot.0).bind(limit).bind(HANDOVER_MS).bind(ids(running)).bind(ids(seen));
    Ok(query.fetch_all(conn).await?)
}

fn sort_out(rows: Vec<FreezeRow>) -> (Vec<FreezeJob>, Vec<(FanoutId, StoreError)>) {
    let (mut readable, mut damaged) = (Vec::new(), Vec::new());
    for row in rows {
        let id = row.fanout();
        match row.parse() {
            Ok(job) => readable.push(job),
            Err(fault) => damaged.push((id, explain("take_freezes", fault))),
        }
    }
    (readable, damaged)
}

/// Those of `free` that are still free, as they stand.
async fn lease(conn: &mut PgConnection, boot: BootId, free: Vec<FreezeJob>) -> Result<Vec<FreezeJob>, Fault> {
    if free.is_empty() {
        return Ok(free);
    }
    let (ids, epochs): (Vec<i64>, Vec<i32>) = free.iter().map(|job| (job.job.id.0, job.epoch)).unzip();
    let taken: Vec<(i64, i32, i64, i32)> =
        sqlx::query_as(TAKE).bind(boot.0).bind(ids).bind(epochs).fetch_all(conn).await?;
    let mut taken: HashMap<i64, _> =
        taken.into_iter().map(|(id, epoch, cursor, chunks)| (id, (epoch, cursor, chunks))).collect();
    let ours = free.into_iter().filter_map(|free| {
        let (epoch, cursor, next_chunk) = taken.remove(&free.job.id.0)?;
        Some(FreezeJob { epoch, cursor: DeviceKey(cursor), next_chunk, ..free })
    });
    Ok(ours.collect())
}

pub(super) async fn follower_page(conn: &mut PgConnection, page: &FollowerPage) -> Result<Vec<DeviceKey>, Fault> {
    let keys: Vec<i64> = sqlx::query_scalar(FOLLOWERS)
        .bind(&page.subject)
        .bind(page.after.0)
        .bind(page.kinds.0)
        .bind(i64::from(page.limit))
        .fetch_all(&mut *conn)
        .await?;
    Ok(keys.into_iter().map(DeviceKey).collect())
}

pub(super) async fn step(conn: &mut PgConnection, step: &FreezeStep) -> Result<FreezeReply, Fault> {
    let arrays = Arrays::of(step)?;
    let written: i64 = sqlx::query_scalar(STEP)
        .bind(step.fanout.0)
        .bind(step.boot.0)
        .bind(step.epoch)
        .bind(step.from.0)
        .bind(arrays.cursor)
        .bind(&arrays.keys)
        .bind(&arrays.numbers)
        .bind(&arrays.sizes)
        .bind(&arrays.starts)
        .bind(&step.ranks)
        .bind(&arrays.claimed)
        .bind(step.last)
        .bind(step.first_chunk)
        .bind(step.never_saw.map(|n| i64::try_from(n).unwrap_or(i64::MAX)))
        .fetch_one(&mut *conn)
        .await?;
    if written == 0 && !stands(conn, step, &arrays).await? {
        return Ok(FreezeReply::Lost);
    }
    Ok(FreezeReply::Written(claimed(conn, step).await?))
}

async fn stands(conn: &mut PgConnection, step: &FreezeStep, arrays: &Arrays) -> Result<bool, Fault> {
    let chunks: i32 = count("number of chunks", i64::from(step.first_chunk) + arrays.numbers.len() as i64)?;
    let stands = sqlx::query_scalar(STANDS)
        .bind(step.fanout.0)
        .bind(step.boot.0)
        .bind(step.epoch)
        .bind(arrays.cursor)
        .bind(chunks)
        .bind(step.last)
        .fetch_one(&mut *conn)
        .await?;
    Ok(stands)
}

async fn claimed(conn: &mut PgConnection, step: &FreezeStep) -> Result<Vec<ClaimedChunk>, Fault> {
    if step.claim_first == 0 || step.chunks.is_empty() {
        return Ok(Vec::new());
    }
    let first = i64::from(step.first_chunk);
    let end: i32 = count("chunk number", first + step.claim_first.min(step.chunks.len()) as i64)?;
    claim::of_a_step(conn, step, end).await
}

/// The chunks of a step as parallel arrays.
struct Arrays {
    cursor: i64,
    keys: Vec<i64>,
    numbers: Vec<i32>,
    sizes: Vec<i16>,
    starts: Vec<i32>,
    claimed: Vec<bool>,
}

impl Arrays {
    fn of(step: &FreezeStep) -> Result<Self, Fault> {
        let keys: Vec<i64> = step.chunks.iter().flatten().map(|key| key.0).collect();
        let sizes_fit = step.chunks.iter().all(|c| !c.is_empty() && c.len() <= CHUNK_SIZE);
        let ascending = keys.windows(2).all(|w| w[0] < w[1]) && keys.first().is_none_or(|first| *first > step.from.0);
        if !sizes_fit || !ascending || step.ranks.len() != step.chunks.len() {
            let text = "freeze_step: chunks hold 1 to 500 keys each, ascending after the cursor, with one rank each";
            return Err(StoreError::Statement(text.to_owned()).into());
        }
        let mut arrays = Self {
            cursor: keys.last().copied().unwrap_or(step.from.0),
            keys,
            numbers: Vec::new(),
            sizes: Vec::new(),
            starts: Vec::new(),
            claimed: Vec::new(),
        };
        let mut start = 1_i64; // SQL arrays begin at 1.
        for (i, chunk) in step.chunks.iter().enumerate() {
            arrays.numbers.push(count("chunk number", i64::from(step.first_chunk) + i as i64)?);
            arrays.sizes.push(count("chunk size", chunk.len() as i64)?);
            arrays.starts.push(count("chunk start", start)?);
            arrays.claimed.push(i < step.claim_first);
            start += chunk.len() as i64;
        }
        Ok(arrays)
    }
}
