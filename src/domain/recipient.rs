//! Owns what a recipient is: its platform, its locale, and the device token it is reached by.
//! Must never know: how devices are registered or stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::{DeviceId, DeviceKey, UserId};
use super::outcome::coded_enum;

coded_enum!(
    /// The platform a device runs.
    Platform ("platform") {
        /// Android through FCM.
        Android = 1 "android",
        /// iOS through APNs behind FCM.
        Ios = 2 "ios",
        /// Web push behind FCM.
        Web = 3 "web",
    }
);

coded_enum!(
    /// Whether a device may be sent to.
    DeviceState ("device state") {
        /// It may.
        Live = 0 "live",
        /// FCM said UNREGISTERED; revived by registering again.
        Tombstoned = 1 "tombstoned",
        /// FCM refused its token as invalid or foreign; revived by registering again.
        Suspended = 2 "suspended",
    }
);

/// What FCM addresses a device by. Debug output never shows the value.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// A registration token.
    Token(String),
    /// A Firebase installation id.
    Fid(String),
}

impl Address {
    /// The name of the field of FCM's `message` that carries it.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::Fid(_) => "fid",
        }
    }

    /// The value itself, for the wire only.
    #[must_use]
    pub fn value(&self) -> &str {
        match self {
            Self::Token(v) | Self::Fid(v) => v,
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(redacted, {} bytes)", self.field(), self.value().len())
    }
}

/// A language tag such as `pt-BR`, kept as the caller wrote it, at most 35 bytes (RFC 5646, 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Locale(String);

impl Locale {
    /// Accepts letters, digits, `-` and `_`; `_` is read as `-`.
    #[must_use]
    pub fn parse(raw: &str) -> Option<Self> {
        let fits = !raw.is_empty() && raw.len() <= 35;
        let plain = raw.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        (fits && plain).then(|| Self(raw.replace('_', "-")))
    }

    /// The tag as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Locale {
    fn default() -> Self {
        Self("en".to_owned())
    }
}

/// A device as looked up when its chunk is claimed: where to send now, not where it was at the freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// The row.
    pub key: DeviceKey,
    /// Where to send.
    pub address: Address,
    /// Which of FCM's platform blocks it reads.
    pub platform: Platform,
    /// Which text it reads.
    pub locale: Locale,
    /// The row version a verdict against it is conditional on.
    pub version: i64,
}

/// A device as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The caller's name for it.
    pub id: DeviceId,
    /// Its owner.
    pub user: UserId,
    /// Where to send.
    pub address: Address,
    /// Platform.
    pub platform: Platform,
    /// Language of its texts.
    pub locale: Locale,
}

/// What a device follows: the whole set, replacing what was there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Follows {
    /// Followed subjects with the event types wanted of each, as a mask of catalogue bits.
    pub subjects: Vec<(String, KindMask)>,
    /// Event types this device never wants.
    pub muted: KindMask,
}

impl Follows {
    /// What a page of followers sees of a subject whose types `wanted` are followed: mutes and death are folded in.
    #[must_use]
    pub fn kinds(&self, wanted: KindMask, state: DeviceState) -> KindMask {
        if state == DeviceState::Live { wanted.without(self.muted) } else { KindMask::NONE }
    }
}

/// A set of event types, one bit per type as numbered in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct KindMask(pub i64);

impl KindMask {
    /// Every type, those of tomorrow's catalogue too. The sign bit stays clear, so that it reads well in SQL.
    pub const ALL: Self = Self(i64::MAX);
    /// No type.
    pub const NONE: Self = Self(0);

    /// The set that holds only the type with this bit (0 to 62).
    #[must_use]
    pub const fn only(bit: u8) -> Self {
        Self(1 << bit)
    }

    /// Union.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any type is in both.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_never_shows_itself() {
        let shown = format!("{:?}", Address::Token("secret-token".into()));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn locales_are_plain_tags() {
        assert_eq!(Locale::parse("pt_BR").unwrap().as_str(), "pt-BR");
        for raw in ["", "pt BR", "../x", "ü", &"a".repeat(36)] {
            assert_eq!(Locale::parse(raw), None, "{raw:?}");
        }
    }

    #[test]
    fn a_mute_is_taken_out_of_all() {
        let wanted = KindMask::ALL.without(KindMask::only(3));
        assert!(!wanted.meets(KindMask::only(3)));
        assert!(wanted.meets(KindMask::only(62)));
    }
}
