//! Owns the reading of a draft: each rule of each field, and the words that say which was broken.
//! Must never know: what becomes of the event.

use std::collections::BTreeMap;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{
    CorrectionMode, Event, EventDraft, FieldError, MAX_DATA_BYTES, MAX_DATA_KEYS, MAX_FIELD_BYTES, MAX_FIELDS,
    MAX_SUBJECTS, OWN_DATA_KEYS, Supersedes, USEFUL_RANGE_S,
};
use crate::domain::catalogue::{Catalogue, EventType, is_field_name};
use crate::domain::ids::{EventId, MatchId};
use crate::domain::subject;
use crate::domain::text::{is_unshowable, quote};

/// Longest key in `data`, in bytes.
const MAX_DATA_KEY_BYTES: usize = 128;

/// All faults found so far.
#[derive(Default)]
struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, problem: impl ToString) {
        self.0.push(FieldError { field: field.into(), problem: problem.to_string() });
    }

    fn note<T, E: ToString>(&mut self, field: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|problem| self.add(field, problem)).ok()
    }
}

pub(super) fn parse(draft: EventDraft, catalogue: &Catalogue) -> Result<Event, Vec<FieldError>> {
    let mut faults = Faults::default();
    let id = faults.note("/id", EventId::parse(&draft.id));
    let kind = faults.note("/type", catalogue.known(&draft.kind));
    let match_id = faults.note("/match_id", MatchId::parse(&draft.match_id));
    let occurred_ms = faults.note("/occurred_at", instant_ms(&draft.occurred_at));
    let subjects = subjects(draft.subjects, &mut faults);
    let fields = fields(draft.fields, kind, &mut faults);
    let own_bytes = OWN_DATA_KEYS.map(str::len).iter().sum::<usize>()
        + [&draft.id, &draft.match_id, &draft.kind].map(String::len).iter().sum::<usize>();
    let data = data(draft.data, own_bytes, &mut faults);
    let useful_for_s = useful_for_s(draft.useful_for_s, kind, &mut faults);
    let supersedes = draft.supersedes.and_then(|given| supersedes(given, &draft.id, &mut faults));
    match (id, kind, match_id, occurred_ms, useful_for_s) {
        (Some(id), Some(kind), Some(match_id), Some(occurred_ms), Some(useful_for_s)) if faults.0.is_empty() => {
            let kind = kind.name.clone();
            Ok(Event { id, kind, match_id, occurred_ms, subjects, fields, data, useful_for_s, supersedes })
        }
        _ => Err(faults.0),
    }
}

fn instant_ms(raw: &str) -> Result<i64, String> {
    let instant = OffsetDateTime::parse(raw, &Rfc3339).ok();
    let ms = instant.and_then(|t| i64::try_from(t.unix_timestamp_nanos().div_euclid(1_000_000)).ok());
    ms.ok_or_else(|| {
        format!("{} is not RFC 3339; write date, time and offset like 2026-11-30T15:03:12Z or ...+01:00", quote(raw))
    })
}

fn subjects(mut raw: Vec<String>, faults: &mut Faults) -> Vec<String> {
    if raw.is_empty() || raw.len() > MAX_SUBJECTS {
        faults.add("/subjects", format!("must have 1 to {MAX_SUBJECTS} entries, this one has {}", raw.len()));
        return Vec::new();
    }
    for (i, subject) in raw.iter().enumerate() {
        if let Err(e) = subject::check(subject) {
            faults.add(format!("/subjects/{i}"), format!("{} {e}", quote(subject)));
        }
    }
    raw.sort_unstable();
    raw.dedup();
    raw
}

fn fields(raw: BTreeMap<String, Value>, kind: Option<&EventType>, faults: &mut Faults) -> BTreeMap<String, String> {
    if raw.len() > MAX_FIELDS {
        faults.add("/fields", format!("must have at most {MAX_FIELDS} entries, this one has {}", raw.len()));
        return BTreeMap::new();
    }
    let missing = |name: &&String| !raw.contains_key(*name);
    if let Some(kind) = kind {
        for name in kind.required.iter().filter(missing) {
            let problem = format!("is missing; {} needs {}", kind.name, kind.required.join(", "));
            faults.add(pointer("fields", name), problem);
        }
    }
    let required = |name: &String| kind.is_some_and(|k| k.required.contains(name));
    let mut fields = BTreeMap::new();
    for (name, value) in raw {
        match field_text(&name, value, required(&name)) {
            Ok(text) => drop(fields.insert(name, text)),
            Err(problem) => faults.add(pointer("fields", &name), problem),
        }
    }
    fields
}

fn field_text(name: &str, value: Value, required: bool) -> Result<String, String> {
    if !is_field_name(name) {
        return Err("a field is named with 1 to 64 letters, digits and _".to_owned());
    }
    let text = match value {
        Value::Null | Value::Array(_) | Value::Object(_) => {
            return Err(format!("is {}; give a string, a number or a boolean", json_word(&value)));
        }
        other => plain_text(other)?,
    };
    if required && text.trim().is_empty() {
        return Err("is empty; the texts of this type need it".to_owned());
    }
    if text.len() > MAX_FIELD_BYTES {
        return Err(format!("must be at most {MAX_FIELD_BYTES} bytes, this one has {}", text.len()));
    }
    match text.chars().find(|c| is_unshowable(*c)) {
        Some(c) => Err(format!("must not contain the control or direction character {c:?}; take it out")),
        None => Ok(text),
    }
}

