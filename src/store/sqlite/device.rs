//! Owns devices and what they follow.
//! Must never know: why a device is registered, or who judged it dead.

use sqlx::{FromRow, SqliteConnection, query, query_as, query_scalar};

use super::fault::Answer;
use super::rows::{address, address_columns, code, locale, now_ms};
use super::sql;
use crate::domain::ids::{DeviceId, DeviceKey, UserId};
use crate::domain::recipient::{Address, Device, DeviceState, Follows, KindMask, Platform};
use crate::store::{DeviceView, PutDevice};

#[derive(FromRow)]
struct DeviceRow {
    device_key: i64,
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
    fn view(self, subjects: Vec<(String, i64)>) -> Answer<DeviceView> {
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
pub(super) struct Stored {
    #[sqlx(rename = "device_key")]
    pub(super) key: i64,
    token: Option<String>,
    fid: Option<String>,
    muted: i64,
    state: i64,
}

impl Stored {
    /// # Errors
    /// [`StoreError::Corrupt`](crate::store::StoreError::Corrupt) for a state this build does not know.
    pub(super) fn state(&self) -> Answer<DeviceState> {
        code(self.state, DeviceState::from_code)
    }

    fn live(&self) -> bool {
        self.state == i64::from(DeviceState::Live.code())
    }

    pub(super) fn has(&self, address: &Address) -> bool {
        (self.token.as_deref(), self.fid.as_deref()) == address_columns(address)
    }
}

pub(super) async fn find(conn: &mut SqliteConnection, id: &DeviceId) -> Answer<Option<Stored>> {
    Ok(query_as(sql::STORED_DEVICE).bind(id.as_str()).fetch_optional(conn).await?)
}

/// Registers a device, or updates and revives it.
pub(super) async fn put_device(conn: &mut SqliteConnection, device: Device) -> Answer<PutDevice> {
    let stored = find(conn, &device.id).await?;
    let put = PutDevice { created: stored.is_none(), revived: stored.as_ref().is_some_and(|stored| !stored.live()) };
    write(conn, stored.as_ref(), &device).await?;
    Ok(put)
}

/// Writes a device over what is stored of it and takes its address from any other device; the row's key.
pub(super) async fn write(conn: &mut SqliteConnection, stored: Option<&Stored>, device: &Device) -> Answer<i64> {
    if stored.is_none_or(|stored| !stored.has(&device.address)) {
        take_address(conn, device).await?;
    }
    match stored {
        Some(stored) => update(conn, stored, device).await,
        None => insert(conn, device).await,
    }
}

async fn insert(conn: &mut SqliteConnection, device: &Device) -> Answer<i64> {
    let (token, fid) = address_columns(&device.address);
    let key = query_scalar(sql::ADD_DEVICE)
        .bind(device.id.as_str())
        .bind(device.user.as_str())
        .bind(token)
        .bind(fid)
        .bind(device.platform.code())
        .bind(device.locale.as_str())
        .bind(now_ms())
        .fetch_one(conn)
        .await?;
    Ok(key)
}

async fn update(conn: &mut SqliteConnection, stored: &Stored, device: &Device) -> Answer<i64> {
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
    Ok(stored.key)
}

/// One row per address: whoever registers it last has it, the row that had it is deleted.
async fn take_address(conn: &mut SqliteConnection, device: &Device) -> Answer<()> {
    let (token, fid) = address_columns(&device.address);
    let holder: Option<i64> = query_scalar(sql::OTHER_HOLDER)
        .bind(device.id.as_str())
        .bind(token)
        .bind(fid)
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(holder) = holder {
        drop_device(conn, holder).await?;
    }
    Ok(())
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
    write_follows(conn, stored.key, Some(&stored), &follows).await?;
    Ok(true)
}

/// Mutes and liveness are folded into `kinds` here, so that a page of followers joins nothing. A device that was not
/// stored before has nothing to be replaced.
pub(super) async fn write_follows(
    conn: &mut SqliteConnection,
    key: i64,
    stored: Option<&Stored>,
    follows: &Follows,
) -> Answer<()> {
    if stored.is_some() {
        query(sql::DROP_FOLLOWS).bind(key).execute(&mut *conn).await?;
    }
    if stored.is_some() || follows.muted != KindMask::NONE {
        query(sql::SET_MUTED).bind(key).bind(follows.muted.0).bind(now_ms()).execute(&mut *conn).await?;
    }
    let live = stored.is_none_or(Stored::live);
    for (subject, wanted) in &follows.subjects {
        let kinds = if live { wanted.without(follows.muted) } else { KindMask::NONE };
        query(sql::ADD_FOLLOW).bind(subject).bind(key).bind(wanted.0).bind(kinds.0).execute(&mut *conn).await?;
    }
    Ok(())
}
