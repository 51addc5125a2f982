//! Owns importing devices in bulk: a line that cannot be taken stops no other.
//! Must never know: the format the lines came in.

use sqlx::{SqliteConnection, query};

use super::device::{self, Stored};
use super::fault::Answer;
use super::sql;
use crate::domain::recipient::DeviceState;
use crate::store::import::{latest, reject};
use crate::store::{ImportRow, Imported};

/// Imports one batch. Devices of the batch that change their address let go of the old one first: two may change places.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>) -> Answer<Imported> {
    let mut done = Imported::default();
    let mut taken = Vec::new();
    for row in latest(&rows)? {
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
