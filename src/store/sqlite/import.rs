//! Owns importing devices in bulk: a line that cannot be taken stops no other.
//! Must never know: the format the lines came in.

use std::collections::HashSet;

use sqlx::{SqliteConnection, query};

use super::device::{self, Stored};
use super::fault::Answer;
use super::sql;
use crate::domain::recipient::DeviceState;
use crate::store::{ImportReject, ImportRow, Imported, StoreError};

/// Rows of one batch: whoever writes waits for it.
const MAX_ROWS: usize = 1_000;

/// Imports one batch. Devices of the batch that change their address let go of the old one first: two may change places.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>) -> Answer<Imported> {
    if rows.len() > MAX_ROWS {
        return Err(StoreError::Statement(format!("import: at most {MAX_ROWS} rows a batch")).into());
    }
    let mut done = Imported::default();
    let mut taken = Vec::new();
    for row in latest(&rows) {
        let stored = device::find(conn, row.id()).await?;
        match &stored {
            Some(dead) if dead.state != DeviceState::Live => {
                done.rejected.push(reject(row, dead.state));
                continue;
            }
            Some(moved) if moved.device.address != row.device.address => {
                query(sql::PARK_ADDRESS).bind(moved.key).execute(&mut *conn).await?;
            }
            _ => {}
        }
        taken.push((row, stored));
    }
    for (row, stored) in taken {
        if stored.is_some() {
            done.updated += 1
        } else {
            done.imported += 1
        }
        write(conn, row, stored.as_ref()).await?;
    }
    Ok(done)
}

async fn write(conn: &mut SqliteConnection, row: &ImportRow, stored: Option<&Stored>) -> Answer<()> {
    let key = device::write(conn, stored, &row.device).await?;
    match &row.follows {
        Some(follows) => device::write_follows(conn, key, stored, follows).await,
        None => Ok(()),
    }
}

/// The last row of each id and of each address, in the order of the lines.
fn latest(rows: &[ImportRow]) -> Vec<&ImportRow> {
    let (mut ids, mut addresses) = (HashSet::new(), HashSet::new());
    let mut latest = Vec::with_capacity(rows.len());
    for row in rows.iter().rev() {
        if !ids.contains(row.id()) && !addresses.contains(&row.device.address) {
            ids.insert(row.id());
            addresses.insert(&row.device.address);
            latest.push(row);
        }
    }
    latest.reverse();
    latest
}

fn reject(row: &ImportRow, state: DeviceState) -> ImportReject {
    let reason =
        format!("device {} is {state}: the app must register it again, an import does not revive it", row.id());
    ImportReject { line: row.line, code: state.as_str(), reason }
}
