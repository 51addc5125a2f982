//! Owns the settling of a fan-out: once, under its row lock, with the judging of devices.
//! Must never know: who writes the line.

use std::time::Duration;

use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::cancel;
use super::fault::{Fault, corrupt};
use super::reads::{self, ViewRow};
use crate::domain::batch::FanoutState;
use crate::domain::ids::FanoutId;
use crate::domain::tally::Tally;
use crate::mutant;
use crate::store::facts::{Snapshot, dead_share_leaps};
use crate::store::{SettleReply, Settled, planted};

/// What judging may take beside the time any call may take; the seconds of [`PATIENCE`].
pub(super) const JUDGING: Duration = Duration::from_secs(60);

/// Judging a third of a million devices takes longer than a statement otherwise may.
pub(super) const PATIENCE: &str = "SET LOCAL statement_timeout = '60s'";

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

/// A verdict holds only for the row version it was found on. Rows are locked in order of key.
/// Outcome 2 is `token_dead`, 3 `token_invalid`, 4 `token_foreign`.
pub(super) const JUDGE: &str = "
WITH v AS (
    SELECT d.device_key, x.outcome
    FROM failure x
    JOIN chunk k ON k.fanout_id = x.fanout_id AND k.chunk_no = x.chunk_no
    JOIN device d ON d.device_key = x.device_key AND d.version = x.device_version AND d.state = 0
    WHERE x.fanout_id = $1 AND x.outcome IN (2, 3, 4)
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
    let settled = fix(&mut tx, row, id).await?;
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

async fn fix(tx: &mut Transaction<'_, Postgres>, mut row: ViewRow, id: FanoutId) -> Result<Settled, Fault> {
    let tally = reads::facts(tx, id).await?.tally()?;
    if tally.pending() > 0 {
        return Err(corrupt(format!("fan-out {id} has {} pending in closed chunks", tally.pending())));
    }
    let (counters, instances) = reads::parts(tx, id).await?;
    let (judged, judgement_withheld) = judge(tx, id, &tally).await?;
    let snapshot = Snapshot { tally, counters, instances, judged, judgement_withheld };
    let json = serde_json::to_string(&snapshot).map_err(|_| corrupt("a snapshot does not serialise"))?;
    let state = if row.state()? == FanoutState::Cancelled { FanoutState::Cancelled } else { FanoutState::Done };
    row.state = state.code();
    row.settled_ms = sqlx::query_scalar(SETTLE).bind(id.0).bind(state.code()).bind(json).fetch_one(&mut **tx).await?;
    let view = row.view(snapshot.tally, snapshot.counters, instances)?;
    Ok(Settled { view, judged, judgement_withheld })
}

/// Devices judged, and whether the judgement was withheld.
async fn judge(tx: &mut Transaction<'_, Postgres>, id: FanoutId, tally: &Tally) -> Result<(u64, bool), Fault> {
    if dead_share_leaps(tally) {
        return Ok((0, true));
    }
    let judged: Vec<i64> = sqlx::query_scalar(JUDGE).bind(id.0).fetch_all(&mut **tx).await?;
    if !judged.is_empty() {
        sqlx::query(SILENCE).bind(&judged).execute(&mut **tx).await?;
    }
    Ok((judged.len() as u64, false))
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
