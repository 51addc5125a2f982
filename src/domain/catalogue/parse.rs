//! Owns every rule a type of a types file must meet, each fault with its fix.
//! Must never know: where the file lies.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml::Spanned;

use super::file::{Fault, Faults, Place, RawFile, RawType};
use super::template::{BUILT_IN_PLACEHOLDERS, Template, is_field_name};
use super::{Catalogue, CatalogueError, EventType, MAX_COLLAPSE_KEY_BYTES, TextTemplate};
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

pub(super) fn parse(source: &str) -> Result<Catalogue, CatalogueError> {
    // Some editors put a mark in front of UTF-8; it is no part of the text.
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let place = Place::in_file(source);
    let mut faults = Faults::default();
    let file: RawFile = match toml::from_str(source) {
        Ok(file) => file,
        Err(e) => {
            let at = e.span().unwrap_or(0..0);
            faults.add(place.of_type(type_around(source, at.start)).fault(at, e.message()));
            return Err(CatalogueError(faults.told()));
        }
    };
    let default_locale = faults.note(locale(place, &file.default_locale));
    if file.types.is_empty() {
        faults.add(place.fault(0..0, "there is no type; add one as [types.goal]"));
    }
    let mut types = BTreeMap::new();
    for (key, raw) in &file.types {
        faults.note(type_name(place, key));
        if let Some(kind) = event_type(place.of_type(key.get_ref()), (key, raw), default_locale.as_deref(), &mut faults)
        {
            types.insert(kind.name.clone(), kind);
        }
    }
    distinct_bits(place, &file, &mut faults);
    match (default_locale, faults.told()) {
        (Some(default_locale), told) if told.is_empty() => Ok(Catalogue { types, default_locale }),
        (_, told) => Err(CatalogueError(told)),
    }
}

/// The type whose table a place is in, as far as a file that could not be read tells: by the header above it.
fn type_around(source: &str, at: usize) -> &str {
    let line_end = source.get(at..).and_then(|rest| rest.find('\n')).map_or(source.len(), |more| at + more);
    let header = source[..line_end].lines().rev().find_map(|line| line.trim().strip_prefix("[types."));
    header.and_then(|rest| rest.strip_suffix(']')).unwrap_or_default()
}

fn distinct_bits(place: Place<'_>, file: &RawFile, faults: &mut Faults) {
    let mut owners = BTreeMap::new();
    for (key, raw) in &file.types {
        if let Some(other) = owners.insert(*raw.bit.get_ref(), key.get_ref()) {
            let problem = format!("bit {} belongs to type {other} already; take one that is free", raw.bit.get_ref());
            faults.add(place.of_type(key.get_ref()).fault(raw.bit.span(), problem));
        }
    }
}

fn type_name(place: Place<'_>, key: &Spanned<String>) -> Result<(), Fault> {
    let name = key.get_ref();
    if is_field_name(name) && !name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Ok(());
    }
    let problem = format!("{} names no type; use 1 to 64 lower-case letters, digits and _", quote(name));
    Err(place.fault(key.span(), problem))
}

/// Looks at everything before it gives up, so that one reading tells all.
fn event_type(
    place: Place<'_>,
    (key, raw): (&Spanned<String>, &RawType),
    default_locale: Option<&str>,
    faults: &mut Faults,
) -> Option<EventType> {
    let required = required_fields(place, &raw.required, faults);
    let texts = texts(place, raw, &required, faults);
    if let Some(locale) = default_locale.filter(|locale| !texts.keys().any(|known| known == locale)) {
        let problem = format!("the text for default_locale {locale} is missing; add text.{locale}");
        faults.add(place.fault(key.span(), problem));
    }
    let bit = faults.note(number(place, &raw.bit, "bit", 0..=MAX_BIT));
    let class = faults.note(class(place, &raw.class));
    let useful_for_s = faults.note(number(place, &raw.useful_for_s, "useful_for_s", useful_range()));
    let channel = faults.note(short_name(place, &raw.channel, "channel"));
    let sound = faults.note(short_name(place, &raw.sound, "sound"));
    let collapse_key = faults.note(collapse_key(place, &raw.collapse_key, &required));
    let texts = texts.into_iter().map(|(tag, text)| text.map(|text| (tag, text))).collect::<Option<_>>();
    Some(EventType {
        name: key.get_ref().clone(),
        bit: bit?,
        class: class?,
        useful_for_s: useful_for_s?,
        channel: channel?,
        sound: sound?,
        high_priority: raw.high_priority,
        collapse_key: collapse_key?,
        required,
        texts: texts?,
    })
}

