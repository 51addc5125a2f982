//! Owns how domain values are kept in SQLite columns and read back.
//! Must never know: which statement they belong to.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::FromRow;

use super::fault::{Answer, Fault, corrupt};
use crate::domain::ids::{BootId, DeviceKey};
use crate::domain::outcome::UnknownCode;
use crate::domain::recipient::{Address, Locale, Platform, Recipient};
use crate::store::StoreError;

/// Time of the one process that may have this database open, ms since the epoch: here it *is* database time.
pub(super) fn now_ms() -> i64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}

/// A stored code as a member of its set.
pub(super) fn code<T>(stored: i64, read: impl Fn(i16) -> Result<T, UnknownCode>) -> Answer<T> {
    let narrow = i16::try_from(stored).map_err(|_| corrupt(format!("code {stored} fits no set")))?;
    Ok(read(narrow)?)
}

/// A number that must not be negative or too large for its kind.
pub(super) fn count<T: TryFrom<i64>>(what: &str, stored: i64) -> Answer<T> {
    T::try_from(stored).map_err(|_| corrupt(format!("{what} is {stored}")))
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Answer<String> {
    serde_json::to_string(value).map_err(|e| Fault(StoreError::Statement(format!("not written as JSON: {e}"))))
}

/// Reads [`to_json`]. The parser's own message is left out: it may quote the value.
pub(super) fn from_json<T: DeserializeOwned>(what: &str, stored: &str) -> Answer<T> {
    serde_json::from_str(stored).map_err(|e| corrupt(format!("stored {what}, column {}", e.column())))
}

pub(super) fn boot_bytes(boot: BootId) -> Vec<u8> {
    boot.0.as_bytes().to_vec()
}

/// Frozen keys as a BLOB of little-endian 64-bit numbers.
pub(super) fn keys_to_bytes(keys: &[DeviceKey]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0.to_le_bytes()).collect()
}

/// Reads [`keys_to_bytes`]; there must be `n` of them.
pub(super) fn keys_from_bytes(stored: &[u8], n: usize) -> Answer<Vec<DeviceKey>> {
    let (keys, rest) = stored.as_chunks::<8>();
    if keys.len() != n || !rest.is_empty() {
        return Err(corrupt(format!("{} bytes of frozen keys where {n} keys belong", stored.len())));
    }
    Ok(keys.iter().map(|key| DeviceKey(i64::from_le_bytes(*key))).collect())
}

/// Keys as the JSON array `json_each` reads.
pub(super) fn keys_to_json(keys: &[DeviceKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| key.0.to_string()).collect();
    format!("[{}]", keys.join(","))
}

/// An address as the pair of columns (token, fid).
pub(super) fn address_columns(address: &Address) -> (Option<&str>, Option<&str>) {
    match address {
        Address::Token(token) => (Some(token), None),
        Address::Fid(fid) => (None, Some(fid)),
    }
}

pub(super) fn address(token: Option<String>, fid: Option<String>) -> Answer<Address> {
    match (token, fid) {
        (Some(token), None) => Ok(Address::Token(token)),
        (None, Some(fid)) => Ok(Address::Fid(fid)),
        _ => Err(corrupt("a device needs a token or a fid, and only one of them")),
    }
}

pub(super) fn locale(stored: &str) -> Answer<Locale> {
    Locale::parse(stored).ok_or_else(|| corrupt("a stored locale is not a language tag"))
}

#[derive(FromRow)]
pub(super) struct RecipientRow {
    device_key: i64,
    token: Option<String>,
    fid: Option<String>,
    platform: i64,
    locale: String,
    version: i64,
}

impl TryFrom<RecipientRow> for Recipient {
    type Error = Fault;

    fn try_from(row: RecipientRow) -> Answer<Self> {
        Ok(Self {
            key: DeviceKey(row.device_key),
            address: address(row.token, row.fid)?,
            platform: code(row.platform, Platform::from_code)?,
            locale: locale(&row.locale)?,
            version: row.version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Outcome;

    #[test]
    fn frozen_keys_come_back_as_they_were_or_not_at_all() {
        let keys = vec![DeviceKey(1), DeviceKey(i64::MAX), DeviceKey(-7)];
        let stored = keys_to_bytes(&keys);
        assert_eq!(keys_from_bytes(&stored, 3).unwrap(), keys);
        assert!(matches!(keys_from_bytes(&stored, 2), Err(Fault(StoreError::Corrupt(_)))));
        assert!(matches!(keys_from_bytes(&stored[..23], 3), Err(Fault(StoreError::Corrupt(_)))));
        assert!(matches!(keys_from_bytes(&stored[..20], 2), Err(Fault(StoreError::Corrupt(_)))));
    }

    #[test]
    fn codes_of_another_build_are_errors() {
        assert_eq!(code(2, Outcome::from_code).unwrap(), Outcome::TokenDead);
        for stored in [0, 99, -1, i64::MAX] {
            assert!(matches!(code(stored, Outcome::from_code), Err(Fault(StoreError::Corrupt(_)))), "{stored}");
        }
    }

    #[test]
    fn a_device_has_one_address() {
        assert!(matches!(address(None, None), Err(Fault(StoreError::Corrupt(_)))));
        assert!(matches!(address(Some("t".into()), Some("f".into())), Err(Fault(StoreError::Corrupt(_)))));
    }
}
