//! Sizes at which something is one too few or one too many, through the whole service and on both databases: chunks of
//! 500, nobody, everybody dead, followers who come and go while they are frozen, many fan-outs on few connections.

use std::collections::BTreeSet;
use std::time::Duration;

use fanfare::emulator::Control;
use fanfare::wire::Fanout;

use super::harness::service::{Caller, Database, World, device_id};
use super::harness::together::together;

/// Longer than anything here takes.
const USEFUL_S: u32 = 600;

/// The longer suite (`FANFARE_LONG=1`) takes the sizes of a real evening.
fn size(by_default: usize, long: usize) -> usize {
    if std::env::var("FANFARE_LONG").is_ok_and(|value| value == "1") { long } else { by_default }
}

/// Tokens of which every `nth` belongs to a device that is dead.
fn tokens(run: &str, n: usize, nth: usize) -> Vec<String> {
    let kind = |i: usize| if i % nth == nth - 1 { "dead" } else { "ok" };
    (0..n).map(|i| format!("{}-{run}-{i}", kind(i))).collect()
}

fn outcome(fanout: &Fanout, name: &str) -> u64 {
    fanout.outcomes.get(name).copied().unwrap_or_else(|| panic!("no outcome {name}: {fanout:?}"))
}

async fn sizes(database: Database) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    let mut sent = 0;
    for n in [0_u64, 1, 499, 500, 501] {
        let run = format!("size-{n}");
        if n > 0 {
            service.follow(&run, &tokens(&run, n as usize, usize::MAX)).await;
        }
        let fanout = service.settled(&service.goal(&run, &run, USEFUL_S).await).await;
        assert_eq!((fanout.recipients, fanout.delivered, fanout.failed, fanout.pending), (n, n, 0, 0), "{fanout:?}");
        assert_eq!((fanout.state.as_str(), fanout.attempts, fanout.ledger.as_str()), ("done", n, "exact"));
        sent += n;
        let stats = world.emulator.stats();
        assert_eq!((stats.requests, stats.distinct_accepted), (sent, sent), "{n}");
    }
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_one_and_a_chunk_more_or_less_are_each_sent_to_once() {
    together(vec![("SQLite", Box::pin(sizes(Database::Sqlite))), ("Postgres", Box::pin(sizes(Database::Postgres)))])
        .await;
}

async fn all_dead(database: Database) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    service.follow("dead", &tokens("dead", 501, 1)).await;
    for round in 0..2 {
        let fanout = service.settled(&service.goal(&format!("dead-{round}"), "dead", USEFUL_S).await).await;
        // So many at once look like a fault of ours: nobody is pruned, and the next event asks them all again.
        assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (501, 0, 501), "{fanout:?}");
        assert_eq!((outcome(&fanout, "token_dead"), fanout.attempts), (501, 501));
    }
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_to_the_dead_settles_and_prunes_nobody() {
    together(vec![
        ("SQLite", Box::pin(all_dead(Database::Sqlite))),
        ("Postgres", Box::pin(all_dead(Database::Postgres))),
    ])
    .await;
}

/// One more follower, by the way a file of them takes.
async fn comes(caller: &Caller, match_id: &str, id: &str) {
    let row = serde_json::json!({
        "id": id, "user_id": "late", "token": format!("ok-{id}"), "platform": "android", "locale": "en",
        "follows": [format!("match:{match_id}")],
    });
    let rows = futures_util::stream::iter([Ok(bytes::Bytes::from(format!("{row}\n")))]);
    assert_eq!(caller.client.import(rows).await.unwrap().imported, 1);
}

/// Followers are registered and deleted from before the freeze until long after it. Whoever was there all the time gets
/// it; whoever was deleted gets it or is `gone`; nobody gets it twice.
async fn churn(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    let service = world.serve().await;
    // The longer one spans two pages of a freeze.
    let n = size(1_200, 10_500);
    let everybody = tokens(run, n, usize::MAX);
    service.follow(run, &everybody).await;
    let leaving: Vec<usize> = (0..n).filter(|i| i % 20 == 7).collect();
    let caller = Caller::clone(&service);
    let leave = tokio::spawn(async move {
        for i in leaving.into_iter().rev() {
            caller.client.delete_device(&device_id(run, i)).await.unwrap();
        }
    });
    let caller = Caller::clone(&service);
    let come = tokio::spawn(async move {
        for i in 0..50 {
            comes(&caller, run, &format!("{run}-new-{i}")).await;
        }
    });
    let id = service.goal(run, run, USEFUL_S).await;
    leave.await.unwrap();
    come.await.unwrap();
    let fanout = service.settled(&id).await;

    let stats = world.emulator.stats();
    let reached: BTreeSet<String> = world.emulator.log().into_iter().map(|entry| entry.token).collect();
    let stayed = (0..n).filter(|i| i % 20 != 7).map(|i| &everybody[i]);
    let missed: Vec<&String> = stayed.filter(|token| !reached.contains(*token)).collect();
    assert!(missed.is_empty(), "followers all the time, and not reached: {missed:?}");
    assert_eq!((stats.duplicates_accepted, stats.distinct_accepted), (0, fanout.delivered), "{fanout:?}");
    assert_eq!(fanout.delivered + outcome(&fanout, "gone"), fanout.recipients, "{fanout:?}");
    assert!(outcome(&fanout, "gone") > 0, "some were deleted between freeze and send: {fanout:?}");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn followers_who_come_and_go_meanwhile_are_frozen_once_and_the_deleted_end_as_gone() {
    together(vec![
        ("SQLite", Box::pin(churn(Database::Sqlite, "churn-sqlite"))),
        ("Postgres", Box::pin(churn(Database::Postgres, "churn-postgres"))),
    ])
    .await;
}

/// Three fan-outs at once, a fifth of each dead, on as few connections as can be: every count is exact, nothing waited
/// for a connection in vain and nothing lost a race for good.
async fn three_at_once(database: Database, run: &'static str) {
    let mut world = World::new(database, false).await;
    world.set("DATABASE__MAX_CONNECTIONS", 2);
    let service = world.spawn().await;
    let n = size(1_000, 10_000);
    let matches: Vec<String> = (0..3).map(|i| format!("{run}-{i}")).collect();
    for name in &matches {
        service.follow(name, &tokens(name, n, 5)).await;
    }
    let goals = matches.iter().map(|name| service.goal(name, name, USEFUL_S));
    let ids = futures_util::future::join_all(goals).await;
    let (n, dead) = (n as u64, n as u64 / 5);
    for id in &ids {
        let fanout = service.settled(id).await;
        assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (n, n - dead, dead), "{fanout:?}");
        assert_eq!((outcome(&fanout, "token_dead"), fanout.attempts, fanout.pending), (dead, n, 0), "{fanout:?}");
        service.line(id).await;
    }
    let stats = world.emulator.stats();
    assert_eq!((stats.requests, stats.distinct_accepted, stats.duplicates_accepted), (3 * n, 3 * (n - dead), 0));
    assert_eq!(service.lines_that(|line| line.get("error").is_some()), Vec::<serde_json::Value>::new());
    assert_eq!(service.said("fan-out finished").len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_fan_outs_at_once_on_a_pool_of_two_and_on_sqlite_are_exact() {
    let limit = Duration::from_secs(300);
    let both = together(vec![
        ("SQLite", Box::pin(three_at_once(Database::Sqlite, "three-sqlite"))),
        ("Postgres", Box::pin(three_at_once(Database::Postgres, "three-postgres"))),
    ]);
    tokio::time::timeout(limit, both).await.expect("no deadlock");
}
