//! Owns pages of devices with what they follow, for an export.
//! Must never know: who reads them.

use std::collections::HashMap;

use sqlx::{SqliteConnection, query_as};

use super::device::DeviceRow;
use super::fault::Answer;
use super::rows::keys_to_json;
use super::sql;
use crate::domain::ids::DeviceKey;
use crate::domain::recipient::DeviceState;
use crate::store::{DevicePage, DeviceView};

/// Both reads are of one snapshot, so a device and what it follows are of one moment.
pub(super) async fn page(conn: &mut SqliteConnection, page: DevicePage) -> Answer<Vec<DeviceView>> {
    let rows: Vec<DeviceRow> = query_as(sql::DEVICE_PAGE)
        .bind(page.after.0)
        .bind(page.limit)
        .bind(page.state.map(DeviceState::code))
        .fetch_all(&mut *conn)
        .await?;
    let keys: Vec<DeviceKey> = rows.iter().map(|row| DeviceKey(row.device_key)).collect();
    let found: Vec<(i64, String, i64)> = query_as(sql::FOLLOWS_OF).bind(keys_to_json(&keys)).fetch_all(conn).await?;
    let mut follows: HashMap<i64, Vec<(String, i64)>> = HashMap::new();
    for (key, subject, wanted) in found {
        follows.entry(key).or_default().push((subject, wanted));
    }
    rows.into_iter()
        .map(|row| {
            let mut subjects = follows.remove(&row.device_key).unwrap_or_default();
            subjects.sort_unstable();
            row.view(subjects)
        })
        .collect()
}
