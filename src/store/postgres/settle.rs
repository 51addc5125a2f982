//! Owns the settling of a fan-out: once, under its row lock, with the judging of devices.
//! Must never know: who writes the line.

use std::time::Duration;

use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::cancel;
use super::fault::{Fault, corrupt, count};
use super::reads::{self, ViewRow};
use crate::domain::batch::{FanoutKind, FanoutState};
use crate::domain::ids::FanoutId;
use crate::domain::recipient::Platform;
use crate::domain::tally::{PartCounters, Tally};
use crate::mutant;
use crate::store::facts::Snapshot;
use crate::store::verdicts::{self, Answers, ByPlatform, Lesson, Record, Rulings};
use crate::store::{Leap, SettleReply, Settled, planted};

/// What a settle may take beside the time any call may take: the seconds of [`WAIT`] and of [`PATIENCE`].
pub(super) const JUDGING: Duration = Duration::from_secs(120);

/// Judging a third of a million devices takes longer than a statement otherwise may.
pub(super) const PATIENCE: &str = "SET LOCAL statement_timeout = '60s'";

/// And whoever settles meanwhile waits for it, before it holds anything or has read anything that may change meanwhile.
pub(super) const WAIT: &str = "SET LOCAL lock_timeout = '60s'";

/// For its own row it waits no longer than anybody does.
pub(super) const NO_LONGER: &str = "SET LOCAL lock_timeout TO DEFAULT";

/// Whether there is anything left to do, asked without a lock. An owned chunk answers at once, whatever is closed: only
/// when none is left are the others looked through. Open chunks of a cancelled fan-out are nobody's business any more.
pub(super) const BUSY: &str = "
SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = $1 AND state = 1)
    OR EXISTS (SELECT 1 FROM fanout WHERE id = $1 AND state = 0)
    OR EXISTS (SELECT 1 FROM chunk k JOIN fanout f ON f.id = k.fanout_id
               WHERE k.fanout_id = $1 AND k.state = 0 AND f.state <> 3)";

pub(super) const UNFINISHED: &str = "
SELECT EXISTS (SELECT 1 FROM chunk WHERE fanout_id = $1 AND state IN (0, 1)) AS open,
       EXISTS (SELECT 1 FROM chunk WHERE fanout_id = $1 AND state = 3) AS set_aside";

pub(super) const SET_ASIDE: &str = "UPDATE fanout SET state = 4 WHERE id = $1 AND state = 1";

/// Verdicts against devices by variant, of those that were not delivered after all.
pub(super) const AGAINST: &str = "
SELECT x.variant, count(*)
FROM failure x JOIN chunk k ON k.fanout_id = x.fanout_id AND k.chunk_no = x.chunk_no
WHERE x.fanout_id = $1 AND x.outcome IN (2, 3, 4)
  AND get_bit(k.done, x.ordinal) = 1 AND get_bit(k.ok, x.ordinal) = 0
GROUP BY x.variant";

/// What whoever asked for a sweep takes for true.
pub(super) const ACCEPTED: &str = "SELECT accept_dead_percent FROM fanout WHERE id = $1";

/// What the fleet has seen of late. Locked before it is read, and until what follows from it is written: of several that
/// settle at once each knows what those before it found. A long judgement keeps the others waiting; an instance settles
/// one after the other anyway.
pub(super) const KNOWN: &str = "SELECT platform, answered, against, excess FROM dead_share WHERE platform IN (1, 2, 3) ORDER BY platform FOR UPDATE";

pub(super) const LEARN: &str = "
UPDATE dead_share s
SET answered = x.answered, against = x.against, excess = x.excess,
    leap = CASE WHEN x.well THEN NULL ELSE coalesce(x.leap, s.leap) END
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bool[])
     AS x(platform, answered, against, excess, leap, well)
WHERE s.platform = x.platform";

pub(super) const LEAPS: &str =
    "SELECT leap FROM dead_share WHERE platform IN (1, 2, 3) AND leap IS NOT NULL ORDER BY platform";

/// A verdict holds only for the row version it was found on; that one also has the platform of the send. Rows are locked in order of key.
/// Outcome 2 is `token_dead`, 3 `token_invalid`, 4 `token_foreign`.
pub(super) const JUDGE: &str = "
WITH v AS (
    SELECT d.device_key, x.outcome
    FROM failure x
    JOIN chunk k ON k.fanout_id = x.fanout_id AND k.chunk_no = x.chunk_no
    JOIN device d ON d.device_key = x.device_key AND d.version = x.device_version AND d.state = 0
    WHERE x.fanout_id = $1 AND x.outcome IN (2, 3, 4) AND d.platform = ANY ($2)
      AND get_bit(k.done, x.ordinal) = 1 AND get_bit(k.ok, x.ordinal) = 0
    ORDER BY d.device_key FOR UPDATE OF d)
