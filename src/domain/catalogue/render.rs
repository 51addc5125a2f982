//! Owns what a type makes of one event: the locale its reader gets, the text, the collapse key.
//! Must never know: platforms, or how a message is built.

use sha2::{Digest, Sha256};

use super::{EventType, Template, Text, TextTemplate};
use crate::domain::event::Event;
use crate::domain::ids::EventId;
use crate::domain::recipient::Locale;

/// Longest collapse key, in bytes: Apple's limit for `apns-collapse-id`.
pub const MAX_COLLAPSE_KEY_BYTES: usize = 64;

/// Digits of SHA-256, in hex, that end a collapse key which cannot be used as it is.
const HASH_DIGITS: usize = 16;

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
        let fill =
            |pick: fn(&TextTemplate) -> &Template| self.texts.get(locale).map(|t| pick(t).fill_for(event, locale));
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
        self.collapse_key_under(event, &event.id)
    }

    /// The same with the id of another event for `{event_id}`: that of the first one a chain of corrections began with, so
    /// that each of them replaces on the phone what it corrects.
    #[must_use]
    pub fn collapse_key_under(&self, event: &Event, id: &EventId) -> String {
        let key = match id == &event.id {
            true => self.collapse_key.fill(event),
            false => self.collapse_key.fill(&Event { id: id.clone(), ..event.clone() }),
        };
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
