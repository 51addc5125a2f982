//! Owns the commit that a 202 stands for: an event and its fan-out, once per event id.
//! Must never know: followers, or what happens after the commit.

use sqlx::PgConnection;

use super::fault::Fault;
use crate::domain::batch::{FanoutJob, FanoutKind};
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::{Accepted, FreezeJob, NewFanout, StoreError};

/// One statement, so one transaction and one round trip. The unique key of `event` decides who is first.
pub(super) const ACCEPT: &str = "
WITH e AS (
    INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms)
    VALUES ($1, $2, nextval('fanout_id_seq'), $3, fanfare_now_ms())
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id, fanout_id, accepted_ms)
INSERT INTO fanout (id, event_id, event_type, match_id, kind, class, occurred_ms, accepted_ms, deadline_ms,
                    freeze_owner)
OVERRIDING SYSTEM VALUE
SELECT e.fanout_id, e.event_id, $4, $5, $6, $7, $8, e.accepted_ms, $9, $10 FROM e
RETURNING id, accepted_ms";

/// A statement of its own, so that its snapshot is taken after the winner's commit: the first one cannot see it.
pub(super) const WINNER: &str = "SELECT content_hash, fanout_id FROM event WHERE event_id = $1";

pub(super) async fn accept(conn: &mut PgConnection, boot: BootId, new: &NewFanout) -> Result<Accepted, Fault> {
    let body = serde_json::to_string(&new.event)
        .map_err(|_| StoreError::Statement("accept: the event does not serialise".to_owned()))?;
    let event = &new.event;
    let inserted: Option<(i64, i64)> = sqlx::query_as(ACCEPT)
        .bind(event.id.as_str())
        .bind(&new.content_hash[..])
        .bind(body)
        .bind(&event.kind)
        .bind(event.match_id.as_str())
        .bind(FanoutKind::Original.code())
        .bind(new.class.code())
        .bind(event.occurred_ms)
        .bind(new.deadline_ms)
        .bind(boot.0)
        .fetch_optional(&mut *conn)
        .await?;
    match inserted {
        Some((id, accepted_ms)) => Ok(Accepted::New(first_freeze(FanoutId(id), accepted_ms, new))),
        None => loser(conn, new).await,
    }
}

fn first_freeze(id: FanoutId, accepted_ms: i64, new: &NewFanout) -> FreezeJob {
    let job = FanoutJob { id, event: new.event.clone(), class: new.class, accepted_ms, deadline_ms: new.deadline_ms };
    FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0 }
}

pub(super) async fn seen(conn: &mut PgConnection, id: &EventId) -> Result<Option<(FanoutId, Vec<u8>)>, Fault> {
    let row: Option<(Vec<u8>, i64)> = sqlx::query_as(WINNER).bind(id.as_str()).fetch_optional(&mut *conn).await?;
    Ok(row.map(|(hash, id)| (FanoutId(id), hash)))
}

async fn loser(conn: &mut PgConnection, new: &NewFanout) -> Result<Accepted, Fault> {
    match seen(conn, &new.event.id).await? {
        Some((id, hash)) if hash == new.content_hash => Ok(Accepted::Repeat(id)),
        Some((id, _)) => Ok(Accepted::Conflict(id)),
        // Its time to be kept ended between the two statements; the next try inserts.
        None => Err(StoreError::Unavailable("accept: the earlier event was just deleted".to_owned()).into()),
    }
}
