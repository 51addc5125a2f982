//! Owns the shape of a send request: field names and types of the FCM v1 message, checked as proto-JSON.
//! Must never know: what the values mean.
//!
//! Written from the public reference of FCM, on purpose not from the product's message types: a field the product
//! misspells must fail here.

use serde_json::{Map, Value};

/// A field that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Path from the request, `message.data[0].value`.
    pub(super) field: String,
    /// For people, worded as Google words it.
    pub(super) text: String,
    /// Whether the body could not even be parsed: then there is no FcmError.
    pub(super) parse: bool,
}

enum Kind {
    Text,
    Flag,
    Number,
    Duration,
    Texts,
    Durations,
    StringMap,
    Free,
    OneOf(&'static [&'static str]),
    Object(&'static [Field]),
}

type Field = (&'static str, Kind);

use Kind::{Duration, Durations, Flag, Free, Number, Object, OneOf, StringMap, Text, Texts};

const REQUEST: &[Field] = &[("validate_only", Flag), ("message", Object(MESSAGE))];

const MESSAGE: &[Field] = &[
    ("name", Text),
    ("token", Text),
    ("fid", Text),
    ("topic", Text),
    ("condition", Text),
    ("data", StringMap),
    ("notification", Object(&[("title", Text), ("body", Text), ("image", Text)])),
    ("fcm_options", Object(LABEL)),
    ("android", Object(ANDROID)),
    ("apns", Object(APNS)),
    ("webpush", Object(WEBPUSH)),
];

const LABEL: &[Field] = &[("analytics_label", Text)];

const ANDROID: &[Field] = &[
    ("collapse_key", Text),
    ("priority", OneOf(&["NORMAL", "HIGH"])),
    ("ttl", Duration),
    ("restricted_package_name", Text),
    ("data", StringMap),
    ("notification", Object(ANDROID_NOTIFICATION)),
    ("fcm_options", Object(LABEL)),
    ("direct_boot_ok", Flag),
    ("bandwidth_constrained_ok", Flag),
    ("restricted_satellite_ok", Flag),
];

const ANDROID_NOTIFICATION: &[Field] = &[
    ("title", Text),
    ("body", Text),
    ("icon", Text),
    ("color", Text),
    ("sound", Text),
    ("tag", Text),
    ("click_action", Text),
    ("body_loc_key", Text),
    ("body_loc_args", Texts),
    ("title_loc_key", Text),
    ("title_loc_args", Texts),
    ("channel_id", Text),
    ("ticker", Text),
    ("sticky", Flag),
    ("event_time", Text),
    ("local_only", Flag),
    (
        "notification_priority",
        OneOf(&[
            "PRIORITY_UNSPECIFIED",
            "PRIORITY_MIN",
            "PRIORITY_LOW",
            "PRIORITY_DEFAULT",
            "PRIORITY_HIGH",
            "PRIORITY_MAX",
        ]),
    ),
    ("default_sound", Flag),
    ("default_vibrate_timings", Flag),
    ("default_light_settings", Flag),
    ("vibrate_timings", Durations),
    ("visibility", OneOf(&["VISIBILITY_UNSPECIFIED", "PRIVATE", "PUBLIC", "SECRET"])),
    ("notification_count", Number),
    ("light_settings", Free),
    ("image", Text),
    ("proxy", OneOf(&["PROXY_UNSPECIFIED", "ALLOW", "DENY", "IF_PRIORITY_LOWERED"])),
];

const APNS: &[Field] = &[
    ("headers", StringMap),
    ("payload", Free),
    ("fcm_options", Object(&[("analytics_label", Text), ("image", Text)])),
    ("live_activity_token", Text),
];

const WEBPUSH: &[Field] = &[
    ("headers", StringMap),
    ("data", StringMap),
    ("notification", Free),
    ("fcm_options", Object(&[("link", Text), ("analytics_label", Text)])),
];

/// Checks every field of the request.
pub(super) fn check(request: &Value) -> Result<(), Fault> {
    against(request, &Object(REQUEST))
}

/// The value of a field under either of its spellings.
pub(super) fn get<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let camel = || object.iter().find(|(key, _)| camel_case(name, key)).map(|(_, value)| value);
    object.get(name).or_else(camel).filter(|value| !value.is_null())
}

/// Whole seconds of a proto-JSON duration, `"3.5s"`; fractions are dropped.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let number = text.strip_suffix('s')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let plain = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    if plain { whole.parse().ok() } else { None }
}

