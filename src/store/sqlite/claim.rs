//! Owns taking open chunks and handing them back.
//! Must never know: who sends them, or when.

use std::collections::HashMap;

use sqlx::{FromRow, SqliteConnection, query, query_as};

use super::fault::{Answer, Fault};
use super::rows::{RecipientRow, boot_bytes, code, count, keys_from_bytes, keys_to_json, now_ms};
use super::sql;
use crate::domain::batch::{ClaimedChunk, Class};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{BootId, ChunkRef, DeviceKey, FanoutId};
use crate::domain::recipient::Recipient;
use crate::store::damaged::{LEFT_ALONE_MS, warn_of_chunks};
use crate::store::{ClaimRequest, FreezeStep, Open, StoreError};

#[derive(FromRow)]
struct ChunkRow {
    fanout_id: i64,
    chunk_no: i32,
    n: i64,
    class: i64,
    rank: i64,
    epoch: i32,
    done: Vec<u8>,
    maybe: Vec<u8>,
    unclean: bool,
    keys: Vec<u8>,
}

/// Takes open chunks in order of (class, rank).
pub(super) async fn claim(conn: &mut SqliteConnection, request: ClaimRequest) -> Answer<Vec<ClaimedChunk>> {
    let owner = boot_bytes(request.boot);
    let open = match request.of {
        Open::All => query_as(sql::OPEN_CHUNKS).bind(i16::MAX).bind(now_ms()).bind(request.want).bind(i64::MAX),
        Open::AheadOf(class, rank) => {
            query_as(sql::OPEN_CHUNKS).bind(class.code()).bind(now_ms()).bind(request.want).bind(rank)
        }
        Open::Overdue => query_as(sql::OVERDUE_CHUNKS).bind(now_ms()).bind(request.want),
        Open::Others => query_as(sql::OTHER_CHUNKS).bind(now_ms()).bind(request.want).bind(&owner),
    };
    let open: Vec<ChunkRow> = open.fetch_all(&mut *conn).await?;
    take(conn, request.boot, open).await
}

/// Takes one open chunk of the least urgent class, if it is less urgent than that.
pub(super) async fn claim_floor(conn: &mut SqliteConnection, boot: BootId, than: Class) -> Answer<Vec<ClaimedChunk>> {
    let open: Vec<ChunkRow> = query_as(sql::FLOOR_CHUNK).bind(than.code()).bind(now_ms()).fetch_all(&mut *conn).await?;
    take(conn, boot, open).await
}

async fn take(conn: &mut SqliteConnection, boot: BootId, open: Vec<ChunkRow>) -> Answer<Vec<ClaimedChunk>> {
    let owner = boot_bytes(boot);
    let mut claimed = Vec::with_capacity(open.len());
    for mut row in open {
        query(sql::CLAIM).bind(row.fanout_id).bind(row.chunk_no).bind(&owner).execute(&mut *conn).await?;
        row.epoch += 1;
        claimed.push(row);
    }
    readable(conn, boot, claimed).await
}

/// Chunks up to `end` that a freeze step created owned, and that are so still.
pub(super) async fn of_a_step(conn: &mut SqliteConnection, step: &FreezeStep, end: i32) -> Answer<Vec<ClaimedChunk>> {
    let owned: Vec<ChunkRow> = query_as(sql::STEP_CHUNKS)
        .bind(boot_bytes(step.boot))
        .bind(step.fanout.0)
        .bind(step.first_chunk)
        .bind(end)
        .fetch_all(&mut *conn)
        .await?;
    readable(conn, step.boot, owned).await
}

/// Every chunk of `boot`. One that does not parse is left out: this only reads.
pub(super) async fn owned(conn: &mut SqliteConnection, boot: BootId) -> Answer<Vec<ClaimedChunk>> {
    let rows: Vec<ChunkRow> = query_as(sql::OWNED_CHUNKS).bind(boot_bytes(boot)).fetch_all(&mut *conn).await?;
    let mut chunks = Vec::with_capacity(rows.len());
    for row in rows {
        match hand_out(conn, row).await {
            Err(Fault(StoreError::Corrupt(_))) => {}
            answer => chunks.push(answer?),
        }
    }
    Ok(chunks)
}

/// One that does not parse is handed back for a while, so that it neither stays owned without anybody working on it
/// nor keeps the others from being claimed.
async fn readable(conn: &mut SqliteConnection, boot: BootId, rows: Vec<ChunkRow>) -> Answer<Vec<ClaimedChunk>> {
    let (mut chunks, mut damaged) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let hold = (ChunkRef { fanout: FanoutId(row.fanout_id), no: row.chunk_no }, row.epoch);
        match hand_out(conn, row).await {
            Ok(chunk) => chunks.push(chunk),
            Err(Fault(error @ StoreError::Corrupt(_))) => damaged.push((hold, error)),
            Err(fault) => return Err(fault),
        }
    }
    warn_of_chunks(&damaged);
    let holds = damaged.into_iter().map(|(hold, _)| hold).collect();
    release(conn, boot, holds, now_ms() + LEFT_ALONE_MS).await?;
    Ok(chunks)
}

async fn hand_out(conn: &mut SqliteConnection, row: ChunkRow) -> Answer<ClaimedChunk> {
    let n = count("chunk length", row.n)?;
    let keys = keys_from_bytes(&row.keys, n)?;
    let done = Bitmap::from_bytes(&row.done, n)?;
    let mut maybe = Bitmap::from_bytes(&row.maybe, n)?;
    if row.unclean {
        // The earlier owner died without a word: any recipient without an outcome may have been in flight.
        for i in done.clear_positions() {
            maybe.set(i);
        }
    }
    Ok(ClaimedChunk {
        chunk: ChunkRef { fanout: FanoutId(row.fanout_id), no: row.chunk_no },
        epoch: row.epoch,
        class: code(row.class, Class::from_code)?,
        rank: row.rank,
        recipients: recipients(conn, &keys).await?,
        keys,
        done,
        maybe,
    })
}

/// Looks recipients up as they are now, in frozen order; `None` for those that may not be sent to any more.
async fn recipients(conn: &mut SqliteConnection, keys: &[DeviceKey]) -> Answer<Vec<Option<Recipient>>> {
    let rows: Vec<RecipientRow> = query_as(sql::RECIPIENTS).bind(keys_to_json(keys)).fetch_all(conn).await?;
    let mut live = HashMap::with_capacity(rows.len());
    for row in rows {
        let recipient = Recipient::try_from(row)?;
        live.insert(recipient.key, recipient);
    }
    Ok(keys.iter().map(|key| live.remove(key)).collect())
}

/// Hands chunks back that `boot` still owns under the given epochs.
pub(super) async fn release(
    conn: &mut SqliteConnection,
    boot: BootId,
    chunks: Vec<(ChunkRef, i32)>,
    not_before_ms: i64,
) -> Answer<()> {
    for (chunk, epoch) in chunks {
        query(sql::RELEASE)
            .bind(chunk.fanout.0)
            .bind(chunk.no)
            .bind(boot_bytes(boot))
            .bind(epoch)
            .bind(not_before_ms)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Lets chunks be claimed at once that nobody has claimed since they were handed back under the given epochs.
pub(super) async fn recall(conn: &mut SqliteConnection, chunks: Vec<(ChunkRef, i32)>) -> Answer<()> {
    for (chunk, epoch) in chunks {
        query(sql::RECALL).bind(chunk.fanout.0).bind(chunk.no).bind(epoch).execute(&mut *conn).await?;
    }
    Ok(())
}
