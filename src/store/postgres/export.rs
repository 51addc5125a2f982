//! Owns pages of devices with what they follow, for an export.
//! Must never know: who reads them.

use sqlx::{FromRow, PgConnection};

use super::devices::DeviceRow;
use super::fault::Fault;
use crate::domain::recipient::DeviceState;
use crate::store::{DevicePage, DeviceView};

/// One range of the primary key. Follows are gathered in the same statement, so that a device and what it follows are of
/// one moment.
pub(super) const PAGE: &str = "
SELECT d.*, f.subjects, f.wanted
FROM (SELECT device_key, id, user_id, token, fid, platform, locale, muted, state, version, registered_ms
      FROM device WHERE device_key > $1 AND ($3::smallint IS NULL OR state = $3)
      ORDER BY device_key LIMIT $2) AS d
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(subject ORDER BY subject), '{}') AS subjects,
           coalesce(array_agg(wanted ORDER BY subject), '{}') AS wanted
    FROM follow WHERE follow.device_key = d.device_key) AS f
ORDER BY d.device_key";

#[derive(Debug, FromRow)]
struct PageRow {
    #[sqlx(flatten)]
    device: DeviceRow,
    subjects: Vec<String>,
    wanted: Vec<i64>,
}

pub(super) async fn page(conn: &mut PgConnection, page: DevicePage) -> Result<Vec<DeviceView>, Fault> {
    let rows: Vec<PageRow> = sqlx::query_as(PAGE)
        .bind(page.after.0)
        .bind(i64::from(page.limit))
        .bind(page.state.map(DeviceState::code))
        .fetch_all(conn)
        .await?;
    rows.into_iter().map(|row| row.device.view(row.subjects.into_iter().zip(row.wanted).collect())).collect()
}
