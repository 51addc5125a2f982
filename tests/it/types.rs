//! The event types as an operator meets them: what the built-in file holds, what it says in every language, how a broken
//! file is refused, and a file that changes while the service runs.
//!
//! Expected texts lie in `tests/corpus/types/`. With `FANFARE_TEST_WRITE_CORPUS=1` they are written anew, to be read
//! over in the diff; the tests that compare them then fail on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fanfare::client::Client;
use fanfare::domain::catalogue::{BUILT_IN, Catalogue, EventType};
use fanfare::domain::event::{Event, EventDraft};
use fanfare::domain::recipient::{Locale, Platform};
use fanfare::fcm::message::Template;
use serde_json::{Value, json};
use unicode_bidi::{BidiInfo, Level};

use crate::harness::capture::Capture;
use crate::harness::process::Process;
use crate::harness::service::{Database, World};

pub(crate) const LOCALES: [&str; 5] = ["ar", "en", "es", "pt", "tr"];

/// A folder of `tests/corpus/`.
pub(crate) fn corpus(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder)
}

/// Compares a text with a file of the corpus, or writes it there when that was asked for.
pub(crate) fn compare(path: &Path, found: &str) {
    if std::env::var_os("FANFARE_TEST_WRITE_CORPUS").is_some() {
        std::fs::write(path, found).unwrap();
        panic!("{} was written: read the diff, and run again without FANFARE_TEST_WRITE_CORPUS", path.display());
    }
    let want = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(found, want, "{} says otherwise", path.display());
}

pub(crate) fn built_in() -> Catalogue {
    Catalogue::parse(BUILT_IN).unwrap()
}

/// Values as a feed would give them, teams and players by the names given.
fn fields(names: &[(&str, &str)]) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::from([
        ("score".to_owned(), json!("2-1")),
        ("minute".to_owned(), json!("45+2")),
        ("decision".to_owned(), json!("No goal")),
    ]);
    fields.extend(names.iter().map(|(field, name)| ((*field).to_owned(), json!(name))));
    fields
}

const LATIN: [(&str, &str); 6] = [
    ("home", "Arsenal"),
    ("away", "Chelsea"),
    ("team", "Arsenal"),
    ("player", "Bukayo Saka"),
    ("player_in", "Kai Havertz"),
    ("player_out", "Bukayo Saka"),
];
const ARABIC: [(&str, &str); 6] = [
    ("home", "أرسنال"),
    ("away", "تشيلسي"),
    ("team", "أرسنال"),
    ("player", "بوكايو ساكا"),
    ("player_in", "كاي هافيرتز"),
    ("player_out", "بوكايو ساكا"),
];

/// An event of a type, with the fields it requires and no others.
fn event_of(kind: &EventType, names: &[(&str, &str)], catalogue: &Catalogue) -> Event {
    let mut fields = fields(names);
    fields.retain(|field, _| kind.required.contains(field));
    let draft = EventDraft {
        id: format!("evt-{}", kind.name),
        kind: kind.name.clone(),
        match_id: "4711".into(),
        occurred_at: "2026-11-30T15:03:12Z".into(),
        subjects: vec!["match:4711".into()],
        fields,
        ..EventDraft::default()
    };
    Event::parse(draft, catalogue).unwrap()
}

// --- what the built-in file holds ---

#[test]
fn every_built_in_type_declares_all_it_is_made_of() {
    let file: toml::Table = toml::from_str(BUILT_IN).unwrap();
    let types = file["types"].as_table().unwrap();
    assert_eq!(types.len(), 21);
    let mut bits = BTreeSet::new();
    for (name, kind) in types {
        let text = |key: &str| kind[key].as_str().unwrap_or_else(|| panic!("{name}.{key}"));
        assert!(["urgent", "normal", "bulk"].contains(&text("class")), "{name}");
        assert!(!text("channel").is_empty() && text("sound") == "default", "{name}");
        assert!(kind["high_priority"].is_bool(), "{name}");
        assert!((5..=86_400).contains(&kind["useful_for_s"].as_integer().unwrap()), "{name}");
        let per_event = text("collapse_key") == "{event_id}";
        assert!(per_event || text("collapse_key").starts_with("{match_id}-"), "{name}");
        assert!(bits.insert(kind["bit"].as_integer().unwrap()), "{name}");
        let texts = kind["text"].as_table().unwrap();
        assert_eq!(texts.keys().collect::<Vec<_>>(), LOCALES, "{name}");
        for (locale, parts) in texts {
            let both = format!("{}\n{}", parts["title"].as_str().unwrap(), parts["body"].as_str().unwrap());
            assert!(both.split('\n').all(|part| part.len() > 1), "{name} {locale}");
            let used: BTreeSet<&str> = both.split('{').skip(1).map(|after| after.split('}').next().unwrap()).collect();
            let required = kind["required"].as_array().unwrap().iter().map(|field| field.as_str().unwrap());
            assert_eq!(
                used,
                required.collect(),
                "{name} {locale}: every text shows every required field, and no other"
            );
        }
    }
    assert_eq!(bits, (0..21).collect());
}

