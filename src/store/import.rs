//! Owns what both databases decide alike about a batch of an import: which of its rows count, and how one is refused.
//! Must never know: SQL, or the format of the input.

use std::collections::HashSet;

use super::{ImportReject, ImportRow, StoreError};
use crate::domain::recipient::DeviceState;

/// Rows of one batch: one transaction must not hold locks, or the writer, for long.
const MAX_ROWS: usize = 1_000;

/// The last row of each id and of each address, in the order of the lines.
///
/// # Errors
/// [`StoreError::Statement`] when the batch is too large.
pub(crate) fn latest(rows: &[ImportRow]) -> Result<Vec<&ImportRow>, StoreError> {
    if rows.len() > MAX_ROWS {
        return Err(StoreError::Statement(format!("import: at most {MAX_ROWS} rows a batch")));
    }
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
    Ok(latest)
}

/// The answer to a row whose device is there already, if it is not taken: the device was judged, or it cannot be told
/// (`None`) whether it was, which must not stop the rest of the batch.
pub(crate) fn refusal(row: &ImportRow, state: Option<DeviceState>) -> Option<ImportReject> {
    let (code, is) = match state {
        Some(DeviceState::Live) => return None,
        Some(state) => (state.as_str(), state.as_str()),
        None => ("unreadable", "in a state this version does not know"),
    };
    let reason = format!("device {} is {is}: the app must register it again, an import does not revive it", row.id());
    Some(ImportReject { line: row.line, code, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{DeviceId, UserId};
    use crate::domain::recipient::{Address, Device, Locale, Platform};

    fn row(line: u64, id: &str, token: &str) -> ImportRow {
        let device = Device {
            id: DeviceId::parse(id).unwrap(),
            user: UserId::parse("u").unwrap(),
            address: Address::Token(token.to_owned()),
            platform: Platform::Android,
            locale: Locale::default(),
        };
        ImportRow { line, device, follows: None }
    }

    #[test]
    fn the_last_row_of_an_id_and_of_an_address_counts() {
        let rows = [row(1, "a", "t1"), row(2, "b", "t2"), row(3, "a", "t3"), row(4, "c", "t2"), row(5, "d", "t5")];
        let lines: Vec<u64> = latest(&rows).unwrap().iter().map(|row| row.line).collect();
        assert_eq!(lines, [3, 4, 5]);
    }

    #[test]
    fn a_batch_that_is_too_large_is_refused() {
        let rows = vec![row(1, "a", "t"); MAX_ROWS + 1];
        assert!(matches!(latest(&rows), Err(StoreError::Statement(_))));
        assert_eq!(latest(&rows[1..]).unwrap().len(), 1);
    }
}
