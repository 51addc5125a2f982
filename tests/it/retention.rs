//! Retention in the running service, beside sending: what a caller sees of it, and that nothing of the old is left.

use std::time::Duration;

use fanfare::client::ClientError;
use fanfare::emulator::{Control, Rule};
use fanfare::wire::{EventRequest, ReplayRequest, SupersedesRequest};

use super::harness::beside::Beside;
use super::harness::service::{Caller, Database, World, goal};
use super::harness::together::together;

const DAY_MS: i64 = 86_400_000;

/// Everything that has happened so far happened so many days earlier.
async fn age(world: &World, days: i64) {
    let (mut beside, ms) = (Beside::open(world).await, days * DAY_MS);
    let fanouts = "UPDATE fanout SET reported_ms = 1";
    beside.change(format!("{fanouts}, settled_ms = settled_ms - {ms}, accepted_ms = accepted_ms - {ms}")).await;
    beside.change(format!("UPDATE event SET accepted_ms = accepted_ms - {ms}")).await;
    beside.change(format!("UPDATE repeat_window SET until_ms = until_ms - {ms}")).await;
    beside.change("UPDATE upkeep SET until_ms = 0".to_owned()).await;
    beside.close().await;
}

/// Rows of a fan-out in every table that has some.
async fn rows_of(world: &World, id: &str) -> i64 {
    let mut beside = Beside::open(world).await;
    let mut rows = 0;
    for table in ["failure", "chunk", "chunk_ids", "fanout_part", "event", "doomed"] {
        rows += beside.number(format!("SELECT count(*) FROM {table} WHERE fanout_id = {id}")).await;
    }
    beside.close().await;
    rows
}

/// Events by name, and windows of identical news that closed long ago.
async fn names(world: &World, run: &str) -> (i64, i64) {
    let mut beside = Beside::open(world).await;
    let events = beside.number(format!("SELECT count(*) FROM event WHERE event_id LIKE '{run}%-nobody-%'")).await;
    let windows = beside.number(format!(
        "SELECT count(*) FROM repeat_window WHERE until_ms < (SELECT max(accepted_ms) - {} FROM event)",
        10 * DAY_MS
    ));
    let windows = windows.await;
    beside.close().await;
    (events, windows)
}

/// News for nobody: once, again under another id, and a correction of what never comes.
async fn names_without_a_fanout(caller: &Caller, run: &str) {
    let event = goal(&format!("{run}-nobody-1"), &format!("{run}-nobody"), 60);
    let first = caller.client.post_event(&event).await.unwrap().0.fanout_id;
    let again = EventRequest { id: format!("{run}-nobody-2"), ..event };
    assert_eq!(caller.client.post_event(&again).await.unwrap().0.fanout_id, first, "the same news");
    let mut early = goal(&format!("{run}-nobody-3"), &format!("{run}-nobody"), 60);
    let never = format!("{run}-nobody-4");
    early.supersedes = Some(SupersedesRequest { event_id: never, mode: "retract".to_owned() });
    let early = caller.client.post_event(&early).await.unwrap().0.fanout_id;
    for id in [first, early] {
        caller.settled(&id).await;
    }
}

async fn code(caller: &Caller, id: &str) -> u16 {
    match caller.client.fanout(id, Duration::ZERO).await {
        Ok(_) => 200,
        Err(ClientError::Refused(problem)) => problem.status,
        Err(other) => panic!("{other}"),
    }
}