#[test]
fn what_wakes_a_phone_is_what_its_reader_wants_at_once() {
    for kind in built_in().types.values() {
        let urgent = kind.class.as_str() == "urgent";
        assert!(!urgent || kind.high_priority, "{} is urgent and does not wake a phone", kind.name);
        assert!(!urgent || kind.useful_for_s <= 180, "{} is urgent for longer than it is news", kind.name);
    }
}

// --- what it says ---

/// One line per type: name, title, body, collapse key. Marks of direction are written out, to be seen.
fn told(locale: &str, names: &[(&str, &str)]) -> String {
    let catalogue = built_in();
    let mut kinds: Vec<&EventType> = catalogue.types.values().collect();
    kinds.sort_by_key(|kind| kind.bit);
    let mut all = String::new();
    for kind in kinds {
        let event = event_of(kind, names, &catalogue);
        let text = kind.render(kind.locale_for(&Locale::parse(locale).unwrap(), "en"), &event);
        assert!(!format!("{}{}", text.title, text.body).contains(['{', '}']), "{} {locale}", kind.name);
        assert!(
            text.title.chars().count() <= 65 && text.body.chars().count() <= 110,
            "{} {locale}: {text:?}",
            kind.name
        );
        for platform in Platform::ALL {
            let template = Template::new(&event, kind, &text, *platform).unwrap();
            let body = template.body(&fanfare::domain::recipient::Address::Token("t".into()), 60_000, 0);
            assert!(body.len() < 1024, "{} {locale}", kind.name);
        }
        let key = kind.collapse_key(&event);
        let line = format!("{} | {} | {} | {key}\n", kind.name, text.title, text.body);
        all.push_str(&line.replace('\u{2068}', "\\u{2068}").replace('\u{2069}', "\\u{2069}"));
    }
    all
}

