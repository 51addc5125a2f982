//! Owns what environments, shells and secret stores put around a key, and takes it off again.
//! Must never know: fields.
//!
//! One wrapping at a time, until a JSON object shows: quotes around the whole, backslashes before quotes and line
//! breaks, base64 in either alphabet. Real line breaks inside a JSON string, which a shell's `echo -e` or a template
//! makes out of `\n`, are put back.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::{CredentialsError, kinds};

/// Wrappings taken off: base64 of a quoted text with doubled escapes is three.
const DEEPEST: usize = 6;

/// Padding is often lost on the way, and the last bits of a decoder that is not ours need not be zero.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Finds the JSON object in a text.
///
/// # Errors
/// [`CredentialsError::Other`] for what is known to be something else, else [`CredentialsError::NotJson`].
pub(super) fn object(text: &str) -> Result<Map<String, Value>, CredentialsError> {
    let mut layer = trimmed(text).to_owned();
    let mut fault = None;
    for _ in 0..DEEPEST {
        if let Some(object) = as_object(&layer) {
            return Ok(object);
        }
        // The first that should have been the object is the one whose lines the reader can see.
        if layer.starts_with('{') {
            fault = fault.or_else(|| fault_line(&layer));
        }
        match unwrapped(&layer) {
            Some(inner) => layer = trimmed(&inner).to_owned(),
            None => break,
        }
    }
    if let Some(what) = kinds::of_text(&layer) {
        return Err(CredentialsError::Other { what });
    }
    Err(CredentialsError::NotJson { line: fault.or_else(|| fault_line(&layer)).unwrap_or(0) })
}

/// Where a text stops being JSON.
fn fault_line(text: &str) -> Option<usize> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).err().map(|error| error.line())
}

/// Without what does not show at either end: white space, byte order marks, the zero byte of a C string.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '\0'))
}

/// Base64 in either alphabet, with or without padding, in lines or in one.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    BASE64.decode(plain.replace('-', "+").replace('_', "/")).ok()
}

fn as_object(text: &str) -> Option<Map<String, Value>> {
    let parsed = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    text.starts_with('{').then(|| parsed(text).or_else(|| parsed(&breaks_escaped(text)))).flatten()
}

/// One wrapping less; `None` = there is none.
fn unwrapped(text: &str) -> Option<String> {
    if text.starts_with('{') || text.starts_with("\\n") {
        let plain = unescaped(text);
        return (plain != text).then_some(plain);
    }
    if let Ok(inner) = serde_json::from_str::<String>(text) {
        return Some(inner);
    }
    if let Some(inner) = unquoted(text) {
        return Some(inner.to_owned());
    }
    if let Some(inner) = text.strip_prefix("\\\"").and_then(|text| text.strip_suffix("\\\"")) {
        return Some(inner.to_owned());
    }
    from_base64(&text.replace("\\r", "").replace("\\n", "")).and_then(|bytes| String::from_utf8(bytes).ok())
}

/// Without the quotes around it.
pub(super) fn unquoted(text: &str) -> Option<&str> {
    let within = |quote| text.strip_prefix(quote).and_then(|text: &str| text.strip_suffix(quote));
    within('"').or_else(|| within('\'')).or_else(|| within('`'))
}

/// One backslash less before each character that has one.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('r')) => plain.push('\r'),
            ('\\', Some('t')) => plain.push('\t'),
            ('\\', Some(c @ ('\\' | '"' | '\'' | '/' | '{' | '}' | '$' | ':' | '='))) => plain.push(c),
            ('\\', Some(c)) => plain.extend(['\\', c]),
            (c, _) => plain.push(c),
        }
    }
    plain
}

/// With line breaks inside of JSON strings written as JSON wants them.
fn breaks_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let (mut inside, mut after_backslash) = (false, false);
    for c in text.chars() {
        match c {
            '\n' if inside => escaped.push_str("\\n"),
            '\r' if inside => {}
            '\t' if inside => escaped.push_str("\\t"),
            _ => escaped.push(c),
        }
        inside ^= c == '"' && !after_backslash;
        after_backslash = c == '\\' && !after_backslash;
    }
    escaped
}
