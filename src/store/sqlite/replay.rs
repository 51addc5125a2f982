//! Owns the fan-outs that repeat what an earlier one failed to do, and the pauses of those whose attempts are capped.
//! Must never know: who failed, or why somebody asks again.

use sqlx::{SqliteConnection, query, query_as, query_scalar};

use super::fault::{Answer, corrupt};
use super::rows::{boot_bytes, code, now_ms, to_json};
use super::{accept, sql};
use crate::domain::batch::FanoutState;
use crate::domain::derived::Pause;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::store::replay::ParentRow;
use crate::store::{FreezeJob, NewReplay, ReplayReply, ResumeReply};

pub(super) async fn named(conn: &mut SqliteConnection, parent: FanoutId, name: String) -> Answer<Option<FanoutId>> {
    let id: Option<i64> = query_scalar(sql::REPLAY_NAMED).bind(parent.0).bind(name).fetch_optional(conn).await?;
    Ok(id.map(FanoutId))
}

/// The writer runs one job at a time, so of two callers the second sees what the first has written.
pub(super) async fn replay(conn: &mut SqliteConnection, boot: BootId, new: NewReplay) -> Answer<ReplayReply> {
    let row: Option<ParentRow> =
        query_as(sql::REPLAYED).bind(new.parent.0).bind(&new.request_id).fetch_optional(&mut *conn).await?;
    let Some(row) = row else { return Ok(ReplayReply::Unknown) };
    if let Some(refusal) = row.refusal()? {
        return Ok(refusal);
    }
    if row.is_given_up() {
        query(sql::GIVE_UP).bind(new.parent.0).execute(&mut *conn).await?;
    }
    let id: i64 = query_scalar(sql::ADD_REPLAY)
        .bind(new.parent.0)
        .bind(now_ms())
        .bind(new.deadline_ms)
        .bind(boot_bytes(boot))
        .bind(new.source.code())
        .bind(&new.request_id)
        .bind(i64::try_from(new.max_attempts).unwrap_or(i64::MAX))
        .fetch_one(&mut *conn)
        .await?;
    let job = accept::job(conn, FanoutId(id)).await?.ok_or_else(|| corrupt(format!("replay {id} has no event")))?;
    Ok(ReplayReply::New(Box::new(FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0, hold_ms: 0 })))
}

pub(super) async fn pause(conn: &mut SqliteConnection, paused: Vec<Pause>) -> Answer<()> {
    for Pause { fanout, reason, resumed } in paused {
        query(sql::PAUSE).bind(fanout.0).bind(reason.code()).bind(resumed).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Pauses those of the fan-outs that have a cap and have spent what they may; all that are paused, with how often they
/// were resumed.
pub(super) async fn spent(conn: &mut SqliteConnection, fanouts: &[FanoutId]) -> Answer<Vec<(FanoutId, i32)>> {
    let ids = to_json(&fanouts)?;
    query(sql::SPENT).bind(&ids).execute(&mut *conn).await?;
    let rows: Vec<(i64, i32)> = query_as(sql::PAUSED).bind(&ids).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, resumed)| (FanoutId(id), resumed)).collect())
}

pub(super) async fn resume(conn: &mut SqliteConnection, id: FanoutId, more: u64) -> Answer<ResumeReply> {
    let more = i64::try_from(more).unwrap_or(i64::MAX / 2);
    if query(sql::RESUME).bind(id.0).bind(more).execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(ResumeReply::Resumed);
    }
    let state: Option<i64> = query_scalar(sql::FANOUT_STATE).bind(id.0).fetch_optional(conn).await?;
    match state {
        Some(state) => Ok(ResumeReply::NotPaused(code(state, FanoutState::from_code)?)),
        None => Ok(ResumeReply::Unknown),
    }
}
