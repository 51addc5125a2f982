//! Pruning on proof alone, on both databases, from the answer to the device's row.

use std::collections::BTreeSet;
use std::time::Duration;

use fanfare::emulator::{Control, Rule, answers};
use fanfare::wire::DeviceRequest;
use serde_json::Value;

use super::harness::beside::Beside;
use super::harness::logs::logs;
use super::harness::process::Process;
use super::harness::service::{Caller, Database, World, device_id};
use super::harness::together::together;

/// The only answers that change a device, and what they make of it. Everything else the emulator can say must leave
/// every device as it is.
const PROOF: &[(&str, &str)] = &[
    ("dead", "tombstoned"),
    ("dead404apns", "tombstoned"),
    ("apnsgone", "tombstoned"),
    ("invalid-field", "suspended"),
    ("invalid-field-first", "suspended"),
    // About the device only because the same variant was accepted for another one.
    ("invalid", "suspended"),
    ("suspect", "suspended"),
    ("foreign", "suspended"),
];

/// Answers that pause the whole project, an hour some of them: they go last.
fn throttles(name: &str) -> bool {
    ["quota", "over-", "devicequota", "ratelimit"].iter().any(|start| name.starts_with(start))
}

async fn state(caller: &Caller, id: &str) -> String {
    caller.client.device(id).await.unwrap().state
}

async fn every_answer(database: Database, run: &'static str) {
    let mut world = World::new(database, false).await;
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 1000);
    world.set("FCM__STALL_AFTER_MS", 300);
    world.set("FCM__SLOTS", 64);
    let service = world.serve().await;
    let proof = |name: &str| PROOF.iter().find(|(known, _)| *known == name).map(|(_, state)| *state);
    let (paused, asked): (Vec<&str>, Vec<&str>) = answers().map(|(name, _)| name).partition(|name| throttles(name));
    assert!(asked.len() > 80 && paused.len() > 10, "the table of answers is there");
    let verdicts = asked.iter().filter(|name| proof(name).is_some());
    let others = asked.iter().filter(|name| proof(name).is_none());
    let first: Vec<&str> = verdicts.chain(others).copied().collect();
    // Accepted ones around them: proof that the provider is well, for every variant.
    let accepted = |n: usize| (0..n).map(|i| format!("ok-{run}-{i}"));
    let tokens: Vec<String> = accepted(180)
        .chain(first.iter().map(|name| format!("{name}-{run}-x")))
        .chain((180..360).map(|i| format!("ok-{run}-{i}")))
        .collect();
    service.follow(run, &tokens).await;
    let fanout = service.settled(&service.goal(run, run, 8).await).await;
    let found = |outcome: &str| fanout.outcomes[outcome];
    assert_eq!((found("token_dead"), found("token_invalid"), found("token_foreign")), (3, 4, 1), "{fanout:#?}");
    for (i, name) in first.iter().enumerate() {
        assert_eq!(state(&service, &device_id(run, 180 + i)).await, proof(name).unwrap_or("live"), "{name}");
    }

    let slow = format!("{run}-throttled");
    let tokens: Vec<String> = paused.iter().map(|name| format!("{name}-{slow}")).collect();
    service.follow(&slow, &tokens).await;
    service.settled(&service.goal(&slow, &slow, 5).await).await;
    for (i, name) in paused.iter().enumerate() {
        assert_eq!(state(&service, &device_id(&slow, i)).await, "live", "{name}");
    }
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_proof_about_the_device_changes_a_device() {
    together(vec![
        ("SQLite", Box::pin(every_answer(Database::Sqlite, "proof-sqlite"))),
        ("Postgres", Box::pin(every_answer(Database::Postgres, "proof-pg"))),
    ])
    .await;
}

fn everybody(answer: &str) -> Control {
    let rule = Rule { prefix: String::new(), answer: answer.into(), ..Rule::default() };
    Control { rules: vec![rule], ..Control::default() }
}

async fn get(url: &str) -> String {
    reqwest::get(url).await.unwrap().text().await.unwrap()
}

async fn tombstoned(caller: &Caller, run: &str, n: usize) -> usize {
    let mut dead = 0;
    for i in 0..n {
        dead += usize::from(state(caller, &device_id(run, i)).await == "tombstoned");
    }
    dead
}

/// FCM calls everybody dead while goals for small audiences come in, on an instance and on the one that follows it.
async fn everybody_dead(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let mut service = world.spawn().await;
    let name = |goal: usize| format!("{run}-{goal}");
    let (goals, size) = (10, 12);
    for goal in 0..goals {
        service.follow(&name(goal), &(0..size).map(|i| format!("ok-{run}-{goal}-{i}")).collect::<Vec<_>>()).await;
        service.settled(&service.goal(&name(goal), &name(goal), 60).await).await;
    }
    world.emulate(everybody("dead"));
    for goal in 0..goals {
        if goal == goals / 2 {
            service.terminate().await;
            service.ended().await;
            service = world.spawn().await;
        }
        let id = service.goal(&format!("{run}-dead-{goal}"), &name(goal), 60).await;
        assert!(service.settled(&id).await.outcomes["token_dead"] >= 1);
    }
    let mut dead = 0;
    for goal in 0..goals {
        dead += tombstoned(&service, &name(goal), size).await;
    }
    // At most 28 of a platform, and there are three; 120 would be all.
    assert!(dead <= 84, "{dead} of 120 devices were tombstoned");
    let left = tombstoned(&service, &name(goals - 1), size).await;
    assert_eq!(left, 0, "the guard is shut by then, and stayed shut over a restart");
    let alarm = |line: &serde_json::Value| line["level"] == "ERROR" && line["target"] == "fanfare::ledger";
    let said = service.says(1, alarm).await;
    assert!(said["against"].as_u64() >= Some(1) && said["allowed_percent"].is_u64(), "{said}");
    let verbose = get(&format!("{}/readyz?verbose", service.ops)).await;
    assert!(verbose.contains("[+] devices: no ") && verbose.contains("% allowed"), "{verbose}");
    let metrics = get(&format!("{}/metrics", service.ops)).await;
    assert!(metrics.contains("fanfare_verdicts_withheld_total{platform=\"android\"}"), "{metrics}");

    world.emulate(Control { clear_rules: true, ..Control::default() });
    let well = format!("{run}-well");
    let token = |i: usize| if i < 6 { format!("dead-{run}-{i}") } else { format!("ok-{run}-w{i}") };
    service.follow(&well, &(0..600).map(token).collect::<Vec<_>>()).await;
    service.settled(&service.goal(&well, &well, 60).await).await;
    assert_eq!(tombstoned(&service, &well, 6).await, 6, "healthy answers open it again");
    stands(&service, "[+] devices: devices are judged").await;
}

