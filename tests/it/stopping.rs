//! A SIGTERM whatever the weather: each stop ends within its grace period, says how, and the next instance goes on.

use std::time::{Duration, Instant};

use fanfare::emulator::{Control, Rule};
use serde_json::Value;
use sqlx::{Connection, PgConnection};

use crate::harness::process::Process;
use crate::harness::service::{Database, World};
use crate::harness::together::together;

/// Slots, lent slots and what may be unflushed, by default.
const EXPOSURE: u64 = 32 + 16 + 16;
/// Long enough that nothing expires.
const USEFUL_S: u32 = 600;
/// Half of it is for what is in flight, the other half for writing.
const GRACE: Duration = Duration::from_secs(10);
/// What a busy machine takes beside it.
const SLACK: Duration = Duration::from_secs(12);

async fn sending(mut world: World, run: &str, tokens: &[String]) -> (World, Process, String) {
    world.set("DRAIN__GRACE_MS", GRACE.as_millis());
    let service = world.spawn().await;
    service.follow(run, tokens).await;
    let id = service.goal(run, run, USEFUL_S).await;
    (world, service, id)
}

fn healthy(run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{run}-{i}")).collect()
}

/// SIGTERM, and how it ended.
async fn stop(service: &mut Process) -> Option<i32> {
    let begun = Instant::now();
    service.terminate().await;
    let ended = service.ended().await;
    assert!(begun.elapsed() < GRACE + SLACK, "it took {:?}", begun.elapsed());
    ended.code()
}

async fn goes_on(world: &World, id: &str, n: u64, most: u64) -> Process {
    let next = world.spawn().await;
    let fanout = next.settled(id).await;
    assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (n, n, 0), "{fanout:#?}");
    let stats = world.emulator.stats();
    assert_eq!(stats.distinct_accepted, n, "{stats:?}");
    assert!(stats.duplicates_accepted <= most, "{stats:?}");
    next
}

/// Attempts that hang are given up before the end, and are noted as perhaps delivered; those answered are not repeated.
async fn while_attempts_hang() {
    let run = "stop-hang";
    let mut tokens = healthy(run, 300);
    tokens.extend((0..3).map(|i| format!("hang-{run}-{i}")));
    let (world, mut service, id) = sending(World::new(Database::Postgres, false).await, run, &tokens).await;
    world.emulator.logged(303).await;
    service.terminate().await;
    service.says(1, |line| line["target"] == "fanfare::app" && line["message"] == "draining").await;
    let ready = reqwest::get(format!("{}/readyz", service.ops)).await.unwrap();
    assert_eq!(ready.status(), 503, "no more work for it");
    assert_eq!(service.ended().await.code(), Some(0));
    let gave_up = service.says(1, |line| begins(line, "attempts without an answer are given up")).await;
    assert_eq!(gave_up["attempts"], 3);
    assert_eq!(service.said("drained")[0]["clean"], true);
    let mut database = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    let left = "SELECT (sum(bit_count(maybe & ~done)), sum(n - bit_count(done)), bool_or(unclean))::text FROM chunk";
    let left: String = sqlx::query_scalar(left).fetch_one(&mut database).await.unwrap();
    assert_eq!(left, "(3,3,f)", "three without an outcome, each may have arrived, and nobody was lost uncleanly");
    let well = Rule { prefix: "hang".into(), answer: "ok".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![well], ..Control::default() });
    let next = goes_on(&world, &id, 303, 0).await;
    assert_eq!(next.line(&id).await["ledger"], "exact");
}

fn begins(line: &Value, with: &str) -> bool {
    line["message"].as_str().is_some_and(|message| message.starts_with(with))
}

/// What was in flight cannot be written down: it says so, and the bound of a kill holds.
async fn while_the_database_is_away() {
    let run = "stop-away";
    let mut world = World::new(Database::Postgres, false).await;
    let direct = world.settings["FANFARE__DATABASE__URL"].clone();
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    let proxy = world.proxy_postgres().await;
    let (mut world, mut service, id) = sending(world, run, &healthy(run, 1200)).await;
    world.emulator.logged(300).await;
    proxy.cut();
    assert_eq!(stop(&mut service).await, Some(1), "it could not write down what it knows");
    world.set("DATABASE__URL", &direct);
    let mut database = PgConnection::connect(&direct).await.unwrap();
    // As if 15 s had passed: it is dead.
    sqlx::query("UPDATE instance SET lease_until_ms = 0").execute(&mut database).await.unwrap();
    goes_on(&world, &id, 1200, EXPOSURE).await;
}

async fn while_redis_is_away() {
    let run = "stop-redis";
    let world = World::new(Database::Postgres, true).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    let (mut world, mut service, id) = sending(world, run, &healthy(run, 1200)).await;
    world.emulator.logged(300).await;
    world.redis.as_mut().unwrap().kill().await;
    assert_eq!(stop(&mut service).await, Some(0));
    goes_on(&world, &id, 1200, 0).await;
}

/// Right after the 202: in the freeze, or before it.
async fn while_freezing() {
    let run = "stop-freeze";
    let world = World::new(Database::Postgres, false).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    let (world, mut service, id) = sending(world, run, &healthy(run, 2000)).await;
    assert_eq!(stop(&mut service).await, Some(0));
    goes_on(&world, &id, 2000, 0).await;
}

async fn while_paused() {
    let run = "stop-paused";
    let world = World::new(Database::Sqlite, false).await;
    let (world, mut service, id) = sending(world, run, &healthy(run, 600)).await;
    world.emulator.logged(100).await;
    let throttle = Rule { answer: "quota".into(), retry_after: Some(60), ..Rule::default() };
    world.emulate(Control { rules: vec![throttle], ..Control::default() });
    service.says(1, |line| line["message"] == "ceiling paused by the provider").await;
    world.emulate(Control { clear_rules: true, ..Control::default() });
    assert_eq!(stop(&mut service).await, Some(0), "nobody waits for a pause to end");
    goes_on(&world, &id, 600, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_ends_within_its_grace_and_the_next_instance_goes_on() {
    together(vec![
        ("attempts hang", Box::pin(while_attempts_hang())),
        ("database away", Box::pin(while_the_database_is_away())),
        ("Redis away", Box::pin(while_redis_is_away())),
        ("freezing", Box::pin(while_freezing())),
        ("paused", Box::pin(while_paused())),
    ])
    .await;
}
