//! Owns the tests of the catalogue.
//! Must never know: how it is stored.
use super::*;
use crate::domain::event::Event;
use crate::domain::event::tests::{goal, goal_draft};
use crate::domain::recipient::Locale;
use crate::domain::text::is_unshowable;
use proptest::prelude::*;

const TYPES: &str = "lineups kick_off goal own_goal penalty_goal penalty_awarded penalty_missed goal_disallowed \
    var_review var_decision yellow_card second_yellow_card red_card substitution corner injury half_time second_half \
    extra_time penalty_shootout full_time";

const SMALL: &str = r#"default_locale = "en"

[types.goal]
bit = 2
class = "urgent"
useful_for_s = 120
channel = "goals"
sound = "default"
high_priority = true
collapse_key = "{event_id}"
required = ["home", "score"]
text.en = { title = "GOAL! {home}", body = "{score}" }
text.pt-BR = { title = "GOL! {home}", body = "{score}" }
"#;

fn built_in() -> Catalogue {
    Catalogue::parse(BUILT_IN).unwrap()
}

/// The message for the small file with one part replaced.
fn refused(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    message(&SMALL.replacen(from, to, 1))
}

/// The message for a file, without columns: those are told by the corpus in `tests/corpus/types/`.
fn message(file: &str) -> String {
    let text = Catalogue::parse(file).unwrap_err().to_string();
    let mut parts = text.split(", column ");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |told, part| told + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn event_of(kind: &EventType) -> Event {
    let mut draft = goal_draft();
    draft.kind = kind.name.clone();
    draft.fields = kind.required.iter().map(|f| (f.clone(), f.to_uppercase().into())).collect();
    Event::parse(draft, &built_in()).unwrap()
}

#[test]
fn the_built_in_types_are_those_of_the_design_with_their_bits() {
    let catalogue = built_in();
    let mut by_bit: Vec<_> = catalogue.types.values().collect();
    by_bit.sort_by_key(|t| t.bit);
    let names: Vec<_> = by_bit.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, TYPES.split_whitespace().collect::<Vec<_>>());
    assert!(by_bit.iter().enumerate().all(|(i, t)| usize::from(t.bit) == i), "a bit is permanent");
    let useful = |name: &str| catalogue.get(name).unwrap().useful_for_s;
    assert_eq!((useful("goal"), useful("corner"), useful("full_time")), (120, 20, 3600));
}

#[test]
fn every_type_reads_well_in_every_language() {
    for kind in built_in().types.values() {
        let event = event_of(kind);
        assert_eq!(kind.texts.keys().map(String::as_str).collect::<Vec<_>>(), ["ar", "en", "es", "pt", "tr"]);
        for locale in kind.texts.keys() {
            let Text { title, body } = kind.render(locale, &event);
            for text in [&title, &body] {
                assert!(!text.is_empty() && !text.contains(['{', '}']), "{} {locale}: {text}", kind.name);
                assert!(!text.contains("  ") && text.trim() == text, "{} {locale}: {text:?}", kind.name);
                assert!(!text.chars().any(is_unshowable), "{} {locale}: {text:?}", kind.name);
            }
            for field in &kind.required {
                let shown = format!("{title}\n{body}").contains(&field.to_uppercase());
                assert!(shown, "{} {locale} requires {field} and shows it nowhere", kind.name);
            }
        }
    }
}

#[test]
fn an_arabic_text_starts_from_the_right_and_keeps_the_score_between_the_teams() {
    for kind in built_in().types.values() {
        let Text { title, body } = kind.render("ar", &event_of(kind));
        for text in [&title, &body] {
            let first = text.chars().find(|c| c.is_alphabetic()).unwrap();
            let arabic = ('\u{600}'..='\u{6ff}').contains(&first);
            assert!(arabic || text.starts_with("HOME SCORE AWAY"), "{}: {text}", kind.name);
            assert!(!text.contains("SCORE") || text.contains("HOME SCORE AWAY"), "{}: {text}", kind.name);
        }
    }
}

#[test]
fn a_goal_is_told_with_teams_score_minute_and_player() {
    let catalogue = built_in();
    let kind = catalogue.get("goal").unwrap();
    let text = kind.render("en", &goal());
    assert_eq!((text.title.as_str(), text.body.as_str()), ("GOAL! Arsenal 2-1 Chelsea", "Saka scores, 67'"));
    assert_eq!(kind.render("tr", &goal()).body, "Golü atan: Saka, 67. dakika");
    assert_eq!(kind.render("xx", &goal()), Text { title: String::new(), body: String::new() });
}

