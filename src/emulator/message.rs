//! Owns what the emulator reads out of a send request: target, collapse key, TTL, a hash of the content, and the
//! limits FCM sets on them.
//! Must never know: the answer.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::schema::{self, Fault};

/// FCM's limit on keys and values of `data` together, bytes.
const DATA_MAX: usize = 4096;
/// The same for topics.
const TOPIC_DATA_MAX: usize = 2048;
/// Four weeks, seconds: FCM's limit on `android.ttl`.
const TTL_MAX: i64 = 2_419_200;
/// The targets, of which a message has exactly one.
const TARGETS: [&str; 4] = ["token", "fid", "topic", "condition"];

/// What could be read of a request.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// Token, fid, topic or condition; empty when there is none.
    pub(super) target: String,
    /// Hash of everything but target and TTL: equal for two attempts of one delivery.
    pub(super) content: u64,
    /// Of the first platform that has one.
    pub(super) collapse_key: Option<String>,
    /// Seconds left, of the first platform that says.
    pub(super) ttl_s: Option<u32>,
    /// `validate_only`.
    pub(super) dry_run: bool,
    /// Why FCM would refuse it.
    pub(super) fault: Option<Fault>,
}

/// Reads a body; `now_s` is Unix time, for expiries that are given as a date.
pub(super) fn read(body: &[u8], now_s: i64) -> Message {
    let request: Value = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(fault) => return Message { fault: Some(not_json(&fault)), ..Message::default() },
    };
    let shape = schema::check(&request);
    let nothing = Map::new();
    let outer = request.as_object().unwrap_or(&nothing);
    let message = schema::get(outer, "message").and_then(Value::as_object).unwrap_or(&nothing);
    Message {
        target: target(message).to_owned(),
        content: content_hash(message),
        collapse_key: collapse_key(message).map(str::to_owned),
        ttl_s: ttl(message, now_s),
        dry_run: schema::get(outer, "validate_only").and_then(Value::as_bool).unwrap_or(false),
        fault: shape.and_then(|()| limits(message)).err(),
    }
}

fn not_json(fault: &serde_json::Error) -> Fault {
    Fault { field: String::new(), text: format!("Invalid JSON payload received. {fault}"), parse: true }
}

fn text<'a>(message: &'a Map<String, Value>, path: &[&str]) -> Option<&'a str> {
    let (last, outer) = path.split_last()?;
    let mut object = message;
    for name in outer {
        object = schema::get(object, name)?.as_object()?;
    }
    schema::get(object, last)?.as_str()
}

fn target(message: &Map<String, Value>) -> &str {
    TARGETS.iter().find_map(|name| text(message, &[name])).unwrap_or("")
}

fn collapse_key(message: &Map<String, Value>) -> Option<&str> {
    text(message, &["android", "collapse_key"])
        .or_else(|| text(message, &["apns", "headers", "apns-collapse-id"]))
        .or_else(|| text(message, &["webpush", "headers", "Topic"]))
}

fn ttl(message: &Map<String, Value>, now_s: i64) -> Option<u32> {
    let android = text(message, &["android", "ttl"]).and_then(schema::seconds);
    let web = || text(message, &["webpush", "headers", "TTL"])?.parse::<i64>().ok();
    let apns = || Some(text(message, &["apns", "headers", "apns-expiration"])?.parse::<i64>().ok()? - now_s);
    android.or_else(web).or_else(apns).map(|s| u32::try_from(s.max(0)).unwrap_or(u32::MAX))
}

/// What the schema cannot say.
fn limits(message: &Map<String, Value>) -> Result<(), Fault> {
    let targets = TARGETS.iter().filter(|name| schema::get(message, name).is_some()).count();
    if targets > 1 {
        let text = "Invalid value at 'message' (oneof), oneof field 'target' is already set.";
        return Err(Fault { field: "message".into(), text: text.into(), parse: true });
    }
    if target(message).is_empty() {
        return Err(refuse("message", "Recipient of the message is not set."));
    }
    if text(message, &["android", "ttl"]).and_then(schema::seconds).is_some_and(|s| !(0..=TTL_MAX).contains(&s)) {
        return Err(refuse("message.android.ttl", "Invalid TTL: must be between 0 and 2419200 seconds."));
    }
    let most = if text(message, &["topic"]).is_some() { TOPIC_DATA_MAX } else { DATA_MAX };
    data(message, "message.data", most)?;
    let android = schema::get(message, "android").and_then(Value::as_object);
    android.map_or(Ok(()), |android| data(android, "message.android.data", most))
}

