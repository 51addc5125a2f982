//! Owns the tests of what is special to SQLite; what both databases promise is tested by the conformance suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::{Connection, SqliteConnection, query};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::domain::batch::Class;
use crate::domain::event::Event;
use crate::domain::ids::{EventId, MatchId, UserId};
use crate::domain::recipient::{Address, KindMask, Locale, Platform};
use crate::store::Open;

mod life;
mod sharing;
mod trouble;

const LEASE_MS: i64 = 3_600_000;

fn place(directory: &TempDir) -> PathBuf {
    directory.path().join("fanfare.db")
}

async fn open(path: &Path) -> SqliteStore {
    let store = SqliteStore::open(path).await.unwrap();
    store.migrate().await.unwrap();
    store
}

async fn fresh() -> (TempDir, SqliteStore) {
    let directory = TempDir::new().unwrap();
    let store = open(&place(&directory)).await;
    (directory, store)
}

/// Opens it as soon as a store that was dropped has let go of it.
async fn reopen(path: &Path) -> SqliteStore {
    for _ in 0..10_000 {
        match SqliteStore::open(path).await {
            Err(StoreError::Unavailable(text)) if text.contains("another instance") => tokio::task::yield_now().await,
            other => return other.unwrap(),
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the dropped store never gave its lock back");
}

fn goal(id: &str) -> NewFanout {
    let event = Event {
        id: EventId::parse(id).unwrap(),
        kind: "goal".to_owned(),
        match_id: MatchId::parse("4711").unwrap(),
        occurred_ms: 1,
        subjects: vec!["team:ars".to_owned()],
        // Of another id, other news: an identical event would be taken for the same.
        fields: BTreeMap::from([("player".to_owned(), id.to_owned())]),
        data: BTreeMap::new(),
        useful_for_s: 120,
        supersedes: None,
    };
    NewFanout {
        event,
        content_hash: [7; 32],
        collapse_key: id.to_owned(),
        shown: vec!["player".to_owned()],
        class: Class::Urgent,
        deadline_ms: i64::MAX,
    }
}

fn row(line: u64) -> ImportRow {
    let device = Device {
        id: DeviceId::parse(&format!("d{line}")).unwrap(),
        user: UserId::parse("u1").unwrap(),
        address: Address::Token(format!("token-{line}-{}", "x".repeat(150))),
        platform: Platform::Android,
        locale: Locale::default(),
    };
    let follows = Follows { subjects: vec![("team:ars".to_owned(), KindMask::ALL)], ..Follows::default() };
    ImportRow { line, device, follows: Some(follows), state: None }
}

/// Holds the writer inside a job until the returned sender is used, so that what comes after shares one commit.
async fn hold(store: &Arc<SqliteStore>) -> oneshot::Sender<()> {
    let (running, started) = oneshot::channel();
    let (release, released) = oneshot::channel();
    let held = Arc::clone(store);
    tokio::spawn(async move {
        let work = held.writer.run(1, |_| {
            async move {
                let _ = running.send(());
                let _ = released.await;
                Ok(())
            }
            .boxed()
        });
        work.await.unwrap();
    });
    started.await.unwrap();
    release
}

/// Runs one statement on the writer's connection.
async fn on_writer(store: &SqliteStore, statement: &'static str) {
    let work = store.writer.run(1, move |c| async move { Ok(query(statement).execute(c).await.map(|_| ())?) }.boxed());
    work.await.unwrap();
}

/// Hands a job over and returns once the writer has it in its queue.
async fn queued<T: Send + 'static>(
    store: &Arc<SqliteStore>,
    work: impl for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
) -> tokio::task::JoinHandle<Result<T, StoreError>> {
    let theirs = Arc::clone(store);
    in_queue(store, async move { theirs.writer.run(1, work).await }).await
}

/// The same for any call that writes.
async fn in_queue<T: Send + 'static>(
    store: &SqliteStore,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> tokio::task::JoinHandle<Result<T, StoreError>> {
    let before = store.writer.queued();
    let job = tokio::spawn(call);
    while store.writer.queued() == before {
        tokio::task::yield_now().await;
    }
    job
}

#[tokio::test]
async fn a_second_instance_is_refused_until_the_first_has_closed() {
    let (directory, store) = fresh().await;
    let refused = SqliteStore::open(&place(&directory)).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(text) if text.contains("another instance")), "{refused}");
    store.close().await;
    open(&place(&directory)).await;
}

