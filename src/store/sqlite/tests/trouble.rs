//! Owns the tests of a file in trouble, and of callers who do not wait.
//! Must never know: anything outside the room.

use super::*;

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

/// They would take the room in a commit of those who still wait.
#[tokio::test]
async fn events_whose_callers_gave_up_before_their_turn_are_not_even_tried() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let gate = hold(&store).await;
    let before = store.write_counts();
    let soon = Instant::now() + Duration::from_millis(20);
    let late = (0..200).map(|n| store.accept_by(BootId::fresh(), goal(&format!("evt-{n}")), soon));
    for told in futures_util::future::join_all(late).await {
        assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    }
    let next = queued(&store, |c| correct::accept(c, BootId::fresh(), goal("evt-0")).boxed()).await;
    gate.send(()).unwrap();
    assert!(matches!(next.await.unwrap().unwrap(), Accepted::New(_)));
    let after = store.write_counts();
    assert_eq!((after.jobs - before.jobs, after.commits - before.commits), (2, 2), "what was held, and the next one");
}

#[tokio::test]
async fn however_many_ask_they_are_told_in_time_and_a_reader_is_left_for_us() {
    let (_directory, store) = fresh().await;
    let store = Arc::new(store);
    let (go, gone) = tokio::sync::watch::channel(false);
    let slow = (0..80).map(|_| {
        let mut gone = gone.clone();
        store.ask(ACCEPT_WITHIN, move |_| async move { Ok(gone.wait_for(|go| *go).await.is_ok()) }.boxed())
    });
    let asking = futures_util::future::join_all(slow);
    let ours = async {
        while store.turns.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let told = store.fanouts(FanoutQuery { limit: 9, ..FanoutQuery::default() }).await;
        assert!(matches!(&told, Err(StoreError::Unavailable(text)) if text.contains("readers")), "{told:?}");
        assert_eq!(store.backlog().await.unwrap().fanouts(), 0, "this is asked for by nobody");
        go.send(true).unwrap();
    };
    let (answers, ()) = tokio::join!(asking, ours);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
    assert_eq!(store.fanouts(FanoutQuery { limit: 9, ..FanoutQuery::default() }).await.unwrap(), []);
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
