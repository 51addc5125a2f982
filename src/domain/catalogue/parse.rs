//! Owns the reading of a types file: its shape, and every rule a type must meet, each fault with line, type and locale.
//! Must never know: where the file lies.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::template::{BUILT_IN_PLACEHOLDERS, Template, is_field_name};
use super::{Catalogue, CatalogueError, EventType, TextTemplate};
use crate::domain::batch::Class;
use crate::domain::event::USEFUL_RANGE_S;
use crate::domain::recipient::Locale;
use crate::domain::text::{is_unshowable, nearest, quote};

/// Highest bit of a type: 62 and the sign bit stay free in a stored mask.
const MAX_BIT: i64 = 61;
/// Longest channel and sound, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Longest title and body before filling, in bytes.
const MAX_TEMPLATE_BYTES: usize = 512;
/// Most fields a type may require.
const MAX_REQUIRED: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    default_locale: Spanned<String>,
    types: BTreeMap<Spanned<String>, RawType>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawType {
    bit: Spanned<i64>,
    class: Spanned<String>,
    useful_for_s: Spanned<i64>,
    channel: Spanned<String>,
    sound: Spanned<String>,
    high_priority: bool,
    collapse_key: Spanned<String>,
    required: Vec<Spanned<String>>,
    text: BTreeMap<Spanned<String>, RawText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawText {
    title: Spanned<String>,
    body: Spanned<String>,
}

/// Where in the file the reader is; makes the errors.
#[derive(Clone, Copy)]
struct Place<'a> {
    source: &'a str,
    kind: &'a str,
    locale: &'a str,
}

impl<'a> Place<'a> {
    fn fault(&self, at: Range<usize>, problem: impl Display) -> CatalogueError {
        let before = self.source.get(..at.start).unwrap_or(self.source);
        let mut place = format!("line {}", before.matches('\n').count() + 1);
        for (word, name) in [("type", self.kind), ("locale", self.locale)] {
            if !name.is_empty() {
                place.push_str(&format!(", {word} {name}"));
            }
        }
        CatalogueError(format!("{place}: {problem}"))
    }

    fn of_type(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    fn of_locale(self, locale: &'a str) -> Self {
        Self { locale, ..self }
    }
}

pub(super) fn parse(source: &str) -> Result<Catalogue, CatalogueError> {
    let place = Place { source, kind: "", locale: "" };
    let file: RawFile = toml::from_str(source).map_err(|e| place.fault(e.span().unwrap_or(0..0), e.message()))?;
    let default_locale = locale(place, &file.default_locale)?;
    if file.types.is_empty() {
        return Err(place.fault(0..0, "there is no type; add one as [types.goal]"));
    }
    let mut types = BTreeMap::new();
    let mut bits = BTreeMap::new();
    for (key, raw) in &file.types {
        type_name(place, key)?;
        let place = place.of_type(key.get_ref());
        let kind = event_type(place, key, raw, &default_locale)?;
        if let Some(other) = bits.insert(kind.bit, key.get_ref()) {
            let problem = format!("bit {} belongs to type {other} already; take one that is free", kind.bit);
            return Err(place.fault(raw.bit.span(), problem));
        }
        types.insert(kind.name.clone(), kind);
    }
    Ok(Catalogue { types, default_locale })
}

fn type_name(place: Place<'_>, key: &Spanned<String>) -> Result<(), CatalogueError> {
    let name = key.get_ref();
    if is_field_name(name) && !name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Ok(());
    }
    let problem = format!("{} names no type; use 1 to 64 lower-case letters, digits and _", quote(name));
    Err(place.fault(key.span(), problem))
}

fn event_type(
    place: Place<'_>,
    key: &Spanned<String>,
    raw: &RawType,
    default_locale: &str,
) -> Result<EventType, CatalogueError> {
    let required = required_fields(place, &raw.required)?;
    let texts = texts(place, raw, &required)?;
    if !texts.contains_key(default_locale) {
        let problem = format!("the text for default_locale {default_locale} is missing; add text.{default_locale}");
        return Err(place.fault(key.span(), problem));
    }
    Ok(EventType {
        name: key.get_ref().clone(),
        bit: number(place, &raw.bit, "bit", 0..=MAX_BIT)?,
        class: class(place, &raw.class)?,
        useful_for_s: number(place, &raw.useful_for_s, "useful_for_s", useful_range())?,
        channel: short_name(place, &raw.channel, "channel")?,
        sound: short_name(place, &raw.sound, "sound")?,
        high_priority: raw.high_priority,
        collapse_key: collapse_key(place, &raw.collapse_key, &required)?,
        required,
        texts,
    })
}

fn useful_range() -> std::ops::RangeInclusive<i64> {
    i64::from(*USEFUL_RANGE_S.start())..=i64::from(*USEFUL_RANGE_S.end())
}

