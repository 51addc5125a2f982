//! Owns the event types as data: texts per locale, required fields, class, usefulness, sound, collapse key.
//! Must never know: where the file lies or when it is read again.

mod file;
mod live;
mod parse;
mod render;
mod template;

use std::collections::BTreeMap;

use super::batch::Class;
use super::recipient::KindMask;
use super::text;
pub use live::{Changes, LiveCatalogue};
pub use render::MAX_COLLAPSE_KEY_BYTES;
pub use template::{BUILT_IN_PLACEHOLDERS, Template, TemplateError, is_field_name};

/// The catalogue compiled into the binary.
pub const BUILT_IN: &str = include_str!("../../../config/types.toml");

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

/// Why a catalogue was refused: every fault, each with its place as far as it is known and the way to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", told(.0, "\n"))]
pub struct CatalogueError(pub Vec<String>);

impl CatalogueError {
    /// All in one line, for a log.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        told(&self.0, " | ")
    }
}

/// Faults one answer names; a file that is wrong throughout has one cause.
const MOST_FAULTS: usize = 20;

fn told(faults: &[String], between: &str) -> String {
    let text = faults.iter().take(MOST_FAULTS).map(String::as_str).collect::<Vec<_>>().join(between);
    match faults.len().saturating_sub(MOST_FAULTS) {
        0 => text,
        more => format!("{text}{between}and {more} more"),
    }
}

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
    /// [`CatalogueError`] says what is wrong, where, and how to mend it: the first fault of the form (TOML, keys and
    /// their kinds), or every fault of what it says.
    pub fn parse(toml: &str) -> Result<Self, CatalogueError> {
        parse::parse(toml)
    }

    /// The same from bytes, as a file has them.
    ///
    /// # Errors
    /// Those of [`Catalogue::parse`], and the place of the first byte that is not UTF-8.
    pub fn read(bytes: &[u8]) -> Result<Self, CatalogueError> {
        let toml = std::str::from_utf8(bytes).map_err(|error| {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let place = file::line_and_column(&before);
            CatalogueError(vec![format!("{place}: this is not UTF-8; save the file as UTF-8")])
        })?;
        Self::parse(toml)
    }

    /// Checks that this catalogue may take the place of `old` while the service runs: stored masks name types by bit, and
    /// events already accepted name them by name, so neither may come to mean something else.
    ///
    /// # Errors
    /// [`CatalogueError`] names each type that is gone or has another bit now.
    pub fn may_replace(&self, old: &Self) -> Result<(), CatalogueError> {
        let fault = |(name, before): (&String, &EventType)| match self.types.get(name) {
            None => Some(format!(
                "type {name} is gone; events of it may still be sent, so keep it until the service is restarted"
            )),
            Some(now) => (now.bit != before.bit).then(|| {
                format!(
                    "type {name} has bit {} and had {}; follows are stored by bit, so give it back bit {}",
                    now.bit, before.bit, before.bit
                )
            }),
        };
        let faults: Vec<String> = old.types.iter().filter_map(fault).collect();
        if faults.is_empty() { Ok(()) } else { Err(CatalogueError(faults)) }
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

#[cfg(test)]
mod tests;
