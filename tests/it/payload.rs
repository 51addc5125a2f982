//! What reaches FCM, byte by byte: bodies put together from pieces against a message written down from the design,
//! and posts with hard inputs through the whole service.

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare::domain::catalogue::{BUILT_IN, Catalogue, EventType, Text};
use fanfare::domain::event::{Event, EventDraft};
use fanfare::domain::recipient::{Address, Platform};
use fanfare::emulator::{Control, LogEntry};
use fanfare::fcm::message::Template;
use fanfare::wire::Problem;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::harness::capture::Capture;
use crate::harness::process::Process;
use crate::harness::service::{Database, World};
use crate::types::{built_in, corpus};

// --- the splice against the whole ---

/// An event with what is hard to escape wherever a caller may put it.
fn hostile_event(kind: &EventType, catalogue: &Catalogue) -> Event {
    let name = |field: &String| (field.clone(), json!(format!("{field} \"\\/{{}}<é\u{7f5}👩‍🚀")));
    let data = json!({
        "quote": "\"}}}", "slash": "\\", "controls": "\u{1}\n\t\u{7f}", "lines": "\u{2028}\u{2029}", "n": 9_007_199_254_740_993_i64,
        "nested": {"b": [1, null, "\""], "a": false}, "splice": "0s\"}}}", "ключ \"k\"": "", "token": "x", "message": "y",
    });
    let draft = EventDraft {
        id: "evt-\"8841\"\\é".into(),
        kind: kind.name.clone(),
        match_id: "4711/\"m\"".into(),
        occurred_at: "2026-11-30T15:03:12Z".into(),
        subjects: vec!["match:4711".into()],
        fields: kind.required.iter().map(name).collect(),
        data: serde_json::from_value(data).unwrap(),
        useful_for_s: None,
        supersedes: None,
    };
    Event::parse(draft, catalogue).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// The message as section 5 of the design and the references of FCM, Apple and RFC 8030 have it, written by hand.
fn expected(event: &Event, file: &toml::Value, text: &Text, to: (Platform, &Address), times_ms: (i64, i64)) -> Value {
    let filled = file["collapse_key"].as_str().unwrap();
    let filled = filled.replace("{event_id}", event.id.as_str()).replace("{match_id}", event.match_id.as_str());
    let hex = |bytes: usize| {
        Sha256::digest(filled.as_bytes()).iter().take(bytes).map(|b| format!("{b:02x}")).collect::<String>()
    };
    let plain = filled.bytes().all(|b| b.is_ascii_graphic());
    let tidy: String = filled.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).take(47).collect();
    let key = if plain { filled.clone() } else { format!("{tidy}.{}", hex(8)) };
    let (urgent, sound) = (file["high_priority"].as_bool().unwrap(), file["sound"].as_str().unwrap());
    let mut data: BTreeMap<&str, &str> = event.data.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    data.extend([("event_id", event.id.as_str()), ("type", &event.kind), ("match_id", event.match_id.as_str())]);
    let (deadline_ms, now_ms) = times_ms;
    let ttl = ((deadline_ms - now_ms) / 1000).max(1);
    let mut message = json!({"data": data, "notification": {"title": text.title, "body": text.body}});
    message[to.1.field()] = json!(to.1.value());
    match to.0 {
        Platform::Android => {
            message["android"] = json!({
                "collapse_key": key, "priority": if urgent { "HIGH" } else { "NORMAL" }, "ttl": format!("{ttl}s"),
                "notification": {"channel_id": file["channel"].as_str().unwrap(), "sound": sound, "tag": key},
            });
        }
        Platform::Ios => {
            let expiration = (deadline_ms / 1000).max(now_ms / 1000 + 1);
            message["apns"] = json!({
                "payload": {"aps": {"sound": sound}},
                "headers": {"apns-priority": if urgent { "10" } else { "5" }, "apns-collapse-id": key,
                    "apns-expiration": expiration.to_string()},
            });
        }
        Platform::Web => {
            let topic: String = Sha256::digest(key.as_bytes()).iter().take(16).map(|b| format!("{b:02x}")).collect();
            message["webpush"] = json!({
                "notification": {"tag": key},
                "headers": {"Urgency": if urgent { "high" } else { "normal" }, "TTL": ttl.to_string(), "Topic": topic},
            });
        }
    }
    json!({ "message": message })
}

