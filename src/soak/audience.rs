//! Owns who follows and what their device tokens are like, and what of a day each of them wants.
//! Must never know: how the service takes them in.

use std::collections::BTreeMap;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::day::{Day, Fixture, Post};
use crate::domain::catalogue::BUILT_IN;
use crate::wire::EventRequest;

/// Every so many devices the same mix of device tokens begins again.
const MIX: u32 = 100;

/// Device tokens of the well are in so many groups, which faults hit by their beginning: `ok-007-`.
const GROUPS: u32 = 500;

/// How the emulator treats the `n`-th device, as its device token begins.
fn answer(n: u32) -> String {
    match n % MIX {
        11 => "dead".to_owned(),
        37 => "invalid-field".to_owned(),
        59 => "flakyhtml404".to_owned(),
        73 => "flaky503".to_owned(),
        // A 404 that says nothing of the device.
        83 => "flakynoproject".to_owned(),
        _ => format!("ok-{:03}", n % GROUPS),
    }
}

/// The device token of the `n`-th device. After the answer a letter, because a number would mean something to the emulator.
#[must_use]
pub fn token(run: &str, n: u32) -> String {
    format!("{}-{run}-{n}", answer(n))
}

/// Whether the provider itself said that the device behind this device token is gone or never was.
#[must_use]
pub fn is_proof(answer: &str) -> bool {
    matches!(answer, "dead" | "invalid-field")
}

/// Devices of a match whose refusal is for good.
#[must_use]
pub fn bad(fixture: &Fixture) -> u64 {
    let devices = fixture.first..fixture.first + fixture.audience;
    devices.filter(|n| matches!(n % MIX, 11 | 37)).count() as u64
}

/// Follows only what decides a match.
const DECISIVE: [&str; 4] = ["goal", "own_goal", "penalty_goal", "full_time"];

fn wants(n: u32, kind: &str) -> bool {
    match n % 10 {
        3 => kind != "corner",
        7 => DECISIVE.contains(&kind),
        _ => true,
    }
}

/// Devices of a match that want events of this type.
#[must_use]
pub fn expected(fixture: &Fixture, kind: &str) -> u64 {
    (fixture.first..fixture.first + fixture.audience).filter(|n| wants(*n, kind)).count() as u64
}

/// NDJSON of all devices of a day.
#[must_use]
pub fn lines(run: &str, day: &Day) -> Vec<String> {
    let devices = |fixture: &Fixture| {
        let id = fixture.id.clone();
        (fixture.first..fixture.first + fixture.audience).map(move |n| line(run, &id, n))
    };
    day.fixtures.iter().flat_map(devices).collect()
}

fn line(run: &str, fixture: &str, n: u32) -> String {
    let team = format!("team:{run}-{fixture}-{}", if n.is_multiple_of(2) { "home" } else { "away" });
    let mut follows = vec![if n % 10 == 7 {
        serde_json::json!({"subject": team, "types": DECISIVE})
    } else {
        serde_json::json!({"subject": team})
    }];
    // Who follows team and match gets one message.
    if n.is_multiple_of(5) {
        follows.push(serde_json::json!({"subject": format!("match:{run}-{fixture}")}));
    }
    let muted: &[&str] = if n % 10 == 3 { &["corner"] } else { &[] };
    let platform = ["android", "ios", "web"][(n % 3) as usize];
    let locale = ["en", "pt-BR", "es", "tr", "ar"][(n / 3 % 5) as usize];
    let device = serde_json::json!({
        "id": format!("{run}-{n}"), "user_id": format!("user-{n}"), "token": token(run, n),
        "platform": platform, "locale": locale,
        "follows": follows, "muted": muted,
    });
    format!("{device}\n")
}

/// What is posted, as it happened now.
#[must_use]
pub fn event(run: &str, day: &Day, post: &Post, now: OffsetDateTime) -> EventRequest {
    let fixture = &day.fixtures[post.fixture].id;
    let (home, away) = (format!("Home {fixture}"), format!("Away {fixture}"));
    let mut fields: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    let texts = [
        ("home", home.clone()),
        ("away", away),
        ("score", "2-1".to_owned()),
        // Another name makes other news of two corners in one minute.
        ("player", format!("Player {}", post.id)),
        ("player_in", format!("Sub {}", post.id)),
        ("player_out", "Eleven".to_owned()),
        ("team", home),
        ("decision", "No goal".to_owned()),
        ("news", post.id.clone()),
    ];
    fields.extend(texts.map(|(name, value)| (name.to_owned(), value.into())));
    fields.insert("minute".to_owned(), post.minute.into());
    EventRequest {
        id: format!("{run}-{}", post.id),
        kind: post.kind.to_owned(),
        match_id: format!("{run}-{fixture}"),
        occurred_at: now.format(&Rfc3339).unwrap_or_default(),
        subjects: vec![
            format!("match:{run}-{fixture}"),
            format!("team:{run}-{fixture}-home"),
            format!("team:{run}-{fixture}-away"),
        ],
        fields,
        data: BTreeMap::new(),
        supersedes: None,
        useful_for_s: None,
    }
}

/// The built-in event types with one change: every message carries the id of its event as its collapse key, so that each
/// line of the emulator's log names the event it belongs to.
#[must_use]
pub fn catalogue() -> String {
    let line = |line: &str| {
        if line.starts_with("collapse_key") { "collapse_key = \"{event_id}\"".to_owned() } else { line.to_owned() }
    };
    BUILT_IN.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue::Catalogue;

    fn day() -> Day {
        Day::plan(7, 600_000, 90.0)
    }

    #[test]
    fn devices_are_imported_with_what_they_are_expected_to_want() {
        let day = day();
        let lines = lines("r1", &day);
        assert_eq!(lines.len(), day.devices() as usize);
        let device: serde_json::Value = serde_json::from_str(&lines[13]).unwrap();
        assert_eq!((device["token"].as_str(), device["muted"][0].as_str()), (Some("ok-013-r1-13"), Some("corner")));
        let largest = day.fixtures.iter().max_by_key(|f| f.audience).unwrap();
        let all = expected(largest, "lineups");
        assert!(expected(largest, "goal") > all && all > expected(largest, "corner"), "{largest:?}");
        assert_eq!(expected(largest, "goal"), u64::from(largest.audience));
        assert!(bad(largest) >= u64::from(largest.audience / 50) - 2);
    }

    #[test]
    fn every_event_brings_what_its_type_needs() {
        let day = day();
        let catalogue = Catalogue::parse(&catalogue()).unwrap();
        for post in &day.posts {
            let event = event("r1", &day, post, OffsetDateTime::UNIX_EPOCH);
            let kind = catalogue.known(&event.kind).unwrap();
            assert!(kind.required.iter().all(|name| event.fields.contains_key(name)), "{event:?}");
        }
    }

    #[test]
    fn the_events_own_id_is_the_collapse_key_of_every_type() {
        let text = catalogue();
        let keys: Vec<&str> = text.lines().filter(|line| line.starts_with("collapse_key")).collect();
        assert_eq!(keys.len(), 21);
        assert!(keys.iter().all(|key| *key == "collapse_key = \"{event_id}\""));
    }
}
