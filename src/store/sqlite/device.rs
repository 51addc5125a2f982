//! Owns devices and what they follow.
//! Must never know: why a device is registered, or who judged it dead.

use sqlx::{FromRow, SqliteConnection, query, query_as};

use super::fault::Answer;
use super::rows::{address, address_columns, code, locale, now_ms};
use super::sql;
use crate::domain::ids::{DeviceId, DeviceKey, UserId};
use crate::domain::recipient::{Address, Device, DeviceState, Follows, KindMask, Platform};
use crate::store::{DeviceView, PutDevice};

#[derive(FromRow)]
pub(super) struct DeviceRow {
    pub(super) device_key: i64,
    id: String,
    user_id: String,
    token: Option<String>,
    fid: Option<String>,
    platform: i64,
    locale: String,
    muted: i64,
    state: i64,
    version: i64,
    registered_ms: i64,
}

impl DeviceRow {
    pub(super) fn view(self, subjects: Vec<(String, i64)>) -> Answer<DeviceView> {
        let device = Device {
            id: DeviceId::parse(&self.id)?,
            user: UserId::parse(&self.user_id)?,
            address: address(self.token, self.fid)?,
            platform: code(self.platform, Platform::from_code)?,
            locale: locale(&self.locale)?,
        };
        let subjects = subjects.into_iter().map(|(subject, wanted)| (subject, KindMask(wanted))).collect();
        Ok(DeviceView {
            key: DeviceKey(self.device_key),
            device,
            follows: Follows { subjects, muted: KindMask(self.muted) },
            state: code(self.state, DeviceState::from_code)?,
            version: self.version,
            registered_ms: self.registered_ms,
        })
    }
}

/// What must be known of a stored device to write over it. A row that does not parse otherwise can be mended so.
#[derive(FromRow)]
struct Stored {
    #[sqlx(rename = "device_key")]
    key: i64,
    token: Option<String>,
    fid: Option<String>,
    muted: i64,
    state: i64,
}

impl Stored {
    fn live(&self) -> bool {
        self.state == i64::from(DeviceState::Live.code())
    }

    fn has(&self, address: &Address) -> bool {
        (self.token.as_deref(), self.fid.as_deref()) == address_columns(address)
    }
}

async fn find(conn: &mut SqliteConnection, id: &DeviceId) -> Answer<Option<Stored>> {
    Ok(query_as(sql::STORED_DEVICE).bind(id.as_str()).fetch_optional(conn).await?)
}

/// Registers a device, or updates and revives it.
pub(super) async fn put_device(conn: &mut SqliteConnection, device: Device) -> Answer<PutDevice> {
    let stored = find(conn, &device.id).await?;
    let known = stored.as_ref().is_some_and(|stored| stored.has(&device.address));
    let moved_from = if known { None } else { take_address(conn, &device).await? };
    match &stored {
        Some(stored) => update(conn, stored, &device).await?,
        None => insert(conn, &device).await?,
    }
    let revived = stored.as_ref().is_some_and(|stored| !stored.live());
    Ok(PutDevice { created: stored.is_none(), revived, moved_from })
}

async fn insert(conn: &mut SqliteConnection, device: &Device) -> Answer<()> {
    let (token, fid) = address_columns(&device.address);
    query(sql::ADD_DEVICE)
        .bind(device.id.as_str())
        .bind(device.user.as_str())
        .bind(token)
        .bind(fid)
        .bind(device.platform.code())
        .bind(device.locale.as_str())
        .bind(now_ms())
        .execute(conn)
        .await?;
    Ok(())
}

async fn update(conn: &mut SqliteConnection, stored: &Stored, device: &Device) -> Answer<()> {
    let (token, fid) = address_columns(&device.address);
    query(sql::SET_DEVICE)
        .bind(stored.key)
        .bind(device.user.as_str())
        .bind(token)
        .bind(fid)
        .bind(device.platform.code())
        .bind(device.locale.as_str())
        .bind(now_ms())
        .execute(&mut *conn)
        .await?;
    if !stored.live() {
        query(sql::WAKE_FOLLOWS).bind(stored.key).bind(stored.muted).execute(conn).await?;
    }
    Ok(())
}

/// One row per address: whoever registers it last has it, the row that had it is deleted. That device, if there was one.
async fn take_address(conn: &mut SqliteConnection, device: &Device) -> Answer<Option<DeviceId>> {
    let (token, fid) = address_columns(&device.address);
    let holder: Option<(i64, String)> =
        query_as(sql::OTHER_HOLDER).bind(device.id.as_str()).bind(token).bind(fid).fetch_optional(&mut *conn).await?;
    let Some((key, id)) = holder else { return Ok(None) };
    drop_device(conn, key).await?;
    Ok(Some(DeviceId::parse(&id)?))
}

async fn drop_device(conn: &mut SqliteConnection, key: i64) -> Answer<()> {
    query(sql::DROP_FOLLOWS).bind(key).execute(&mut *conn).await?;
    query(sql::DROP_DEVICE).bind(key).execute(conn).await?;
    Ok(())
}

/// One device with everything known of it.
pub(super) async fn device(conn: &mut SqliteConnection, id: DeviceId) -> Answer<Option<DeviceView>> {
    let row: Option<DeviceRow> = query_as(sql::DEVICE_BY_ID).bind(id.as_str()).fetch_optional(&mut *conn).await?;
    let Some(row) = row else { return Ok(None) };
    let subjects = query_as(sql::FOLLOWS).bind(row.device_key).fetch_all(conn).await?;
    row.view(subjects).map(Some)
}

/// Deletes a device and its follows; whether it was there.
pub(super) async fn delete_device(conn: &mut SqliteConnection, id: DeviceId) -> Answer<bool> {
    let Some(stored) = find(conn, &id).await? else { return Ok(false) };
    drop_device(conn, stored.key).await?;
    Ok(true)
}

/// Replaces what a device follows; `false` when there is no such device.
pub(super) async fn put_follows(conn: &mut SqliteConnection, id: DeviceId, follows: Follows) -> Answer<bool> {
    let Some(stored) = find(conn, &id).await? else { return Ok(false) };
    write_follows(conn, &stored, &follows).await?;
    Ok(true)
}

/// Mutes and liveness are folded into `kinds` here, so that a page of followers joins nothing.
async fn write_follows(conn: &mut SqliteConnection, stored: &Stored, follows: &Follows) -> Answer<()> {
    let key = stored.key;
    query(sql::DROP_FOLLOWS).bind(key).execute(&mut *conn).await?;
    query(sql::SET_MUTED).bind(key).bind(follows.muted.0).bind(now_ms()).execute(&mut *conn).await?;
    for (subject, wanted) in &follows.subjects {
        let kinds = if stored.live() { wanted.without(follows.muted) } else { KindMask::NONE };
        query(sql::ADD_FOLLOW).bind(subject).bind(key).bind(wanted.0).bind(kinds.0).execute(&mut *conn).await?;
    }
    Ok(())
}
