//! Owns devices and what they follow, one at a time. Mutes and death are folded into `follow.kinds` when written.
//! Must never know: batches of devices (see `import`), or why a device registers.
//!
//! Whoever writes follows of a device holds its row lock, taken by an earlier statement: so nothing is written that
//! the other did not see.

use std::collections::BTreeMap;

use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::fault::Fault;
use super::rows::{address, columns, parse_locale};
use crate::domain::ids::{DeviceId, DeviceKey, UserId};
use crate::domain::recipient::{Device, DeviceState, Follows, KindMask, Platform};
use crate::store::{DeviceView, PutDevice};

/// Two registrations of one id or one address go one after the other; in order of hash, so that none waits in a ring.
pub(super) const QUEUE: &str = "
SELECT pg_advisory_xact_lock(h) FROM (
    SELECT h FROM unnest(ARRAY[hashtextextended('id ' || $1, 0), hashtextextended($2, 0)]) AS h ORDER BY h) AS locks";

/// The device itself and whoever has its address now.
pub(super) const RIVALS: &str = "
SELECT device_key, id, state FROM device WHERE id = $1 OR token = $2 OR fid = $3 ORDER BY device_key FOR UPDATE";

pub(super) const REMOVE: &str = "
WITH f AS (DELETE FROM follow WHERE device_key = ANY ($1))
DELETE FROM device WHERE device_key = ANY ($1)";

pub(super) const INSERT: &str = "
INSERT INTO device (id, user_id, token, fid, platform, locale, registered_ms)
VALUES ($1, $2, $3, $4, $5, $6, fanfare_now_ms())";

/// The version moves only when a verdict on the old row would not hold for the new one.
pub(super) const UPDATE: &str = "
UPDATE device
SET version = version + CASE WHEN state <> 0 OR (user_id, token, fid, platform, locale)
                                  IS DISTINCT FROM ($2, $3, $4, $5, $6) THEN 1 ELSE 0 END,
    user_id = $2, token = $3, fid = $4, platform = $5, locale = $6,
    state_ms = CASE WHEN state <> 0 THEN fanfare_now_ms() ELSE state_ms END,
    state = 0, registered_ms = fanfare_now_ms()
WHERE id = $1";

pub(super) const REVIVE: &str = "
UPDATE follow f SET kinds = f.wanted & ~d.muted FROM device d
WHERE d.device_key = $1 AND f.device_key = d.device_key";

pub(super) const DEVICE: &str = "
SELECT device_key, id, user_id, token, fid, platform, locale, muted, state, version, registered_ms
FROM device WHERE id = $1";

pub(super) const FOLLOWS: &str = "SELECT subject, wanted FROM follow WHERE device_key = $1 ORDER BY subject";

pub(super) const LOCK: &str = "SELECT device_key, id, state FROM device WHERE id = $1 FOR UPDATE";

pub(super) const MUTE: &str = "UPDATE device SET muted = $2, follows_ms = fanfare_now_ms() WHERE device_key = $1";

pub(super) const UNFOLLOW: &str = "DELETE FROM follow WHERE device_key = $1 AND subject <> ALL ($2)";

pub(super) const FOLLOW: &str = "
INSERT INTO follow (subject, device_key, wanted, kinds)
SELECT x.subject, d.device_key, x.wanted, CASE WHEN d.state = 0 THEN x.wanted & ~d.muted ELSE 0 END
FROM unnest($2::text[], $3::bigint[]) AS x(subject, wanted), device d WHERE d.device_key = $1
ON CONFLICT (subject, device_key) DO UPDATE SET wanted = EXCLUDED.wanted, kinds = EXCLUDED.kinds";

/// A device row under lock.
#[derive(Debug, FromRow)]
struct Held {
    device_key: i64,
    id: String,
    state: i16,
}

#[derive(Debug, FromRow)]
pub(super) struct DeviceRow {
    device_key: i64,
    id: String,
    user_id: String,
    token: Option<String>,
    fid: Option<String>,
    platform: i16,
    locale: String,
    muted: i64,
    state: i16,
    version: i64,
    registered_ms: i64,
}