fn against(value: &Value, kind: &Kind) -> Result<(), Fault> {
    let (fits, proto) = match kind {
        Object(fields) => return object(value, fields),
        StringMap => return string_map(value),
        Free => (value.is_object(), "type.googleapis.com/google.protobuf.Struct"),
        Text => (value.is_string(), "TYPE_STRING"),
        Flag => (value.is_boolean(), "TYPE_BOOL"),
        Number => (value.is_i64() || value.is_u64(), "TYPE_INT32"),
        Duration => (is_duration(value), "type.googleapis.com/google.protobuf.Duration"),
        Texts => (all(value, Value::is_string), "TYPE_STRING"),
        Durations => (all(value, is_duration), "type.googleapis.com/google.protobuf.Duration"),
        OneOf(names) => {
            let known = |text: &str| names.iter().any(|name| name.eq_ignore_ascii_case(text));
            (value.as_str().is_some_and(known), "TYPE_ENUM")
        }
    };
    // A null is an absent field.
    if fits || value.is_null() { Ok(()) } else { Err(wrong(value, proto)) }
}

fn is_duration(value: &Value) -> bool {
    value.as_str().and_then(seconds).is_some()
}

fn all(value: &Value, fits: impl Fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(fits))
}

fn object(value: &Value, fields: &[Field]) -> Result<(), Fault> {
    if value.is_null() {
        return Ok(());
    }
    let Some(map) = value.as_object() else { return Err(wrong(value, "TYPE_MESSAGE")) };
    for (key, inner) in map {
        let Some((name, kind)) = fields.iter().find(|(name, _)| spelt(name, key)) else {
            return Err(unknown(key));
        };
        against(inner, kind).map_err(|fault| fault.within(name))?;
    }
    Ok(())
}

fn string_map(value: &Value) -> Result<(), Fault> {
    if value.is_null() {
        return Ok(());
    }
    let Some(map) = value.as_object() else { return Err(wrong(value, "TYPE_MESSAGE")) };
    match map.values().enumerate().find(|(_, inner)| !inner.is_string()) {
        Some((at, inner)) => Err(wrong(inner, "TYPE_STRING").within(&format!("[{at}].value"))),
        None => Ok(()),
    }
}

/// Whether `key` is `name` in snake case or in camel case; proto-JSON takes both.
fn spelt(name: &str, key: &str) -> bool {
    name == key || camel_case(name, key)
}

fn camel_case(name: &str, key: &str) -> bool {
    // Nearly every key is out by its first letter, and this runs for each field of each request.
    if name.as_bytes().first() != key.as_bytes().first() || !name.contains('_') {
        return false;
    }
    let mut letters = key.chars();
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
            continue;
        }
        let want = if upper { c.to_ascii_uppercase() } else { c };
        upper = false;
        if letters.next() != Some(want) {
            return false;
        }
    }
    letters.next().is_none()
}

fn wrong(value: &Value, proto: &str) -> Fault {
    Fault { field: String::new(), text: format!("({proto}), {value}"), parse: true }
}

fn unknown(key: &str) -> Fault {
    Fault { field: String::new(), text: format!("Unknown name \"{key}\": Cannot find field."), parse: true }
}

impl Fault {
    fn within(mut self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(request: &Value) -> String {
        check(request).unwrap_err().field
    }

    #[test]
    fn both_spellings_of_a_whole_message_pass() {
        let request = json!({"validateOnly": false, "message": {
            "token": "t", "data": {"a": "1"}, "notification": {"title": "t", "body": null},
            "android": {"collapseKey": "k", "ttl": "3.5s", "priority": "high",
                "notification": {"channel_id": "goals", "titleLocArgs": ["a"], "vibrate_timings": ["1s"], "notification_count": 2}},
            "apns": {"headers": {"apns-priority": "10"}, "payload": {"aps": {"x": [1]}}, "live_activity_token": "l"},
            "webpush": {"headers": {"TTL": "5"}, "fcm_options": {"link": "https://example.org"}}}});
        assert_eq!(check(&request), Ok(()));
    }

    #[test]
    fn a_fault_is_named_by_its_path() {
        assert_eq!(field(&json!([])), "");
        assert_eq!(field(&json!({"message": {"tokn": "t"}})), "message");
        assert_eq!(field(&json!({"message": {"data": {"a": "1", "b": 2}}})), "message.data[1].value");
        assert_eq!(field(&json!({"message": {"android": {"ttl": "3600"}}})), "message.android.ttl");
        assert_eq!(field(&json!({"message": {"android": {"priority": "urgent"}}})), "message.android.priority");
        assert_eq!(field(&json!({"message": {"notification": {"title": 4}}})), "message.notification.title");
        assert_eq!(field(&json!({"message": {"android": {"collapse__key": "k"}}})), "message.android");
    }

    #[test]
    fn durations_drop_their_fraction() {
        assert_eq!([seconds("120s"), seconds("1.9s"), seconds("-3s")], [Some(120), Some(1), Some(-3)]);
        assert_eq!([seconds("120"), seconds("s"), seconds("1.s"), seconds("1.xs")], [None; 4]);
    }
}