/// Waits until readiness says so.
async fn stands(service: &Process, what: &str) {
    let said = async {
        loop {
            let verbose = get(&format!("{}/readyz?verbose", service.ops)).await;
            match verbose.contains(what) {
                true => return,
                false => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), said).await.unwrap_or_else(|_| panic!("never {what}"));
}

/// The process dies between the settling of what leapt and the words about it.
async fn killed_before_the_alarm(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let service = world.spawn().await;
    service.follow(run, &(0..75).map(|i| format!("dead-{run}-{i}")).collect::<Vec<_>>()).await;
    let id = service.settled(&service.goal(run, run, 60).await).await.id;
    service.kill().await;
    let mut beside = Beside::open(&world).await;
    beside
        .change(format!("UPDATE fanout SET reported_ms = NULL, settled_ms = settled_ms - 20000 WHERE id = {id}"))
        .await;
    beside.close().await;
    let alarm = |line: &Value| line["level"] == "ERROR" && line["fanout_id"] == id.as_str();
    let platforms = |service: &Process| {
        let said = service.lines_that(alarm);
        said.iter().map(|line| line["platform"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let service = world.spawn().await;
    service.says(3, alarm).await;
    assert_eq!(platforms(&service).len(), 3, "each platform leapt");
    assert_eq!(service.line(&id).await["repeated"], true);
    stands(&service, &format!("no android device judged in fan-out {id}: 25 of 25 dead, 30 % allowed")).await;
    service.kill().await;
    // Whoever comes next says nothing again, and knows how the guard stands all the same.
    let service = world.spawn().await;
    stands(&service, &format!("no web device judged in fan-out {id}")).await;
    assert_eq!(platforms(&service).len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_before_the_alarm_loses_neither_the_alarm_nor_how_the_guard_stands() {
    together(vec![
        ("SQLite", Box::pin(killed_before_the_alarm(Database::Sqlite, "noalarm-sqlite"))),
        ("Postgres", Box::pin(killed_before_the_alarm(Database::Postgres, "noalarm-pg"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_provider_that_calls_everybody_dead_prunes_next_to_nobody() {
    together(vec![
        ("SQLite", Box::pin(everybody_dead(Database::Sqlite, "alldead-sqlite"))),
        ("Postgres", Box::pin(everybody_dead(Database::Postgres, "alldead-pg"))),
    ])
    .await;
}

/// Held verdicts are not lost: whoever is dead for good is found again.
#[tokio::test(flavor = "multi_thread")]
async fn a_withheld_verdict_is_found_again_and_a_foreign_project_alarms() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    // Nobody is well: nothing is proven, whatever FCM says.
    service.follow("alone", &["dead-alone".to_owned()]).await;
    service.settled(&service.goal("alone-1", "alone", 60).await).await;
    assert_eq!(state(&service, &device_id("alone", 0)).await, "live");
    service.follow("others", &(0..9).map(|i| format!("ok-others-{i}")).collect::<Vec<_>>()).await;
    service.settled(&service.goal("others-1", "others", 60).await).await;
    service.settled(&service.goal("alone-2", "alone", 60).await).await;
    assert_eq!(state(&service, &device_id("alone", 0)).await, "tombstoned");

    let token = |i: usize| if i.is_multiple_of(5) { format!("foreign-{i}") } else { format!("ok-mixed-{i}") };
    service.follow("mixed", &(0..150).map(token).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("mixed-1", "mixed", 60).await).await;
    assert_eq!(fanout.outcomes["token_foreign"], 30);
    let id = fanout.id.clone();
    let alarm =
        logs().wait_for(1, move |e| e.level == tracing::Level::WARN && e.is("fanfare::ledger", "fanout_id", &id)).await;
    assert!(
        alarm[0].message.starts_with("many device tokens belong to another sender") && alarm[0].number("foreign") == 30
    );
    assert_eq!(state(&service, &device_id("mixed", 0)).await, "suspended");
    let again = DeviceRequest {
        user_id: "user-0".into(),
        token: Some("foreign-0".into()),
        fid: None,
        platform: "android".into(),
        locale: None,
    };
    assert!(service.client.put_device(&device_id("mixed", 0), &again).await.unwrap().revived);
    assert_eq!(state(&service, &device_id("mixed", 0)).await, "live", "until FCM says it again");
    service.stop().await.unwrap();
}
