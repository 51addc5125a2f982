//! Owns the tests of deadlines, and of the hash and the news of an event.
//! Must never know: anything outside the room.

use super::*;

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