fn same(body: &[u8], want: &Value, of: &str) {
    let found: Value = serde_json::from_slice(body).unwrap_or_else(|e| panic!("{of}: {e}"));
    assert_eq!(&found, want, "{of}");
    // A key that stands there twice would be read once.
    assert_eq!(body.len(), serde_json::to_vec(want).unwrap().len(), "{of}");
}

/// Every variant: what was rendered, and the message put together for it.
fn every_variant(mut look: impl FnMut(&Event, &toml::Value, &Text, Platform, &Template, &str)) {
    let (catalogue, file) = (built_in(), toml::from_str::<toml::Value>(BUILT_IN).unwrap());
    for kind in catalogue.types.values() {
        let event = hostile_event(kind, &catalogue);
        // As another instance has it, which read it from the database.
        let stored: Event = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
        for locale in kind.texts.keys() {
            let text = kind.render(locale, &event);
            for platform in Platform::ALL {
                let template = Template::new(&stored, kind, &kind.render(locale, &stored), *platform).unwrap();
                let name = format!("{}/{locale}/{platform}", kind.name);
                look(&event, &file["types"][&kind.name], &text, *platform, &template, &name);
            }
        }
    }
}

const NOW_MS: i64 = 1_796_050_992_345;

#[test]
fn every_variant_put_together_is_the_whole_message_whatever_the_device_token_holds() {
    let tokens = [
        "dXk:APA91b-_",
        "\"",
        "\\",
        "\"},\"topic\":\"all",
        "\u{0}\u{1f}",
        "é\u{2028}👩‍🚀",
        "",
        "{\"message\":{\"token\":\"\"",
    ];
    let mut variants = 0;
    every_variant(|event, file, text, platform, template, name| {
        for (i, token) in tokens.iter().enumerate() {
            let address = if i % 2 == 0 { Address::Token((*token).into()) } else { Address::Fid((*token).into()) };
            let deadline_ms = NOW_MS + 20_000 + i64::try_from(i * 777).unwrap();
            let body = template.body(&address, deadline_ms, NOW_MS);
            same(&body, &expected(event, file, text, (platform, &address), (deadline_ms, NOW_MS)), name);
        }
        variants += 1;
    });
    assert_eq!(variants, 21 * 5 * 3);
}

/// Every second up to the longest usefulness for one variant per platform; by default one in 23 of them, all with
/// `FANFARE_TEST_EVERY_SECOND=1` (a minute in a debug build).
#[test]
fn every_second_left_is_told_as_it_is() {
    let step = if std::env::var_os("FANFARE_TEST_EVERY_SECOND").is_some() { 1 } else { 23 };
    let address = Address::Token("t".into());
    every_variant(|event, file, text, platform, template, name| {
        if name != format!("full_time/ar/{platform}") {
            return;
        }
        let seconds = (-2..300).chain((300..86_400).step_by(step)).chain(86_395..=86_400);
        for left_ms in seconds.map(|s: i64| s * 1000 + s.rem_euclid(1000)) {
            let body = template.body(&address, NOW_MS + left_ms, NOW_MS);
            let want = expected(event, file, text, (platform, &address), (NOW_MS + left_ms, NOW_MS));
            same(&body, &want, name);
        }
    });
}

#[test]
fn keys_under_which_a_message_replaces_its_predecessor_fit_every_platform() {
    every_variant(|_, _, _, platform, template, name| {
        let body: Value = serde_json::from_slice(&template.body(&Address::Token("t".into()), 9_000, 0)).unwrap();
        let message = &body["message"];
        let keys = match platform {
            Platform::Android => vec![&message["android"]["collapse_key"], &message["android"]["notification"]["tag"]],
            Platform::Ios => vec![&message["apns"]["headers"]["apns-collapse-id"]],
            Platform::Web => vec![&message["webpush"]["headers"]["Topic"], &message["webpush"]["notification"]["tag"]],
        };
        for key in keys {
            let key = key.as_str().unwrap();
            assert!((1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()), "{name}: {key}");
        }
    });
}

