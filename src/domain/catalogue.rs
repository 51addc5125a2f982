//! Owns the event types as data: texts per locale, required fields, class, usefulness, sound, collapse key.
//! Must never know: where the file lies or when it is read again.

use std::collections::BTreeMap;

use super::batch::Class;
use super::event::Event;
use super::recipient::{KindMask, Locale};

/// The catalogue compiled into the binary.
pub const BUILT_IN: &str = include_str!("../../config/types.toml");

/// All event types, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    /// By name.
    pub types: BTreeMap<String, EventType>,
    /// The locale used when a device's own has no text.
    pub default_locale: String,
}

/// One event type.
#[derive(Debug, Clone, PartialEq)]
pub struct EventType {
    /// Its name.
    pub name: String,
    /// Its bit in a [`KindMask`], 0 to 61; never reused for another type.
    pub bit: u8,
    /// How urgent.
    pub class: Class,
    /// Seconds it stays useful.
    pub useful_for_s: u32,
    /// Android notification channel.
    pub channel: String,
    /// Sound name, `default` or a file of the app.
    pub sound: String,
    /// Whether FCM is asked for high priority.
    pub high_priority: bool,
    /// Collapse key with placeholders, `{match_id}` among them.
    pub collapse_key: String,
    /// Fields its texts need.
    pub required: Vec<String>,
    /// Texts by locale.
    pub texts: BTreeMap<String, TextTemplate>,
}

/// Title and body with `{field}` placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTemplate {
    /// Title.
    pub title: String,
    /// Body.
    pub body: String,
}

/// A rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Title.
    pub title: String,
    /// Body.
    pub body: String,
}

/// Why a catalogue was refused; names type, locale and line where known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CatalogueError(pub String);

impl Catalogue {
    /// Reads and checks a catalogue.
    ///
    /// # Errors
    /// [`CatalogueError`] says what is wrong, where, and how to mend it.
    pub fn parse(_toml: &str) -> Result<Self, CatalogueError> {
        unimplemented!()
    }

    /// The type with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&EventType> {
        self.types.get(name)
    }

    /// The mask of the named types.
    ///
    /// # Errors
    /// The first unknown name.
    pub fn mask<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<KindMask, String> {
        let mut mask = KindMask::NONE;
        for name in names {
            let kind = self.get(name).ok_or_else(|| name.to_owned())?;
            mask = mask.with(KindMask::only(kind.bit));
        }
        Ok(mask)
    }

    /// Names of the types in a mask, those this catalogue knows.
    #[must_use]
    pub fn names(&self, mask: KindMask) -> Vec<&str> {
        self.types.values().filter(|t| mask.meets(KindMask::only(t.bit))).map(|t| t.name.as_str()).collect()
    }
}

impl EventType {
    /// The locale whose text a device with `wanted` reads: exact, then its language, then the default.
    #[must_use]
    pub fn locale_for<'a>(&'a self, _wanted: &Locale, _default: &'a str) -> &'a str {
        unimplemented!()
    }

    /// Fills the texts of one locale (as returned by [`EventType::locale_for`]).
    #[must_use]
    pub fn render(&self, _locale: &str, _event: &Event) -> Text {
        unimplemented!()
    }

    /// The collapse key of one event, stable for all its deliveries, at most 64 bytes.
    #[must_use]
    pub fn collapse_key(&self, _event: &Event) -> String {
        unimplemented!()
    }
}