UPDATE device d
SET state = CASE WHEN v.outcome = 2 THEN 1 ELSE 2 END, state_ms = fanfare_now_ms(), version = d.version + 1
FROM v WHERE d.device_key = v.device_key
RETURNING d.device_key";

/// A statement of its own: with the devices locked, no follow of theirs is written beside it.
pub(super) const SILENCE: &str = "UPDATE follow SET kinds = 0 WHERE device_key = ANY ($1) AND kinds <> 0";

pub(super) const SETTLE: &str = "
UPDATE fanout SET state = $2, settled_ms = fanfare_now_ms(), settled = $3 WHERE id = $1 RETURNING settled_ms";

#[derive(Debug, FromRow)]
struct Unfinished {
    open: bool,
    set_aside: bool,
}

/// Asked once for every chunk that closes, of which all but the last find others open: that is answered by one read,
/// without waiting for or taking the row lock. It is safe because whoever asks has committed its own closing before,
/// and a read sees all that is committed: of two that close the last two chunks at once, the one that committed later
/// sees both closed and goes on to the lock. A closed chunk never opens again.
pub(super) async fn settle(conn: &mut PgConnection, id: FanoutId) -> Result<SettleReply, Fault> {
    let busy: bool = sqlx::query_scalar(BUSY).bind(id.0).fetch_one(&mut *conn).await?;
    if busy {
        return Ok(SettleReply::Open);
    }
    let mut tx = conn.begin().await?;
    sqlx::query(PATIENCE).execute(&mut *tx).await?;
    let known = known(&mut tx).await?;
    let sql = planted::unless(mutant::on("settle_unlocked"), reads::LOCKED, "FOR UPDATE", "");
    let row: Option<ViewRow> = sqlx::query_as(sql).bind(id.0).fetch_optional(&mut *tx).await?;
    let Some(row) = row.filter(|row| row.settled_ms.is_none()) else { return Ok(SettleReply::NotOurs) };
    // What was handed back, or taken from a dead owner, since the cancel.
    if row.state()? == FanoutState::Cancelled {
        cancel::close(&mut tx, id).await?;
    }
    if !finished(&mut tx, id, row.state()?).await? {
        tx.commit().await?;
        return Ok(SettleReply::Open);
    }
    let settled = fix(&mut tx, row, id, &known).await?;
    tx.commit().await?;
    Ok(SettleReply::Settled(Box::new(settled)))
}

/// Whether it is frozen and no chunk can change any more; notes a chunk set aside.
async fn finished(tx: &mut Transaction<'_, Postgres>, id: FanoutId, state: FanoutState) -> Result<bool, Fault> {
    if state == FanoutState::Freezing {
        return Ok(false);
    }
    let left: Unfinished = sqlx::query_as(UNFINISHED).bind(id.0).fetch_one(&mut **tx).await?;
    if left.set_aside {
        sqlx::query(SET_ASIDE).bind(id.0).execute(&mut **tx).await?;
    }
    Ok(!left.open && !left.set_aside)
}

async fn fix(
    tx: &mut Transaction<'_, Postgres>,
    mut row: ViewRow,
    id: FanoutId,
    known: &ByPlatform<Record>,
) -> Result<Settled, Fault> {
    let tally = reads::facts(tx, id).await?.tally()?;
    if tally.pending() > 0 {
        return Err(corrupt(format!("fan-out {id} has {} pending in closed chunks", tally.pending())));
    }
    let (counters, instances) = reads::parts(tx, id).await?;
    let rulings = rule(tx, &row, (&tally, &counters), known).await?;
    let (judged, withheld) = (judge(tx, id, &rulings).await?, rulings.withheld());
    let judgement_withheld = !withheld.is_empty();
    let snapshot = Snapshot { tally, counters, instances, judged, judgement_withheld, withheld: withheld.clone() };
    let json = serde_json::to_string(&snapshot).map_err(|_| corrupt("a snapshot does not serialise"))?;
    let state = if row.state()? == FanoutState::Cancelled { FanoutState::Cancelled } else { FanoutState::Done };
    row.state = state.code();
    row.settled_ms = sqlx::query_scalar(SETTLE).bind(id.0).bind(state.code()).bind(json).fetch_one(&mut **tx).await?;
    learn(tx, &rulings.lessons(id, known)).await?;
    let view = row.view(snapshot.tally, snapshot.counters, instances)?;
    Ok(Settled { view, judged, withheld })
}

