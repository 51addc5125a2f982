//! `fanfare shadow` beside a running service: a fixture with a known difference of every kind gives exactly those reasons.

use std::time::{Duration, SystemTime};

use fanfare::wire::{DeviceRequest, FollowEntry, FollowsRequest};
use serde_json::{Value, json};

use super::harness::service::{Database, Service, World};

/// One device, following `subject` for these types (none = all).
async fn register(service: &Service, id: &str, token: &str, (subject, types): (&str, Option<&str>)) {
    let device = DeviceRequest {
        user_id: "u".into(),
        token: Some(token.to_owned()),
        fid: None,
        platform: "web".into(),
        locale: None,
    };
    service.client.put_device(id, &device).await.unwrap();
    follow(service, id, (subject, types), None).await;
}

async fn follow(service: &Service, id: &str, (subject, types): (&str, Option<&str>), muted: Option<&str>) {
    let types = types.map(|name| vec![name.to_owned()]);
    let follows = FollowsRequest {
        follows: vec![FollowEntry { subject: subject.to_owned(), types }],
        muted: muted.map(str::to_owned).into_iter().collect(),
    };
    service.client.put_follows(id, &follows).await.unwrap();
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// A time after all that was written so far and before all that is written from now on.
async fn between() -> u128 {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let at = now_ms();
    tokio::time::sleep(Duration::from_millis(5)).await;
    at
}

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn shadow(world: &World, (events, theirs): (&str, &str), more: &[&str]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let (events_file, theirs_file) = (dir.path().join("events.ndjson"), dir.path().join("theirs.csv"));
    std::fs::write(&events_file, events).unwrap();
    std::fs::write(&theirs_file, theirs).unwrap();
    let mut command = world.command("shadow");
    command.arg("--events").arg(&events_file).arg("--theirs").arg(&theirs_file).args(more);
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

async fn every_difference_has_its_reason(database: Database) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    let (all, corners) = (("match:m", None), ("match:m", Some("corner")));
    for i in 0..4 {
        register(&service, &format!("both-{i}"), &format!("ok-both-{i}"), all).await;
    }
    register(&service, "dead", "dead-1", all).await;
    let first = service.goal("first", "m", 60).await;
    service.settled(&first).await;

    register(&service, "elsewhere", "ok-1", ("team:none", None)).await;
    register(&service, "corners", "ok-2", corners).await;
    register(&service, "changes", "ok-3", corners).await;
    register(&service, "muted", "ok-4", all).await;
    follow(&service, "muted", all, Some("goal")).await;
    register(&service, "before", "ok-5", all).await;
    service.client.delete_device("before").await.unwrap();
    register(&service, "dies", "dead-2", all).await;
    register(&service, "leaves", "ok-6", all).await;
    register(&service, "plain", "ok-7", all).await;
    register(&service, "turns", "ok-8", corners).await;
    let list_ms = between().await;
    register(&service, "new", "ok-9", all).await;
    follow(&service, "turns", all, None).await;

    let second = service.goal("second", "m", 60).await;
    service.settled(&second).await;
    register(&service, "late", "ok-10", all).await;
    follow(&service, "changes", all, None).await;
    service.client.delete_device("leaves").await.unwrap();

    let events = "{\"id\":\"second\",\"type\":\"goal\"}\n{\"id\":\"never\"}\n";
    let row = |device: &str, token: &str| format!("second,{device},{token},{list_ms}\n");
    let mut theirs = "event_id,device_id,token,time\nother,d,,\n".to_owned();
    theirs += &row("", "ok-both-0");
    for device in ["both-1", "both-2", "both-3", "elsewhere", "corners", "changes", "muted", "dead", "before", "late"] {
        theirs += &row(device, "");
    }
    let odd = format!("{theirs}{}{}", row("nobody", ""), row("", "ok-secret-stranger"));

    let run = shadow(&world, (events, &odd), &["--json"]).await;
    assert_eq!((run.code, run.err.as_str()), (Some(1), "fanfare: 3 differences are unexplained\n"), "{}", run.out);
    let found: Value = serde_json::from_str(&run.out).unwrap();
    let (certain, likely) = (json!({"certain": 1, "likely": 0}), json!({"certain": 0, "likely": 1}));
    let absent = json!({
        "no_follow": {"no_follow": certain, "type_not_wanted": certain},
        "muted": {"type_muted": certain},
        "dead": {"device_dead": certain},
        "registered_after": {"registered_later": certain, "followed_later": likely},
        "theirs_stale": {"deleted": certain},
        "unexplained": {"unknown_device": likely, "unknown_token": likely},
    });
    let extra = json!({
        "dead": {"dead_since": likely},
        "theirs_stale": {
            "deleted_since": likely, "registered_after_theirs": certain, "followed_after_theirs": likely,
        },
        "unexplained": {"unexplained": likely},
    });
    assert_eq!((&found["absent"], &found["extra"]), (&absent, &extra), "{found:#}");
    assert_eq!((&found["ours"], &found["theirs"], &found["both"]), (&json!(9), &json!(13), &json!(4)), "{found:#}");
    let listed = found["listed"].as_array().unwrap();
    assert_eq!(listed.len(), 3, "{found:#}");
    assert!(listed.iter().any(|one| one["device"] == "plain" && one["side"] == "extra"), "{found:#}");
    assert!(!run.out.contains("secret-stranger"), "{}", run.out);
    let coverage = &found["coverage"];
    assert_eq!((&coverage["events"], &coverage["not_accepted"]), (&json!(1), &json!(["never"])), "{coverage:#}");
    assert_eq!((&coverage["largest"], &coverage["rows_of_other_events"]), (&json!(9), &json!(1)), "{coverage:#}");

    let explained = format!("{theirs}{}", row("plain", ""));
    let clean = shadow(&world, (events, &explained), &[]).await;
    assert_eq!((clean.code, clean.err.as_str()), (Some(0), ""), "{}", clean.out);
    assert!(clean.out.contains("9 recipients of ours, 12 of theirs, 5 on both"), "{}", clean.out);
    assert!(clean.out.contains("A clean verdict on the list is no verdict on volume"), "{}", clean.out);
    assert!(clean.out.contains("types that did not occur: ") && !clean.out.contains("occur: goal,"), "{}", clean.out);
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_difference_of_two_lists_has_its_reason_on_both_databases() {
    tokio::join!(
        every_difference_has_its_reason(Database::Sqlite),
        every_difference_has_its_reason(Database::Postgres)
    );
}

#[tokio::test]
async fn lists_that_say_nothing_are_no_clean_verdict() {
    let world = World::new(Database::Sqlite, false).await;
    let absent = shadow(&world, ("{\"id\":\"e\"}\n", "event_id,token\n"), &[]).await;
    assert!(absent.code == Some(69) && absent.err.contains("fanfare.db"), "{}", absent.err);
    world.store().await.migrate().await.unwrap();
    let nothing = shadow(&world, ("{\"id\":\"e\"}\n", "event_id,token\n"), &[]).await;
    assert!(nothing.code == Some(1) && nothing.err.contains("nothing was compared"), "{}{}", nothing.out, nothing.err);
    let unread = shadow(&world, ("{}\n", "event_id,token\n"), &[]).await;
    assert!(unread.code == Some(2) && unread.err.contains("line 1"), "{}", unread.err);
    let header = shadow(&world, ("{\"id\":\"e\"}\n", "token\nx\n"), &[]).await;
    assert!(header.code == Some(2) && header.err.contains("event_id"), "{}", header.err);
}
