//! Owns the commit that a 202 stands for: an event and its fan-out, once per event id.
//! Must never know: followers, or what happens after the commit.

use sqlx::PgConnection;

use super::correct;
use super::fault::Fault;
use crate::domain::batch::{FanoutJob, FanoutKind};
use crate::domain::derived::Origin;
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::{Accepted, FreezeJob, NewFanout, StoreError};

/// One statement, so one transaction and one round trip. The unique keys decide who is first: that of the window for the
/// same news under two ids, that of `event` for one id. A window that is taken while the id is not leads to a fan-out that
/// does not exist, and is open to whoever comes next.
pub(super) const ACCEPT: &str = "
WITH n AS (
    INSERT INTO repeat_window AS w (meaning, fanout_id, until_ms) VALUES ($11, nextval('fanout_id_seq'), $9)
    ON CONFLICT (meaning) DO UPDATE SET fanout_id = EXCLUDED.fanout_id, until_ms = EXCLUDED.until_ms
    WHERE w.until_ms <= fanfare_now_ms()
    RETURNING fanout_id),
e AS (
    INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms)
    SELECT $1, $2, n.fanout_id, $3, fanfare_now_ms() FROM n
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id, fanout_id, accepted_ms)
INSERT INTO fanout (id, event_id, event_type, match_id, kind, class, occurred_ms, accepted_ms, deadline_ms,
                    freeze_owner, collapse_key)
OVERRIDING SYSTEM VALUE
SELECT e.fanout_id, e.event_id, $4, $5, $6, $7, $8, e.accepted_ms, $9, $10, $12 FROM e
RETURNING id, accepted_ms";

/// One that is only named by a correction was not posted.
pub(super) const SEEN: &str = "SELECT content_hash, fanout_id FROM event WHERE event_id = $1 AND content_hash <> ''";

pub(super) async fn accept(conn: &mut PgConnection, boot: BootId, new: &NewFanout) -> Result<Accepted, Fault> {
    if new.event.supersedes.is_some() {
        return correct::accept(conn, boot, new).await;
    }
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
        .bind(&new.news_hash()[..])
        .bind(&new.collapse_key)
        .fetch_optional(&mut *conn)
        .await?;
    match inserted {
        Some((id, accepted_ms)) => Ok(Accepted::New(first_freeze(FanoutId(id), accepted_ms, new))),
        // Transactions of their own, whose snapshots are taken after the winner's commit: the first one cannot see it.
        None => correct::accept(conn, boot, new).await,
    }
}

fn first_freeze(id: FanoutId, accepted_ms: i64, new: &NewFanout) -> FreezeJob {
    let job = FanoutJob {
        id,
        event: new.event.clone(),
        class: new.class,
        accepted_ms,
        deadline_ms: new.deadline_ms,
        origin: Origin { key: Some(new.collapse_key.clone()), ..Origin::default() },
    };
    FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0, hold_ms: 0 }
}

pub(super) async fn seen(conn: &mut PgConnection, id: &EventId) -> Result<Option<(FanoutId, Vec<u8>)>, Fault> {
    let row: Option<(Vec<u8>, i64)> = sqlx::query_as(SEEN).bind(id.as_str()).fetch_optional(&mut *conn).await?;
    Ok(row.map(|(hash, id)| (FanoutId(id), hash)))
}
