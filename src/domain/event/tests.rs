//! Owns the tests of events.
//! Must never know: how they are stored.
use super::*;
use proptest::prelude::*;
use serde_json::json;

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

#[test]
fn a_deadline_counts_from_when_it_happened_and_a_fast_clock_is_forgiven() {
    let event = goal();
    let t = event.occurred_ms;
    assert_eq!(event.deadline_ms(t), Ok(t + 120_000));
    assert_eq!(event.deadline_ms(t + 119_999), Ok(t + 120_000));
    assert_eq!(event.deadline_ms(t + 120_000), Err(DeadlineError::TooLate { late_s: 0, useful_for_s: 120 }));
    assert_eq!(event.deadline_ms(t + 125_900), Err(DeadlineError::TooLate { late_s: 5, useful_for_s: 120 }));
    assert_eq!(event.deadline_ms(t - 1), Ok(t - 1 + 120_000));
    assert_eq!(event.deadline_ms(t - MAX_AHEAD_MS), Ok(t - MAX_AHEAD_MS + 120_000));
    assert_eq!(event.deadline_ms(t - MAX_AHEAD_MS - 1), Err(DeadlineError::Future { ahead_s: 301 }));
}

#[test]
fn the_spelling_of_a_post_does_not_change_its_hash() {
    let same = with(|d| {
        d.occurred_at = "2026-11-30T16:03:12.000+01:00".into();
        d.subjects.reverse();
        d.subjects.push("team:ars".into());
        d.fields.insert("minute".into(), "67".into());
        d.useful_for_s = Some(120);
    });
    assert_eq!(same.unwrap().content_hash(), goal().content_hash());
}

#[test]
fn a_hash_does_not_depend_on_where_one_text_ends_and_the_next_begins() {
    let hash = |a: &str, b: &str| {
        let (a, b) = (json!(a), json!(b));
        with(|d| d.data = map(json!({"a": a, "b": b}))).unwrap().content_hash()
    };
    assert_ne!(hash("x\",\"b\":\"", "y"), hash("x", "\",\"b\":\"y"));
}