#[tokio::test]
async fn what_was_answered_is_in_the_files_at_that_moment() {
    let (directory, store) = fresh().await;
    let accepted = store.accept(BootId::fresh(), goal("evt-1")).await.unwrap();
    let Accepted::New(freeze) = accepted else { panic!("{accepted:?}") };
    // The files as a kill would leave them: nothing closed, nothing checkpointed.
    let killed = TempDir::new().unwrap();
    for name in ["fanfare.db", "fanfare.db-wal"] {
        std::fs::copy(directory.path().join(name), killed.path().join(name)).unwrap();
    }
    let after = SqliteStore::open(&place(&killed)).await.unwrap();
    after.ready().await.unwrap();
    assert_eq!(after.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::Repeat(freeze.job.id));
}

#[tokio::test]
async fn a_store_dropped_without_closing_keeps_its_rows_and_gives_the_file_back() {
    let (directory, store) = fresh().await;
    store.accept(BootId::fresh(), goal("evt-1")).await.unwrap();
    drop(store);
    let store = reopen(&place(&directory)).await;
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::Repeat(_)));
}

#[tokio::test]
async fn many_parallel_accepts_share_few_commits() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let before = store.write_counts();
    let posts: Vec<_> = (0..256)
        .map(|i| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.accept(BootId::fresh(), goal(&format!("evt-{i}"))).await })
        })
        .collect();
    for post in posts {
        assert!(matches!(post.await.unwrap().unwrap(), Accepted::New(_)));
    }
    let after = store.write_counts();
    assert_eq!(after.jobs - before.jobs, 256);
    let commits = after.commits - before.commits;
    assert!(commits <= 64, "256 posts took {commits} commits");
}

#[tokio::test]
async fn reads_go_on_while_the_writer_is_busy() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    store.accept(BootId::fresh(), goal("evt-1")).await.unwrap();
    let gate = hold(&store).await;
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
    assert_eq!(store.fanouts(FanoutQuery { limit: 9, ..FanoutQuery::default() }).await.unwrap().len(), 1);
    gate.send(()).unwrap();
}

#[tokio::test]
async fn a_failing_or_panicking_job_undoes_only_itself() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let commits = store.write_counts().commits;
    let before = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-1")).boxed()).await;
    let failing = queued(&store, |c| {
        async move {
            correct::accept(c, BootId::fresh(), goal("evt-2")).await?;
            query("INSERT INTO event SELECT * FROM event").execute(c).await?;
            Ok(())
        }
        .boxed()
    });
    let failing = failing.await;
    let panicking = queued(&store, |c| {
        async move {
            let accepted = correct::accept(c, BootId::fresh(), goal("evt-3")).await?;
            assert!(matches!(accepted, Accepted::Conflict(_)), "as tested");
            Ok(())
        }
        .boxed()
    });
    let panicking = panicking.await;
    let after = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-4")).boxed()).await;
    gate.send(()).unwrap();

    assert!(matches!(before.await.unwrap().unwrap(), Accepted::New(_)));
    let refused = failing.await.unwrap().unwrap_err();
    let named = |text: &str| text.contains("UNIQUE") && text.contains("(mod.rs:");
    assert!(matches!(&refused, StoreError::Statement(text) if named(text)), "{refused}");
    assert!(matches!(panicking.await.unwrap(), Err(StoreError::Statement(_))));
    assert!(matches!(after.await.unwrap().unwrap(), Accepted::New(_)));
    assert_eq!(store.write_counts().commits, commits + 2, "the held job, then one commit for all four");
    for (id, kept) in [("evt-1", true), ("evt-2", false), ("evt-3", false), ("evt-4", true)] {
        let again = store.accept(BootId::fresh(), goal(id)).await.unwrap();
        assert_eq!(matches!(again, Accepted::Repeat(_)), kept, "{id}: {again:?}");
    }
}
