//! Owns facts: bits that are only ever set, and the failure rows beside them.
//! Must never know: how an outcome came about.
//!
//! Facts are written whoever owns the chunk now; only ending a chunk early needs its epoch. A failure row exists
//! exactly for the recipients that are done and not ok, so counting rows counts failures.

use std::collections::HashMap;

use sqlx::{FromRow, SqliteConnection, query, query_as};

use super::fault::Answer;
use super::rows::{boot_bytes, count, now_ms, to_json};
use super::{replay, sql};
use crate::domain::batch::{ChunkAck, ChunkFlush, FailureRecord, FlushBatch, OutcomeRecord, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{BootId, ChunkRef, FanoutId};
use crate::domain::tally::PartCounters;
use crate::mutant;
use crate::store::{StoreError, planted};

const OWNED: i64 = 1;
const CLOSED: i64 = 2;

/// A chunk's bits.
#[derive(Clone, PartialEq)]
struct Bits {
    n: usize,
    state: i64,
    epoch: i32,
    done: Bitmap,
    ok: Bitmap,
    maybe: Bitmap,
    cancelled: bool,
    settled: bool,
    late: u32,
}

impl Bits {
    /// Recipients whose outcome differs from before.
    fn changed(&self, was: &Self) -> usize {
        let delivered = |i: &usize| self.ok.get(*i) && !was.ok.get(*i);
        let failed = |i: &usize| self.done.get(*i) && !was.done.get(*i) && !self.ok.get(*i);
        (0..self.n).filter(|i| delivered(i) || failed(i)).count()
    }
}

#[derive(FromRow)]
struct BitsRow {
    n: i64,
    state: i64,
    epoch: i32,
    done: Vec<u8>,
    ok: Vec<u8>,
    maybe: Vec<u8>,
    cancelled: bool,
    settled: bool,
}

/// Writes facts. A chunk that is not there any more is answered as nobody's.
pub(super) async fn flush(conn: &mut SqliteConnection, batch: FlushBatch) -> Answer<Vec<ChunkAck>> {
    let mut acks = Vec::with_capacity(batch.chunks.len());
    let mut merged = HashMap::with_capacity(batch.chunks.len());
    for chunk in &batch.chunks {
        let bits = flush_chunk(conn, chunk).await?;
        acks.push(ack(chunk, bits.as_ref()));
        merged.insert(chunk.chunk, bits);
    }
    let at_ms = now_ms();
    for record in &batch.failures {
        let Some(bits) = merged.get(&record.chunk) else {
            let text = "flush: a failure of a chunk that is not in the batch".to_owned();
            return Err(StoreError::Statement(text).into());
        };
        let ordinal = usize::from(record.ordinal);
        if let (Some(bits), Some(failure)) = (bits, &record.failure)
            && bits.done.get(ordinal)
            && !bits.ok.get(ordinal)
        {
            add_failure(conn, record, failure, at_ms).await?;
        }
    }
    Ok(acks)
}

fn ack(flush: &ChunkFlush, bits: Option<&Bits>) -> ChunkAck {
    match bits {
        Some(bits) => ChunkAck {
            chunk: flush.chunk,
            epoch: flush.epoch,
            // Owned now, or closed while it was the writer's.
            owned: bits.epoch == flush.epoch && matches!(bits.state, OWNED | CLOSED),
            closed: bits.state == CLOSED,
            cancelled: bits.cancelled,
            late: bits.late,
            done: bits.done.clone(),
        },
        None => {
            let (chunk, epoch, done) = (flush.chunk, flush.epoch, flush.done.clone());
            ChunkAck { chunk, epoch, owned: false, closed: false, cancelled: false, late: 0, done }
        }
    }
}

/// Merges the bits of one chunk and closes it when none is left; its state after that.
async fn flush_chunk(conn: &mut SqliteConnection, flush: &ChunkFlush) -> Answer<Option<Bits>> {
    let Some(was) = read_bits(conn, flush.chunk).await? else { return Ok(None) };
    let mut bits = was.clone();
    bits.done.union(&flush.done)?;
    bits.done.union(&flush.ok)?;
    bits.ok.union(&flush.ok)?;
    bits.maybe.union(&flush.maybe)?;
    if bits != was {
        write_bits(conn, flush.chunk, &bits).await?;
        drop_contradicted(conn, flush.chunk, &was, &bits).await?;
    }
    if bits.settled {
        bits.late = u32::try_from(bits.changed(&was)).unwrap_or(u32::MAX);
    }
    let full = bits.done.count() == bits.n;
    let owner = bits.state == OWNED && (bits.epoch == flush.epoch || mutant::on("no_epoch_check"));
    let rest = flush.rest.filter(|_| owner && !full);
    if bits.state != CLOSED && (full || rest.is_some()) {
        close(conn, flush.chunk, rest).await?;
        bits.state = CLOSED;
    }
    Ok(Some(bits))
}

async fn read_bits(conn: &mut SqliteConnection, chunk: ChunkRef) -> Answer<Option<Bits>> {
    let row: Option<BitsRow> =
        query_as(sql::CHUNK_BITS).bind(chunk.fanout.0).bind(chunk.no).fetch_optional(conn).await?;
    let Some(row) = row else { return Ok(None) };
    let n = count("chunk length", row.n)?;
    Ok(Some(Bits {
        n,
        state: row.state,
        epoch: row.epoch,
        done: Bitmap::from_bytes(&row.done, n)?,
        ok: Bitmap::from_bytes(&row.ok, n)?,
        maybe: Bitmap::from_bytes(&row.maybe, n)?,
        cancelled: row.cancelled,
        settled: row.settled,
        late: 0,
    }))
}

async fn write_bits(conn: &mut SqliteConnection, chunk: ChunkRef, bits: &Bits) -> Answer<()> {
    query(sql::WRITE_BITS)
        .bind(chunk.fanout.0)
        .bind(chunk.no)
        .bind(bits.done.to_bytes())
        .bind(bits.ok.to_bytes())
        .bind(bits.maybe.to_bytes())
        .execute(conn)
        .await?;
    Ok(())
}

/// `ok` wins: a recipient that one owner saw fail and another saw delivered loses its failure row.
async fn drop_contradicted(conn: &mut SqliteConnection, chunk: ChunkRef, was: &Bits, now: &Bits) -> Answer<()> {
    let failed = |i: &usize| was.done.get(*i) && !was.ok.get(*i);
    for ordinal in (0..now.n).filter(failed).filter(|i| now.ok.get(*i)) {
        let ordinal = i64::try_from(ordinal).unwrap_or(i64::MAX);
        query(sql::DROP_FAILURE).bind(chunk.fanout.0).bind(chunk.no).bind(ordinal).execute(&mut *conn).await?;
    }
    Ok(())
}

async fn close(conn: &mut SqliteConnection, chunk: ChunkRef, rest: Option<RestOutcome>) -> Answer<()> {
    query(sql::CLOSE_CHUNK)
        .bind(chunk.fanout.0)
        .bind(chunk.no)
        .bind(rest.map(|rest| rest.outcome.code()))
        .bind(rest.map(|rest| rest.cause.code()))
        .execute(conn)
        .await?;
    Ok(())
}

async fn add_failure(
    conn: &mut SqliteConnection,
    record: &OutcomeRecord,
    failure: &FailureRecord,
    at_ms: i64,
) -> Answer<()> {
    query(sql::ADD_FAILURE)
        .bind(record.chunk.fanout.0)
        .bind(record.chunk.no)
        .bind(record.ordinal)
        .bind(record.key.0)
        .bind(record.outcome.code())
        .bind(failure.cause.code())
        .bind(failure.status)
        .bind(&failure.text)
        .bind(failure.attempts)
        .bind(record.outcome.retryable())
        .bind(&failure.variant)
        .bind(failure.device_version)
        .bind(at_ms)
        .execute(conn)
        .await?;
    Ok(())
}

/// Upserts what one instance counted so far.
pub(super) async fn put_parts(
    conn: &mut SqliteConnection,
    boot: BootId,
    parts: Vec<(FanoutId, PartCounters)>,
) -> Answer<Vec<(FanoutId, i32)>> {
    let sum = "json_set(excluded.counters, '$.attempts',
               (excluded.counters ->> 'attempts') + (fanout_part.counters ->> 'attempts'))";
    let sql = planted::unless(mutant::on("counters_incremented"), sql::PUT_PART, "excluded.counters", sum);
    let fanouts: Vec<FanoutId> = parts.iter().map(|(fanout, _)| *fanout).collect();
    for (fanout, counters) in parts {
        query(sql.clone()).bind(fanout.0).bind(boot_bytes(boot)).bind(to_json(&counters)?).execute(&mut *conn).await?;
    }
    replay::spent(conn, &fanouts).await
}