#[test]
fn a_stored_event_reads_back_as_it_was() {
    let event = goal();
    let back: Event = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
    assert_eq!(back, event);
    assert_eq!(back.content_hash(), event.content_hash());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn any_draft() -> impl Strategy<Value = EventDraft> {
    let key = prop_oneof![Just("home".to_owned()), Just("player".to_owned()), "[a-z_/~]{0,8}", ".{0,8}"];
    let members = proptest::collection::btree_map(key, any_json(), 0..8).boxed();
    let text = |known: &'static str| prop_oneof![Just(known.to_owned()), ".{0,20}"];
    (
        (text("evt-1"), text("goal"), text("4711"), text("2026-11-30T15:03:12Z")),
        proptest::collection::vec(text("team:ars"), 0..20),
        (members.clone(), members),
        proptest::option::of(any::<u32>()),
    )
        .prop_map(|((id, kind, match_id, occurred_at), subjects, (fields, data), useful_for_s)| EventDraft {
            supersedes: None,
            id,
            kind,
            match_id,
            occurred_at,
            subjects,
            fields,
            data,
            useful_for_s,
        })
}

/// One change that gives the example another meaning.
fn any_change() -> impl Strategy<Value = EventDraft> {
    let word = "[a-z0-9]{1,12}";
    (0_usize..8, word, 1_u32..5_000).prop_map(|(which, word, n)| {
        let mut d = goal_draft();
        match which {
            0 => d.id = format!("other-{word}"),
            1 => d.kind = "penalty_goal".into(),
            2 => d.match_id = format!("m-{word}"),
            3 => d.occurred_at = format!("2026-11-30T15:03:12.{:03}Z", 1 + n % 999),
            4 => d.subjects.push(format!("player:{word}")),
            5 => drop(d.fields.insert("player".into(), format!("Not {word}").into())),
            6 => drop(d.data.insert(word, n.into())),
            _ => d.useful_for_s = Some(120 + n),
        }
        d
    })
}

proptest! {
    #[test]
    fn any_draft_is_an_event_or_a_list_of_faults(draft in any_draft()) {
        let catalogue = catalogue();
        match Event::parse(draft, &catalogue) {
            Ok(event) => {
                let kind = catalogue.get(&event.kind).unwrap();
                prop_assert!(kind.required.iter().all(|f| !event.fields[f].trim().is_empty()));
                prop_assert!(event.subjects.is_sorted() && (1..=MAX_SUBJECTS).contains(&event.subjects.len()));
                for locale in kind.texts.keys() {
                    let _ = kind.render(locale, &event);
                }
                let _ = (event.content_hash(), kind.collapse_key(&event), event.deadline_ms(0));
            }
            Err(faults) => prop_assert!(!faults.is_empty() && faults.len() <= 100),
        }
    }

    #[test]
    fn another_meaning_has_another_hash(draft in any_change()) {
        prop_assert_ne!(parse(draft).unwrap().content_hash(), goal().content_hash());
    }

    #[test]
    fn a_deadline_is_ahead_and_no_further_than_the_usefulness(occurred_ms in any::<i64>(), now_ms in any::<i64>()) {
        let event = Event { occurred_ms, ..goal() };
        if let Ok(deadline) = event.deadline_ms(now_ms) {
            prop_assert!(deadline > now_ms && deadline <= now_ms.saturating_add(120_000));
        }
    }
}

#[test]
fn a_correction_names_another_event_and_a_mode_and_is_part_of_the_content() {
    let given = |event: &str, mode: &str| with(|d| d.supersedes = Some((event.to_owned(), mode.to_owned())));
    let correction = given("evt-8840", "retract").unwrap();
    let named = Supersedes { event_id: EventId::parse("evt-8840").unwrap(), mode: CorrectionMode::Retract };
    assert_eq!(correction.supersedes, Some(named));
    assert_ne!(correction.content_hash(), goal().content_hash());
    assert_ne!(correction.content_hash(), given("evt-8840", "replace").unwrap().content_hash());
    assert_eq!(serde_json::from_value::<Event>(json!(correction)).unwrap(), correction);
    let both: Vec<String> = given("evt-8841", "erase").unwrap_err().iter().map(ToString::to_string).collect();
    assert!(both[0].starts_with("/supersedes/event_id: is this event's own id"), "{both:?}");
    assert!(both[1].starts_with("/supersedes/mode: ") && both[1].ends_with("must be retract or replace"), "{both:?}");
    assert!(given("a b", "replace").unwrap_err()[0].to_string().starts_with("/supersedes/event_id"));
}

#[test]
fn the_hash_of_what_was_accepted_before_there_were_corrections_stays() {
    let hash: String = goal().content_hash().iter().map(|byte| format!("{byte:02x}")).collect();
    let Event { id, kind, match_id, occurred_ms, subjects, fields, data, useful_for_s, .. } = goal();
    let before = json!([id, kind, match_id, occurred_ms, subjects, fields, data, useful_for_s]).to_string();
    let want: String = Sha256::digest(before).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, want);
}

#[test]
fn the_same_news_is_what_people_read_and_who_reads_it() {
    let shown = ["player".to_owned()];
    let other = |change: fn(&mut EventDraft)| with(change).unwrap().news_hash(&shown) != goal().news_hash(&shown);
    assert!(!other(|d| drop(d.fields.insert("opta_id".into(), 68.into()))), "nobody reads it");
    assert!(other(|d| drop(d.fields.insert("player".into(), "Rice".into()))));
    assert!(!other(|d| d.id = "evt-other".into()) && !other(|d| d.occurred_at = "2026-11-30T15:03:40Z".into()));
    assert!(!other(|d| d.data.clear()) && !other(|d| d.useful_for_s = Some(60)));
    assert!(other(|d| d.match_id = "4712".into()) && other(|d| d.kind = "own_goal".into()));
    assert!(other(|d| drop(d.fields.insert("minute".into(), 68.into()))));
    assert!(other(|d| d.subjects = vec!["match:4711".into()]));
}
