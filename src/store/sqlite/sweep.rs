//! Owns sweeps: how one begins, whom it asks about, where it got to.
//! Must never know: what a sweep sends, or when one is due.

use sqlx::{FromRow, SqliteConnection, query, query_as, query_scalar};

use super::accept;
use super::fault::{Answer, corrupt};
use super::rows::{boot_bytes, count, keys_from_bytes, now_ms, to_json};
use super::sql;
use crate::domain::batch::{Class, FanoutKind};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Source;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::store::facts::judgement_of;
use crate::store::{FreezeJob, NewSweep, SweepBegun, SweepEnd};

pub(super) async fn live_page(conn: &mut SqliteConnection, after: DeviceKey, limit: u32) -> Answer<Vec<DeviceKey>> {
    let keys: Vec<i64> = query_scalar(sql::LIVE_PAGE).bind(after.0).bind(limit).fetch_all(conn).await?;
    Ok(keys.into_iter().map(DeviceKey).collect())
}

pub(super) async fn live_count(conn: &mut SqliteConnection, after: DeviceKey) -> Answer<u64> {
    let n: i64 = query_scalar(sql::LIVE_COUNT).bind(after.0).fetch_one(conn).await?;
    count("live devices", n)
}

/// The writer runs one job at a time, so the first is the one.
pub(super) async fn begin(conn: &mut SqliteConnection, boot: BootId, new: NewSweep) -> Answer<SweepBegun> {
    let running: Option<i64> = query_scalar(sql::RUNNING_SWEEP).fetch_optional(&mut *conn).await?;
    if let Some(running) = running {
        return Ok(SweepBegun::Running(FanoutId(running)));
    }
    let now = now_ms();
    let id: i64 = query_scalar(sql::BEGIN_SWEEP)
        .bind(new.event.id.as_str())
        .bind(&new.event.kind)
        .bind(new.event.match_id.as_str())
        .bind(FanoutKind::Sweep.code())
        .bind(Class::Bulk.code())
        .bind(Source::Devices.code())
        .bind(now)
        .bind(now.saturating_add(new.lasts_ms))
        .bind(boot_bytes(boot))
        .bind(new.after.0)
        .bind(i64::try_from(new.max_attempts).unwrap_or(i64::MAX))
        .bind(new.accept_dead_percent)
        .fetch_one(&mut *conn)
        .await?;
    query(sql::ADD_EVENT)
        .bind(new.event.id.as_str())
        .bind(new.event.content_hash().as_slice())
        .bind(id)
        .bind(to_json(&new.event)?)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    let job = accept::job(conn, FanoutId(id)).await?.ok_or_else(|| corrupt("a sweep has no event"))?;
    let freeze = FreezeJob { job, epoch: 1, cursor: new.after, next_chunk: 0, hold_ms: 0 };
    Ok(SweepBegun::Begun(Box::new(freeze)))
}

pub(super) async fn any_paused(conn: &mut SqliteConnection) -> Answer<bool> {
    Ok(query_scalar(sql::ANY_PAUSED_SWEEP).fetch_one(conn).await?)
}

pub(super) async fn end_paused(conn: &mut SqliteConnection) -> Answer<u64> {
    Ok(query(sql::END_PAUSED_SWEEP).execute(conn).await?.rows_affected())
}

#[derive(FromRow)]
struct Stand {
    freeze_cursor: i64,
    swept_from: i64,
    settled: Option<String>,
}

#[derive(FromRow)]
struct Unfinished {
    chunk_no: i32,
    n: i64,
    done: Vec<u8>,
    keys: Vec<u8>,
}

impl Unfinished {
    /// The key before the first device without an outcome of its own.
    fn after(&self) -> Answer<Option<DeviceKey>> {
        let n = count("chunk length", self.n)?;
        let (done, keys) = (Bitmap::from_bytes(&self.done, n)?, keys_from_bytes(&self.keys, n)?);
        Ok((0..n).find(|i| !done.get(*i)).map(|i| DeviceKey(keys[i].0 - 1)))
    }
}

pub(super) async fn end(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<SweepEnd>> {
    let stand: Option<Stand> = query_as(sql::SWEEP_STAND).bind(id.0).fetch_optional(&mut *conn).await?;
    let Some(stand) = stand else { return Ok(None) };
    let after = first_unfinished(conn, id).await?.unwrap_or(DeviceKey(stand.freeze_cursor));
    let (_, withheld) = judgement_of(stand.settled.as_deref())?;
    Ok(Some(SweepEnd { from: DeviceKey(stand.swept_from), after, withheld }))
}

/// A chunk that ended as a whole may have nobody without an outcome of their own: then the next one is looked at.
async fn first_unfinished(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<DeviceKey>> {
    let mut behind = -1;
    loop {
        let chunk: Option<Unfinished> =
            query_as(sql::FIRST_UNFINISHED).bind(id.0).bind(behind).fetch_optional(&mut *conn).await?;
        let Some(chunk) = chunk else { return Ok(None) };
        if let Some(after) = chunk.after()? {
            return Ok(Some(after));
        }
        behind = chunk.chunk_no;
    }
}
