//! Owns the fan-outs that repeat what an earlier one failed to do, and the pauses of those whose attempts are capped.
//! Must never know: who failed, or why somebody asks again.

use sqlx::{Connection, PgConnection, Postgres, Transaction};

use super::correct::{NEXT, alone};
use super::fault::Fault;
use super::{cancel, reads};
use crate::domain::batch::FanoutState;
use crate::domain::derived::Pause;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::store::replay::ParentRow;
use crate::store::{FreezeJob, NewReplay, ReplayReply, ResumeReply, StoreError};

pub(super) const MATCH: &str = "SELECT match_id FROM fanout WHERE id = $1";

pub(super) const PARENT: &str = "
SELECT state, settled_ms IS NOT NULL AS settled, superseded_by,
       (SELECT r.id FROM fanout r WHERE r.parent = f.id AND r.kind = 2 AND r.request_id = $2) AS same,
       (SELECT max(r.id) FROM fanout r WHERE r.family = coalesce(f.family, f.id) AND r.event_id = f.event_id
        AND r.kind = 2 AND r.settled_ms IS NULL AND r.id <> f.id) AS running,
       EXISTS (SELECT 1 FROM chunk k WHERE k.fanout_id = f.id AND k.state IN (0, 1)) AS open
FROM fanout f WHERE f.id = $1 FOR UPDATE OF f";

/// Outcome 13 is `internal`.
pub(super) const GIVE_UP: &str =
    "UPDATE chunk SET state = 2, rest_outcome = 13, rest_cause = 0 WHERE fanout_id = $1 AND state = 3";

pub(super) const ADD: &str = "
INSERT INTO fanout (id, event_id, event_type, match_id, kind, parent, class, occurred_ms, accepted_ms, deadline_ms,
                    freeze_owner, source, family, root_event, collapse_key, request_id, max_attempts)
OVERRIDING SYSTEM VALUE
SELECT $2, p.event_id, p.event_type, p.match_id, 2, p.id, p.class, p.occurred_ms, $3, $4, $5, $6,
       coalesce(p.family, p.id), p.root_event, p.collapse_key, $7, $8
FROM fanout p WHERE p.id = $1";

/// Both only of what is under way and has a cap. A budget is spent when the attempts of all instances say so.
pub(super) const PAUSE: &str = "
UPDATE fanout SET paused = $2
WHERE id = $1 AND paused = 0 AND settled_ms IS NULL AND state IN (0, 1, 4) AND max_attempts IS NOT NULL
  AND resumed = $3";

pub(super) const SPENT: &str = "
UPDATE fanout f SET paused = 1
WHERE f.id = ANY ($1) AND f.paused = 0 AND f.settled_ms IS NULL AND f.state IN (0, 1, 4)
  AND (SELECT sum((p.counters::json ->> 'attempts')::bigint) FROM fanout_part p WHERE p.fanout_id = f.id)
      >= f.max_attempts";

pub(super) const PAUSED: &str =
    "SELECT id, resumed FROM fanout WHERE id = ANY ($1) AND paused <> 0 AND settled_ms IS NULL";

pub(super) const RESUME: &str = "
UPDATE fanout SET paused = 0, resumed = resumed + 1, max_attempts = max_attempts + $2
WHERE id = $1 AND paused <> 0 AND settled_ms IS NULL AND state IN (0, 1, 4)";

pub(super) const NAMED: &str = "SELECT id FROM fanout WHERE parent = $1 AND kind = 2 AND request_id = $2";

pub(super) async fn named(conn: &mut PgConnection, parent: FanoutId, name: &str) -> Result<Option<FanoutId>, Fault> {
    let id: Option<i64> = sqlx::query_scalar(NAMED).bind(parent.0).bind(name).fetch_optional(conn).await?;
    Ok(id.map(FanoutId))
}

pub(super) async fn replay(conn: &mut PgConnection, boot: BootId, new: &NewReplay) -> Result<ReplayReply, Fault> {
    let mut tx = conn.begin().await?;
    let of_match: Option<String> = sqlx::query_scalar(MATCH).bind(new.parent.0).fetch_optional(&mut *tx).await?;
    let Some(of_match) = of_match else { return Ok(ReplayReply::Unknown) };
    alone(&mut tx, &of_match).await?;
    let row: Option<ParentRow> =
        sqlx::query_as(PARENT).bind(new.parent.0).bind(&new.request_id).fetch_optional(&mut *tx).await?;
    let Some(row) = row else { return Ok(ReplayReply::Unknown) };
    if let Some(refusal) = row.refusal()? {
        return Ok(refusal);
    }
    if row.is_given_up() {
        sqlx::query(GIVE_UP).bind(new.parent.0).execute(&mut *tx).await?;
    }
    let freeze = add(&mut tx, boot, new).await?;
    tx.commit().await?;
    Ok(ReplayReply::New(Box::new(freeze)))
}

async fn add(tx: &mut Transaction<'_, Postgres>, boot: BootId, new: &NewReplay) -> Result<FreezeJob, Fault> {
    let (id, now_ms): (i64, i64) = sqlx::query_as(NEXT).fetch_one(&mut **tx).await?;
    sqlx::query(ADD)
        .bind(new.parent.0)
        .bind(id)
        .bind(now_ms)
        .bind(new.deadline_ms)
        .bind(boot.0)
        .bind(new.source.code())
        .bind(&new.request_id)
        .bind(i64::try_from(new.max_attempts).unwrap_or(i64::MAX))
        .execute(&mut **tx)
        .await?;
    let lost = || StoreError::Corrupt(format!("replay {id} has no event"));
    let job = reads::job(tx, FanoutId(id)).await?.ok_or_else(lost)?;
    Ok(FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0, hold_ms: 0 })
}

pub(super) async fn pause(conn: &mut PgConnection, paused: &[Pause]) -> Result<(), Fault> {
    for Pause { fanout, reason, resumed } in paused {
        sqlx::query(PAUSE).bind(fanout.0).bind(reason.code()).bind(resumed).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Pauses those of capped fan-outs that have spent what they may; all that are paused, with how often they were resumed.
pub(super) async fn spent(conn: &mut PgConnection, capped: &[i64]) -> Result<Vec<(FanoutId, i32)>, Fault> {
    if capped.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query(SPENT).bind(capped).execute(&mut *conn).await?;
    let rows: Vec<(i64, i32)> = sqlx::query_as(PAUSED).bind(capped).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, resumed)| (FanoutId(id), resumed)).collect())
}

pub(super) async fn resume(conn: &mut PgConnection, id: FanoutId, more: u64) -> Result<ResumeReply, Fault> {
    let more = i64::try_from(more).unwrap_or(i64::MAX / 2);
    if sqlx::query(RESUME).bind(id.0).bind(more).execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(ResumeReply::Resumed);
    }
    let state: Option<i16> = sqlx::query_scalar(cancel::STATE).bind(id.0).fetch_optional(conn).await?;
    match state {
        Some(code) => Ok(ResumeReply::NotPaused(FanoutState::from_code(code)?)),
        None => Ok(ResumeReply::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::batch::FanoutKind;
    use crate::domain::derived::PauseReason;
    use crate::domain::outcome::Outcome;

    #[test]
    fn the_codes_written_out_here_are_those_of_the_domain() {
        assert_eq!((FanoutKind::Replay.code(), Outcome::Internal.code(), PauseReason::Budget.code()), (2, 13, 1));
    }
}