#[test]
fn a_locale_falls_back_to_its_language_and_then_to_the_default() {
    let small = Catalogue::parse(SMALL).unwrap();
    let kind = small.get("goal").unwrap();
    let built_in = built_in();
    let reads = |kind: &EventType, tag: &str| kind.locale_for(&Locale::parse(tag).unwrap(), "en").to_owned();
    for (tag, locale) in [("pt-BR", "pt-BR"), ("PT_br", "pt-BR"), ("pt-BR-x-y", "pt-BR"), ("pt", "en"), ("EN-gb", "en")]
    {
        assert_eq!(reads(kind, tag), locale, "{tag}");
    }
    for (tag, locale) in [("pt-BR", "pt"), ("AR", "ar"), ("ar-EG", "ar"), ("de", "en"), ("ptx", "en"), ("-", "en")] {
        assert_eq!(reads(built_in.get("goal").unwrap(), tag), locale, "{tag}");
    }
}

#[test]
fn a_collapse_key_is_stable_per_event_and_fits_every_platform() {
    let catalogue = built_in();
    let kind = catalogue.get("goal").unwrap();
    let key = |id: &str| {
        let mut draft = goal_draft();
        draft.id = id.to_owned();
        kind.collapse_key(&Event::parse(draft, &catalogue).unwrap())
    };
    assert_eq!(key("evt-8841"), "evt-8841");
    assert_eq!(key(&"x".repeat(64)), "x".repeat(64));
    let long = [key(&"x".repeat(65)), key(&"x".repeat(128)), key("olé"), key("olè"), key(&"é".repeat(64))];
    for (i, key) in long.iter().enumerate() {
        assert!(key.len() <= 64 && key.bytes().all(|b| b.is_ascii_graphic()), "{key}");
        assert!(!long[..i].contains(key), "{key}");
    }
    assert!(long[2].starts_with("ol_."));
    assert_eq!(catalogue.get("corner").unwrap().collapse_key(&goal()), "4711-corner");
}

#[test]
fn masks_and_names_go_both_ways() {
    let catalogue = built_in();
    let mask = catalogue.mask(["goal", "corner"]).unwrap();
    assert_eq!(mask, KindMask(1 << 2 | 1 << 14));
    assert_eq!(catalogue.names(mask), ["corner", "goal"]);
    assert_eq!(catalogue.mask(["goal", "gaol"]), Err("gaol".to_owned()));
}

#[test]
fn a_reloaded_catalogue_may_not_move_what_is_stored() {
    let old = Catalogue::parse(SMALL).unwrap();
    let other = |from: &str, to: &str| Catalogue::parse(&SMALL.replacen(from, to, 1)).unwrap().may_replace(&old);
    assert_eq!(other("GOAL!", "Goal:"), Ok(()));
    assert!(other("bit = 2", "bit = 3").unwrap_err().to_string().contains("give it back bit 2"));
    assert!(other("types.goal", "types.tor").unwrap_err().to_string().contains("type goal is gone"));
    assert_eq!(built_in().may_replace(&old), Ok(()));
}

