//! Owns telling devices by row and by address, many at once, for a comparison with another system's list.
//! Must never know: which list a device is on.

use sqlx::{SqliteConnection, query_as};

use super::fault::Answer;
use super::rows::keys_to_json;
use super::sql;
use crate::domain::ids::{DeviceId, DeviceKey};

pub(super) async fn device_ids(
    conn: &mut SqliteConnection,
    keys: Vec<DeviceKey>,
) -> Answer<Vec<(DeviceKey, DeviceId)>> {
    let rows: Vec<(i64, String)> = query_as(sql::DEVICE_IDS).bind(keys_to_json(&keys)).fetch_all(conn).await?;
    rows.into_iter().map(|(key, id)| Ok((DeviceKey(key), DeviceId::parse(&id)?))).collect()
}

pub(super) async fn holders(conn: &mut SqliteConnection, addresses: Vec<String>) -> Answer<Vec<(String, DeviceId)>> {
    let asked = serde_json::Value::from(addresses).to_string();
    let rows: Vec<(String, String)> = query_as(sql::HOLDERS).bind(asked).fetch_all(conn).await?;
    rows.into_iter().map(|(address, id)| Ok((address, DeviceId::parse(&id)?))).collect()
}
