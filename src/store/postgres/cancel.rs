//! Owns the cancel: one caller gets it, and what nobody has in hand ends with it.
//! Must never know: who sends the rest, or how they are told.

use sqlx::{Connection, PgConnection};

use super::fault::Fault;
use crate::domain::batch::FanoutState;
use crate::domain::ids::{BootId, FanoutId};
use crate::store::CancelReply;

/// The state is the whole protection: of two callers the second finds it cancelled. A freeze that is cut short has no
/// owner, and that is how it is told from one that came to its end.
pub(super) const CANCEL: &str = "
UPDATE fanout SET state = 3, freeze_owner = CASE WHEN state = 0 THEN NULL ELSE freeze_owner END
WHERE id = $1 AND settled_ms IS NULL AND state <> 3";

pub(super) const STATE: &str = "SELECT state FROM fanout WHERE id = $1";

/// One field per chunk (outcome 11 is `cancelled`). A chunk somebody has in hand is ended by its owner, who knows what
/// is in flight. A statement of its own: the lock on the fan-out waited for a step of its freeze, whose chunks only a
/// snapshot taken after that shows.
pub(super) const CLOSE: &str = "
UPDATE chunk SET state = 2, rest_outcome = 11, rest_cause = 0 WHERE fanout_id = $1 AND state IN (0, 3)";

/// Reads the small partial index of owned chunks only.
pub(super) const IN_HAND: &str = "
SELECT DISTINCT k.fanout_id FROM chunk k JOIN fanout f ON f.id = k.fanout_id
WHERE k.state = 1 AND k.owner = $1 AND f.state = 3 ORDER BY k.fanout_id";

pub(super) async fn cancel(conn: &mut PgConnection, id: FanoutId) -> Result<CancelReply, Fault> {
    let mut tx = conn.begin().await?;
    let ours = sqlx::query(CANCEL).bind(id.0).execute(&mut *tx).await?.rows_affected() == 1;
    if ours {
        close(&mut tx, id).await?;
        tx.commit().await?;
        return Ok(CancelReply::Cancelled);
    }
    let state: Option<i16> = sqlx::query_scalar(STATE).bind(id.0).fetch_optional(&mut *tx).await?;
    match state {
        Some(code) => Ok(CancelReply::Ended(FanoutState::from_code(code)?)),
        None => Ok(CancelReply::Unknown),
    }
}

/// Ends the chunks of a cancelled fan-out that nobody has in hand: open ones, and those set aside.
pub(super) async fn close(conn: &mut PgConnection, id: FanoutId) -> Result<(), Fault> {
    sqlx::query(CLOSE).bind(id.0).execute(conn).await?;
    Ok(())
}

/// Cancelled fan-outs of which this instance has chunks in hand.
pub(super) async fn in_hand(conn: &mut PgConnection, boot: BootId) -> Result<Vec<FanoutId>, Fault> {
    let ids: Vec<i64> = sqlx::query_scalar(IN_HAND).bind(boot.0).fetch_all(conn).await?;
    Ok(ids.into_iter().map(FanoutId).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::{Cause, Outcome};
    use crate::store::ChunkState;

    #[test]
    fn the_codes_written_out_here_are_those_of_the_domain() {
        assert_eq!((FanoutState::Freezing.code(), FanoutState::Cancelled.code()), (0, 3));
        assert_eq!((Outcome::Cancelled.code(), Cause::None.code()), (11, 0));
        let states = [ChunkState::Open, ChunkState::Owned, ChunkState::Closed, ChunkState::SetAside];
        assert_eq!(states.map(ChunkState::code), [0, 1, 2, 3]);
    }
}
