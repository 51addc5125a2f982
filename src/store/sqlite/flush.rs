//! Owns facts: bits that are only ever set, and the failure rows beside them.
//! Must never know: how an outcome came about.
//!
//! Facts are written whoever owns the chunk now; only ending a chunk early needs its epoch. A failure row exists
//! exactly for the recipients that are done and not ok, so counting rows counts failures.

use std::collections::HashMap;

use sqlx::{FromRow, SqliteConnection, query, query_as};

use super::fault::Answer;
use super::rows::{boot_bytes, count, now_ms, to_json};
use super::sql;
use crate::domain::batch::{ChunkAck, ChunkFlush, FlushBatch, OutcomeRecord, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{BootId, ChunkRef, FanoutId};
use crate::domain::outcome::Cause;
use crate::domain::tally::PartCounters;

const OWNED: i64 = 1;
const CLOSED: i64 = 2;

/// A chunk's bits as stored, then merged.
struct Bits {
    n: usize,
    state: i64,
    epoch: i32,
    done: Bitmap,
    ok: Bitmap,
    maybe: Bitmap,
}

#[derive(FromRow)]
struct BitsRow {
    n: i64,
    state: i64,
    epoch: i32,
    done: Vec<u8>,
    ok: Vec<u8>,
    maybe: Vec<u8>,
}

/// Writes facts. A chunk that is not there any more is left out of the answer.
pub(super) async fn flush(conn: &mut SqliteConnection, batch: FlushBatch) -> Answer<Vec<ChunkAck>> {
    let mut acks = Vec::with_capacity(batch.chunks.len());
    let mut merged = HashMap::with_capacity(batch.chunks.len());
    for chunk in &batch.chunks {
        if let Some((bits, ack)) = flush_chunk(conn, chunk).await? {
            merged.insert(chunk.chunk, bits);
            acks.push(ack);
        }
    }
    let at_ms = now_ms();
    for record in &batch.failures {
        if !merged.contains_key(&record.chunk)
            && let Some(bits) = read_bits(conn, record.chunk).await?
        {
            merged.insert(record.chunk, bits);
        }
        let ordinal = usize::from(record.ordinal);
        let failed = merged.get(&record.chunk).is_some_and(|bits| bits.done.get(ordinal) && !bits.ok.get(ordinal));
        if failed {
            add_failure(conn, record, at_ms).await?;
        }
    }
    Ok(acks)
}

async fn flush_chunk(conn: &mut SqliteConnection, flush: &ChunkFlush) -> Answer<Option<(Bits, ChunkAck)>> {
    let Some(mut bits) = read_bits(conn, flush.chunk).await? else { return Ok(None) };
    let before = (bits.done.clone(), bits.ok.clone(), bits.maybe.clone());
    bits.done.union(&flush.done)?;
    bits.ok.union(&flush.ok)?;
    bits.maybe.union(&flush.maybe)?;
    if (&bits.done, &bits.ok, &bits.maybe) != (&before.0, &before.1, &before.2) {
        write_bits(conn, flush.chunk, &bits).await?;
        drop_contradicted(conn, flush.chunk, &bits.ok, (&before.0, &before.1)).await?;
    }
    let owned = bits.state == OWNED && bits.epoch == flush.epoch;
    let full = bits.done.count() == bits.n;
    let rest = flush.rest.filter(|_| owned && !full);
    if bits.state != CLOSED && (full || rest.is_some()) {
        close(conn, flush.chunk, rest).await?;
        bits.state = CLOSED;
    }
    let closed = bits.state == CLOSED;
    let ack = ChunkAck { chunk: flush.chunk, owned: owned && !closed, closed, done: bits.done.clone() };
    Ok(Some((bits, ack)))
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
async fn drop_contradicted(
    conn: &mut SqliteConnection,
    chunk: ChunkRef,
    ok: &Bitmap,
    (was_done, was_ok): (&Bitmap, &Bitmap),
) -> Answer<()> {
    for ordinal in (0..ok.len()).filter(|i| ok.get(*i) && was_done.get(*i) && !was_ok.get(*i)) {
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

async fn add_failure(conn: &mut SqliteConnection, record: &OutcomeRecord, at_ms: i64) -> Answer<()> {
    let failure = record.failure.as_ref();
    query(sql::ADD_FAILURE)
        .bind(record.chunk.fanout.0)
        .bind(record.chunk.no)
        .bind(record.ordinal)
        .bind(record.key.0)
        .bind(record.outcome.code())
        .bind(failure.map_or(Cause::None, |f| f.cause).code())
        .bind(failure.map_or(0, |f| f.status))
        .bind(failure.map_or("", |f| f.text.as_str()))
        .bind(failure.map_or(0, |f| f.attempts))
        .bind(record.outcome.retryable())
        .bind(failure.map_or("", |f| f.variant.as_str()))
        .bind(failure.map_or(0, |f| f.device_version))
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
) -> Answer<()> {
    for (fanout, counters) in parts {
        query(sql::PUT_PART)
            .bind(fanout.0)
            .bind(boot_bytes(boot))
            .bind(to_json(&counters)?)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}
