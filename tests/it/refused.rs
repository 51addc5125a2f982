//! What is refused, or always fails, for a while or for some: a role that is missing, a key that is mended, devices that
//! are sick. Whoever can be reached in time is, whoever cannot is told apart, and nobody's trouble holds up another.
//!
//! `FANFARE_LONG=1` lets the role be missing for 100 of 120 seconds instead of 16 of 31.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fanfare::emulator::{Control, LogEntry, Rule};
use fanfare::wire::ReplayRequest;
use serde_json::Value;
use tokio::process::Command;

use super::harness::process::Process;
use super::harness::service::{Database, World};
use super::harness::together::together;

/// In flight at once by default: 32 slots, and 16 lent.
const IN_FLIGHT: usize = 48;
const PUT_OFF: &str = "chunks in which everybody waits are put off";
const REFUSED: &str = "credential refused; it is probed until it serves somebody";

fn tokens(kind: &str, run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{kind}-{run}-{i}")).collect()
}

fn answers(answer: &str) -> Control {
    let rule = Rule { answer: answer.into(), ..Rule::default() };
    Control { rules: vec![rule], ..Control::default() }
}

fn well() -> Control {
    Control { clear_rules: true, ..Control::default() }
}

async fn said(service: &Process, message: &str) -> Value {
    service.says(1, |line| line["message"] == message).await
}

fn opened(service: &Process) -> usize {
    service.said("breaker changed").iter().filter(|line| line["to"] == "open").count()
}

/// The role is missing, and comes back 15 s (20 s) before the deadline. Were the wait between two probes doubled beyond 10 s,
/// the next one would come 1 + 2 + 4 + 8 + 16 s after the first refusal, and too late.
async fn a_role_comes_back() {
    let (useful_s, missing_s) =
        if std::env::var("FANFARE_LONG").is_ok_and(|v| v == "1") { (120, 100) } else { (31, 16) };
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("role", &tokens("ok", "role", 200)).await;
    world.emulate(answers("iam"));
    let id = service.goal("role", "role", useful_s).await;
    let begun = Instant::now();
    let why = said(&service, REFUSED).await;
    assert_eq!((&why["credential"], &why["last"]), (&"project".into(), &"403 PERMISSION_DENIED".into()), "{why}");
    assert!(why["refusals"].as_u64().unwrap() >= 1 && why["retry_in_ms"].as_u64().unwrap() <= 1000, "{why}");
    tokio::time::sleep(Duration::from_secs(missing_s).saturating_sub(begun.elapsed())).await;
    let refused = world.emulator.log().len();
    world.emulate(well());
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed), (200, 0), "{fanout:#?}");
    // What was in flight at the first refusal, then after 1, 2, 4, 8 s and every 10 s.
    let probes = 4 + usize::try_from(missing_s).unwrap() / 10 + 1;
    assert!(refused <= IN_FLIGHT + probes, "{refused} requests were refused");
    assert_eq!(opened(&service), 0, "no outage");
}

/// It does not come back in time: all that it held ends alike, and is reached by a replay once it is there.
async fn a_role_stays_away() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("away", &tokens("ok", "away", 1200)).await;
    world.emulate(answers("iam"));
    let id = service.goal("away", "away", 5).await;
    let fanout = service.settled(&id).await;
    let ended: BTreeMap<_, _> = fanout.outcomes.iter().filter(|(_, n)| **n > 0).collect();
    assert_eq!(ended, BTreeMap::from([(&"credential".to_owned(), &1200)]), "tried or not");
    assert!(fanout.attempts > 0 && fanout.attempts < 100, "{fanout:#?}");
    world.emulate(well());
    let asked = ReplayRequest { useful_for_s: Some(60), ..ReplayRequest::default() };
    let replay = service.client.replay(&id, &asked).await.unwrap();
    assert_eq!(replay.recipients, 1200);
    let replayed = service.settled(&replay.fanout_id.unwrap()).await;
    assert_eq!((replayed.delivered, replayed.failed), (1200, 0), "{replayed:#?}");
}

