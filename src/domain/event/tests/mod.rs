//! Owns the tests of events.
//! Must never know: how they are stored.
use super::*;
use proptest::prelude::*;
use serde_json::json;

mod content;
mod property;

fn catalogue() -> Catalogue {
    Catalogue::parse(crate::domain::catalogue::BUILT_IN).unwrap()
}

fn map(value: Value) -> BTreeMap<String, Value> {
    serde_json::from_value(value).unwrap()
}

/// The example of the design.
pub fn goal_draft() -> EventDraft {
    EventDraft {
        id: "evt-8841".into(),
        kind: "goal".into(),
        match_id: "4711".into(),
        occurred_at: "2026-11-30T15:03:12Z".into(),
        subjects: ["match:4711", "team:ars", "team:che"].map(String::from).into(),
        fields: map(json!({"home": "Arsenal", "away": "Chelsea", "score": "2-1", "minute": 67, "player": "Saka"})),
        data: map(json!({"deeplink": "app://match/4711"})),
        useful_for_s: None,
        supersedes: None,
    }
}

pub fn goal() -> Event {
    parse(goal_draft()).unwrap()
}

fn parse(draft: EventDraft) -> Result<Event, Vec<FieldError>> {
    Event::parse(draft, &catalogue())
}

fn with(change: impl FnOnce(&mut EventDraft)) -> Result<Event, Vec<FieldError>> {
    let mut draft = goal_draft();
    change(&mut draft);
    parse(draft)
}

/// The faults of a changed example, as `field: problem` lines.
fn faults(change: impl FnOnce(&mut EventDraft)) -> Vec<String> {
    with(change).unwrap_err().iter().map(ToString::to_string).collect()
}

