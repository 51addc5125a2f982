//! Owns the rules one device must meet.
//! Must never know: whether it came alone or in an import.

use sha2::{Digest, Sha256};

use super::fault;
use crate::domain::event::FieldError;
use crate::domain::ids::{DeviceId, IdError, UserId, is_invisible};
use crate::domain::recipient::{Address, Device, Locale, Platform};

/// Longest token or installation id, bytes. FCM documents no limit; its tokens are under 200 bytes today, and 4096 is
/// what a whole message may have.
pub const MAX_ADDRESS_BYTES: usize = 4096;

/// Ids that no path can hold: calls of `/v1/devices/`, and the segments that every URL library takes out of a path. Such
/// a device could be imported, but never be looked at or deleted.
pub const UNREACHABLE: [&str; 4] = ["import", "export", ".", ".."];

/// A device as a caller wrote it, nothing checked yet.
#[derive(Debug, Clone, Copy)]
pub struct DeviceDraft<'a> {
    /// The caller's name for it.
    pub id: &'a str,
    /// Its owner.
    pub user_id: &'a str,
    /// Registration token.
    pub token: Option<&'a str>,
    /// Firebase installation id.
    pub fid: Option<&'a str>,
    /// `android`, `ios`, `web`.
    pub platform: &'a str,
    /// Language of its texts.
    pub locale: Option<&'a str>,
}

impl DeviceDraft<'_> {
    /// Checks every field and names each that is wrong.
    ///
    /// # Errors
    /// All faults, in the order of the fields.
    pub fn parse(self, default_locale: &str) -> Result<Device, Vec<FieldError>> {
        let mut faults = Vec::new();
        let id = named("/id", DeviceId::parse(self.id), &mut faults);
        if UNREACHABLE.contains(&self.id) {
            faults.push(fault("/id", "could not be told apart in /v1/devices/{id}; give it another name"));
            return Err(faults);
        }
        let user = named("/user_id", UserId::parse(self.user_id), &mut faults);
        let address = self.address().map_err(|f| faults.push(f)).ok();
        let platform = self.platform().map_err(|f| faults.push(f)).ok();
        let locale = self.locale(default_locale).map_err(|f| faults.push(f)).ok();
        match (id, user, address, platform, locale) {
            (Some(id), Some(user), Some(address), Some(platform), Some(locale)) => {
                Ok(Device { id, user, address, platform, locale })
            }
            _ => Err(faults),
        }
    }

    fn address(self) -> Result<Address, FieldError> {
        match (self.token, self.fid) {
            (Some(token), None) => plain("/token", token).map(Address::Token),
            (None, Some(fid)) => plain("/fid", fid).map(Address::Fid),
            (None, None) => Err(fault("/token", "give the device's `token`, or its `fid`")),
            (Some(_), Some(_)) => Err(fault("/fid", "give either `token` or `fid`, not both")),
        }
    }

    fn platform(self) -> Result<Platform, FieldError> {
        let known = Platform::ALL.iter().find(|p| p.as_str() == self.platform);
        known.copied().ok_or_else(|| fault("/platform", "must be one of android, ios, web"))
    }

    fn locale(self, default: &str) -> Result<Locale, FieldError> {
        let tag = "must be a language tag such as pt-BR: letters, digits and -, at most 35 bytes";
        Locale::parse(self.locale.unwrap_or(default)).ok_or_else(|| fault("/locale", tag))
    }
}

fn named<T>(field: &str, parsed: Result<T, IdError>, faults: &mut Vec<FieldError>) -> Option<T> {
    parsed.map_err(|problem| faults.push(fault(field, problem.to_string()))).ok()
}

/// Spaces around a token come from copying it and mean nothing; inside it they mean it was damaged.
fn plain(field: &str, raw: &str) -> Result<String, FieldError> {
    let value = raw.trim();
    if value.is_empty() {
        return Err(fault(field, "must not be empty"));
    }
    if value.len() > MAX_ADDRESS_BYTES {
        let problem = format!("must be at most {MAX_ADDRESS_BYTES} bytes, this one has {}", value.len());
        return Err(fault(field, problem));
    }
    if value.chars().any(|c| c.is_whitespace() || c.is_control() || is_invisible(c)) {
        return Err(fault(field, "must not contain spaces, control or invisible characters"));
    }
    Ok(value.to_owned())
}

/// First 12 hex digits of SHA-256 of a token: enough to compare two, of no use to send with.
#[must_use]
pub fn address_hash(address: &Address) -> String {
    let digest = Sha256::digest(address.value().as_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: DeviceDraft<'_> =
        DeviceDraft { id: "d1", user_id: "u1", token: Some("tok"), fid: None, platform: "ios", locale: None };

    fn faults(draft: DeviceDraft<'_>) -> Vec<String> {
        draft.parse("en").unwrap_err().into_iter().map(|f| f.field).collect()
    }

    #[test]
    fn a_good_device_is_taken_and_its_token_trimmed() {
        let device = DeviceDraft { token: Some(" tok\n"), ..GOOD }.parse("pt_BR").unwrap();
        assert_eq!(device.address, Address::Token("tok".into()));
        assert_eq!(device.locale.as_str(), "pt-BR");
        let by_fid = DeviceDraft { token: None, fid: Some("f"), ..GOOD }.parse("en").unwrap();
        assert_eq!(by_fid.address, Address::Fid("f".into()));
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let bad = DeviceDraft { id: "", user_id: "a b", token: None, fid: None, platform: "ps5", locale: Some("e n") };
        assert_eq!(faults(bad), ["/id", "/user_id", "/token", "/platform", "/locale"]);
    }

    #[test]
    fn an_id_that_no_path_can_hold_is_refused() {
        for id in UNREACHABLE {
            assert_eq!(faults(DeviceDraft { id, ..GOOD }), ["/id"], "{id}");
        }
        assert!(DeviceDraft { id: "imports", ..GOOD }.parse("en").is_ok());
    }

    #[test]
    fn damaged_tokens_are_refused() {
        let long = "x".repeat(MAX_ADDRESS_BYTES + 1);
        for token in ["", "  ", "a b", "a\0b", "a\nb", "a\u{202e}b", "a\u{1b}[31m", &long] {
            assert_eq!(faults(DeviceDraft { token: Some(token), ..GOOD }), ["/token"], "{token:?}");
        }
        let longest = "x".repeat(MAX_ADDRESS_BYTES);
        assert!(DeviceDraft { token: Some(&longest), ..GOOD }.parse("en").is_ok());
    }

    #[test]
    fn exactly_one_address() {
        assert_eq!(faults(DeviceDraft { fid: Some("f"), ..GOOD }), ["/fid"]);
        assert_eq!(faults(DeviceDraft { token: None, ..GOOD }), ["/token"]);
    }

    #[test]
    fn the_hash_is_that_of_sha_256() {
        assert_eq!(address_hash(&Address::Token("abc".into())), "ba7816bf8f01");
    }
}