#[tokio::test]
async fn a_retry_carries_the_same_message_under_the_same_key() {
    let world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { latency_ms: Some(1), ..Control::default() });
    let service = world.serve().await;
    service.follow("m", &["flaky503-a", "flaky503-b", "flaky503-c"].map(String::from)).await;
    let fanout = service.goal("evt-retry", "m", 60).await;
    assert_eq!(service.settled(&fanout).await.delivered, 3);
    for token in ["flaky503-a", "flaky503-b", "flaky503-c"] {
        let log: Vec<LogEntry> = world.emulator.log().into_iter().filter(|e| e.token == token).collect();
        assert_eq!(log.len(), 2, "{log:?}");
        assert_eq!((log[0].content, &log[0].collapse_key), (log[1].content, &log[1].collapse_key));
        assert!(log[1].ttl_s <= log[0].ttl_s && log[1].ttl_s.is_some_and(|s| s > 50), "{log:?}");
    }
    service.stop().await.unwrap();
}

// --- posts through the whole service ---

/// A caller that sends any bytes.
struct Poster {
    http: reqwest::Client,
    url: String,
    key: String,
}

impl Poster {
    fn new(process: &Process) -> Self {
        Self { http: reqwest::Client::new(), url: format!("{}/v1/events", process.api), key: process.key.clone() }
    }

    /// As callers do: what is refused for now is sent again.
    async fn post(&self, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
        for _ in 0..100 {
            let request = self.http.post(&self.url).bearer_auth(&self.key).header("content-type", "application/json");
            let answer = request.body(body.clone()).send().await.unwrap();
            if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
                return (answer.status(), answer.bytes().await.unwrap().to_vec());
            }
        }
        panic!("refused a hundred times");
    }
}

/// `$ID` and `$NOW` stand in the files of the corpus for what differs from run to run.
fn prepared(body: Vec<u8>, id: &str) -> Vec<u8> {
    let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap();
    [("$ID", id), ("$NOW", now.as_str())].iter().fold(body, |mut body, (mark, value)| {
        // Wherever it stands: an event may name itself.
        while let Some(at) = body.windows(mark.len()).position(|part| part == mark.as_bytes()) {
            body.splice(at..at + mark.len(), value.bytes());
        }
        body
    })
}

fn check_refusal(name: &str, answer: &[u8], want: &Value) {
    let problem: Problem = serde_json::from_slice(answer).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(problem.code, want["code"].as_str().unwrap(), "{name}: {problem:?}");
    if let Some(at) = want["at"].as_array() {
        let found: Vec<&str> = problem.errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(found, at.iter().map(|f| f.as_str().unwrap()).collect::<Vec<_>>(), "{name}: {problem:?}");
    }
    if let Some(says) = want["says"].as_str() {
        assert!(problem.errors.iter().all(|e| e.problem.contains(says)), "{name} should say {says}: {problem:?}");
    }
}

fn check_message(name: &str, message: &Value, want: &Value) {
    for part in ["title", "body"] {
        if !want[part].is_null() {
            assert_eq!(message["notification"][part], want[part], "{name}");
        }
    }
    if let Some(data) = want["data"].as_object() {
        let mut found = message["data"].as_object().unwrap().clone();
        found.retain(|key, _| !["event_id", "type", "match_id"].contains(&key.as_str()));
        assert_eq!(&found, data, "{name}");
    }
    if name == "long-body-is-shortened" {
        let body = message["notification"]["body"].as_str().unwrap();
        assert!(body.starts_with("xxx") && body.ends_with("x…") && body.len() < 256, "{body}");
    }
}