fn data(outer: &Map<String, Value>, field: &str, most: usize) -> Result<(), Fault> {
    let Some(data) = schema::get(outer, "data").and_then(Value::as_object) else { return Ok(()) };
    if let Some(key) = data.keys().find(|key| reserved(key)) {
        return Err(refuse(field, &format!("Invalid data payload key: {key}")));
    }
    let size: usize = data.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > most { Err(refuse(field, "Message payload is too big.")) } else { Ok(()) }
}

/// The wording of the older reference, which is the stricter one.
fn reserved(key: &str) -> bool {
    key == "from" || key == "message_type" || key.starts_with("google") || key.starts_with("gcm")
}

fn refuse(field: &str, text: &str) -> Fault {
    Fault { field: field.into(), text: text.into(), parse: false }
}

fn content_hash(message: &Map<String, Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (key, value) in message.iter().filter(|(key, _)| !TARGETS.contains(&key.as_str())) {
        key.hash(&mut hasher);
        feed(value, &mut hasher);
    }
    hasher.finish()
}

fn feed(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter().filter(|(key, _)| !ages(key)) {
                key.hash(hasher);
                feed(inner, hasher);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| feed(item, hasher)),
        Value::String(text) => text.hash(hasher),
        plain => plain.to_string().hash(hasher),
    }
}

/// Fields that differ between two attempts of the same message because time went on.
fn ages(key: &str) -> bool {
    matches!(key, "ttl" | "TTL" | "apns-expiration")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(message: &Value) -> Message {
        read(json!({ "message": message }).to_string().as_bytes(), 1_000)
    }

    fn fault(message: &Value) -> (String, bool) {
        let fault = of(message).fault.expect("a fault");
        (fault.field, fault.parse)
    }

    #[test]
    fn a_retry_with_less_ttl_is_the_same_content_and_another_text_is_not() {
        let goal = |token: &str, ttl: &str, title: &str| {
            of(&json!({"token": token, "android": {"ttl": ttl}, "notification": {"title": title}})).content
        };
        assert_eq!(goal("a", "120s", "Goal"), goal("b", "119s", "Goal"));
        assert_ne!(goal("a", "120s", "Goal"), goal("a", "120s", "Corner"));
    }

    #[test]
    fn collapse_key_and_ttl_are_found_on_every_platform() {
        let read = |message: &Value| {
            let m = of(message);
            assert_eq!(m.fault, None);
            (m.collapse_key, m.ttl_s)
        };
        let want = (Some("k".to_owned()), Some(60));
        assert_eq!(read(&json!({"token": "t", "android": {"collapse_key": "k", "ttl": "60s"}})), want);
        let apns = json!({"apns-collapse-id": "k", "apns-expiration": "1060"});
        assert_eq!(read(&json!({"token": "t", "apns": {"headers": apns}})), want);
        assert_eq!(read(&json!({"token": "t", "webpush": {"headers": {"Topic": "k", "TTL": "60"}}})), want);
    }

    #[test]
    fn exactly_one_target() {
        assert_eq!(fault(&json!({})), ("message".into(), false));
        assert_eq!(fault(&json!({"token": ""})), ("message".into(), false));
        assert_eq!(fault(&json!({"token": "t", "topic": "u"})), ("message".into(), true));
        for target in TARGETS {
            assert_eq!(of(&json!({target: "x"})).target, "x");
        }
    }

    #[test]
    fn data_is_limited_to_the_byte() {
        let full = |n: usize| json!({"token": "t", "data": {"key": "v".repeat(n - 3)}});
        assert_eq!(of(&full(4096)).fault, None);
        assert_eq!(fault(&full(4097)), ("message.data".into(), false));
        let topic = json!({"topic": "t", "android": {"data": {"key": "v".repeat(2046)}}});
        assert_eq!(fault(&topic), ("message.android.data".into(), false));
        for key in ["from", "message_type", "google.x", "gcm.notification.y"] {
            assert_eq!(fault(&json!({"token": "t", "data": {key: "v"}})), ("message.data".into(), false));
        }
    }

    #[test]
    fn a_ttl_out_of_range_is_refused_by_meaning_and_no_ttl_at_all_by_parse() {
        assert_eq!(
            fault(&json!({"token": "t", "android": {"ttl": "2419201s"}})),
            ("message.android.ttl".into(), false)
        );
        assert_eq!(fault(&json!({"token": "t", "android": {"ttl": "-1s"}})), ("message.android.ttl".into(), false));
        assert_eq!(fault(&json!({"token": "t", "android": {"ttl": 60}})), ("message.android.ttl".into(), true));
    }

    #[test]
    fn what_is_no_json_is_a_fault_and_no_panic() {
        for body in [&b""[..], b"{", b"[]", b"null", b"\"x\"", b"\xff"] {
            assert!(read(body, 0).fault.is_some(), "{body:?}");
        }
    }
}
