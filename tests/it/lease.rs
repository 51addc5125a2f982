//! The trust an instance has in its own lease.

use std::sync::Arc;
use std::time::Duration;

use fanfare::clock::{Boot, DbClock};
use fanfare::domain::ids::BootId;
use fanfare::emulator::Control;
use fanfare::fanout::ToSender;
use fanfare::fanout::lease::{LEASE, Lease, MARGIN};
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::harness::service::{Database, World};

/// The database may have extended the lease at any time between question and answer; the earliest counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_trusted_from_before_it_was_asked_for() {
    let world = World::new(Database::Sqlite, false).await;
    let store = world.store().await;
    store.migrate().await.unwrap();
    let (sender, mut told) = mpsc::unbounded_channel();
    let (live, trouble) = (watch::Sender::new(1), watch::Sender::new(None));
    let lease = Lease { boot: BootId::fresh(), clock: Arc::new(DbClock::from_wall()), sender, live, trouble };
    // Somebody else writes, so that the heartbeat has to wait: for less than SQLite would.
    let mut other = SqliteConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let asked = Boot::now();
    let beat = tokio::spawn(async move { lease.beat(&store).await });
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    beat.await.unwrap().unwrap();
    let answered = Boot::now();
    let Some(ToSender::Lease(until)) = told.recv().await else { panic!("a lease first") };
    let trust = LEASE - MARGIN;
    assert!(answered.since(asked) >= Duration::from_millis(1_200));
    assert!(until >= asked.plus(trust), "the whole of it");
    assert!(until.since(answered) < trust - Duration::from_secs(1), "and not from the answer on");
}

/// The database's clock leaps, say, and another instance takes over what this one still trusts to be its own: what can be
/// repeated is one exposure, not one for each chunk in hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_the_database_ends_early_repeats_one_exposure() {
    let mut world = World::new(Database::Postgres, false).await;
    world.emulate(Control { latency_ms: Some(150), ..Control::default() });
    world.set("DATABASE__MAX_CONNECTIONS", 4);
    let robbed = world.spawn().await;
    let tokens: Vec<String> = (0..3_000).map(|i| format!("ok-robbed-{i}")).collect();
    robbed.follow("robbed", &tokens).await;
    let id = robbed.goal("robbed", "robbed", 120).await;
    world.emulator.logged(200).await;
    let mut database = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    let boot: Uuid = sqlx::query_scalar("SELECT boot_id FROM instance").fetch_one(&mut database).await.unwrap();
    let other = world.spawn().await;
    let took_over = async {
        // Its own heartbeat would give it back.
        loop {
            let ends = "UPDATE instance SET lease_until_ms = 0 WHERE boot_id = $1";
            sqlx::query(ends).bind(boot).execute(&mut database).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = took_over => {}
        _ = other.says(1, |line| line["message"].as_str().is_some_and(|m| m.starts_with("took over"))) => {}
    }
    let fanout = robbed.settled(&id).await;
    let stats = world.emulator.stats();
    assert_eq!((fanout.delivered, stats.distinct_accepted), (3_000, 3_000), "{fanout:#?}");
    assert!(stats.duplicates_accepted <= 64, "{stats:?}");
    let said = robbed.said("a chunk was taken over while the lease was trusted; all are let go");
    assert!(!said.is_empty(), "it heard of it");
}
