//! Owns importing devices in bulk: a line that cannot be taken stops no other.
//! Must never know: the format the lines came in.

use sqlx::SqliteConnection;

use super::device;
use super::fault::Answer;
use crate::domain::recipient::DeviceState;
use crate::store::{ImportReject, ImportRow, Imported};

/// Imports in the order of the lines, so that a later one wins.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>) -> Answer<Imported> {
    let mut done = Imported::default();
    for row in rows {
        let stored = device::find(conn, row.id()).await?;
        if let Some(state) = stored.as_ref().map(|stored| stored.state).filter(|state| *state != DeviceState::Live) {
            done.rejected.push(dead(row.line, state));
            continue;
        }
        let key = device::write(conn, stored.as_ref(), &row.device).await?;
        if let Some(follows) = &row.follows {
            device::write_follows(conn, key, DeviceState::Live, follows).await?;
        }
        if stored.is_some() { done.updated += 1 } else { done.imported += 1 }
    }
    Ok(done)
}

fn dead(line: u64, state: DeviceState) -> ImportReject {
    let reason = format!("this device is {state}: an import does not revive it, registering it again does");
    ImportReject { line, code: state.as_str(), reason }
}
