//! Owns the writing of facts: bits that are only ever set, failure rows that are never overwritten, counters.
//! Must never know: whether the writer should have stopped; facts are facts (only ownership is fenced).

use std::collections::BTreeMap;

use sqlx::{FromRow, PgConnection};

use super::fault::Fault;
use super::replay;
use super::rows::{chunk_ref, length};
use crate::domain::batch::{ChunkAck, ChunkFlush, FlushBatch, OutcomeRecord};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{BootId, ChunkRef, FanoutId};
use crate::domain::tally::PartCounters;
use crate::mutant;
use crate::store::{StoreError, planted};

/// All chunks and failures of a batch. Every right-hand side reads the row as it was, so a repetition changes nothing.
/// Only the epoch that owns the chunk may end it for those without an outcome (`rest`).
/// `late` reads the row as it was: a statement does not see its own update. It asks only where the fan-out, which is read
/// once for that and for `cancelled`, is settled.
pub(super) const FLUSH: &str = "
WITH b AS (
    SELECT fanout_id, chunk_no, epoch, done::varbit AS done, ok::varbit AS ok, maybe::varbit AS maybe,
           rest_outcome, rest_cause
    FROM unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::smallint[])
         AS b(fanout_id, chunk_no, epoch, done, ok, maybe, rest_outcome, rest_cause)),
u AS (
    UPDATE chunk k
    SET done = k.done | b.done | b.ok,
        ok = k.ok | b.ok,
        maybe = k.maybe | b.maybe,
        rest_outcome = CASE WHEN k.state = 1 AND k.epoch = b.epoch AND bit_count(k.done | b.done | b.ok) < k.n
                            THEN b.rest_outcome ELSE k.rest_outcome END,
        rest_cause = CASE WHEN k.state = 1 AND k.epoch = b.epoch AND bit_count(k.done | b.done | b.ok) < k.n
                          THEN b.rest_cause ELSE k.rest_cause END,
        state = CASE WHEN bit_count(k.done | b.done | b.ok) = k.n THEN 2
                     WHEN k.state = 1 AND k.epoch = b.epoch AND b.rest_outcome IS NOT NULL THEN 2
                     ELSE k.state END
    FROM b LEFT JOIN fanout s ON s.id = b.fanout_id
    WHERE k.fanout_id = b.fanout_id AND k.chunk_no = b.chunk_no
    RETURNING k.fanout_id, k.chunk_no, b.epoch, k.n, k.state, k.epoch = b.epoch AS mine, k.done, k.ok,
              coalesce(s.state = 3, false) AS cancelled,
              CASE WHEN s.settled_ms IS NULL THEN 0 ELSE (
                  SELECT bit_count(k.ok & ~o.ok) + bit_count(k.done & ~o.done & ~k.ok) FROM chunk o
                  WHERE o.fanout_id = k.fanout_id AND o.chunk_no = k.chunk_no) END AS late),
f AS (
    INSERT INTO failure (fanout_id, chunk_no, ordinal, device_key, outcome, cause, status, detail, attempts,
                         retryable, variant, device_version, at_ms)
    SELECT x.*, fanfare_now_ms()
    FROM unnest($9::bigint[], $10::int[], $11::smallint[], $12::bigint[], $13::smallint[], $14::smallint[],
                $15::smallint[], $16::text[], $17::smallint[], $18::bool[], $19::text[], $20::bigint[])
         AS x(fanout_id, chunk_no, ordinal, device_key, outcome, cause, status, detail, attempts, retryable,
              variant, device_version)
    JOIN u ON u.fanout_id = x.fanout_id AND u.chunk_no = x.chunk_no
    WHERE get_bit(u.ok, x.ordinal) = 0
    ON CONFLICT DO NOTHING)
SELECT fanout_id, chunk_no, epoch, n, state, mine, done::text AS done, late, cancelled FROM u";