/// Every access token is revoked, and no other is given for the key.
async fn a_key_is_refused_for_a_while() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("revoked", &tokens("ok", "revoked", 300)).await;
    // One chunk: others would be claimed only when there is room for more in hand, after the deadline.
    service.follow("late", &tokens("ok", "late", 400)).await;
    said(&service, "access token refreshed").await;
    let answer = Some("grant-signature".to_owned());
    world.emulate(Control { revoke: true, oauth_answer: answer, ..Control::default() });
    let late = service.goal("late", "late", 5).await;
    let id = service.goal("revoked", "revoked", 60).await;
    let late = service.settled(&late).await;
    assert_eq!((late.delivered, late.outcomes["credential"]), (0, 400), "{late:#?}");
    service.says(3, |line| line["message"] == "no new access token").await;
    world.emulate(Control { oauth_answer: Some("ok".to_owned()), ..Control::default() });
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed), (300, 0), "{fanout:#?}");
    let lines = service.lines();
    let at = |n: usize, message: &str| {
        lines.iter().enumerate().filter(|(_, line)| line["message"] == message).nth(n).map(|(i, _)| i).unwrap()
    };
    let (fresh, works) = (at(1, "access token refreshed"), at(0, "credential works again"));
    let between = lines[fresh..works].iter().filter(|line| line["message"] == REFUSED).count();
    assert_eq!(between, 0, "the first to leave with the new one was served");
}

/// The key in the file is wrong, is mended, and is then exchanged for files that will not do.
async fn a_key_file_is_mended() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.settings.remove("FANFARE__FCM__CREDENTIALS").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key.json");
    let good: Value = serde_json::from_str(&world.emulator.key_json()).unwrap();
    let with = |field: &str, value: Value| {
        let mut key = good.clone();
        key[field] = value;
        key.to_string()
    };
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    write(&path, &with("private_key", pair.serialize_pem().into()));
    world.set("FCM__CREDENTIALS_FILE", path.display());
    let service = world.spawn().await;
    service.follow("file", &tokens("ok", "file", 100)).await;
    let id = service.goal("file", "file", 60).await;
    said(&service, "no new access token").await;
    write(&path, &with("client_email", "".into()));
    service.signal("-HUP").await;
    let kept = "key not read anew; the old one stays in force";
    let fault = said(&service, kept).await;
    assert!(fault["error"].as_str().unwrap().contains("\"client_email\""), "{fault}");
    assert_eq!((&fault["level"], &fault["file"]), (&"WARN".into(), &path.display().to_string().into()));
    write(&path, &good.to_string());
    // Nobody tells: it is read when the next token is due.
    said(&service, "key read anew").await;
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed), (100, 0), "{fanout:#?}");
    assert_eq!(service.said(kept).len(), 1, "the same fault is told once");

    write(&path, &with("project_id", "another".into()));
    service.signal("-HUP").await;
    let fault = service.says(2, |line| line["message"] == kept).await;
    let said_of_it = fault["error"].as_str().unwrap();
    assert!(said_of_it.contains("\"another\"") && said_of_it.contains("restart"), "{fault}");
    write(&path, &good.to_string());
    service.signal("-HUP").await;
    said(&service, "key read anew; it is the same").await;
    let fanout = service.settled(&service.goal("after", "file", 60).await).await;
    assert_eq!((fanout.delivered, fanout.failed), (100, 0), "{fanout:#?}");
    let text = format!("{:?}", service.lines());
    assert!(!text.contains("PRIVATE KEY"), "no key in the log");
}

/// A key that a pipe gives, once: the service starts, serves, and does not wait for another.
async fn a_key_in_a_pipe() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.settings.remove("FANFARE__FCM__CREDENTIALS").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (file, pipe) = (dir.path().join("key.json"), dir.path().join("pipe.json"));
    std::fs::write(&file, world.emulator.key_json()).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().await.unwrap().success());
    let mut give = Command::new("sh");
    give.args(["-c", "cat \"$1\" > \"$2\"", "sh"]).arg(&file).arg(&pipe).kill_on_drop(true);
    let mut given = give.spawn().unwrap();
    world.set("FCM__CREDENTIALS_FILE", pipe.display());
    let service = world.spawn().await;
    assert!(given.wait().await.unwrap().success());
    service.signal("-HUP").await;
    let kept = said(&service, "key not read anew; the old one stays in force").await;
    assert!(kept["error"].as_str().unwrap().contains("no regular file"), "{kept}");
    service.follow("pipe", &tokens("ok", "pipe", 10)).await;
    let fanout = service.settled(&service.goal("pipe", "pipe", 60).await).await;
    assert_eq!((fanout.delivered, fanout.failed), (10, 0), "{fanout:#?}");
}

/// Registers followers of a match on one platform.
async fn follow_on(platform: &str, service: &Process, run: &str, n: u64) {
    let device = |i: u64| {
        serde_json::json!({"id": format!("{run}-{i}"), "user_id": format!("user-{i}"), "token": format!("ok-{run}-{i}"),
            "platform": platform, "locale": "en", "follows": [format!("match:{run}")]})
    };
    let lines: Vec<_> = (0..n).map(|i| Ok(bytes::Bytes::from(format!("{}\n", device(i))))).collect();
    assert_eq!(service.client.import(futures_util::stream::iter(lines)).await.unwrap().imported, n);
}