fn one_fault(change: impl FnOnce(&mut EventDraft)) -> String {
    let found = faults(change);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

fn data(key: &str, value: Value) -> Result<Event, Vec<FieldError>> {
    with(|d| drop(d.data.insert(key.to_owned(), value)))
}

#[test]
fn the_example_of_the_design_is_an_event() {
    let event = goal();
    assert_eq!(event.occurred_ms, 1_796_050_992_000);
    assert_eq!(event.fields["minute"], "67");
    assert_eq!(event.useful_for_s, 120);
    assert_eq!(event.data["deeplink"], "app://match/4711");
}

#[test]
fn every_fault_is_named_at_once_by_pointer_and_in_order() {
    let found = faults(|d| {
        *d = EventDraft {
            id: String::new(),
            match_id: "a b".into(),
            occurred_at: "yesterday".into(),
            subjects: vec!["ars".into()],
            fields: map(json!({"home": null, "away": "", "score": "2-1", "minute": [67], "a/b~c": 1})),
            data: map(json!({"from": "x", "gone": null})),
            useful_for_s: Some(4),
            ..d.clone()
        };
    });
    let fields: Vec<_> = found.iter().map(|f| f.split_once(':').unwrap().0).collect();
    assert_eq!(
        fields,
        [
            "/id",
            "/match_id",
            "/occurred_at",
            "/subjects/0",
            "/fields/player",
            "/fields/a~1b~0c",
            "/fields/away",
            "/fields/home",
            "/fields/minute",
            "/data/from",
            "/data/gone",
            "/useful_for_s",
        ]
    );
}

#[test]
fn an_unknown_type_is_answered_with_the_one_that_was_meant_or_with_all() {
    assert_eq!(one_fault(|d| d.kind = "gaol".into()), "/type: unknown type \"gaol\"; did you mean goal?");
    let all = one_fault(|d| d.kind = "touchdown".into());
    assert!(all.contains("known are corner, extra_time, full_time, goal,"), "{all}");
}

#[test]
fn an_instant_needs_date_time_and_offset() {
    for raw in ["2026-11-30T15:03:12", "2026-11-30 15:03:12", "2026-11-30", "1796050992", "2026-13-30T15:03:12Z", ""] {
        assert!(one_fault(|d| d.occurred_at = raw.into()).contains("2026-11-30T15:03:12Z"), "{raw}");
    }
    let ms = |raw: &str| with(|d| d.occurred_at = raw.into()).unwrap().occurred_ms;
    assert_eq!(ms("2026-11-30T16:03:12.3459+01:00"), 1_796_050_992_345);
    assert_eq!(ms("1969-12-31T23:59:59.9995Z"), -1);
}

#[test]
fn subjects_are_checked_sorted_and_each_kept_once() {
    let event = with(|d| d.subjects = ["team:che", "match:4711", "team:che"].map(String::from).into()).unwrap();
    assert_eq!(event.subjects, ["match:4711", "team:che"]);
    assert!(one_fault(|d| d.subjects.clear()).contains("1 to 16"));
    assert!(one_fault(|d| d.subjects = (0..17).map(|i| format!("team:{i}")).collect()).contains("has 17"));
    assert_eq!(
        one_fault(|d| d.subjects[1] = "stadium:1".into()),
        "/subjects/1: \"stadium:1\" must be one of match, team, player, competition, then a colon and an id, like team:ars"
    );
}

#[test]
fn a_missing_or_blank_required_field_is_named() {
    let player = |d: &mut EventDraft, v: &str| drop(d.fields.insert("player".into(), v.into()));
    let missing = "/fields/player: is missing; goal needs home, away, score, minute, player";
    assert_eq!(one_fault(|d| drop(d.fields.remove("player"))), missing);
    assert!(one_fault(|d| player(d, " ")).starts_with("/fields/player: is empty"));
    assert!(with(|d| drop(d.fields.insert("assist".into(), "".into()))).is_ok());
}

#[test]
fn field_values_are_short_shown_text() {
    let player = |v: &str| {
        let v = v.to_owned();
        with(move |d| drop(d.fields.insert("player".into(), v.into())))
    };
    for good in ["Saka", "O'Neil \"{home}\" \\", "ساكا", "👩\u{200d}⚽", "می\u{200c}خواهم", &"x".repeat(256)]
    {
        assert_eq!(player(good).unwrap().fields["player"], good);
    }
    for bad in ["a\nb", "a\0", "\u{202e}akaS", "a\u{2066}b", "a\u{85}b", "a\u{2028}b", &"x".repeat(257)] {
        assert!(player(bad).is_err(), "{bad:?}");
    }
    let value = |v: Value| with(|d| drop(d.fields.insert("minute".into(), v))).map(|e| e.fields["minute"].clone());
    assert_eq!(value(json!(67.5)).unwrap(), "67.5");
    assert_eq!(value(json!(true)).unwrap(), "true");
    assert_eq!(value(json!(u64::MAX)).unwrap(), "18446744073709551615");
    for bad in [json!(null), json!([]), json!({})] {
        assert!(value(bad).is_err());
    }
    assert!(one_fault(|d| d.fields.extend((0..40).map(|i| (format!("f{i}"), json!(1))))).contains("has 45"));
}

#[test]
fn data_reaches_the_wire_as_strings() {
    let text = |v: Value| data("k", v).unwrap().data["k"].clone();
    assert_eq!(text(json!("")), "");
    assert_eq!(text(json!("a\nb")), "a\nb");
    assert_eq!(text(json!(1.0)), "1.0");
    assert_eq!(text(json!(-3)), "-3");
    assert_eq!(text(json!(false)), "false");
    let written = |json: &str| data("k", serde_json::from_str(json).unwrap()).map(|e| e.data["k"].clone());
    for (json, want) in [
        ("1", "1"),
        ("1.0", "1.0"),
        ("1.50", "1.5"),
        ("1e5", "100000.0"),
        ("-0.25", "-0.25"),
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        (r#"{"z":1,"a":[9007199254740993,{"y":2,"b":null}]}"#, r#"{"a":[9007199254740993,{"b":null,"y":2}],"z":1}"#),
    ] {
        assert_eq!(written(json).as_deref(), Ok(want), "{json}");
    }
    for json in ["18446744073709551616", "-9223372036854775809", "1e20", r#"{"a":[1e300]}"#] {
        assert!(written(json).unwrap_err()[0].problem.contains("write it as a string"), "{json}");
    }
    assert_eq!(text(json!({"b": [1, null], "a": "x"})), r#"{"a":"x","b":[1,null]}"#);
    assert_eq!(text(json!(["\0"])), "[\"\\u0000\"]");
    assert!(data("k", json!("a\0b")).is_err());
    assert!(data("k", json!(null)).is_err());
    for key in ["", "a\0", "a\nb", &"k".repeat(129)] {
        assert!(data(key, json!(1)).is_err(), "{key:?}");
    }
}

#[test]
fn reserved_keys_are_refused_by_name() {
    for key in [
        "from",
        "message_type",
        "collapse_key",
        "google.x",
        "google",
        "googles",
        "gcm.notification.title",
        "gcm",
        "event_id",
        "type",
        "match_id",
    ] {
        let found = data(key, json!("x")).unwrap_err();
        assert_eq!(found[0].field, format!("/data/{key}"));
        assert!(found[0].problem.contains("reserved"), "{key}");
    }
    assert!(data("From", json!("x")).is_ok());
    assert!(data("my.google.x", json!("x")).is_ok());
}

#[test]
fn data_as_a_whole_keeps_to_the_limit_of_fcm() {
    // deeplink + app://match/4711 = 24 bytes; own keys 20 + evt-8841, 4711, goal 16; key "k" 1.
    let room = MAX_DATA_BYTES - 24 - 36 - 1;
    assert!(data("k", json!("x".repeat(room))).is_ok());
    let found = data("k", json!("x".repeat(room + 3))).unwrap_err();
    assert_eq!(found[0].field, "/data");
    assert!(found[0].problem.starts_with("is 3 bytes over"), "{found:?}");
    let found = with(|d| d.data.extend((0..32).map(|i| (format!("k{i}"), json!(1))))).unwrap_err();
    assert!(found[0].problem.contains("has 33"), "{found:?}");
}

#[test]
fn usefulness_has_bounds() {
    for bad in [0, 4, 86_401, u32::MAX] {
        assert!(one_fault(|d| d.useful_for_s = Some(bad)).starts_with("/useful_for_s: is"), "{bad}");
    }
    for good in [5, 86_400] {
        assert_eq!(with(|d| d.useful_for_s = Some(good)).unwrap().useful_for_s, good);
    }
}

#[test]
fn lone_surrogates_do_not_get_past_the_json_reader() {
    assert!(serde_json::from_str::<Value>(r#""\ud83d""#).is_err());
    assert!(serde_json::from_str::<Value>(r#"{"\udc00":1}"#).is_err());
}