fn number<T: TryFrom<i64>>(
    place: Place<'_>,
    raw: &Spanned<i64>,
    what: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<T, CatalogueError> {
    let value = *raw.get_ref();
    let fits = range.contains(&value).then(|| T::try_from(value).ok()).flatten();
    fits.ok_or_else(|| {
        place.fault(raw.span(), format!("{what} is {value} and must be {} to {}", range.start(), range.end()))
    })
}

fn class(place: Place<'_>, raw: &Spanned<String>) -> Result<Class, CatalogueError> {
    let found = Class::ALL.iter().find(|c| c.as_str() == raw.get_ref());
    found.copied().ok_or_else(|| {
        let problem = format!("class {} is unknown; write urgent, normal or bulk", quote(raw.get_ref()));
        place.fault(raw.span(), problem)
    })
}

fn short_name(place: Place<'_>, raw: &Spanned<String>, what: &str) -> Result<String, CatalogueError> {
    let name = raw.get_ref();
    let fits = !name.trim().is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(is_unshowable);
    fits.then(|| name.clone())
        .ok_or_else(|| place.fault(raw.span(), format!("{what} must be 1 to {MAX_NAME_BYTES} visible bytes")))
}

fn locale(place: Place<'_>, raw: &Spanned<String>) -> Result<String, CatalogueError> {
    let tag = Locale::parse(raw.get_ref()).ok_or_else(|| {
        place.fault(raw.span(), format!("{} is no locale; write it like en or pt-BR", quote(raw.get_ref())))
    })?;
    Ok(tag.as_str().to_owned())
}

fn required_fields(place: Place<'_>, raw: &[Spanned<String>]) -> Result<Vec<String>, CatalogueError> {
    let mut fields: Vec<String> = Vec::new();
    for field in raw {
        let name = field.get_ref();
        let problem = if !is_field_name(name) {
            format!("required field {} must be 1 to 64 letters, digits and _", quote(name))
        } else if BUILT_IN_PLACEHOLDERS.contains(&name.as_str()) {
            format!("{name} is known of every event; take it out of required")
        } else if fields.contains(name) {
            format!("required names {name} twice; once is enough")
        } else if fields.len() == MAX_REQUIRED {
            format!("at most {MAX_REQUIRED} fields can be required")
        } else {
            fields.push(name.clone());
            continue;
        };
        return Err(place.fault(field.span(), problem));
    }
    Ok(fields)
}

fn texts(
    place: Place<'_>,
    raw: &RawType,
    required: &[String],
) -> Result<BTreeMap<String, TextTemplate>, CatalogueError> {
    let mut texts: BTreeMap<String, TextTemplate> = BTreeMap::new();
    for (key, text) in &raw.text {
        let tag = locale(place, key)?;
        let place = place.of_locale(key.get_ref());
        if texts.keys().any(|known| known.eq_ignore_ascii_case(&tag)) {
            return Err(place.fault(key.span(), "this locale is there in another spelling; keep one of them"));
        }
        let title = template(place, &text.title, required)?;
        let body = template(place, &text.body, required)?;
        texts.insert(tag, TextTemplate { title, body });
    }
    Ok(texts)
}

fn template(place: Place<'_>, raw: &Spanned<String>, required: &[String]) -> Result<Template, CatalogueError> {
    let text = raw.get_ref();
    let fault = |problem: String| place.fault(raw.span(), problem);
    if text.trim().is_empty() || text.len() > MAX_TEMPLATE_BYTES {
        return Err(fault(format!("a text must have 1 to {MAX_TEMPLATE_BYTES} bytes, this one has {}", text.len())));
    }
    if let Some(c) = text.chars().find(|c| is_unshowable(*c)) {
        return Err(fault(format!("a text must not contain {c:?}; take it out")));
    }
    let template = Template::parse(text).map_err(|e| fault(e.to_string()))?;
    let known = || required.iter().map(String::as_str).chain(BUILT_IN_PLACEHOLDERS);
    for name in template.placeholders() {
        if !known().any(|k| k == name) {
            let hint = nearest(name, known()).map(|k| format!(", did you mean {{{k}}}?")).unwrap_or_default();
            return Err(fault(format!("{{{name}}} is not a required field; add it to required{hint}")));
        }
    }
    Ok(template)
}

fn collapse_key(place: Place<'_>, raw: &Spanned<String>, required: &[String]) -> Result<Template, CatalogueError> {
    let template = template(place, raw, required)?;
    if template.placeholders().any(|name| name == "event_id" || name == "match_id") {
        return Ok(template);
    }
    let problem = "collapse_key must contain {event_id} or {match_id}, or matches would hide each other's messages";
    Err(place.fault(raw.span(), problem))
}