/// A service whose key for one platform is refused, and which says what it puts off.
async fn without_the_key(database: Database, run: &str) -> (World, Process) {
    let mut world = World::new(database, false).await;
    world.settings.insert("RUST_LOG".to_owned(), "fanfare::fanout=debug,info".to_owned());
    let service = world.spawn().await;
    let rule = Rule { prefix: format!("ok-{run}-"), answer: "thirdparty".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![rule], ..Control::default() });
    (world, service)
}

/// More of one platform wait than stay in hand. They are put off; a goal for another platform goes through meanwhile; and
/// all are reached once the key is mended, before they would have come back by themselves.
async fn a_platforms_key_is_refused_for_thousands(database: Database) {
    let (world, service) = without_the_key(database, "crowd").await;
    follow_on("ios", &service, "crowd", 8000).await;
    follow_on("android", &service, "others", 300).await;
    let id = service.goal("crowd", "crowd", 600).await;
    // 16 chunks, of which eight stay. One more that had been in flight may.
    let away = |line: &Value| line["message"] == PUT_OFF && line["away"].as_u64().unwrap() >= 7;
    service.says(1, away).await;
    let others = service.settled(&service.goal("others", "others", 600).await).await;
    assert_eq!((others.delivered, others.failed, others.attempts), (300, 0, 300), "{others:#?}");
    let waits = service.client.fanout(&id, Duration::ZERO).await.unwrap();
    assert_eq!((waits.recipients, waits.pending), (8000, 8000), "{waits:#?}");
    world.emulate(well());
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed, fanout.ledger.as_str()), (8000, 0, "exact"), "{fanout:#?}");
    let log = world.emulator.log();
    let refused = log.iter().filter(|entry| entry.answer == "thirdparty").count() as u64;
    assert_eq!((fanout.attempts, world.emulator.stats().duplicates_accepted), (8000 + refused, 0), "{fanout:#?}");
    let line = service.says(1, |line| line["message"] == "fan-out finished" && line["fanout_id"] == id.as_str()).await;
    assert_eq!((&line["interrupted"], &line["instances"]), (&0.into(), &1.into()), "{line}");
    assert!(!service.said("chunks that were put off are called back").is_empty());
}

/// It is not mended in time: those that were put off end as those in hand do, with their deadline.
async fn a_platforms_key_stays_refused_for_thousands(database: Database) {
    let (world, service) = without_the_key(database, "lost").await;
    follow_on("web", &service, "lost", 6000).await;
    let id = service.goal("lost", "lost", 8).await;
    service.says(1, |line| line["message"] == PUT_OFF).await;
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.outcomes["credential"], fanout.delivered), (6000, 0), "{fanout:#?}");
    assert_eq!(fanout.attempts, world.emulator.log().len() as u64, "{fanout:#?}");
    assert!(fanout.attempts <= 2 * IN_FLIGHT as u64, "{fanout:#?}");
    let line = said(&service, "fan-out finished").await;
    assert_eq!((&line["interrupted"], &line["ledger"]), (&0.into(), &"exact".into()), "{line}");
}

/// A platform's key is mended, but the ceiling is too low to reach all in time: that is not the key's fault.
async fn a_platforms_key_is_mended_too_late_for_the_pace() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("CEILING__RATE_PER_S", 10);
    let service = world.spawn().await;
    follow_on("ios", &service, "apple", 400).await;
    world.emulate(answers("thirdparty"));
    let id = service.goal("apple", "apple", 15).await;
    let why = said(&service, REFUSED).await;
    assert_eq!(why["credential"], "ios", "{why}");
    world.emulate(well());
    said(&service, "credential works again").await;
    let fanout = service.settled(&id).await;
    let refused = world.emulator.log().iter().filter(|entry| entry.answer == "thirdparty").count() as u64;
    let (credential, expired) = (fanout.outcomes["credential"], fanout.outcomes["expired"]);
    assert!(credential <= refused, "{refused} were refused: {fanout:#?}");
    assert!(fanout.delivered > 0 && expired >= 100, "{fanout:#?}");
}

/// The role is missing, and everybody it held has ended: nobody asks any more. What is paused meanwhile, and over before
/// anybody asks again, was not held by it.
async fn a_pause_outlives_a_refusal() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("paused", &tokens("unavailable", "paused", 5)).await;
    service.follow("refused", &tokens("ok", "refused", 5)).await;
    let parent = service.goal("paused", "paused", 5).await;
    assert_eq!(service.settled(&parent).await.failed, 5);
    let asked = ReplayRequest { useful_for_s: Some(20), max_attempts: Some(1), ..ReplayRequest::default() };
    let replay = service.client.replay(&parent, &asked).await.unwrap().fanout_id.unwrap();
    let paused = service.client.fanout(&replay, Duration::from_secs(50)).await.unwrap();
    assert_eq!(paused.paused.as_deref(), Some("budget"), "{paused:#?}");
    world.emulate(answers("iam"));
    let refused = service.settled(&service.goal("refused", "refused", 5).await).await;
    assert_eq!(refused.outcomes["credential"], 5, "{refused:#?}");
    let over = service.settled(&replay).await;
    assert_eq!((over.failed, over.outcomes["credential"]), (5, 0), "{over:#?}");
}