#[test]
fn a_broken_file_is_refused_with_line_type_locale_and_fix() {
    for (from, to, says) in [
        (
            "{home}\", body",
            "{hone}\", body",
            "line 12, type goal, locale en: {hone} is not a required field; add it to required, did you mean {home}?",
        ),
        (
            "{home}\", body",
            "{home\", body",
            "line 12, type goal, locale en: a { is not closed; close it with }, or write {{ to show a brace",
        ),
        ("GOL! {home}", "GOL! home}", "line 13, type goal, locale pt-BR: a } closes nothing; write }} to show a brace"),
        (
            "GOL! {home}",
            "GOL! {}",
            "line 13, type goal, locale pt-BR: {} is no placeholder; names are letters, digits and _",
        ),
        ("GOL! {home}", "  ", "line 13, type goal, locale pt-BR: a text must have 1 to 512 bytes"),
        (
            "GOL! {home}",
            "\\u202eGOL!",
            "line 13, type goal, locale pt-BR: a text must not contain '\\u{202e}'; take it out",
        ),
        ("text.pt-BR", "text.EN", "type goal, locale en: this locale is there in another spelling"),
        ("text.pt-BR", "text.\"pt BR\"", "line 13, type goal: \"pt BR\" is no locale; write it like en or pt-BR"),
        ("text.en", "text.tr", "line 3, type goal: the text for default_locale en is missing; add text.en"),
        ("\"en\"", "\"e n\"", "line 1: \"e n\" is no locale"),
        ("bit = 2", "bit = 62", "line 4, type goal: bit is 62 and must be 0 to 61"),
        ("bit = 2", "bit = -1", "line 4, type goal: bit is -1 and must be 0 to 61"),
        ("bit = 2", "bit = \"2\"", "line 4, type goal: invalid type: string \"2\", expected i64"),
        ("bit = 2\n", "", "line 3, type goal: missing field `bit`"),
        ("bit = 2", "bits = 2", "line 4, type goal: unknown field `bits`"),
        ("urgent", "asap", "line 5, type goal: class \"asap\" is unknown; write urgent, normal or bulk"),
        ("120", "4", "line 6, type goal: useful_for_s is 4 and must be 5 to 86400"),
        ("\"goals\"", "\"\"", "line 7, type goal: channel must be 1 to 64 visible bytes"),
        ("\"default\"", "\" \"", "line 8, type goal: sound must be 1 to 64 visible bytes"),
        ("\"{event_id}\"", "\"goal\"", "line 10, type goal: collapse_key must contain {event_id} or {match_id}"),
        ("\"{event_id}\"", "\"{event_id}{away}\"", "line 10, type goal: {away} is not a required field"),
        ("\"score\"]", "\"home\"]", "line 11, type goal: required names home twice"),
        ("\"score\"]", "\"score\", \"type\"]", "line 11, type goal: type is known of every event"),
        ("\"score\"]", "\"score\", \"a b\"]", "line 11, type goal: required field \"a b\" must be"),
        ("types.goal", "types.Goal", "line 3: \"Goal\" names no type; use"),
    ] {
        let told = refused(from, to);
        assert!(told.contains(says), "{from} -> {to}\n got: {told}\nwant: {says}");
    }
    assert!(message("default_locale = \"en\"\n[types]").contains("there is no type"));
    assert!(message("").contains("missing field"));
    assert!(message("x = \n").starts_with("line 1: "));
}

#[test]
fn a_file_from_any_editor_is_read_and_a_nested_one_is_refused() {
    assert_eq!(Catalogue::parse(&SMALL.replace('\n', "\r\n")), Catalogue::parse(SMALL));
    assert_eq!(Catalogue::parse(&format!("\u{feff}{SMALL}")), Catalogue::parse(SMALL));
    assert!(Catalogue::parse(&format!("x = {}", "[".repeat(100_000))).is_err());
    assert!(message(&format!("{SMALL}\0")).starts_with("line 14, type goal: "));
}

#[test]
fn two_types_cannot_share_a_bit() {
    let second = SMALL.split_once("\n\n").unwrap().1.replace("types.goal", "types.corner");
    let told = message(&format!("{SMALL}\n{second}"));
    assert_eq!(told, "line 4, type goal: bit 2 belongs to type corner already; take one that is free");
}

/// The built-in file with a stretch of it damaged.
fn damaged() -> impl Strategy<Value = String> {
    (0..BUILT_IN.len(), 0_usize..40, "[\\[\\]{}=\"'\\\\\n.#a-z0-9\u{202e}é-]{0,12}").prop_map(|(at, cut, put)| {
        let mut bytes = BUILT_IN.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put.bytes());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #[test]
    fn any_file_is_a_catalogue_or_refused_in_words(text in prop_oneof![damaged(), "\\PC{0,200}", "(?s).{0,100}"]) {
        match Catalogue::parse(&text) {
            Ok(catalogue) => {
                for kind in catalogue.types.values() {
                    prop_assert!(kind.texts.contains_key(&catalogue.default_locale));
                    let _ = kind.render(&catalogue.default_locale, &goal());
                    prop_assert!((1..=MAX_COLLAPSE_KEY_BYTES).contains(&kind.collapse_key(&goal()).len()));
                }
            }
            Err(CatalogueError(told)) => {
                prop_assert!(!told.is_empty() && told.iter().all(|fault| fault.starts_with("line ")), "{:?}", told);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_catalogue_or_refused_in_words(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0..BUILT_IN.len()) {
        for file in [bytes.clone(), { bytes.splice(0..0, BUILT_IN.as_bytes()[..at].iter().copied()); bytes }] {
            if let Err(error) = Catalogue::read(&file) {
                prop_assert!(error.to_string().starts_with("line ") && error.in_one_line().lines().count() == 1);
            }
        }
    }

    #[test]
    fn any_event_id_gives_a_collapse_key_every_platform_takes(id in "[^\\s\\p{C}]{1,60}") {
        let catalogue = built_in();
        let draft = crate::domain::event::EventDraft { id, ..goal_draft() };
        if let Ok(event) = Event::parse(draft, &catalogue) {
            let key = catalogue.get("goal").unwrap().collapse_key(&event);
            prop_assert!((1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()));
        }
    }
}
