//! Owns importing devices in bulk: a line that cannot be taken stops no other.
//! Must never know: the format the lines came in.

use sqlx::{SqliteConnection, query};

use super::device::{self, Stored};
use super::fault::Answer;
use super::sql;
use crate::store::import::{latest, refusal};
use crate::store::{ImportRow, Imported};

/// Imports one batch. Devices of the batch that change their address let go of the old one first: two may change places.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>) -> Answer<Imported> {
    let mut done = Imported::default();
    let mut taken = Vec::new();
    for row in latest(&rows)? {
        let stored = device::find(conn, row.id()).await?;
        if let Some(stored) = &stored {
            if let Some(refused) = refusal(row, stored.state().ok()) {
                done.rejected.push(refused);
                continue;
            }
            if !stored.has(&row.device.address) {
                query(sql::PARK_ADDRESS).bind(stored.key).execute(&mut *conn).await?;
            }
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