async fn beside_sending(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let first = world.serve().await;
    let old = format!("{run}-old");
    let token = |i: usize| if i.is_multiple_of(2) { format!("dead-{old}-{i}") } else { format!("ok-{old}-{i}") };
    first.follow(&old, &(0..1_200).map(token).collect::<Vec<_>>()).await;
    let id = first.goal(&old, &old, 60).await;
    assert_eq!(first.settled(&id).await.outcomes["token_dead"], 600);
    names_without_a_fanout(&first, run).await;
    first.follow(run, &(0..1_000).map(|i| format!("ok-{run}-{i}")).collect::<Vec<_>>()).await;
    first.stop().await.unwrap();

    age(&world, 13).await;
    let second = world.serve().await;
    let young = second.goal(&format!("{run}-young"), run, 60).await;
    second.settled(&young).await;
    assert_eq!(code(&second, &id).await, 200, "thirteen days are not too old");
    second.stop().await.unwrap();
    assert!(rows_of(&world, &id).await > 600);
    assert_eq!(names(&world, run).await.0, 4);

    age(&world, 2).await;
    world.emulate(Control { latency_ms: Some(10), ..Control::default() });
    let third = world.serve().await;
    let beside = third.goal(&format!("{run}-new"), run, 60).await;
    let fanout = third.settled(&beside).await;
    assert_eq!((fanout.delivered, fanout.failed, fanout.retried), (1_000, 0, 0), "{fanout:?}");
    let gone = async {
        while code(&third, &id).await != 404 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("the old fan-out is gone");
    assert_eq!(code(&third, &young).await, 200, "two days are not");

    // A repeat from beyond the window is a new event; but it is about a goal that is long over.
    let mut late = goal(&old, &old, 60);
    late.occurred_at = "2026-01-01T00:00:00Z".to_owned();
    match third.client.post_event(&late).await {
        Err(ClientError::Refused(problem)) => {
            assert_eq!((problem.status, problem.code.as_str()), (422, "event_too_late"))
        }
        other => panic!("{other:?}"),
    }
    // Stopped when it is done, or in the middle: whoever comes next goes on.
    third.stop().await.unwrap();
    let left = async || (rows_of(&world, &id).await, names(&world, run).await);
    for _ in 0..10 {
        if left().await == (0, (0, 0)) {
            break;
        }
        age(&world, 0).await;
        let next = world.serve().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        next.stop().await.unwrap();
    }
    assert_eq!(left().await, (0, (0, 0)), "rows of a fan-out, and names, that nobody knows any more");
    assert!(rows_of(&world, &young).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_old_goes_beside_sending_and_its_caller_is_told_so() {
    together(vec![
        ("SQLite", Box::pin(beside_sending(Database::Sqlite, "retain-sqlite"))),
        ("Postgres", Box::pin(beside_sending(Database::Postgres, "retain-pg"))),
    ])
    .await;
}

/// A fan-out that is kept only because a replay of it is young, and an older replay of it is gone with whom it reached.
async fn replayed_past_retention(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let failing = |prefixes: &[String]| {
        let rule = |prefix: &String| Rule {
            prefix: prefix.clone(),
            answer: "unavailable".into(),
            retry_after: Some(3),
            ..Rule::default()
        };
        let rules = prefixes.iter().map(rule).collect();
        world.emulate(Control { clear_rules: true, rules, ..Control::default() });
    };
    let tokens: Vec<String> = (0..3).map(|i| format!("ok-{run}-{i}")).collect();
    let first = world.serve().await;
    first.follow(run, &tokens).await;
    failing(&tokens);
    let parent = first.goal(run, run, 5).await;
    assert_eq!(first.settled(&parent).await.failed, 3);
    failing(&tokens[1..]);
    let asked = |seconds| ReplayRequest { useful_for_s: Some(seconds), ..ReplayRequest::default() };
    let old = first.client.replay(&parent, &asked(5)).await.unwrap().fanout_id.unwrap();
    assert_eq!(first.settled(&old).await.delivered, 1);
    let young = first.client.replay(&parent, &asked(60)).await.unwrap();
    assert_eq!(young.recipients, 2, "whom the old one has not reached");
    let young = young.fanout_id.unwrap();
    first.client.cancel(&young).await.unwrap();
    first.settled(&young).await;
    // Whoever it had sent something to before the cancel came may have it.
    let dry = |seconds| ReplayRequest { dry_run: true, ..asked(seconds) };
    let left = first.client.replay(&parent, &dry(600)).await.unwrap().recipients;
    assert!(left <= 2, "{left}");
    first.stop().await.unwrap();

    // As long as all of them are kept for sure, it can be replayed.
    let mut beside = Beside::open(&world).await;
    let earlier = |ms: i64| {
        format!(
            "UPDATE fanout SET reported_ms = 1, settled_ms = settled_ms - {ms}, accepted_ms = accepted_ms - {ms} \
             WHERE id IN ({parent}, {old})"
        )
    };
    beside.change(earlier(14 * DAY_MS - 3_600_000)).await;
    beside.close().await;
    failing(&[]);
    let second = world.serve().await;
    assert_eq!(second.client.replay(&parent, &dry(600)).await.unwrap().recipients, left);
    refused(second.client.replay(&parent, &dry(7_200)).await).await;
    second.stop().await.unwrap();

    let mut beside = Beside::open(&world).await;
    beside.change(earlier(DAY_MS)).await;
    beside.change("UPDATE upkeep SET until_ms = 0".to_owned()).await;
    beside.close().await;
    let third = world.serve().await;
    let gone = async {
        while code(&third, &old).await != 404 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("the old replay is gone");
    assert_eq!(code(&third, &parent).await, 200, "what the young one derives from is not");
    refused(third.client.replay(&parent, &asked(60)).await).await;
    let sent = world.emulator.log().into_iter().filter(|entry| entry.accepted && entry.token == tokens[0]).count();
    assert_eq!(sent, 1, "whoever got it from the replay that nobody knows of");
    third.stop().await.unwrap();
}

async fn refused(answer: Result<impl std::fmt::Debug, ClientError>) {
    match answer {
        Err(ClientError::Refused(problem)) => {
            assert_eq!((problem.status, problem.code.as_str()), (409, "past_retention"), "{problem:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_sent_twice_what_a_replay_that_is_deleted_has_reached() {
    together(vec![
        ("SQLite", Box::pin(replayed_past_retention(Database::Sqlite, "oldreplay-sqlite"))),
        ("Postgres", Box::pin(replayed_past_retention(Database::Postgres, "oldreplay-pg"))),
    ])
    .await;
}