#[test]
fn every_type_says_in_every_language_what_the_corpus_expects() {
    let mut cases: Vec<(String, &str, _)> = LOCALES.map(|l| (format!("{l}.txt"), l, LATIN)).into();
    cases.push(("ar-with-arabic-names.txt".into(), "ar", ARABIC));
    cases.push(("en-with-arabic-names.txt".into(), "en", ARABIC));
    let mut wrong = Vec::new();
    for (file, locale, names) in cases {
        let path = corpus("types/texts").join(&file);
        wrong.extend(std::panic::catch_unwind(|| compare(&path, &told(locale, &names))).err().map(|_| file));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A line as a screen shows it from left to right. `None` takes the direction from the first letter, as Android and iOS
/// do. Marks that have no width are left out.
fn shown(text: &str, level: Option<Level>) -> String {
    let info = BidiInfo::new(text, level);
    let paragraph = &info.paragraphs[0];
    info.reorder_line(paragraph, paragraph.range.clone()).replace(['\u{2068}', '\u{2069}'], "")
}

/// A name as it stands on the screen: letters written from right to left have their first at the right.
fn on_screen(name: &str) -> String {
    if name.is_ascii() { name.to_owned() } else { name.chars().rev().collect() }
}

#[test]
fn a_screen_shows_each_teams_goals_beside_the_team() {
    let catalogue = built_in();
    let goals = |kind: &&EventType| kind.required.iter().any(|field| field == "score");
    for (home, away) in [(LATIN, LATIN), (ARABIC, ARABIC), (LATIN, ARABIC), (ARABIC, LATIN)] {
        let mut names = home;
        names[1] = away[1];
        for kind in catalogue.types.values().filter(goals) {
            let event = event_of(kind, &names, &catalogue);
            for locale in LOCALES {
                let rendered = kind.render(locale, &event);
                let text = if rendered.title.contains("2-1") { rendered.title } else { rendered.body };
                let locales_own = if locale == "ar" { Level::rtl() } else { Level::ltr() };
                for level in [None, Some(locales_own)] {
                    let line = shown(&text, level);
                    let (home, away) = (on_screen(names[0].1), on_screen(names[1].1));
                    let near = |goals: char, team: &str| {
                        line.contains(&format!("{goals} {team}")) || line.contains(&format!("{team} {goals}"))
                    };
                    assert!(near('2', &home), "{} {locale}: {line}", kind.name);
                    // Names in two scripts inside Arabic are two stretches, and the score belongs to the first.
                    let two_scripts = locale == "ar" && names[0].1.is_ascii() && !names[1].1.is_ascii();
                    assert!(two_scripts || near('1', &away), "{} {locale}: {line}", kind.name);
                    // Latin names are read from left to right, and so is a score between them.
                    let reversed = names[0].1.is_ascii() && line.contains("1-2");
                    assert!(!reversed, "{} {locale}: {line}", kind.name);
                }
            }
        }
    }
}

#[test]
fn an_arabic_name_turns_no_text_around_that_is_written_from_left_to_right() {
    let catalogue = built_in();
    let kind = catalogue.get("goal").unwrap();
    let text = kind.render("en", &event_of(kind, &ARABIC, &catalogue));
    let player = on_screen("بوكايو ساكا");
    assert_eq!(shown(&text.body, None), format!("{player} scores, 45+2'"));
    let title = format!("GOAL! {} 2-1 {}", on_screen("أرسنال"), on_screen("تشيلسي"));
    assert_eq!(shown(&text.title, None), title);
    // Without isolation the first letter decides, and the whole text stands on its head.
    let bare: String = text.body.chars().filter(|c| !('\u{2068}'..='\u{2069}').contains(c)).collect();
    assert_ne!(shown(&bare, None), shown(&text.body, None));
}

#[test]
fn a_phone_gets_the_nearest_language_there_is() {
    let file = BUILT_IN.replacen("text.pt = ", "text.zh-Hant = { title = \"h\", body = \"b\" }\ntext.pt = ", 100);
    let catalogue = Catalogue::parse(&file).unwrap();
    let kind = catalogue.get("goal").unwrap();
    for (tag, reads) in [
        ("pt-BR", "pt"),
        ("pt_BR", "pt"),
        ("PT-br", "pt"),
        ("pt", "pt"),
        ("zh-Hant-TW", "zh-Hant"),
        ("zh_Hant_TW", "zh-Hant"),
        ("ZH-hANT", "zh-Hant"),
        ("zh-Hans-CN", "en"),
        ("zh", "en"),
        ("ar-EG", "ar"),
        ("es-419", "es"),
        ("en-GB-oxendict", "en"),
        ("tr-TR-u-nu-latn", "tr"),
        ("de", "en"),
        ("xx-YY", "en"),
        ("ptx", "en"),
    ] {
        assert_eq!(kind.locale_for(&Locale::parse(tag).unwrap(), &catalogue.default_locale), reads, "{tag}");
    }
}

// --- a broken file ---

#[test]
fn every_broken_file_is_refused_with_place_and_fix() {
    let folder = corpus("types/broken");
    let mut wrong = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        files += 1;
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let error = match Catalogue::read(&std::fs::read(&path).unwrap()) {
            Err(error) => format!("{error}\n"),
            // A mark in front is how some editors save UTF-8: no fault.
            Ok(_) => "ok\n".to_owned(),
        };
        let outcome = std::panic::catch_unwind(|| compare(&path.with_extension("txt"), &error));
        wrong.extend(outcome.err().map(|_| name));
    }
    assert!(files >= 20, "{files} files in {}", folder.display());
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn a_broken_file_is_refused_at_start_and_by_config_check_with_every_fault() {
    let mut world = World::new(Database::Sqlite, false).await;
    let path = corpus("types/broken/many-faults.toml");
    world.set("TYPES__FILE", path.display());
    let told = std::fs::read_to_string(path.with_extension("txt")).unwrap();
    assert!(told.lines().count() > 3, "{told}");
    let served = world.run("serve").await;
    assert_eq!(served.code, Some(78), "{served:?}");
    assert_eq!(served.err, format!("fanfare: bad configuration: types.file {}: {told}", path.display()));
    let checked = world.command("config").arg("check").output().await.unwrap();
    assert_eq!(checked.status.code(), Some(78));
    assert_eq!(String::from_utf8(checked.stderr).unwrap(), served.err, "check says what serve says");
    world.set("TYPES__FILE", "/nowhere/types.toml");
    let missing = world.run("serve").await;
    assert_eq!(missing.code, Some(78));
    assert!(missing.err.contains("types.file") && missing.err.contains("/nowhere/types.toml"), "{missing:?}");
}

// --- a file that changes while the service runs ---

struct Reloading {
    capture: Capture,
    process: Process,
    file: PathBuf,
    _dir: tempfile::TempDir,
    _world: World,
}

impl Reloading {
    async fn start() -> Self {
        let mut world = World::new(Database::Sqlite, false).await;
        let capture = Capture::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("types.toml");
        std::fs::write(&file, BUILT_IN).unwrap();
        world.set("TYPES__FILE", file.display());
        world.set("FCM__ENDPOINT", &capture.endpoint);
        let process = world.spawn().await;
        process.follow("4711", &["tok".to_owned()]).await;
        Self { capture, process, file, _dir: dir, _world: world }
    }

    /// Changes the file, asks for it to be read, and waits for what the service says about it.
    async fn reload(&self, n: usize, message: &str, from: &str, to: &str) -> Value {
        assert!(BUILT_IN.contains(from), "{from}");
        std::fs::write(&self.file, BUILT_IN.replacen(from, to, 1)).unwrap();
        self.process.signal("-HUP").await;
        self.process.says(n, |line| line["message"] == message).await
    }

    async fn title(&self, event: &str) -> String {
        self.process.goal(event, "4711", 120).await;
        let message = self.capture.message(event, "tok").await;
        message["notification"]["title"].as_str().unwrap().to_owned()
    }
}

const READ: &str = "event types read anew";
const NOT_READ: &str = "event types not read anew; the old ones stay in force";

#[tokio::test]
async fn a_changed_file_is_read_on_sighup_and_a_bad_one_changes_nothing() {
    let it = Reloading::start().await;
    assert_eq!(it.title("e1").await, "GOAL! Arsenal 2-1 Chelsea");

    let said = it.reload(1, READ, "title = \"GOAL! ", "title = \"Goal: ").await;
    assert_eq!(
        (said["level"].as_str(), said["changed"].as_str(), said["added"].as_str()),
        (Some("INFO"), Some("goal"), Some(""))
    );
    assert_eq!((said["types"].as_u64(), said["texts"].as_u64()), (Some(21), Some(105)));
    assert_eq!(it.title("e2").await, "Goal: Arsenal 2-1 Chelsea");

    for (n, from, to, why) in [
        (1, "{player} scores", "{plyer} scores", "did you mean {player}?"),
        (2, "bit = 2\n", "bit = 40\n", "give it back bit 2"),
        (3, "[types.corner]", "[types.corner_kick]", "type corner is gone"),
        (4, "[types.goal]", "[types.goal", "line "),
    ] {
        let said = it.reload(n, NOT_READ, from, to).await;
        assert_eq!(said["level"], "ERROR");
        let error = said["error"].as_str().unwrap();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
    assert_eq!(it.title("e3").await, "Goal: Arsenal 2-1 Chelsea", "the last good one is in force");

    std::fs::remove_file(&it.file).unwrap();
    it.process.signal("-HUP").await;
    let said = it.process.says(5, |line| line["message"] == NOT_READ).await;
    assert!(said["error"].as_str().unwrap().contains("No such file"), "{said}");

    // A type that was added is taken at once.
    let corner = BUILT_IN.split("[types.corner]").nth(1).unwrap().split("[types.").next().unwrap();
    let offside = format!("[types.offside]{}[types.corner]", corner.replace("bit = 14", "bit = 21"));
    let said = it.reload(2, READ, "[types.corner]", &offside).await;
    assert_eq!((said["added"].as_str(), said["types"].as_u64()), (Some("offside"), Some(22)));
    let mut post = crate::harness::service::goal("e4", "4711", 20);
    (post.kind, post.fields) = (
        "offside".to_owned(),
        serde_json::from_value(json!({"home": "A", "away": "B", "score": "0-0", "minute": 1, "team": "A"})).unwrap(),
    );
    it.process.client.post_event(&post).await.unwrap();
    assert_eq!(it.capture.message("e4", "tok").await["notification"]["title"], "Corner: A");
    assert!(it.process.said("draining").is_empty());
}

#[tokio::test]
async fn sighup_without_a_file_says_that_there_is_nothing_to_read() {
    let world = World::new(Database::Sqlite, false).await;
    let process = world.spawn().await;
    process.signal("-HUP").await;
    let said = process.says(1, |line| line["setting"] == "types.file").await;
    assert_eq!((said["level"].as_str(), said["target"].as_str()), (Some("INFO"), Some("fanfare::app")));
    let client: &Client = &process.client;
    client.post_event(&crate::harness::service::goal("e1", "1", 60)).await.unwrap();
}