fn data(raw: BTreeMap<String, Value>, own_bytes: usize, faults: &mut Faults) -> BTreeMap<String, String> {
    if raw.len() > MAX_DATA_KEYS {
        faults.add("/data", format!("must have at most {MAX_DATA_KEYS} entries, this one has {}", raw.len()));
        return BTreeMap::new();
    }
    let mut data = BTreeMap::new();
    for (key, value) in raw {
        match data_text(&key, value) {
            Ok(text) => drop(data.insert(key, text)),
            Err(problem) => faults.add(pointer("data", &key), problem),
        }
    }
    let bytes = own_bytes + data.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    if bytes > MAX_DATA_BYTES {
        let over = bytes - MAX_DATA_BYTES;
        let problem = format!(
            "is {over} bytes over FCM's limit of {MAX_DATA_BYTES}, keys and values counted, with {own_bytes} bytes of \
             event_id, match_id and type; send less and let the app fetch the rest"
        );
        faults.add("/data", problem);
    }
    data
}

fn data_text(key: &str, value: Value) -> Result<String, String> {
    if key.is_empty() || key.len() > MAX_DATA_KEY_BYTES || key.chars().any(char::is_control) {
        return Err(format!("a key must be 1 to {MAX_DATA_KEY_BYTES} bytes without control characters"));
    }
    if let Some(owner) = reserved_for(key) {
        return Err(format!("this key is reserved for {owner}; give it another name"));
    }
    match value {
        Value::Null => Err("is null, which a push message cannot carry; leave the key out".to_owned()),
        Value::String(text) if text.contains('\0') => Err("must not contain NUL (\\u0000); take it out".to_owned()),
        other => plain_text(other),
    }
}

/// Who owns a key of `data` that callers may not use. Both wordings of Google's rule are kept: the newer names the
/// prefixes `google.` and `gcm.notification.`, the older everything that starts with `google` or `gcm`.
fn reserved_for(key: &str) -> Option<&'static str> {
    if OWN_DATA_KEYS.contains(&key) {
        return Some("Fanfare, which sets it in every message");
    }
    let fcm =
        matches!(key, "from" | "message_type" | "collapse_key") || key.starts_with("google") || key.starts_with("gcm");
    fcm.then_some("FCM")
}

fn useful_for_s(raw: Option<u32>, kind: Option<&EventType>, faults: &mut Faults) -> Option<u32> {
    let seconds = raw.or(kind.map(|k| k.useful_for_s))?;
    if !USEFUL_RANGE_S.contains(&seconds) {
        let (from, to) = (USEFUL_RANGE_S.start(), USEFUL_RANGE_S.end());
        faults.add("/useful_for_s", format!("is {seconds} and must be {from} to {to} seconds"));
        return None;
    }
    Some(seconds)
}

fn supersedes((event_id, mode): (String, String), own_id: &str, faults: &mut Faults) -> Option<Supersedes> {
    let names = CorrectionMode::ALL.iter().map(|mode| mode.as_str()).collect::<Vec<_>>().join(" or ");
    let known = CorrectionMode::ALL.iter().copied().find(|known| known.as_str() == mode);
    let event_id = if event_id == own_id {
        faults.add("/supersedes/event_id", "is this event's own id; name the one it corrects");
        None
    } else {
        faults.note("/supersedes/event_id", EventId::parse(&event_id))
    };
    let mode = faults.note("/supersedes/mode", known.ok_or_else(|| format!("{} must be {names}", quote(&mode))));
    Some(Supersedes { event_id: event_id?, mode: mode? })
}

/// A string as it is, anything else as JSON writes it.
fn plain_text(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        other if loses_digits(&other) => {
            Err("has a number too large to keep all its digits; write it as a string".to_owned())
        }
        other => Ok(other.to_string()),
    }
}

/// Whole numbers are kept to the last digit as far as 64 bits reach. Beyond that JSON's reader has a float, whose digits
/// are its own from 2^53 on: a caller's id must not arrive as another one.
fn loses_digits(value: &Value) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(n) => n.is_f64() && n.as_f64().is_none_or(|f| f.abs() >= EXACT),
        Value::Array(items) => items.iter().any(loses_digits),
        Value::Object(members) => members.values().any(loses_digits),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

const fn json_word(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
        _ => "null",
    }
}

/// JSON pointer (RFC 6901) of a member; a hostile name is shortened, not repeated at length.
fn pointer(parent: &str, name: &str) -> String {
    let shown: String = name.chars().take(MAX_DATA_KEY_BYTES).collect();
    format!("/{parent}/{}", shown.replace('~', "~0").replace('/', "~1"))
}