impl DeviceRow {
    pub(super) fn view(self, subjects: Vec<(String, i64)>) -> Result<DeviceView, Fault> {
        let device = Device {
            id: DeviceId::parse(&self.id)?,
            user: UserId::parse(&self.user_id)?,
            address: address(self.token, self.fid)?,
            platform: Platform::from_code(self.platform)?,
            locale: parse_locale(&self.locale)?,
        };
        let subjects = subjects.into_iter().map(|(subject, wanted)| (subject, KindMask(wanted))).collect();
        Ok(DeviceView {
            key: DeviceKey(self.device_key),
            device,
            follows: Follows { subjects, muted: KindMask(self.muted) },
            state: DeviceState::from_code(self.state)?,
            version: self.version,
            registered_ms: self.registered_ms,
        })
    }
}

pub(super) async fn put(conn: &mut PgConnection, device: &Device) -> Result<PutDevice, Fault> {
    let mut tx = conn.begin().await?;
    let held = rivals(&mut tx, device).await?;
    let (own, others): (Vec<Held>, Vec<Held>) = held.into_iter().partition(|held| held.id == device.id.as_str());
    if !others.is_empty() {
        remove(&mut tx, others.iter().map(|held| held.device_key).collect()).await?;
    }
    let own = own.first();
    write(&mut tx, if own.is_some() { UPDATE } else { INSERT }, device).await?;
    let moved_from = others.first().map(|held| DeviceId::parse(&held.id)).transpose()?;
    let revived = own.is_some_and(|own| own.state != DeviceState::Live.code());
    if let Some(own) = own.filter(|_| revived) {
        sqlx::query(REVIVE).bind(own.device_key).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(PutDevice { created: own.is_none(), revived, moved_from })
}

async fn rivals(tx: &mut Transaction<'_, Postgres>, device: &Device) -> Result<Vec<Held>, Fault> {
    let (token, fid) = columns(&device.address);
    let address = format!("{} {}", device.address.field(), device.address.value());
    sqlx::query(QUEUE).bind(device.id.as_str()).bind(address).execute(&mut **tx).await?;
    let query = sqlx::query_as(RIVALS).bind(device.id.as_str()).bind(token).bind(fid);
    Ok(query.fetch_all(&mut **tx).await?)
}

/// Removes devices, locked already, with what they follow.
pub(super) async fn remove(tx: &mut Transaction<'_, Postgres>, keys: Vec<i64>) -> Result<(), Fault> {
    sqlx::query(REMOVE).bind(keys).execute(&mut **tx).await?;
    Ok(())
}

async fn write(tx: &mut Transaction<'_, Postgres>, sql: &'static str, device: &Device) -> Result<(), Fault> {
    let (token, fid) = columns(&device.address);
    sqlx::query(sql)
        .bind(device.id.as_str())
        .bind(device.user.as_str())
        .bind(token)
        .bind(fid)
        .bind(device.platform.code())
        .bind(device.locale.as_str())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

pub(super) async fn get(conn: &mut PgConnection, id: &DeviceId) -> Result<Option<DeviceView>, Fault> {
    let row: Option<DeviceRow> = sqlx::query_as(DEVICE).bind(id.as_str()).fetch_optional(&mut *conn).await?;
    let Some(row) = row else { return Ok(None) };
    let subjects = sqlx::query_as(FOLLOWS).bind(row.device_key).fetch_all(conn).await?;
    row.view(subjects).map(Some)
}

pub(super) async fn delete(conn: &mut PgConnection, id: &DeviceId) -> Result<bool, Fault> {
    let mut tx = conn.begin().await?;
    let held: Option<Held> = sqlx::query_as(LOCK).bind(id.as_str()).fetch_optional(&mut *tx).await?;
    let Some(held) = held else { return Ok(false) };
    remove(&mut tx, vec![held.device_key]).await?;
    tx.commit().await?;
    Ok(true)
}

pub(super) async fn put_follows(conn: &mut PgConnection, id: &DeviceId, follows: &Follows) -> Result<bool, Fault> {
    let wanted: BTreeMap<&str, i64> = follows.subjects.iter().map(|(s, mask)| (s.as_str(), mask.0)).collect();
    let (subjects, masks): (Vec<&str>, Vec<i64>) = wanted.into_iter().unzip();
    let mut tx = conn.begin().await?;
    let held: Option<Held> = sqlx::query_as(LOCK).bind(id.as_str()).fetch_optional(&mut *tx).await?;
    let Some(held) = held else { return Ok(false) };
    sqlx::query(MUTE).bind(held.device_key).bind(follows.muted.0).execute(&mut *tx).await?;
    sqlx::query(UNFOLLOW).bind(held.device_key).bind(&subjects).execute(&mut *tx).await?;
    sqlx::query(FOLLOW).bind(held.device_key).bind(&subjects).bind(masks).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}