/// A key in a variable cannot change, and SIGHUP says so.
async fn a_key_in_a_variable() {
    let service = World::new(Database::Sqlite, false).await.spawn().await;
    service.signal("-HUP").await;
    let line = service.says(1, |line| line["setting"] == "fcm.credentials").await;
    assert_eq!(line["message"], "the key did not come from a file, so it cannot change while the service runs");
}

fn of<'a>(log: &'a [LogEntry], kind: &str) -> Vec<&'a LogEntry> {
    log.iter().filter(|entry| entry.token.starts_with(kind)).collect()
}

/// Ten devices always answer 503, and are tried again and again: that is theirs.
async fn few_sick_devices() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("sick", &tokens("unavailable", "sick", 10)).await;
    service.follow("live", &tokens("ok", "live", 40)).await;
    let sick = service.goal("sick", "sick", 12).await;
    world.emulator.logged(40).await;
    assert_eq!(opened(&service), 0, "40 failures of 10 devices");
    let live = service.settled(&service.goal("live", "live", 60).await).await;
    assert_eq!((live.delivered, opened(&service)), (40, 0), "{live:#?}");
    let sick = service.settled(&sick).await;
    assert_eq!((sick.delivered, sick.failed), (0, 10), "{sick:#?}");
    // After 0.25, 1, 2, 4 and 8 s, then every 10 s.
    assert!(sick.attempts <= 10 * 6, "each is asked less and less: {sick:#?}");
    assert_eq!(opened(&service), 0);
}

/// Twenty are taken for an outage; a live goal is the next probe, and shows that it is none.
async fn many_sick_devices() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("ill", &tokens("unavailable", "ill", 20)).await;
    service.follow("lively", &tokens("ok", "lively", 40)).await;
    let ill = service.goal("ill", "ill", 30).await;
    service.says(1, |line| line["message"] == "breaker changed" && line["to"] == "open").await;
    let before = world.emulator.log().len();
    let live = service.settled(&service.goal("lively", "lively", 60).await).await;
    assert_eq!((live.delivered, live.failed), (40, 0), "{live:#?}");
    let log = world.emulator.log();
    let probes = log[before..].iter().take_while(|entry| !entry.token.starts_with("ok-")).count();
    // What was still in flight when it opened, and a probe or two before the goal had come in hand: with the first probe
    // after it the breaker closes.
    assert!(probes <= 6, "{probes} sick devices were asked before the goal");
    assert_eq!(of(&log, "ok-").len(), 40, "each once");
    let ill = service.settled(&ill).await;
    assert_eq!((ill.delivered, ill.failed), (0, 20), "{ill:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_refused_or_sick_for_a_while_is_reached_in_time_and_holds_up_nobody_else() {
    together(vec![
        ("a role comes back", Box::pin(a_role_comes_back())),
        ("a role stays away", Box::pin(a_role_stays_away())),
        ("a key is refused for a while", Box::pin(a_key_is_refused_for_a_while())),
        ("a key file is mended", Box::pin(a_key_file_is_mended())),
        ("a key in a pipe", Box::pin(a_key_in_a_pipe())),
        (
            "a platform's key is mended too late for the pace",
            Box::pin(a_platforms_key_is_mended_too_late_for_the_pace()),
        ),
        ("a pause outlives a refusal", Box::pin(a_pause_outlives_a_refusal())),
        ("a key in a variable", Box::pin(a_key_in_a_variable())),
        ("few sick devices", Box::pin(few_sick_devices())),
        ("many sick devices", Box::pin(many_sick_devices())),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_platform_without_its_key_holds_up_nobody_else_however_many_wait_for_it() {
    together(vec![
        ("mended, SQLite", Box::pin(a_platforms_key_is_refused_for_thousands(Database::Sqlite))),
        ("mended, PostgreSQL", Box::pin(a_platforms_key_is_refused_for_thousands(Database::Postgres))),
        ("not mended, SQLite", Box::pin(a_platforms_key_stays_refused_for_thousands(Database::Sqlite))),
        ("not mended, PostgreSQL", Box::pin(a_platforms_key_stays_refused_for_thousands(Database::Postgres))),
    ])
    .await;
}
