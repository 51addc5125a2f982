//! Sweeps: dead devices are found without anything being sent, within a budget, behind everything else.

use std::collections::HashMap;
use std::time::Duration;

use fanfare::client::ClientError;
use fanfare::emulator::{Control, Rule};
use fanfare::wire::{Sweep, SweepRequest};

use super::harness::beside::Beside;
use super::harness::process::{Ended, Process};
use super::harness::service::{Caller, Database, World, device_id, goal};
use super::harness::together::together;

const LOOK: Duration = Duration::from_millis(50);

async fn begin(caller: &Caller, request: SweepRequest) -> String {
    caller.client.begin_sweep(&request).await.unwrap().id.unwrap()
}

async fn over(caller: &Caller, id: &str) -> Sweep {
    let look = async {
        loop {
            let sweep = caller.client.sweep(id).await.unwrap();
            if sweep.state != "running" {
                return sweep;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("the sweep ends")
}

async fn states(caller: &Caller, run: &str, n: usize) -> Vec<String> {
    let mut all = Vec::new();
    for i in 0..n {
        all.push(caller.client.device(&device_id(run, i)).await.unwrap().state);
    }
    all
}

async fn finds_the_dead(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    let mix = ["dead", "ok", "invalid-field", "ok", "apnsgone", "ok", "foreign", "ok", "iam", "ok", "ok", "ok"];
    let token = |i: usize| format!("{}-{run}-{i}", if i < mix.len() { mix[i] } else { "ok" });
    service.follow(run, &(0..60).map(token).collect::<Vec<_>>()).await;

    let dry = SweepRequest { dry_run: true, max_attempts: Some(50), ..SweepRequest::default() };
    let would = service.client.begin_sweep(&dry).await.unwrap();
    assert_eq!((would.id, would.devices, would.left), (None, 50, Some(60)));
    assert_eq!(world.emulator.stats().requests, 0);

    let id = begin(&service, SweepRequest::default()).await;
    let sweep = over(&service, &id).await;
    assert_eq!((sweep.state.as_str(), sweep.devices, sweep.asked, sweep.left), ("done", 60, 60, Some(0)), "{sweep:?}");
    assert_eq!((sweep.valid, sweep.dead, sweep.suspended, sweep.unknown), (55, 2, 2, 1), "{sweep:?}");
    let stats = world.emulator.stats();
    assert_eq!((stats.requests, stats.accepted), (sweep.attempts, 0), "asked, and nothing sent");
    let states = states(&service, run, mix.len()).await;
    assert_eq!((states[0].as_str(), states[4].as_str()), ("tombstoned", "tombstoned"));
    assert_eq!((states[2].as_str(), states[6].as_str()), ("suspended", "suspended"));
    assert!([1, 3, 5, 7, 8, 9].iter().all(|i| states[*i] == "live"), "{states:?}");
    // It is a fan-out with a line and an account like any other, and the next goal goes to the living.
    let fanout = service.client.fanout(&id, Duration::ZERO).await.unwrap();
    assert_eq!((fanout.kind.as_str(), fanout.recipients), ("sweep", 60));
    let told = service.client.explain(&id, &device_id(run, 0)).await.unwrap();
    assert_eq!(told.because, "token_dead");
    assert_eq!(service.settled(&service.goal(run, run, 10).await).await.recipients, 56);
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sweep_finds_the_dead_and_sends_nothing() {
    together(vec![
        ("SQLite", Box::pin(finds_the_dead(Database::Sqlite, "sweep-sqlite"))),
        ("Postgres", Box::pin(finds_the_dead(Database::Postgres, "sweep-pg"))),
    ])
    .await;
}

async fn command(world: &World, service: &Process, args: &[&str]) -> Ended {
    let mut command = world.command("sweep");
    command.args(args).env("FANFARE_URL", &service.api).env("FANFARE_KEY", &service.key);
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// By the real command: 75 until the last device was asked about, and each of them once, however often it is resumed and
/// whoever was killed in between.
async fn budgets(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let mut service = world.spawn().await;
    let token = |i: usize| if i.is_multiple_of(10) { format!("dead-{run}-{i}") } else { format!("ok-{run}-{i}") };
    service.follow(run, &(0..60).map(token).collect::<Vec<_>>()).await;
    let mut args = vec!["--json".to_owned(), "--max-attempts".to_owned(), "25".to_owned()];
    let mut found = Vec::new();
    for round in 0..3 {
        let ended = command(&world, &service, &args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let sweep: Sweep = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
        assert!(sweep.attempts <= 25, "{sweep:?}");
        assert_eq!(ended.code, Some(if round < 2 { 75 } else { 0 }), "{ended:?}");
        assert_eq!(sweep.state, if round < 2 { "paused" } else { "done" });
        if round < 2 {
            assert_eq!(sweep.reason.as_deref(), Some("budget"));
            assert!(ended.err.contains("--resume"), "{}", ended.err);
        }
        args.truncate(3);
        args.extend(["--resume".to_owned(), sweep.id.clone().unwrap()]);
        found.push((sweep.asked, sweep.dead, sweep.left));
        if round == 0 {
            service.kill().await;
            service = world.spawn().await;
        }
    }
    assert_eq!(found, [(25, 3, Some(35)), (25, 2, Some(10)), (10, 1, Some(0))]);
    let mut asked: HashMap<String, u32> = HashMap::new();
    for entry in world.emulator.log() {
        *asked.entry(entry.token).or_default() += 1;
    }
    assert!(asked.len() == 60 && asked.values().all(|n| *n == 1), "{asked:?}");
    let dead = states(&service, run, 60).await.iter().filter(|state| *state == "tombstoned").count();
    assert_eq!(dead, 6, "each run judges what it found");
    let lost = command(&world, &service, &["--resume", "999999"]).await;
    assert!(lost.code == Some(1) && lost.err.contains("sweep_not_found"), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sweep_pauses_at_its_budget_and_goes_on_where_it_stopped() {
    together(vec![
        ("SQLite", Box::pin(budgets(Database::Sqlite, "budget-sqlite"))),
        ("Postgres", Box::pin(budgets(Database::Postgres, "budget-pg"))),
    ])
    .await;
}

async fn stopped(database: Database, run: &'static str) {
    let mut world = World::new(database, false).await;
    world.set("FCM__SLOTS", 4);
    let service = world.serve().await;
    // Retries cost attempts: ten devices fail twice each, and twenty attempts do not reach the end.
    let token = |i: usize| if i < 10 { format!("flaky503-{run}-{i}") } else { format!("ok-{run}-{i}") };
    service.follow(run, &(0..40).map(token).collect::<Vec<_>>()).await;
    let id = begin(&service, SweepRequest { max_attempts: Some(20), ..SweepRequest::default() }).await;
    let spent = over(&service, &id).await;
    assert_eq!((spent.state.as_str(), spent.reason.as_deref()), ("paused", Some("budget")), "{spent:?}");
    assert!(spent.attempts <= 20 && spent.asked < 20, "failures are spent too: {spent:?}");

    let quota = Rule { prefix: String::new(), answer: "quota".into(), retry_after: Some(1), ..Rule::default() };
    world.emulate(Control { rules: vec![quota], ..Control::default() });
    let before = world.emulator.stats().requests;
    let id = begin(&service, SweepRequest { resume: Some(id), ..SweepRequest::default() }).await;
    let throttled = over(&service, &id).await;
    assert_eq!((throttled.state.as_str(), throttled.reason.as_deref()), ("paused", Some("throttle")), "{throttled:?}");
    assert!(world.emulator.stats().requests - before <= 12, "it stops at once");

    world.emulate(Control { clear_rules: true, ..Control::default() });
    let id = begin(&service, SweepRequest { resume: Some(id), ..SweepRequest::default() }).await;
    let last = over(&service, &id).await;
    assert_eq!((last.state.as_str(), last.left), ("done", Some(0)), "{last:?}");
    assert_eq!(states(&service, run, 40).await, vec!["live".to_owned(); 40], "no device was blamed for any of it");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sweep_is_stopped_by_failures_and_by_a_throttle_and_blames_nobody() {
    together(vec![
        ("SQLite", Box::pin(stopped(Database::Sqlite, "stop-sqlite"))),
        ("Postgres", Box::pin(stopped(Database::Postgres, "stop-pg"))),
    ])
    .await;
}

/// Its day is over before it has come to the end.
async fn out_of_time(database: Database, run: &'static str) {
    let mut world = World::new(database, false).await;
    world.set("FCM__SLOTS", 4);
    world.emulate(Control { latency_ms: Some(200), ..Control::default() });
    let service = world.serve().await;
    service.follow(run, &(0..80).map(|i| format!("ok-{run}-{i}")).collect::<Vec<_>>()).await;
    let id = begin(&service, SweepRequest::default()).await;
    world.emulator.logged(8).await;
    service.stop().await.unwrap();
    let mut beside = Beside::open(&world).await;
    beside.change(format!("UPDATE fanout SET deadline_ms = accepted_ms + 1 WHERE id = {id}")).await;
    beside.close().await;
    world.emulate(Control { latency_ms: Some(0), ..Control::default() });
    let sent = world.emulator.stats().requests;
    let service = world.serve().await;
    let late = over(&service, &id).await;
    assert_eq!((late.state.as_str(), late.reason.as_deref()), ("paused", Some("deadline")), "{late:?}");
    assert_eq!((late.devices, late.asked, late.left), (80, sent, Some(80 - sent)), "{late:?}");
    let id = begin(&service, SweepRequest { resume: Some(id), ..SweepRequest::default() }).await;
    let last = over(&service, &id).await;
    assert_eq!((last.state.as_str(), last.reason, last.asked, last.left), ("done", None, 80 - sent, Some(0)));
    assert_eq!(world.emulator.stats().requests, 80, "each once");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sweep_whose_time_is_over_says_so_and_goes_on_where_it_stopped() {
    together(vec![
        ("SQLite", Box::pin(out_of_time(Database::Sqlite, "late-sqlite"))),
        ("Postgres", Box::pin(out_of_time(Database::Postgres, "late-pg"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_sent_during_a_sweep_starts_at_once_and_there_is_one_sweep_at_a_time() {
    let mut world = World::new(Database::Postgres, false).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    world.set("CEILING__RATE_PER_S", 200);
    let service = world.serve().await;
    service.follow("swept", &(0..3_000).map(|i| format!("ok-swept-{i}")).collect::<Vec<_>>()).await;
    service.follow("match", &(0..20).map(|i| format!("ok-match-{i}")).collect::<Vec<_>>()).await;
    let id = begin(&service, SweepRequest::default()).await;
    world.emulator.logged(100).await;
    match service.client.begin_sweep(&SweepRequest::default()).await {
        Err(ClientError::Refused(problem)) => {
            assert_eq!((problem.status, problem.code.as_str()), (409, "sweep_running"));
            assert!(problem.detail.contains(&id), "{problem:?}");
        }
        other => panic!("{other:?}"),
    }
    let fanout = service.settled(&service.goal("in-between", "match", 60).await).await;
    assert_eq!(fanout.delivered, 20);
    assert_eq!(service.client.sweep(&id).await.unwrap().state, "running", "the goal did not wait for it");
    // 20 sends at 200 a second, one in twenty of them the sweep's.
    assert!(fanout.duration_ms < 2_000, "{fanout:?}");
    // Of the sweep's own class: behind the chunks that are in hand, and before all that is left of it.
    let mut lineups = goal("lineups", "match", 600);
    lineups.kind = "lineups".to_owned();
    let bulk = service.client.post_event(&lineups).await.unwrap().0.fanout_id;
    assert_eq!(service.settled(&bulk).await.delivered, 20);
    let sweep = service.client.sweep(&id).await.unwrap();
    assert!(sweep.state == "running" && sweep.attempts < 1_600, "{sweep:?}");
    service.client.cancel(&id).await.unwrap();
    let cancelled = over(&service, &id).await;
    assert_eq!(cancelled.state, "cancelled");
    let stats = world.emulator.stats();
    assert!(stats.accepted == 40 && stats.max_in_1s <= 220, "{stats:?}");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_finds_too_many_dead_judges_nobody_unless_it_is_told_that_it_is_true() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    let token = |i: usize| if i < 150 { format!("dead-many-{i}") } else { format!("ok-many-{i}") };
    service.follow("many", &(0..300).map(token).collect::<Vec<_>>()).await;
    let sweep = over(&service, &begin(&service, SweepRequest::default()).await).await;
    assert_eq!((sweep.dead, sweep.state.as_str()), (150, "done"));
    assert!(states(&service, "many", 150).await.iter().all(|state| state == "live"), "half of them is too many");
    assert_eq!(sweep.withheld, [("android", 50), ("ios", 50), ("web", 50)].map(|(p, n)| (p.to_owned(), n)).into());
    // Who registers after that is the next one's: it does not make this one unfinished.
    service.follow("later", &["ok-later".to_owned()]).await;
    let again = service.client.sweep(sweep.id.as_deref().unwrap()).await.unwrap();
    assert_eq!((again.state.as_str(), again.left), ("done", Some(1)));
    // Resumed, it is about those that were not judged.
    let told = SweepRequest { accept_dead_share: Some(60), resume: sweep.id, ..SweepRequest::default() };
    let sweep = over(&service, &begin(&service, told).await).await;
    assert_eq!((sweep.dead, sweep.withheld.len()), (150, 0));
    assert!(states(&service, "many", 150).await.iter().all(|state| state == "tombstoned"));
    for (field, request) in [
        ("/max_attempts", SweepRequest { max_attempts: Some(0), ..SweepRequest::default() }),
        ("/accept_dead_share", SweepRequest { accept_dead_share: Some(96), ..SweepRequest::default() }),
    ] {
        match service.client.begin_sweep(&request).await {
            Err(ClientError::Refused(problem)) => assert_eq!(problem.errors[0].field, field),
            other => panic!("{other:?}"),
        }
    }
    service.stop().await.unwrap();
}
