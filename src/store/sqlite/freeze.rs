//! Owns reading followers and fixing them into chunks.
//! Must never know: how pages of several subjects are merged.

use sqlx::{SqliteConnection, query, query_as, query_scalar};

use super::claim;
use super::fault::Answer;
use super::rows::{boot_bytes, keys_to_bytes};
use super::sql;
use crate::domain::batch::ClaimedChunk;
use crate::domain::bitmap::{Bitmap, CHUNK_SIZE};
use crate::domain::ids::DeviceKey;
use crate::store::{FollowerPage, FreezeReply, FreezeStep, StoreError};

/// One range of the follow table's primary key.
pub(super) async fn follower_page(conn: &mut SqliteConnection, page: FollowerPage) -> Answer<Vec<DeviceKey>> {
    let keys: Vec<i64> = query_scalar(sql::FOLLOWER_PAGE)
        .bind(page.subject)
        .bind(page.after.0)
        .bind(page.kinds.0)
        .bind(page.limit)
        .fetch_all(conn)
        .await?;
    Ok(keys.into_iter().map(DeviceKey).collect())
}

/// Moves the cursor, if the freeze is still the caller's and stands where the step starts, and writes the chunks.
/// A step that was written before answers as it did then.
pub(super) async fn freeze_step(conn: &mut SqliteConnection, step: FreezeStep) -> Answer<FreezeReply> {
    let after = Position::after(&step)?;
    match advance(conn, &step, &after).await? {
        Some((class, paused)) => {
            // While it is paused nobody sends any of it.
            let claimed = if paused { 0 } else { step.claim_first };
            for i in 0..step.chunks.len() {
                add_chunk(conn, &step, i, (class, i < claimed)).await?;
            }
        }
        None if stands(conn, &step, &after).await? => {}
        None => return Ok(FreezeReply::Lost),
    }
    Ok(FreezeReply::Written(claimed(conn, &step).await?))
}

/// Where a step leaves the freeze.
struct Position {
    cursor: DeviceKey,
    chunks: i64,
    recipients: i64,
}

impl Position {
    fn after(step: &FreezeStep) -> Answer<Self> {
        let keys: Vec<DeviceKey> = step.chunks.iter().flatten().copied().collect();
        let sizes_fit = step.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_SIZE);
        let ascending = keys.is_sorted_by(|a, b| a < b) && keys.first().is_none_or(|first| *first > step.from);
        if !sizes_fit || !ascending || step.ranks.len() != step.chunks.len() {
            let text = "freeze_step: chunks hold 1 to 500 keys each, ascending after the cursor, with one rank each";
            return Err(StoreError::Statement(text.to_owned()).into());
        }
        Ok(Self {
            cursor: keys.last().copied().unwrap_or(step.from),
            chunks: i64::from(step.first_chunk) + i64::try_from(step.chunks.len()).unwrap_or(i64::MAX),
            recipients: i64::try_from(keys.len()).unwrap_or(i64::MAX),
        })
    }
}

/// The code of the fan-out's class and whether it is paused, or `None` when the step is not to be written.
async fn advance(conn: &mut SqliteConnection, step: &FreezeStep, after: &Position) -> Answer<Option<(i64, bool)>> {
    let moved = query_as(sql::FREEZE_STEP)
        .bind(step.fanout.0)
        .bind(boot_bytes(step.boot))
        .bind(step.epoch)
        .bind(step.from.0)
        .bind(after.cursor.0)
        .bind(after.chunks)
        .bind(after.recipients)
        .bind(step.last)
        .bind(step.first_chunk)
        .bind(step.never_saw.map(|n| i64::try_from(n).unwrap_or(i64::MAX)))
        .fetch_optional(conn)
        .await?;
    Ok(moved)
}

/// Whether the fan-out stands exactly where this step leaves it: then it was written, and its answer was lost.
async fn stands(conn: &mut SqliteConnection, step: &FreezeStep, after: &Position) -> Answer<bool> {
    let stands = query_scalar(sql::STANDS)
        .bind(step.fanout.0)
        .bind(boot_bytes(step.boot))
        .bind(step.epoch)
        .bind(after.cursor.0)
        .bind(after.chunks)
        .bind(step.last)
        .fetch_one(conn)
        .await?;
    Ok(stands)
}

async fn add_chunk(
    conn: &mut SqliteConnection,
    step: &FreezeStep,
    i: usize,
    (class, owned): (i64, bool),
) -> Answer<()> {
    let keys = &step.chunks[i];
    let no = i64::from(step.first_chunk) + i64::try_from(i).unwrap_or(i64::MAX);
    query(sql::ADD_CHUNK_IDS).bind(step.fanout.0).bind(no).bind(keys_to_bytes(keys)).execute(&mut *conn).await?;
    query(sql::ADD_CHUNK)
        .bind(step.fanout.0)
        .bind(no)
        .bind(i64::try_from(keys.len()).unwrap_or(i64::MAX))
        .bind(class)
        .bind(step.ranks[i])
        .bind(owned)
        .bind(owned.then(|| boot_bytes(step.boot)))
        .bind(Bitmap::new(keys.len()).to_bytes())
        .execute(conn)
        .await?;
    Ok(())
}

async fn claimed(conn: &mut SqliteConnection, step: &FreezeStep) -> Answer<Vec<ClaimedChunk>> {
    let owned = step.claim_first.min(step.chunks.len());
    if owned == 0 {
        return Ok(Vec::new());
    }
    claim::of_a_step(conn, step, step.first_chunk + i32::try_from(owned).unwrap_or(i32::MAX)).await
}
