//! Owns telling devices by row and by address, many at once, for a comparison with another system's list.
//! Must never know: which list a device is on.

use sqlx::PgConnection;

use super::fault::Fault;
use crate::domain::ids::{DeviceId, DeviceKey};

pub(super) const DEVICE_IDS: &str = "
SELECT device_key, id FROM device WHERE device_key = ANY ($1)
UNION ALL SELECT device_key, id FROM former_device WHERE device_key = ANY ($1)";

pub(super) const HOLDERS: &str = "
SELECT token, id FROM device WHERE token = ANY ($1)
UNION ALL SELECT fid, id FROM device WHERE fid = ANY ($1)";

pub(super) async fn device_ids(
    conn: &mut PgConnection,
    keys: &[DeviceKey],
) -> Result<Vec<(DeviceKey, DeviceId)>, Fault> {
    let asked: Vec<i64> = keys.iter().map(|key| key.0).collect();
    let rows: Vec<(i64, String)> = sqlx::query_as(DEVICE_IDS).bind(asked).fetch_all(conn).await?;
    rows.into_iter().map(|(key, id)| Ok((DeviceKey(key), DeviceId::parse(&id)?))).collect()
}

pub(super) async fn holders(conn: &mut PgConnection, addresses: &[String]) -> Result<Vec<(String, DeviceId)>, Fault> {
    let rows: Vec<(String, String)> = sqlx::query_as(HOLDERS).bind(addresses).fetch_all(conn).await?;
    rows.into_iter().map(|(address, id)| Ok((address, DeviceId::parse(&id)?))).collect()
}
