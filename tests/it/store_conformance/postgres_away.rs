//! A Postgres that vanishes: its connections stay open and nothing comes back on them, as behind a dead switch.

use std::sync::Arc;
use std::time::Duration;

use fanfare::store::StoreError;
use fanfare::store::postgres::PostgresStore;
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::postgres_only::{comes_to_rest, waits_for_a_lock};
use super::world::*;
use crate::harness::postgres::TestDatabase;

/// What the pool sends to test a connection it takes back: a `Sync` and nothing else.
const TEST: &[u8] = b"S\0\0\0\x04";

/// What becomes of the bytes between the store and its server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Link {
    Up,
    /// Nothing passes, in either direction.
    Down,
    /// All but [`TEST`] passes: the peer vanishes just when a call is over.
    NoTests,
}

/// The database at another address, behind a link that can be cut.
struct Cut {
    url: String,
    link: watch::Sender<Link>,
}

impl Cut {
    async fn before(database: &TestDatabase) -> Self {
        let (start, path) = database.url.rsplit_once('/').expect("a URL with a database");
        let (user, server) = start.rsplit_once('@').expect("a URL with a user");
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{user}@{}/{path}", listener.local_addr().unwrap());
        let (link, seen) = watch::channel(Link::Up);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = TcpStream::connect(&server).await.unwrap().into_split();
                tokio::spawn(carry(near_in, far_out, seen.clone()));
                tokio::spawn(carry(far_in, near_out, seen.clone()));
            }
        });
        Self { url, link }
    }

    fn store(&self, max_connections: u32, limit: Duration) -> Shared {
        let store = PostgresStore::connect(&self.url.clone().into(), max_connections).unwrap();
        Arc::new(store.limited_to(limit))
    }
}

/// Carries what is read while the link is up; what is read while it is down waits for it.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<Link>) {
    let mut bytes = vec![0; 16_384];
    loop {
        let n = from.read(&mut bytes).await.unwrap_or(0);
        if link.wait_for(|link| *link != Link::Down).await.is_err() || n == 0 {
            let _ = to.shutdown().await;
            return;
        }
        let swallowed = *link.borrow() == Link::NoTests && bytes[..n] == *TEST;
        if !swallowed && to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>, operation: &str) {
    assert!(matches!(&answer, Err(StoreError::Unavailable(text)) if text.starts_with(operation)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_vanishes_hangs_nobody_and_leaves_no_open_transaction() {
    let database = TestDatabase::create().await;
    let cut = Cut::before(&database).await;
    let store = cut.store(2, Duration::from_secs(1));
    store.migrate().await.unwrap();
    let boot = instance(&store).await;
    store.put_device(device("d", "t")).await.unwrap();

    // Vanished while a transaction is open: the server waits for its end, the store for an answer.
    let mut watcher = database.connection().await;
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM device FOR UPDATE").execute(&mut *lock).await.unwrap();
    let stuck = tokio::spawn({
        let store = store.clone();
        async move { store.put_device(device("d", "t2")).await }
    });
    waits_for_a_lock(&mut watcher).await;
    cut.link.send_replace(Link::Down);
    lock.rollback().await.unwrap();
    unavailable(soon("the end of a call in a transaction", stuck).await.unwrap(), "put_device: no answer");
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND state = 'idle in transaction'";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut watcher).await.unwrap();
    assert_eq!(waiting, 1, "the server has done its part and waits for us");

    // Vanished while connections are idle, and while new ones are made.
    for _ in 0..2 {
        let calls = futures_util::future::join(store.backlog(), store.heartbeat(boot, 60_000));
        let (read, beat) = soon("the end of both calls", calls).await;
        unavailable(read, "backlog");
        unavailable(beat, "heartbeat");
    }

    cut.link.send_replace(Link::Up);
    assert!(comes_to_rest(&mut watcher).await, "a transaction stays open");
    for i in 0..8 {
        store.put_device(device("d", &format!("t{i}"))).await.unwrap();
        store.heartbeat(boot, 60_000).await.unwrap();
    }
    store.close().await;
    assert_eq!(sessions(&mut watcher).await, 0, "of those given up, none is left");
}

/// Sessions of the store on the server, once they have had time to end.
async fn sessions(watcher: &mut PgConnection) -> i64 {
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'fanfare'";
    let mut left = -1;
    for _ in 0..500 {
        left = sqlx::query_scalar(open).fetch_one(&mut *watcher).await.unwrap();
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_vanishes_when_a_call_is_over_keeps_no_place_in_the_pool() {
    let database = TestDatabase::create().await;
    let cut = Cut::before(&database).await;
    let store = cut.store(1, Duration::from_secs(30));
    store.migrate().await.unwrap();
    cut.link.send_replace(Link::NoTests);
    for i in 0..3 {
        // The one place is free again in time, for a connection that was never tested.
        store.put_device(device("d", &format!("t{i}"))).await.unwrap();
    }
    cut.link.send_replace(Link::Up);
    store.close().await;
}
