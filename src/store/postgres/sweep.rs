//! Owns sweeps: how one begins, whom it asks about, where it got to.
//! Must never know: what a sweep sends, or when one is due.

use sqlx::{Connection, FromRow, PgConnection};

use super::fault::{Fault, corrupt, count};
use super::reads;
use super::rows::length;
use crate::domain::batch::{Class, FanoutKind};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Source;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::store::facts::judgement_of;
use crate::store::{FreezeJob, NewSweep, StoreError, SweepBegun, SweepEnd};

pub(super) const LIVE_PAGE: &str =
    "SELECT device_key FROM device WHERE device_key > $1 AND state = 0 ORDER BY device_key LIMIT $2";

pub(super) const LIVE_COUNT: &str = "SELECT count(*) FROM device WHERE device_key > $1 AND state = 0";

/// The unique index over live sweeps decides who is first.
pub(super) const BEGIN: &str = "
WITH t AS (SELECT fanfare_now_ms() AS now)
INSERT INTO fanout (event_id, event_type, match_id, kind, class, source, occurred_ms, accepted_ms, deadline_ms,
                    freeze_owner, freeze_cursor, swept_from, max_attempts, accept_dead_percent)
SELECT $1, $2, $3, $4, $5, $6, t.now, t.now, t.now + $7, $8, $9, $9, $10, $11 FROM t
ON CONFLICT (kind) WHERE kind = 3 AND settled_ms IS NULL DO NOTHING
RETURNING id";

pub(super) const EVENT: &str = "
INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms) VALUES ($1, $2, $3, $4, fanfare_now_ms())";

pub(super) const RUNNING: &str = "SELECT id FROM fanout WHERE kind = 3 AND settled_ms IS NULL";

/// Cancelled, so that its chunks close; that it is paused says why.
pub(super) const END_PAUSED: &str = "
UPDATE fanout SET state = 3, freeze_owner = CASE WHEN state = 0 THEN NULL ELSE freeze_owner END
WHERE kind = 3 AND settled_ms IS NULL AND paused <> 0 AND state <> 3";

/// The first chunk of which somebody has no outcome of their own, or failing that where the freeze stands.
pub(super) const STAND: &str = "
SELECT f.freeze_cursor, f.swept_from, f.settled, k.n, k.done::text AS done, i.keys
FROM fanout f
LEFT JOIN LATERAL (SELECT k.chunk_no, k.n, k.done FROM chunk k
                   WHERE k.fanout_id = f.id AND (k.state <> 2 OR k.rest_outcome IS NOT NULL)
                     AND position(B'0' IN k.done) > 0
                   ORDER BY k.chunk_no LIMIT 1) k ON true
LEFT JOIN chunk_ids i ON i.fanout_id = f.id AND i.chunk_no = k.chunk_no
WHERE f.id = $1 AND f.kind = 3";

#[derive(Debug, FromRow)]
struct Stand {
    freeze_cursor: i64,
    swept_from: i64,
    settled: Option<String>,
    n: Option<i16>,
    done: Option<String>,
    keys: Option<Vec<i64>>,
}

impl Stand {
    fn after(self) -> Result<DeviceKey, Fault> {
        let (Some(n), Some(done), Some(keys)) = (self.n, self.done, self.keys) else {
            return Ok(DeviceKey(self.freeze_cursor));
        };
        let done = Bitmap::from_text(&done, length(n)?)?;
        let first = (0..keys.len()).find(|i| !done.get(*i)).and_then(|i| keys.get(i));
        Ok(DeviceKey(first.map_or(self.freeze_cursor, |key| key - 1)))
    }
}

pub(super) async fn live_page(conn: &mut PgConnection, after: DeviceKey, limit: u32) -> Result<Vec<DeviceKey>, Fault> {
    let keys: Vec<i64> = sqlx::query_scalar(LIVE_PAGE).bind(after.0).bind(i64::from(limit)).fetch_all(conn).await?;
    Ok(keys.into_iter().map(DeviceKey).collect())
}

pub(super) async fn live_count(conn: &mut PgConnection, after: DeviceKey) -> Result<u64, Fault> {
    let n: i64 = sqlx::query_scalar(LIVE_COUNT).bind(after.0).fetch_one(conn).await?;
    count("live devices", n)
}

pub(super) async fn begin(conn: &mut PgConnection, boot: BootId, new: &NewSweep) -> Result<SweepBegun, Fault> {
    let body = serde_json::to_string(&new.event)
        .map_err(|_| StoreError::Statement("begin_sweep: the event does not serialise".to_owned()))?;
    let mut tx = conn.begin().await?;
    let id: Option<i64> = sqlx::query_scalar(BEGIN)
        .bind(new.event.id.as_str())
        .bind(&new.event.kind)
        .bind(new.event.match_id.as_str())
        .bind(FanoutKind::Sweep.code())
        .bind(Class::Bulk.code())
        .bind(Source::Devices.code())
        .bind(new.lasts_ms)
        .bind(boot.0)
        .bind(new.after.0)
        .bind(i64::try_from(new.max_attempts).unwrap_or(i64::MAX))
        .bind(new.accept_dead_percent.map(i16::from))
        .fetch_optional(&mut *tx)
        .await?;
    let Some(id) = id else {
        let running: Option<i64> = sqlx::query_scalar(RUNNING).fetch_optional(&mut *tx).await?;
        let over = || StoreError::Unavailable("begin_sweep: the sweep under way has just ended".to_owned());
        return Ok(SweepBegun::Running(FanoutId(running.ok_or_else(over)?)));
    };
    let hash = new.event.content_hash();
    sqlx::query(EVENT).bind(new.event.id.as_str()).bind(&hash[..]).bind(id).bind(body).execute(&mut *tx).await?;
    let job = reads::job(&mut tx, FanoutId(id)).await?.ok_or_else(|| corrupt("a sweep has no event"))?;
    tx.commit().await?;
    let freeze = FreezeJob { job, epoch: 1, cursor: new.after, next_chunk: 0, hold_ms: 0 };
    Ok(SweepBegun::Begun(Box::new(freeze)))
}

pub(super) async fn end_paused(conn: &mut PgConnection) -> Result<u64, Fault> {
    Ok(sqlx::query(END_PAUSED).execute(conn).await?.rows_affected())
}

pub(super) async fn end(conn: &mut PgConnection, id: FanoutId) -> Result<Option<SweepEnd>, Fault> {
    let stand: Option<Stand> = sqlx::query_as(STAND).bind(id.0).fetch_optional(conn).await?;
    let Some(stand) = stand else { return Ok(None) };
    let from = DeviceKey(stand.swept_from);
    let (_, withheld) = judgement_of(stand.settled.as_deref())?;
    Ok(Some(SweepEnd { from, after: stand.after()?, withheld }))
}
