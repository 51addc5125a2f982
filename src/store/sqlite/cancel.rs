//! Owns the cancel: one caller gets it, and what nobody has in hand ends with it.
//! Must never know: who sends the rest, or how they are told.

use sqlx::{SqliteConnection, query, query_scalar};

use super::fault::Answer;
use super::rows::{boot_bytes, code};
use super::sql;
use crate::domain::batch::FanoutState;
use crate::domain::ids::{BootId, FanoutId};
use crate::store::CancelReply;

/// The state is the whole protection: of two callers the second finds it cancelled. A freeze that is cut short has no
/// owner, and that is how it is told from one that came to its end.
pub(super) async fn cancel(conn: &mut SqliteConnection, id: FanoutId) -> Answer<CancelReply> {
    if query(sql::CANCEL).bind(id.0).execute(&mut *conn).await?.rows_affected() == 1 {
        close(conn, id).await?;
        return Ok(CancelReply::Cancelled);
    }
    let state: Option<i64> = query_scalar(sql::FANOUT_STATE).bind(id.0).fetch_optional(conn).await?;
    match state {
        Some(state) => Ok(CancelReply::Ended(code(state, FanoutState::from_code)?)),
        None => Ok(CancelReply::Unknown),
    }
}

/// Ends the chunks of a cancelled fan-out that nobody has in hand, one field each: open ones, and those set aside.
/// A chunk somebody has in hand is ended by its owner, who knows what is in flight.
pub(super) async fn close(conn: &mut SqliteConnection, id: FanoutId) -> Answer<()> {
    query(sql::CLOSE_CANCELLED).bind(id.0).execute(conn).await?;
    Ok(())
}

/// Cancelled fan-outs of which this instance has chunks in hand.
pub(super) async fn in_hand(conn: &mut SqliteConnection, boot: BootId) -> Answer<Vec<FanoutId>> {
    let ids: Vec<i64> = query_scalar(sql::CANCELLED_IN_HAND).bind(boot_bytes(boot)).fetch_all(conn).await?;
    Ok(ids.into_iter().map(FanoutId).collect())
}
