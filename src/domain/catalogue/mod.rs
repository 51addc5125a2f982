//! Owns the event types as data: texts per locale, required fields, class, usefulness, sound, collapse key.
//! Must never know: where the file lies or when it is read again.

mod parse;
mod template;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::batch::Class;
use super::event::Event;
use super::recipient::{KindMask, Locale};
use super::text;
pub use template::{BUILT_IN_PLACEHOLDERS, Template, TemplateError, is_field_name};

/// The catalogue compiled into the binary.
pub const BUILT_IN: &str = include_str!("../../../config/types.toml");

/// Longest collapse key, in bytes: Apple's limit for `apns-collapse-id`.
pub const MAX_COLLAPSE_KEY_BYTES: usize = 64;

/// All event types, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    /// By name.
    pub types: BTreeMap<String, EventType>,
    /// The locale used when a device's own has no text. Every type has it.
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
    /// Collapse key; `{event_id}` or `{match_id}` is always in it.
    pub collapse_key: Template,
    /// Fields its texts need.
    pub required: Vec<String>,
    /// Texts by locale.
    pub texts: BTreeMap<String, TextTemplate>,
}

/// Title and body with `{field}` placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTemplate {
    /// Title.
    pub title: Template,
    /// Body.
    pub body: Template,
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

/// A name no type has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {name}; {hint}")]
pub struct UnknownType {
    /// The name, quoted and shortened.
    pub name: String,
    /// What to write instead.
    pub hint: String,
}

impl Catalogue {
    /// Reads and checks a catalogue.
    ///
    /// # Errors
    /// [`CatalogueError`] says what is wrong, where, and how to mend it. The first fault ends the reading.
    pub fn parse(toml: &str) -> Result<Self, CatalogueError> {
        parse::parse(toml)
    }

    /// Checks that this catalogue may take the place of `old` while the service runs: stored masks name types by bit, and
    /// events already accepted name them by name, so neither may come to mean something else.
    ///
    /// # Errors
    /// [`CatalogueError`] when a type is gone, or a bit belongs to another type now.
    pub fn may_replace(&self, old: &Self) -> Result<(), CatalogueError> {
        for (name, before) in &old.types {
            let Some(now) = self.types.get(name) else {
                return Err(CatalogueError(format!(
                    "type {name} is gone; events of it may still be sent, so keep it until the service is restarted"
                )));
            };
            if now.bit != before.bit {
                return Err(CatalogueError(format!(
                    "type {name} has bit {} and had {}; follows are stored by bit, so give it back bit {}",
                    now.bit, before.bit, before.bit
                )));
            }
        }
        Ok(())
    }

    /// The type with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&EventType> {
        self.types.get(name)
    }

    /// The type with this name, or the words for whoever wrote it.
    ///
    /// # Errors
    /// [`UnknownType`] names the type that was probably meant, else all there are.
    pub fn known(&self, name: &str) -> Result<&EventType, UnknownType> {
        self.get(name).ok_or_else(|| {
            let names = || self.types.keys().map(String::as_str);
            let meant = text::nearest(name, names()).map(|near| format!("did you mean {near}?"));
            let hint = meant.unwrap_or_else(|| format!("known are {}", names().collect::<Vec<_>>().join(", ")));
            UnknownType { name: text::quote(name), hint }
        })
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
    /// The locale whose text a device with `wanted` reads: the tag itself, then the tag without its last part
    /// (`zh-Hant-TW`, `zh-Hant`, `zh`; RFC 4647, 3.4), then `default`. Case does not matter.
    #[must_use]
    pub fn locale_for<'a>(&'a self, wanted: &Locale, default: &'a str) -> &'a str {
        let mut tag = wanted.as_str();
        loop {
            if let Some(known) = self.texts.keys().find(|known| known.eq_ignore_ascii_case(tag)) {
                return known;
            }
            match tag.rsplit_once('-') {
                Some((shorter, _)) => tag = shorter,
                None => return default,
            }
        }
    }

    /// Fills the texts of one locale, as returned by [`EventType::locale_for`]. For any other locale both are empty.
    #[must_use]
    pub fn render(&self, locale: &str, event: &Event) -> Text {
        let fill = |pick: fn(&TextTemplate) -> &Template| self.texts.get(locale).map(|t| pick(t).fill(event));
        Text { title: fill(|t| &t.title).unwrap_or_default(), body: fill(|t| &t.body).unwrap_or_default() }
    }

    /// The collapse key of one event, stable for all its deliveries: 1 to 64 visible ASCII bytes.
    ///
    /// A delivery sent twice carries the same key, so the second replaces the first (law 9). What the built-in types put
    /// into it: the event id where each event is news of its own (two goals must not hide each other), the match where
    /// the newest state is all that counts (corners, half time). FCM keeps 4 keys per offline device and drops
    /// an undefined one beyond (Firebase, "collapsible messages"), one more reason not to use a key per event
    /// for what goes stale anyway. A key that is too long or holds other characters keeps its readable
    /// beginning and ends in 64 bits of SHA-256.
    #[must_use]
    pub fn collapse_key(&self, event: &Event) -> String {
        const HASH_DIGITS: usize = 16;
        let key = self.collapse_key.fill(event);
        if key.len() <= MAX_COLLAPSE_KEY_BYTES && !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic()) {
            return key;
        }
        let plain = key.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' });
        let hash = Sha256::digest(key.as_bytes());
        let digits = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        plain
            .take(MAX_COLLAPSE_KEY_BYTES - HASH_DIGITS - 1)
            .chain(['.'])
            .chain(digits.chars().take(HASH_DIGITS))
            .collect()
    }
}

#[cfg(test)]
mod tests;