/// Which verdicts are carried out, by what the fleet has seen of late.
async fn rule(
    tx: &mut Transaction<'_, Postgres>,
    row: &ViewRow,
    (tally, counters): (&Tally, &PartCounters),
    known: &ByPlatform<Record>,
) -> Result<Rulings, Fault> {
    let rows: Vec<(String, i64)> = sqlx::query_as(AGAINST).bind(row.id).fetch_all(&mut **tx).await?;
    let mut against = Vec::with_capacity(rows.len());
    for (variant, n) in rows {
        against.push((variant, count("verdicts", n)?));
    }
    let answers: ByPlatform<Answers> = verdicts::answers(tally, counters, &against)?;
    if row.kind != FanoutKind::Sweep.code() {
        return Ok(Rulings::new(answers, known));
    }
    let accepted: Option<i16> = sqlx::query_scalar(ACCEPTED).bind(row.id).fetch_one(&mut **tx).await?;
    let accepted = accepted.map(|n| count("share", i64::from(n))).transpose()?;
    Ok(Rulings::of_sweep(answers, known, accepted))
}

/// What the fleet has seen of late: of several that settle at once each knows what those before it found.
async fn known(tx: &mut Transaction<'_, Postgres>) -> Result<ByPlatform<Record>, Fault> {
    sqlx::query(WAIT).execute(&mut **tx).await?;
    let sql = planted::unless(mutant::on("settle_unlocked"), KNOWN, "FOR UPDATE", "");
    let rows: Vec<(i16, i64, i64, i64)> = sqlx::query_as(sql).fetch_all(&mut **tx).await?;
    sqlx::query(NO_LONGER).execute(&mut **tx).await?;
    let mut known = ByPlatform::<Record>::default();
    for (platform, answered, against, excess) in rows {
        let (answered, against) = (count("answered", answered)?, count("against", against)?);
        known[verdicts::index(Platform::from_code(platform)?)] = Record { answered, against, excess };
    }
    Ok(known)
}

/// Devices judged.
async fn judge(tx: &mut Transaction<'_, Postgres>, id: FanoutId, rulings: &Rulings) -> Result<u64, Fault> {
    let platforms: Vec<i16> = rulings.judged().map(Platform::code).collect();
    if platforms.is_empty() {
        return Ok(0);
    }
    let judged: Vec<i64> = sqlx::query_scalar(JUDGE).bind(id.0).bind(platforms).fetch_all(&mut **tx).await?;
    if !judged.is_empty() {
        sqlx::query(SILENCE).bind(&judged).execute(&mut **tx).await?;
    }
    Ok(judged.len() as u64)
}

async fn learn(tx: &mut Transaction<'_, Postgres>, lessons: &[Lesson]) -> Result<(), Fault> {
    if lessons.is_empty() {
        return Ok(());
    }
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let leaps = lessons.iter().map(Lesson::stored_leap).collect::<Result<Vec<_>, _>>()?;
    sqlx::query(LEARN)
        .bind(lessons.iter().map(|lesson| lesson.platform.code()).collect::<Vec<_>>())
        .bind(lessons.iter().map(|lesson| number(lesson.record.answered)).collect::<Vec<_>>())
        .bind(lessons.iter().map(|lesson| number(lesson.record.against)).collect::<Vec<_>>())
        .bind(lessons.iter().map(|lesson| lesson.record.excess).collect::<Vec<_>>())
        .bind(leaps)
        .bind(lessons.iter().map(|lesson| lesson.well).collect::<Vec<_>>())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

pub(super) async fn leaps(conn: &mut PgConnection) -> Result<Vec<Leap>, Fault> {
    let stored: Vec<String> = sqlx::query_scalar(LEAPS).fetch_all(conn).await?;
    Ok(Leap::read_all(&stored))
}

#[cfg(test)]
mod tests {
    use crate::domain::outcome::Outcome;
    use crate::domain::recipient::DeviceState;

    #[test]
    fn the_codes_written_out_in_the_judgement_are_those_of_the_domain() {
        let against: Vec<i16> = Outcome::ALL.iter().filter(|o| o.against_device()).map(|o| o.code()).collect();
        assert_eq!(against, [2, 3, 4]);
        assert_eq!(Outcome::TokenDead.code(), 2);
        let states = [DeviceState::Live, DeviceState::Tombstoned, DeviceState::Suspended];
        assert_eq!(states.map(DeviceState::code), [0, 1, 2]);
    }
}
