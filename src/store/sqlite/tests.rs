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
    let before = store.writer.queued();
    let theirs = Arc::clone(store);
    let job = tokio::spawn(async move { theirs.writer.run(1, work).await });
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
async fn a_batch_ends_after_a_thousand_rows() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let before = store.write_counts();
    let mut imports = Vec::new();
    // Each row writes a device and a follow.
    for first in [1, 301, 601] {
        let (waiting, theirs) = (store.writer.queued(), Arc::clone(&store));
        imports.push(tokio::spawn(async move { theirs.import((first..first + 300).map(row).collect(), false).await }));
        while store.writer.queued() == waiting {
            tokio::task::yield_now().await;
        }
    }
    gate.send(()).unwrap();
    for import in imports {
        assert_eq!(import.await.unwrap().unwrap().imported, 300);
    }
    let after = store.write_counts();
    assert_eq!(after.jobs - before.jobs, 4);
    assert_eq!(after.commits - before.commits, 3, "what was held, two imports, then the third");
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
    let named = |text: &str| text.contains("UNIQUE") && text.contains("tests.rs:");
    assert!(matches!(&refused, StoreError::Statement(text) if named(text)), "{refused}");
    assert!(matches!(panicking.await.unwrap(), Err(StoreError::Statement(_))));
    assert!(matches!(after.await.unwrap().unwrap(), Accepted::New(_)));
    assert_eq!(store.write_counts().commits, commits + 2, "the held job, then one commit for all four");
    for (id, kept) in [("evt-1", true), ("evt-2", false), ("evt-3", false), ("evt-4", true)] {
        let again = store.accept(BootId::fresh(), goal(id)).await.unwrap();
        assert_eq!(matches!(again, Accepted::Repeat(_)), kept, "{id}: {again:?}");
    }
}

#[tokio::test]
async fn a_transaction_lost_as_a_whole_fails_all_its_jobs_and_the_next_one_works() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let innocent = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-1")).boxed()).await;
    // What SQLite does by itself after some I/O errors.
    let undone = queued(&store, |c| async move { Ok(query("ROLLBACK").execute(c).await.map(|_| ())?) }.boxed()).await;
    gate.send(()).unwrap();
    for failed in [innocent.await.unwrap().map(|_| ()), undone.await.unwrap()] {
        assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    }
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::New(_)));
}

#[tokio::test]
async fn a_full_database_is_unavailable_until_there_is_room() {
    let (_directory, store) = fresh().await;
    // The limit cannot be set below what is used: from now on, no new page.
    on_writer(&store, "PRAGMA max_page_count = 1").await;
    let refused = store.import((1..=500).map(row).collect(), false).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(text) if text.contains("full")), "{refused}");
    assert_eq!(store.device(row(1).device.id).await.unwrap(), None, "reads go on, and nothing was kept");
    on_writer(&store, "PRAGMA max_page_count = 1000000").await;
    assert_eq!(store.import((1..=500).map(row).collect(), false).await.unwrap().imported, 500);
}

#[tokio::test]
async fn a_write_lock_held_by_another_program_makes_it_unavailable_until_it_lets_go() {
    let (directory, store) = fresh().await;
    on_writer(&store, "PRAGMA busy_timeout = 20").await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place(&directory));
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let refused = store.accept(BootId::fresh(), goal("evt-1")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(text) if text.contains("locked")), "{refused}");
    lock.rollback().await.unwrap();
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::New(_)));
}

/// Where an event waits 250 ms, another program may hold the file for seconds.
#[tokio::test]
async fn whose_turn_does_not_come_in_time_hears_so_while_the_lock_is_held_and_nothing_is_kept() {
    let (directory, store) = fresh().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place(&directory));
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let soon = Instant::now() + std::time::Duration::from_millis(50);
    let refused = store.accept_by(BootId::fresh(), goal("evt-1"), soon).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(text) if text.contains("busy for too long")), "{refused}");
    lock.rollback().await.unwrap();
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-2")).await.unwrap(), Accepted::New(_)));
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::New(_)));
}

#[tokio::test]
async fn a_caller_who_gives_up_does_not_cancel_its_job() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let mut post = Box::pin(store.accept(BootId::fresh(), goal("evt-1")));
    assert!(futures_util::poll!(post.as_mut()).is_pending());
    drop(post);
    gate.send(()).unwrap();
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-1")).await.unwrap(), Accepted::Repeat(_)));
}

