//! The trust an instance has in its own lease.

use std::sync::Arc;
use std::time::Duration;

use fanfare::clock::{Boot, DbClock};
use fanfare::domain::ids::BootId;
use fanfare::fanout::ToSender;
use fanfare::fanout::lease::{LEASE, Lease, MARGIN};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, watch};

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
