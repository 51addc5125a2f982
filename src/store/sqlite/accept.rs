//! Owns accepting an event and giving out its freeze.
//! Must never know: how followers are read or chunks written.

use sqlx::{FromRow, SqliteConnection, query, query_as, query_scalar};
use tokio::time::Instant;

use super::fault::{Answer, Fault};
use super::rows::{boot_bytes, code, from_json, now_ms, to_json};
use super::sql;
use crate::domain::batch::{Class, FanoutJob};
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::damaged::warn_of_fanouts;
use crate::store::{Accepted, FreezeJob, HANDOVER_MS, NewFanout, StoreError};

/// Commits an event unless its turn with the one writer has come too late.
pub(super) async fn accept_by(
    conn: &mut SqliteConnection,
    boot: BootId,
    new: NewFanout,
    start_by: Instant,
) -> Answer<Accepted> {
    if Instant::now() > start_by {
        return Err(StoreError::Unavailable("accept: the writer was busy for too long".to_owned()).into());
    }
    accept(conn, boot, new).await
}

/// Commits an event and its fan-out, or says which fan-out it is already.
pub(super) async fn accept(conn: &mut SqliteConnection, boot: BootId, new: NewFanout) -> Answer<Accepted> {
    if let Some((fanout, hash)) = seen(&mut *conn, new.event.id.clone()).await? {
        let same = hash == new.content_hash;
        return Ok(if same { Accepted::Repeat(fanout) } else { Accepted::Conflict(fanout) });
    }
    let accepted_ms = now_ms();
    let id = add(conn, boot, &new, accepted_ms).await?;
    let job =
        FanoutJob { id: FanoutId(id), event: new.event, class: new.class, accepted_ms, deadline_ms: new.deadline_ms };
    Ok(Accepted::New(FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0 }))
}

/// The fan-out an event id was accepted as.
pub(super) async fn seen(conn: &mut SqliteConnection, id: EventId) -> Answer<Option<(FanoutId, Vec<u8>)>> {
    let row: Option<(Vec<u8>, i64)> = query_as(sql::EVENT_SEEN).bind(id.as_str()).fetch_optional(conn).await?;
    Ok(row.map(|(hash, fanout)| (FanoutId(fanout), hash)))
}

async fn add(conn: &mut SqliteConnection, boot: BootId, new: &NewFanout, accepted_ms: i64) -> Answer<i64> {
    let event = &new.event;
    let body = to_json(event)?;
    let id: i64 = query_scalar(sql::ADD_FANOUT)
        .bind(event.id.as_str())
        .bind(&event.kind)
        .bind(event.match_id.as_str())
        .bind(new.class.code())
        .bind(event.occurred_ms)
        .bind(accepted_ms)
        .bind(new.deadline_ms)
        .bind(boot_bytes(boot))
        .fetch_one(&mut *conn)
        .await?;
    query(sql::ADD_EVENT)
        .bind(event.id.as_str())
        .bind(new.content_hash.as_slice())
        .bind(id)
        .bind(body)
        .bind(accepted_ms)
        .execute(conn)
        .await?;
    Ok(id)
}

#[derive(FromRow)]
struct JobRow {
    id: i64,
    class: i64,
    accepted_ms: i64,
    deadline_ms: i64,
    body: String,
}

/// What the sender must know of a fan-out.
pub(super) async fn job(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<FanoutJob>> {
    let row: Option<JobRow> = query_as(sql::JOB).bind(id.0).fetch_optional(conn).await?;
    row.map(|row| {
        Ok(FanoutJob {
            id: FanoutId(row.id),
            event: from_json("event", &row.body)?,
            class: code(row.class, Class::from_code)?,
            accepted_ms: row.accepted_ms,
            deadline_ms: row.deadline_ms,
        })
    })
    .transpose()
}

/// Leases freezes nobody alive owns to `boot`, the most urgent first; its own too that were lost on their way here.
/// One whose event does not parse is not taken, and takes no other's place: it is looked at again next time.
pub(super) async fn take_freezes(
    conn: &mut SqliteConnection,
    boot: BootId,
    running: Vec<FanoutId>,
    limit: u32,
) -> Answer<Vec<FreezeJob>> {
    let (mut jobs, mut seen, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let left = limit.saturating_sub(u32::try_from(jobs.len()).unwrap_or(u32::MAX));
        let free = free(conn, boot, [&running, &seen], left).await?;
        let damaged_before = damaged.len();
        for id in free {
            seen.push(id);
            match job(conn, id).await {
                Ok(Some(found)) => jobs.push(lease(conn, boot, found).await?),
                Ok(None) => damaged.push((id, StoreError::Corrupt("it has no event".to_owned()))),
                Err(Fault(error @ StoreError::Corrupt(_))) => damaged.push((id, error)),
                Err(fault) => return Err(fault),
            }
        }
        if damaged.len() == damaged_before {
            break;
        }
    }
    warn_of_fanouts("take_freezes", &damaged);
    Ok(jobs)
}

/// Freezes to be taken: those of nobody alive, and own ones that are not running. None of those `seen`.
async fn free(
    conn: &mut SqliteConnection,
    boot: BootId,
    [running, seen]: [&[FanoutId]; 2],
    limit: u32,
) -> Answer<Vec<FanoutId>> {
    let now = now_ms();
    let free: Vec<i64> = query_scalar(sql::FREE_FREEZES)
        .bind(now)
        .bind(limit)
        .bind(boot_bytes(boot))
        .bind(now - HANDOVER_MS)
        .bind(to_json(&running)?)
        .bind(to_json(&seen)?)
        .fetch_all(conn)
        .await?;
    Ok(free.into_iter().map(FanoutId).collect())
}

async fn lease(conn: &mut SqliteConnection, boot: BootId, job: FanoutJob) -> Answer<FreezeJob> {
    let (epoch, cursor, next_chunk): (i32, i64, i32) =
        query_as(sql::TAKE_FREEZE).bind(job.id.0).bind(boot_bytes(boot)).fetch_one(conn).await?;
    Ok(FreezeJob { job, epoch, cursor: DeviceKey(cursor), next_chunk })
}
