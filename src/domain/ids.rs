//! Owns the identifiers that cross rooms, each a type of its own.
//! Must never know: how a database stores them.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One fan-out. Assigned by the database, increasing, shown as decimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FanoutId(pub i64);

/// One device row, as frozen into chunks. Never shown to callers, who know a device by its [`DeviceId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceKey(pub i64);

/// One start of one instance. A restarted process is another instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootId(pub Uuid);

impl BootId {
    /// A fresh id for this start of the process.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

/// One chunk of one fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkRef {
    /// The fan-out the chunk belongs to.
    pub fanout: FanoutId,
    /// Position of the chunk in its fan-out, from 0.
    pub no: i32,
}

/// Why a caller's identifier was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing was given.
    #[error("must not be empty")]
    Empty,
    /// Longer than 128 bytes.
    #[error("must be at most 128 bytes, this one has {0}")]
    TooLong(usize),
    /// A control character, a space or a bidirectional mark.
    #[error("must not contain spaces, control or invisible characters")]
    BadCharacter,
}

/// Longest identifier a caller may choose, in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// A caller's own identifier: 1 to 128 bytes without spaces, control or invisible characters.
fn parse_id(raw: &str) -> Result<String, IdError> {
    if raw.is_empty() {
        return Err(IdError::Empty);
    }
    if raw.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong(raw.len()));
    }
    let bad = |c: char| c.is_whitespace() || c.is_control() || is_invisible(c);
    if raw.chars().any(bad) {
        return Err(IdError::BadCharacter);
    }
    Ok(raw.to_owned())
}

/// Characters without a shape of their own: they make two different identifiers look the same. Those that Unicode has
/// readers ignore (`Default_Ignorable_Code_Point`: zero-width and bidirectional marks, soft hyphens, fillers, variation
/// selectors, tags), the interlinear marks, and blanks that count as letters.
#[must_use]
pub const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

macro_rules! caller_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Accepts 1 to 128 bytes without spaces, control or invisible characters.
            ///
            /// # Errors
            /// [`IdError`] says which of these rules the text breaks.
            pub fn parse(raw: &str) -> Result<Self, IdError> {
                parse_id(raw).map(Self)
            }

            /// The identifier as the caller wrote it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(raw: String) -> Result<Self, IdError> {
                Self::parse(&raw)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

caller_id!(
    /// The caller's name for an event; the same id with the same content is the same fan-out.
    EventId
);
caller_id!(
    /// The caller's name for a device.
    DeviceId
);
caller_id!(
    /// The caller's name for a user; a user may have several devices.
    UserId
);
caller_id!(
    /// The caller's name for a match.
    MatchId
);

impl fmt::Display for FanoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::str::FromStr for FanoutId {
    type Err = std::num::ParseIntError;
    fn from_str(raw: &str) -> Result<Self, Self::Err> {
        raw.parse().map(Self)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_ids_refuse_what_cannot_be_seen_or_stored() {
        assert_eq!(EventId::parse(""), Err(IdError::Empty));
        assert_eq!(EventId::parse(&"x".repeat(129)), Err(IdError::TooLong(129)));
        for raw in ["a b", "a\0", "a\u{202e}b", "a\u{200b}", "\u{feff}a", "a\n"] {
            assert_eq!(EventId::parse(raw), Err(IdError::BadCharacter), "{raw:?}");
        }
        assert_eq!(EventId::parse("evt-8841").map(String::from), Ok("evt-8841".to_owned()));
    }

    #[test]
    fn no_character_without_a_shape_gets_into_an_id_or_a_subject() {
        let unseen = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180e}\u{180f}\u{200b}\u{200d}\u{200e}\u{2028}\
            \u{202e}\u{2060}\u{2064}\u{2068}\u{206f}\u{2800}\u{3000}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{e0001}\u{e0020}\
            \u{e007f}\u{e0100}";
        for c in unseen.chars() {
            let raw = format!("a{c}b");
            assert_eq!(EventId::parse(&raw), Err(IdError::BadCharacter), "{c:?}");
            assert_eq!(MatchId::parse(&raw), Err(IdError::BadCharacter), "{c:?}");
            assert!(crate::domain::subject::check(&format!("team:{raw}")).is_err(), "{c:?}");
        }
        for seen in ["münchen", "أرسنال", "東京", "e\u{301}", "⚽", "ꓸ", "a·b", "1:2/3#4"] {
            assert!(MatchId::parse(seen).is_ok(), "{seen}");
        }
    }
}
