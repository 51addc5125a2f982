//! Owns the tests of what holds for any event.
//! Must never know: anything outside the room.

use super::*;

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