#[tokio::test]
async fn closing_waits_for_what_was_handed_over_and_refuses_what_comes_later() {
    let (directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let earlier = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-1")).boxed()).await;
    store.backlog().await.unwrap();
    let mut closing = Box::pin(store.close());
    assert!(futures_util::poll!(closing.as_mut()).is_pending());
    gate.send(()).unwrap();
    closing.await;
    assert!(matches!(earlier.await.unwrap().unwrap(), Accepted::New(_)));
    assert!(matches!(store.accept(BootId::fresh(), goal("evt-2")).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.backlog().await, Err(StoreError::Unavailable(_))));
    assert!(!directory.path().join("fanfare.db-wal").exists(), "all is in the one file");
    let store = open(&place(&directory)).await;
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
}

#[tokio::test]
async fn any_file_name_works_and_a_missing_directory_is_named() {
    let directory = TempDir::new().unwrap();
    let odd = directory.path().join("a b");
    let refused = SqliteStore::open(&odd.join("x.db")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(text) if text.contains("a b does not exist")), "{refused}");
    std::fs::create_dir(&odd).unwrap();
    for name in ["file:x?mode=ro", "100%20 #1.db", ":memory:"] {
        let store = open(&odd.join(name)).await;
        store.accept(BootId::fresh(), goal("evt-1")).await.unwrap();
        store.close().await;
        assert!(odd.join(name).is_file(), "{name}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt() {
    let directory = TempDir::new().unwrap();
    std::fs::write(place(&directory), "kick-off ".repeat(1_000)).unwrap();
    let refused = SqliteStore::open(&place(&directory)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Corrupt(_)), "{refused}");
}

#[tokio::test]
async fn the_schema_is_missing_then_right_then_too_new() {
    let directory = TempDir::new().unwrap();
    let store = SqliteStore::open(&place(&directory)).await.unwrap();
    let missing = store.ready().await.unwrap_err();
    assert!(matches!(&missing, StoreError::Schema(text) if text.contains("fanfare migrate")), "{missing}");
    assert_ne!(store.migrate().await.unwrap(), 0);
    store.ready().await.unwrap();
    assert_eq!(store.migrate().await.unwrap(), 0);
    on_writer(
        &store,
        "INSERT INTO _sqlx_migrations SELECT version + 1000, description, installed_on, success, checksum, execution_time
         FROM _sqlx_migrations",
    )
    .await;
    assert!(matches!(store.ready().await, Err(StoreError::Schema(_))));
    assert!(matches!(store.migrate().await, Err(StoreError::Schema(_))));
}

/// A goal with two recipients, its one chunk owned by `boot`.
async fn sending(store: &SqliteStore, boot: BootId) -> FanoutId {
    store.heartbeat(boot, LEASE_MS).await.unwrap();
    let Accepted::New(freeze) = store.accept(boot, goal("evt-1")).await.unwrap() else { panic!("accepted before") };
    let step = FreezeStep {
        boot,
        fanout: freeze.job.id,
        epoch: freeze.epoch,
        from: freeze.cursor,
        chunks: vec![vec![DeviceKey(1), DeviceKey(2)]],
        first_chunk: 0,
        ranks: vec![0],
        claim_first: 1,
        never_saw: None,
        last: true,
    };
    let reply = store.freeze_step(step).await.unwrap();
    assert!(matches!(reply, FreezeReply::Written(chunks) if chunks.len() == 1));
    freeze.job.id
}

#[tokio::test]
async fn settling_too_early_costs_no_commit() {
    let (_directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    let before = store.write_counts();
    assert_eq!(store.settle(fanout).await.unwrap(), SettleReply::Open);
    assert_eq!(store.write_counts(), before);
}

#[tokio::test]
async fn what_a_dead_process_held_is_free_at_the_next_start_however_long_its_lease() {
    let (directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    drop(store);
    let store = reopen(&place(&directory)).await;
    let boot = BootId::fresh();
    let beat = store.heartbeat(boot, LEASE_MS).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks, beat.set_aside), (1, 1, 0));
    let chunks = store.claim(ClaimRequest { boot, want: 9, of: Open::All }).await.unwrap();
    assert_eq!((chunks[0].epoch, chunks[0].maybe.count()), (3, 2), "freed and claimed again, all may have been sent");
    assert_eq!(store.fanout(fanout).await.unwrap().unwrap().interrupted, 1);
}

#[tokio::test]
async fn what_a_process_handed_back_before_it_ended_is_not_unclean() {
    let (directory, store) = fresh().await;
    let boot = BootId::fresh();
    let fanout = sending(&store, boot).await;
    store.leave(boot).await.unwrap();
    store.close().await;
    let store = open(&place(&directory)).await;
    let boot = BootId::fresh();
    assert_eq!(store.heartbeat(boot, LEASE_MS).await.unwrap().freed_chunks, 0);
    let chunks = store.claim(ClaimRequest { boot, want: 9, of: Open::All }).await.unwrap();
    assert_eq!((chunks[0].epoch, chunks[0].maybe.count()), (2, 0));
    assert_eq!(store.fanout(fanout).await.unwrap().unwrap().interrupted, 0);
}

#[tokio::test]
async fn a_damaged_row_is_corrupt_and_never_a_default() {
    let (_directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    for damage in ["UPDATE chunk SET ok = x'0f'", "UPDATE chunk SET ok = x''", "UPDATE fanout SET state = 9"] {
        on_writer(&store, damage).await;
        let got = store.fanout(fanout).await;
        assert!(matches!(got, Err(StoreError::Corrupt(_))), "{damage}: {got:?}");
    }
}