fn useful_range() -> RangeInclusive<i64> {
    i64::from(*USEFUL_RANGE_S.start())..=i64::from(*USEFUL_RANGE_S.end())
}

fn number<T: TryFrom<i64>>(
    place: Place<'_>,
    raw: &Spanned<i64>,
    what: &str,
    range: RangeInclusive<i64>,
) -> Result<T, Fault> {
    let value = *raw.get_ref();
    let fits = range.contains(&value).then(|| T::try_from(value).ok()).flatten();
    fits.ok_or_else(|| {
        place.fault(raw.span(), format!("{what} is {value} and must be {} to {}", range.start(), range.end()))
    })
}

fn class(place: Place<'_>, raw: &Spanned<String>) -> Result<Class, Fault> {
    let found = Class::ALL.iter().find(|c| c.as_str() == raw.get_ref());
    found.copied().ok_or_else(|| {
        let problem = format!("class {} is unknown; write urgent, normal or bulk", quote(raw.get_ref()));
        place.fault(raw.span(), problem)
    })
}

fn short_name(place: Place<'_>, raw: &Spanned<String>, what: &str) -> Result<String, Fault> {
    let name = raw.get_ref();
    let fits = !name.trim().is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(is_unshowable);
    fits.then(|| name.clone())
        .ok_or_else(|| place.fault(raw.span(), format!("{what} must be 1 to {MAX_NAME_BYTES} visible bytes")))
}

fn locale(place: Place<'_>, raw: &Spanned<String>) -> Result<String, Fault> {
    let tag = Locale::parse(raw.get_ref()).ok_or_else(|| {
        place.fault(raw.span(), format!("{} is no locale; write it like en or pt-BR", quote(raw.get_ref())))
    })?;
    Ok(tag.as_str().to_owned())
}

/// A name stays in the list when it is at fault, or every text that uses it would be told off as well.
fn required_fields(place: Place<'_>, raw: &[Spanned<String>], faults: &mut Faults) -> Vec<String> {
    let mut fields: Vec<String> = Vec::new();
    for field in raw {
        let name = field.get_ref();
        let problem = if !is_field_name(name) {
            Some(format!("required field {} must be 1 to 64 letters, digits and _", quote(name)))
        } else if BUILT_IN_PLACEHOLDERS.contains(&name.as_str()) {
            Some(format!("{name} is known of every event; take it out of required"))
        } else if fields.contains(name) {
            Some(format!("required names {name} twice; once is enough"))
        } else {
            (fields.len() == MAX_REQUIRED).then(|| format!("at most {MAX_REQUIRED} fields can be required"))
        };
        if let Some(problem) = problem {
            faults.add(place.fault(field.span(), problem));
        }
        fields.push(name.clone());
    }
    fields
}

/// By locale; `None` where a text is at fault.
fn texts(
    place: Place<'_>,
    raw: &RawType,
    required: &[String],
    faults: &mut Faults,
) -> BTreeMap<String, Option<TextTemplate>> {
    let mut texts: BTreeMap<String, Option<TextTemplate>> = BTreeMap::new();
    for (key, text) in &raw.text {
        let Some(tag) = faults.note(locale(place, key)) else { continue };
        let place = place.of_locale(key.get_ref());
        if texts.keys().any(|known| known.eq_ignore_ascii_case(&tag)) {
            faults.add(place.fault(key.span(), "this locale is there in another spelling; keep one of them"));
        }
        let title = faults.note(template(place, &text.title, required));
        let body = faults.note(template(place, &text.body, required));
        texts.insert(tag, title.zip(body).map(|(title, body)| TextTemplate { title, body }));
    }
    texts
}

fn template(place: Place<'_>, raw: &Spanned<String>, required: &[String]) -> Result<Template, Fault> {
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

fn collapse_key(place: Place<'_>, raw: &Spanned<String>, required: &[String]) -> Result<Template, Fault> {
    if raw.get_ref().len() > MAX_COLLAPSE_KEY_BYTES {
        let problem = format!(
            "collapse_key has {} bytes and may have {MAX_COLLAPSE_KEY_BYTES}, which is what a phone takes; shorten it",
            raw.get_ref().len()
        );
        return Err(place.fault(raw.span(), problem));
    }
    let template = template(place, raw, required)?;
    if template.placeholders().any(|name| name == "event_id" || name == "match_id") {
        return Ok(template);
    }
    let problem = "collapse_key must contain {event_id} or {match_id}, or matches would hide each other's messages";
    Err(place.fault(raw.span(), problem))
}