async fn the_corpus(database: Database) {
    let mut world = World::new(database, false).await;
    let capture = Capture::start().await;
    world.set("FCM__ENDPOINT", &capture.endpoint);
    let process = world.spawn().await;
    process.follow("4711", &["tok".to_owned()]).await;
    let (poster, mut files) = (Poster::new(&process), 0);
    for entry in std::fs::read_dir(corpus("events")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_suffix(".json").filter(|name| !name.ends_with(".answer")) else { continue };
        files += 1;
        let want: Value = serde_json::from_slice(&std::fs::read(path.with_extension("answer.json")).unwrap()).unwrap();
        let id = format!("evt-{name}");
        // Each in a match of its own: many read alike, and would be the same news.
        let body = String::from_utf8(prepared(std::fs::read(&path).unwrap(), &id));
        let apart = |text: String| text.replace("\"match_id\": \"4711\"", &format!("\"match_id\": \"m-{files}\""));
        let body = body.map_or_else(|fault| fault.into_bytes(), |text| apart(text).into_bytes());
        let (mut status, mut answer) = poster.post(body.clone()).await;
        // On a busy machine a write may not begin within 250 ms.
        while status == StatusCode::SERVICE_UNAVAILABLE {
            (status, answer) = poster.post(body.clone()).await;
        }
        assert_eq!(
            u64::from(status.as_u16()),
            want["status"].as_u64().unwrap(),
            "{name}: {}",
            String::from_utf8_lossy(&answer)
        );
        if status == StatusCode::ACCEPTED {
            check_message(name, &capture.message(&id, "tok").await, &want);
        } else {
            check_refusal(name, &answer, &want);
        }
    }
    assert!(files >= 80, "{files} files");
}

#[tokio::test]
async fn every_post_of_the_corpus_is_answered_as_expected_on_sqlite() {
    the_corpus(Database::Sqlite).await;
}

#[tokio::test]
async fn every_post_of_the_corpus_is_answered_as_expected_on_postgres() {
    the_corpus(Database::Postgres).await;
}

/// A valid post with a stretch of it damaged, cut, doubled or replaced, or no post at all.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let valid = || {
        let body = std::fs::read(corpus("events").join("goal.json")).unwrap();
        let len = body.len();
        (Just(body), 0..len, 0_usize..30)
    };
    let bytes = proptest::collection::vec(any::<u8>(), 0..12);
    let words = prop::sample::select(vec![
        "null",
        "\"",
        "{}",
        "[]",
        "1e999",
        "-",
        "\\ud800",
        "\\u0000",
        ",",
        "true",
        "\u{3164}",
        "1.5",
        "\"from\":1,",
    ]);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        (valid(), bytes).prop_map(|((mut body, at, cut), put)| {
            body.splice(at..(at + cut).min(body.len()), put);
            body
        }),
        (valid(), words).prop_map(|((mut body, at, cut), put)| {
            body.splice(at..(at + cut).min(body.len()), put.bytes());
            body
        }),
        valid().prop_map(|(body, at, cut)| [&body[..at], &body[at.saturating_sub(cut)..]].concat()),
        valid().prop_map(|(mut body, at, _)| {
            body.truncate(at);
            body
        }),
    ]
}

/// Sends as many bodies as `PROPTEST_CASES` says (256).
#[tokio::test]
async fn any_body_is_accepted_or_refused_in_words() {
    let world = World::new(Database::Sqlite, false).await;
    let process = world.spawn().await;
    let (poster, mut runner) = (Poster::new(&process), TestRunner::new(Config::default()));
    for n in 0..Config::default().cases {
        let body = prepared(any_body().new_tree(&mut runner).unwrap().current(), &format!("evt-{n}"));
        let (status, answer) = poster.post(body.clone()).await;
        let shown = || format!("{status} {} to {:?}", String::from_utf8_lossy(&answer), String::from_utf8_lossy(&body));
        match status.as_u16() {
            200 | 202 => {}
            400 | 409 | 413 | 422 => {
                let problem: Problem = serde_json::from_slice(&answer).unwrap_or_else(|_| panic!("{}", shown()));
                assert!(!problem.detail.is_empty() && !problem.retryable, "{}", shown());
            }
            _ => panic!("{}", shown()),
        }
    }
    assert!(process.client.fanout("1", Duration::ZERO).await.is_ok(), "some of them were accepted");
}