/// Answers those that have a cap: only they are looked at again.
pub(super) const PUT_PARTS: &str = "
WITH put AS (
    INSERT INTO fanout_part (fanout_id, boot_id, counters)
    SELECT p.fanout_id, $1, p.counters FROM unnest($2::bigint[], $3::text[]) AS p(fanout_id, counters)
    ON CONFLICT (fanout_id, boot_id) DO UPDATE SET counters = EXCLUDED.counters)
SELECT f.id FROM fanout f WHERE f.id = ANY ($2) AND f.max_attempts IS NOT NULL AND f.settled_ms IS NULL";

#[derive(Debug, FromRow)]
struct AckRow {
    fanout_id: i64,
    chunk_no: i32,
    epoch: i32,
    n: i16,
    state: i16,
    mine: bool,
    done: String,
    cancelled: bool,
    late: i64,
}

impl AckRow {
    fn parse(self) -> Result<ChunkAck, Fault> {
        Ok(ChunkAck {
            chunk: chunk_ref(self.fanout_id, self.chunk_no),
            epoch: self.epoch,
            // Owned now, or closed while it was ours.
            owned: self.mine && matches!(self.state, 1 | 2),
            closed: self.state == 2,
            cancelled: self.cancelled,
            late: u32::try_from(self.late).unwrap_or(0),
            done: Bitmap::from_text(&self.done, length(self.n)?)?,
        })
    }
}

pub(super) async fn flush(conn: &mut PgConnection, batch: &FlushBatch) -> Result<Vec<ChunkAck>, Fault> {
    if batch.chunks.is_empty() && batch.failures.is_empty() {
        return Ok(Vec::new());
    }
    let chunks = ChunkArrays::of(&batch.chunks);
    let failures = FailureArrays::of(batch)?;
    let sql = planted::unless(mutant::on("no_epoch_check"), FLUSH, "AND k.epoch = b.epoch", "");
    let query = failures.bind(chunks.bind(sqlx::query_as(sql)));
    let rows: Vec<AckRow> = query.fetch_all(conn).await?;
    let found = rows.into_iter().map(|row| row.parse().map(|ack| (ack.chunk, ack)));
    let mut found = found.collect::<Result<BTreeMap<ChunkRef, ChunkAck>, Fault>>()?;
    Ok(batch.chunks.iter().map(|c| found.remove(&c.chunk).unwrap_or_else(|| unknown(c))).collect())
}

/// The chunk is not there any more: there is nothing to own and nothing to wait for.
fn unknown(flush: &ChunkFlush) -> ChunkAck {
    let (chunk, epoch, done) = (flush.chunk, flush.epoch, flush.done.clone());
    ChunkAck { chunk, epoch, owned: false, closed: false, cancelled: false, late: 0, done }
}

pub(super) async fn put_parts(
    conn: &mut PgConnection,
    boot: BootId,
    parts: &[(FanoutId, PartCounters)],
) -> Result<Vec<(FanoutId, i32)>, Fault> {
    let refuse = |_| StoreError::Statement("put_parts: counters do not serialise".to_owned());
    let mut latest = BTreeMap::new();
    for (fanout, counters) in parts {
        latest.insert(fanout.0, serde_json::to_string(counters).map_err(refuse)?);
    }
    let (fanouts, texts): (Vec<i64>, Vec<String>) = latest.into_iter().unzip();
    let sum =
        "jsonb_set(EXCLUDED.counters::jsonb, '{attempts}', to_jsonb((EXCLUDED.counters::jsonb ->> 'attempts')::bigint
               + (fanout_part.counters::jsonb ->> 'attempts')::bigint))::text";
    let sql = planted::unless(mutant::on("counters_incremented"), PUT_PARTS, "EXCLUDED.counters", sum);
    let query = sqlx::query_scalar(sql).bind(boot.0).bind(fanouts).bind(texts);
    let capped: Vec<i64> = query.fetch_all(&mut *conn).await?;
    replay::spent(conn, &capped).await
}

type Query<'q> = sqlx::query::QueryAs<'q, sqlx::Postgres, AckRow, sqlx::postgres::PgArguments>;

