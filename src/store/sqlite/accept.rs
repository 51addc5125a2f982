//! Owns giving out freezes, and what must be known of a fan-out to work on it.
//! Must never know: how events are accepted, followers read or chunks written.

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};

use super::fault::{Answer, Fault};
use super::rows::{boot_bytes, code, count, from_json, now_ms, to_json};
use super::sql;
use crate::domain::batch::{Class, FanoutJob};
use crate::domain::derived::{Cap, Origin, Source};
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::damaged::warn_of_fanouts;
use crate::store::{FreezeJob, HANDOVER_MS, StoreError};

/// The fan-out an event id was accepted as.
pub(super) async fn seen(conn: &mut SqliteConnection, id: EventId) -> Answer<Option<(FanoutId, Vec<u8>)>> {
    let row: Option<(Vec<u8>, i64)> = query_as(sql::EVENT_SEEN).bind(id.as_str()).fetch_optional(conn).await?;
    Ok(row.map(|(hash, fanout)| (FanoutId(fanout), hash)))
}

#[derive(FromRow)]
struct JobRow {
    id: i64,
    class: i64,
    accepted_ms: i64,
    deadline_ms: i64,
    body: String,
    source: i64,
    parent: Option<i64>,
    root_event: Option<String>,
    collapse_key: Option<String>,
    max_attempts: Option<i64>,
    resumed: i32,
    paused: bool,
    spent: i64,
}

impl JobRow {
    fn origin(&self) -> Answer<Origin> {
        let most = self.max_attempts.map(|most| count("most attempts", most)).transpose()?;
        let spent = count("attempts", self.spent)?;
        Ok(Origin {
            source: code(self.source, Source::from_code)?,
            parent: self.parent.map(FanoutId),
            root: self.root_event.as_deref().map(EventId::parse).transpose()?,
            key: self.collapse_key.clone(),
            cap: most.map(|most| Cap { most, spent, resumed: self.resumed, paused: self.paused }),
        })
    }
}

/// What the sender must know of a fan-out.
pub(super) async fn job(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<FanoutJob>> {
    let row: Option<JobRow> = query_as(sql::JOB).bind(id.0).fetch_optional(conn).await?;
    row.map(|row| {
        let origin = row.origin()?;
        Ok(FanoutJob {
            id: FanoutId(row.id),
            event: from_json("event", &row.body)?,
            class: code(row.class, Class::from_code)?,
            accepted_ms: row.accepted_ms,
            deadline_ms: row.deadline_ms,
            origin,
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
    Ok(FreezeJob { job, epoch, cursor: DeviceKey(cursor), next_chunk, hold_ms: 0 })
}
