//! Late is wrong: what a deadline does to those it catches, in an outage, after a standstill, and in flight. And a few
//! devices that hang hold up no goal until its own.

use std::time::{Duration, Instant};

use fanfare::domain::outcome::{Cause, Outcome};
use fanfare::emulator::{Control, Rule};
use sqlx::{Connection, PgConnection};

use crate::harness::service::{Database, World};
use crate::harness::together::together;

/// Everybody expires in an outage: the chunks say so, not a row for each.
async fn an_outage_past_the_deadline() {
    let n = 6_000;
    let world = World::new(Database::Postgres, false).await;
    let away = Rule { answer: "unavailable".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![away], ..Control::default() });
    let service = world.spawn().await;
    service.follow("dark", &(0..n).map(|i| format!("ok-dark-{i}")).collect::<Vec<_>>()).await;
    let id = service.goal("dark", "dark", 6).await;
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (n, 0, n), "{fanout:?}");
    assert_eq!(fanout.outcomes["expired"], n, "an outage fails nobody otherwise: {fanout:?}");
    assert_eq!(world.emulator.stats().accepted, 0);
    let mut database = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    println!("an outage of 6,000: over {} ms after the deadline", fanout.duration_ms - 6_000);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM failure").fetch_one(&mut database).await.unwrap();
    assert!(rows <= 100, "{rows} rows: only those that had an attempt have one");
    let rest = "SELECT DISTINCT rest_outcome, rest_cause FROM chunk";
    let rest: Vec<(i16, i16)> = sqlx::query_as(rest).fetch_all(&mut database).await.unwrap();
    assert_eq!(rest, [(Outcome::Expired.code(), Cause::Breaker.code())], "with what kept them");
}

/// All instances were down until it was too late: nobody is sent stale news.
async fn a_standstill_past_the_deadline() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.spawn().await;
    service.follow("stale", &(0..1200).map(|i| format!("slow-8000-stale-{i}")).collect::<Vec<_>>()).await;
    let id = service.goal("stale", "stale", 5).await;
    world.emulator.logged(1).await;
    service.kill().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    // Not before: what the killed one wrote last is read by the provider a moment later.
    let asked = world.emulator.stats().requests;
    let service = world.spawn().await;
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.recipients, fanout.pending, fanout.delivered), (1200, 0, 0), "{fanout:?}");
    // Those of the chunk in hand may have been reached by the one that was killed.
    let ends = (fanout.outcomes["expired"], fanout.outcomes["unconfirmed"]);
    assert!(ends.0 + ends.1 == 1200 && ends.0 >= 200, "{ends:?}");
    assert_eq!(world.emulator.stats().requests, asked, "nobody was sent to after the deadline");
}

/// The hands are full of one that waits for our role to be given back: another whose time is over ends then, and not
/// with it.
async fn over_while_the_hands_are_full() {
    let world = World::new(Database::Postgres, false).await;
    let refused = Rule { answer: "iam".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![refused], ..Control::default() });
    let service = world.spawn().await;
    let tokens = |run: &str, n: usize| (0..n).map(|i| format!("ok-{run}-{i}")).collect::<Vec<_>>();
    service.follow("patient", &tokens("patient", 300)).await;
    service.follow("hasty", &tokens("hasty", 400)).await;
    let patient = service.goal("patient", "patient", 600).await;
    service.says(1, |line| line["message"].as_str().is_some_and(|text| text.starts_with("credential refused"))).await;
    // It is larger and later: nothing puts it before what is in hand.
    let hasty = service.goal("hasty", "hasty", 5).await;
    let fanout = service.settled(&hasty).await;
    assert_eq!((fanout.outcomes["credential"], fanout.attempts), (400, 0), "{fanout:?}");
    let open = service.client.fanout(&patient, Duration::ZERO).await.unwrap();
    assert!(open.pending == 300 && open.settled_at.is_none(), "{open:?}");
}

/// An attempt that is in flight at the deadline is left alone: its answer is a fact, and FCM was told how long the
/// message is good for. Nothing is launched any more.
async fn in_flight_at_the_deadline() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 12_000);
    let service = world.spawn().await;
    let mut tokens = vec!["slow-9000-late".to_owned(), "hang-late".to_owned()];
    tokens.extend((0..20).map(|i| format!("ok-late-{i}")));
    service.follow("late", &tokens).await;
    let begun = Instant::now();
    let id = service.goal("late", "late", 5).await;
    world.emulator.logged(22).await;
    tokio::time::sleep(Duration::from_millis(6_000).saturating_sub(begun.elapsed())).await;
    let open = service.client.fanout(&id, Duration::ZERO).await.unwrap();
    assert_eq!((open.delivered, open.pending), (20, 2), "past the deadline two are still in flight: {open:?}");
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.outcomes["unconfirmed"]), (21, 1), "{fanout:?}");
    assert_eq!(fanout.attempts, 22, "no retry after the deadline");
}

/// As many devices hang as there are slots or more, here and there among many or in a row: the others do not all wait for
/// the time-outs.
async fn some_hang(run: &'static str, hangs: fn(usize) -> bool, most: u64) {
    let mut world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 28_000);
    let service = world.spawn().await;
    let token = |i: usize| format!("{}-{run}-{i}", if hangs(i) { "hang" } else { "ok" });
    service.follow(run, &(0..2000).map(token).collect::<Vec<_>>()).await;
    service.goal(run, run, 60).await;
    let begun = Instant::now();
    while world.emulator.stats().accepted < most {
        // The first time-out.
        assert!(begun.elapsed() < Duration::from_secs(28), "{run}: they waited: {:?}", world.emulator.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("some of 2,000 hang, {run}: {most} others within {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deadline_ends_everybody_with_the_truth() {
    together(vec![
        ("outage", Box::pin(an_outage_past_the_deadline())),
        ("standstill", Box::pin(a_standstill_past_the_deadline())),
        ("in flight", Box::pin(in_flight_at_the_deadline())),
        ("full hands", Box::pin(over_while_the_hands_are_full())),
        ("forty hang", Box::pin(some_hang("scattered", |i| i % 50 == 20, 1_000))),
        ("a row of 32 hangs", Box::pin(some_hang("in-a-row", |i| i < 32, 200))),
    ])
    .await;
}