#[derive(Default)]
struct ChunkArrays {
    fanouts: Vec<i64>,
    numbers: Vec<i32>,
    epochs: Vec<i32>,
    bits: [Vec<String>; 3],
    rest_outcomes: Vec<Option<i16>>,
    rest_causes: Vec<Option<i16>>,
}

impl ChunkArrays {
    /// In order of key, so that two batches tend to lock the same rows in the same order.
    fn of(chunks: &[ChunkFlush]) -> Self {
        let mut sorted: Vec<&ChunkFlush> = chunks.iter().collect();
        sorted.sort_by_key(|c| c.chunk);
        let mut arrays = Self::default();
        for c in sorted {
            arrays.fanouts.push(c.chunk.fanout.0);
            arrays.numbers.push(c.chunk.no);
            arrays.epochs.push(c.epoch);
            for (column, bits) in arrays.bits.iter_mut().zip([&c.done, &c.ok, &c.maybe]) {
                column.push(bits.to_text());
            }
            arrays.rest_outcomes.push(c.rest.map(|rest| rest.outcome.code()));
            arrays.rest_causes.push(c.rest.map(|rest| rest.cause.code()));
        }
        arrays
    }

    fn bind(self, query: Query<'_>) -> Query<'_> {
        let [done, ok, maybe] = self.bits;
        let query = query.bind(self.fanouts).bind(self.numbers).bind(self.epochs);
        query.bind(done).bind(ok).bind(maybe).bind(self.rest_outcomes).bind(self.rest_causes)
    }
}

#[derive(Default)]
struct FailureArrays {
    fanouts: Vec<i64>,
    numbers: Vec<i32>,
    ordinals: Vec<i16>,
    devices: Vec<i64>,
    outcomes: Vec<i16>,
    causes: Vec<i16>,
    statuses: Vec<i16>,
    details: Vec<String>,
    attempts: Vec<i16>,
    retryable: Vec<bool>,
    variants: Vec<String>,
    versions: Vec<i64>,
}

impl FailureArrays {
    fn of(batch: &FlushBatch) -> Result<Self, Fault> {
        let flushed: std::collections::HashSet<ChunkRef> = batch.chunks.iter().map(|c| c.chunk).collect();
        let mut arrays = Self::default();
        for record in &batch.failures {
            if !flushed.contains(&record.chunk) {
                let text = "flush: a failure of a chunk that is not in the batch".to_owned();
                return Err(StoreError::Statement(text).into());
            }
            arrays.push(record);
        }
        Ok(arrays)
    }

    fn push(&mut self, record: &OutcomeRecord) {
        let Some(failure) = &record.failure else { return };
        self.fanouts.push(record.chunk.fanout.0);
        self.numbers.push(record.chunk.no);
        self.ordinals.push(small(record.ordinal));
        self.devices.push(record.key.0);
        self.outcomes.push(record.outcome.code());
        self.causes.push(failure.cause.code());
        self.statuses.push(small(failure.status));
        self.details.push(storable(&failure.text));
        self.attempts.push(small(failure.attempts));
        self.retryable.push(record.outcome.retryable());
        self.variants.push(storable(&failure.variant));
        self.versions.push(failure.device_version);
    }

    fn bind(self, query: Query<'_>) -> Query<'_> {
        let query = query.bind(self.fanouts).bind(self.numbers).bind(self.ordinals).bind(self.devices);
        let query = query.bind(self.outcomes).bind(self.causes).bind(self.statuses).bind(self.details);
        query.bind(self.attempts).bind(self.retryable).bind(self.variants).bind(self.versions)
    }
}

/// A number kept as `smallint`; what does not fit is kept as the largest.
fn small(n: u16) -> i16 {
    i16::try_from(n).unwrap_or(i16::MAX)
}

/// Postgres refuses NUL in text, and one refused text would keep a whole batch of facts from being written.
fn storable(text: &str) -> String {
    text.replace('\0', "")
}
