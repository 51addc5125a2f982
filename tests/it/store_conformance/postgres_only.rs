//! What only Postgres can be asked: its statements, its sessions, its locks, its errors.

use std::sync::Arc;
use std::time::Duration;

use fanfare::domain::batch::Class;
use fanfare::domain::outcome::Outcome::{Delivered, TokenDead};
use fanfare::store::postgres::{PostgresStore, STATEMENTS};
use fanfare::store::{SettleReply, Store, StoreError};
use sqlx::{Connection, Executor, PgConnection};

use super::world::*;
use crate::harness::postgres::TestDatabase;

async fn migrated(max_connections: u32) -> (TestDatabase, Shared) {
    let database = TestDatabase::create().await;
    let store = PostgresStore::connect(&database.url.clone().into(), max_connections).unwrap();
    assert_ne!(store.migrate().await.unwrap(), 0);
    (database, Arc::new(store))
}

#[tokio::test]
async fn every_statement_prepares_on_a_fresh_schema() {
    let (database, store) = migrated(1).await;
    let mut connection = database.connection().await;
    for (name, sql) in STATEMENTS {
        let statement = sqlx::SqlSafeStr::into_sql_str(*sql);
        connection.prepare(statement).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    store.close().await;
}

#[test]
fn every_statement_is_in_the_list() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/postgres");
    let mut written = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        written += source.lines().filter(|l| l.contains("const ") && l.contains(": &str =")).count();
    }
    assert_eq!(written, STATEMENTS.len(), "a statement was added without being listed in statements.rs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_callers_leave_no_open_transaction() {
    let (database, store) = migrated(4).await;
    let mut connection = database.connection().await;
    let warm = (0..4).map(|i| store.put_device(device(&format!("d-{i}"), &format!("t-{i}"))));
    assert!(futures_util::future::join_all(warm).await.iter().all(Result::is_ok));
    for round in 0..50_u64 {
        // Dropped at another point each time: before the first poll, inside `BEGIN`, while the database works.
        let calls = (0..4_u64).map(|i| {
            let put = store.put_device(device(&format!("d-{round}-{i}"), &format!("t-{i}")));
            tokio::time::timeout(Duration::from_micros(round * 60 + i * 17), put)
        });
        futures_util::future::join_all(calls).await;
        // Nothing else is asked of the store: it would end what a poisoned connection left open.
        assert!(comes_to_rest(&mut connection).await, "round {round}: a transaction stays open");
    }
    store.close().await;
}

/// Whether no session is inside a transaction within 5 s, half the time after which the server would end it.
pub async fn comes_to_rest(connection: &mut PgConnection) -> bool {
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND (state = 'active' OR state LIKE 'idle in transaction%')";
    for _ in 0..500 {
        if sqlx::query_scalar::<_, i64>(open).fetch_one(&mut *connection).await.unwrap() == 0 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_succeeds_though_a_lost_instance_cannot_be_buried() {
    let (database, store) = migrated(2).await;
    let (lost, heir) = (instance(&store).await, instance(&store).await);
    one_chunk(&store, lost, "evt", 1).await;
    lapse(&store, lost).await;
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM chunk FOR UPDATE").execute(&mut *lock).await.unwrap();
    assert_eq!(store.heartbeat(heir, 60_000).await.unwrap().freed_chunks, 0);
    lock.rollback().await.unwrap();
    assert_eq!(store.heartbeat(heir, 60_000).await.unwrap().freed_chunks, 1);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_are_written_while_every_other_connection_is_taken() {
    let (database, store) = migrated(1).await;
    let boot = instance(&store).await;
    let (_, chunk) = one_chunk(&store, boot, "evt", 2).await;
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("LOCK TABLE event IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let stuck = tokio::spawn({
        let store = store.clone();
        async move { store.accept(boot, posted("other", Class::Urgent, 1)).await }
    });
    waits_for_a_lock(&mut lock).await;
    assert!(store.flush(delivered(&chunk)).await.unwrap()[0].closed);
    store.heartbeat(boot, 60_000).await.unwrap();
    lock.rollback().await.unwrap();
    stuck.await.unwrap().unwrap();
    store.close().await;
}

pub async fn waits_for_a_lock(connection: &mut PgConnection) {
    wait_for_locks(connection, 1).await;
}

/// Until this many sessions wait for a lock.
async fn wait_for_locks(connection: &mut PgConnection, sessions: i64) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    // Statistics are fixed for a transaction once read.
    let forget = "SELECT pg_stat_clear_snapshot()";
    let waits = async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *connection).await.unwrap() < sessions {
            sqlx::query(forget).execute(&mut *connection).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    soon("the wait for a lock", waits).await;
}

#[tokio::test]
async fn a_row_locked_for_too_long_is_unavailable_and_not_a_fault_of_ours() {
    let (database, store) = migrated(2).await;
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM chunk FOR UPDATE").execute(&mut *lock).await.unwrap();
    let refused = store.flush(delivered(&chunk)).await;
    assert!(matches!(&refused, Err(StoreError::Unavailable(text)) if text.contains("55P03")), "{refused:?}");
    assert_eq!(counts(&store, id).await, (0, 0, 2), "readers do not wait");
    lock.rollback().await.unwrap();
    assert!(store.flush(delivered(&chunk)).await.unwrap()[0].closed);
    store.close().await;
}

#[tokio::test]
async fn settling_too_early_neither_waits_for_the_row_nor_locks_it() {
    let (database, store) = migrated(2).await;
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM fanout FOR UPDATE").execute(&mut *lock).await.unwrap();
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open);
    store.flush(delivered(&chunk)).await.unwrap();
    let refused = store.settle(id).await;
    assert!(matches!(&refused, Err(StoreError::Unavailable(text)) if text.contains("55P03")), "{refused:?}");
    lock.rollback().await.unwrap();
    assert!(matches!(store.settle(id).await.unwrap(), SettleReply::Settled(_)));
    store.close().await;
}

#[tokio::test]
async fn a_database_that_is_away_is_unavailable_and_no_password_is_shown() {
    let url = "postgres://fanfare:hunter2@127.0.0.1:1/fanfare".to_owned();
    let store = PostgresStore::connect(&url.into(), 1).unwrap();
    assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
    let refused = store.ready().await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    assert!(!refused.to_string().contains("hunter2"), "{refused}");
    let nonsense = PostgresStore::connect(&"postgres://u:hunter2@[/x".to_owned().into(), 1).unwrap_err();
    assert!(!nonsense.to_string().contains("hunter2"), "{nonsense}");
    store.close().await;
    assert!(matches!(store.now_ms().await, Err(StoreError::Unavailable(_))), "closed");
}

#[tokio::test]
async fn a_schema_that_is_missing_or_newer_is_a_schema_error() {
    let database = TestDatabase::create().await;
    let store = PostgresStore::connect(&database.url.clone().into(), 1).unwrap();
    for refused in [store.ready().await, store.backlog().await.map(drop)] {
        assert!(matches!(&refused, Err(StoreError::Schema(text)) if text.contains("fanfare migrate")), "{refused:?}");
    }
    store.migrate().await.unwrap();
    store.ready().await.unwrap();
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'of tomorrow', true, '', 0)";
    database.connection().await.execute(newer).await.unwrap();
    let refused = store.ready().await;
    assert!(matches!(&refused, Err(StoreError::Schema(text)) if text.contains("9999")), "{refused:?}");
    assert!(matches!(store.migrate().await, Err(StoreError::Schema(_))));
    store.close().await;
}

#[tokio::test]
async fn parallel_migrations_apply_each_once() {
    let database = TestDatabase::create().await;
    let stores: Vec<_> = (0..4).map(|_| PostgresStore::connect(&database.url.clone().into(), 1).unwrap()).collect();
    let applied = futures_util::future::join_all(stores.iter().map(|store| store.migrate())).await;
    let total: u32 = applied.into_iter().map(Result::unwrap).sum();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres")).unwrap();
    assert_eq!(total as usize, files.count());
}

#[tokio::test]
async fn unknown_stored_values_are_corruption_and_never_a_default() {
    let (database, store) = migrated(2).await;
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[2]).await;
    let mut connection = database.connection().await;
    let device = device_id("evt-0");
    let damages = [
        "UPDATE fanout SET state = 17",
        "UPDATE fanout SET state = 1, class = 9",
        "UPDATE fanout SET class = 0, kind = -1",
        "UPDATE fanout SET kind = 0, recipients = 3",
        "UPDATE fanout SET recipients = 2, settled_ms = 1",
    ];
    for damage in damages {
        connection.execute(damage).await.unwrap();
        let read = store.fanout(id).await;
        assert!(matches!(read, Err(StoreError::Corrupt(_))), "{damage}: {read:?}");
    }
    connection.execute("UPDATE fanout SET settled_ms = NULL").await.unwrap();
    assert_eq!(counts(&store, id).await, (0, 0, 2));
    for damage in ["UPDATE device SET state = 8", "UPDATE device SET state = 0, platform = 0"] {
        connection.execute(damage).await.unwrap();
        let read = store.device(device.clone()).await;
        assert!(matches!(read, Err(StoreError::Corrupt(_))), "{damage}: {read:?}");
    }
    connection.execute("UPDATE chunk SET done = done | B'10'").await.unwrap();
    let read = store.fanout(id).await;
    assert!(matches!(read, Err(StoreError::Corrupt(_))), "a failed recipient without a row: {read:?}");
    store.close().await;
}

#[tokio::test]
async fn refused_statements_never_quote_what_was_bound() {
    let (_database, store) = migrated(1).await;
    let refused = store.put_device(device("d", "secret\0token")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Statement(text) if text.contains("22021")), "{refused:?}");
    assert!(!refused.to_string().contains("secret"), "{refused}");
    store.close().await;
}

#[tokio::test]
async fn a_flush_is_a_heap_only_update() {
    let (database, store) = migrated(2).await;
    let boot = instance(&store).await;
    let (_, chunk) = one_chunk(&store, boot, "evt", 500).await;
    let hold = Hold::from(&chunk);
    for i in 0..30 {
        store.flush(outcomes(&hold, &[(i, Delivered)])).await.unwrap();
    }
    store.close().await;
    let mut connection = database.connection().await;
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'chunk'";
    // A session reports its statistics when it ends.
    let reported = async {
        loop {
            let seen: (i64, i64) = sqlx::query_as(counts).fetch_one(&mut connection).await.unwrap();
            if seen.0 >= 31 {
                break seen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (updates, hot) = soon("the statistics of the sessions", reported).await;
    // The claim changes an indexed column; a page that cannot be pruned just then costs another one or two.
    assert!(hot * 10 >= updates * 8, "{hot} of {updates}");
}

/// Held back at the row lock together, both have found every chunk closed; only the lock tells them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_settle_at_once_one_waits_and_finds_it_settled() {
    let (database, store) = migrated(4).await;
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    store.flush(delivered(&chunk)).await.unwrap();
    let mut blocker = database.connection().await;
    let mut lock = blocker.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM fanout FOR UPDATE").execute(&mut *lock).await.unwrap();
    let settle = |store: Shared| tokio::spawn(async move { store.settle(id).await.unwrap() });
    let settling = [settle(store.clone()), settle(store.clone())];
    wait_for_locks(&mut lock, 2).await;
    lock.rollback().await.unwrap();
    let mut settled = 0;
    for reply in settling {
        match reply.await.unwrap() {
            SettleReply::Settled(_) => settled += 1,
            reply => assert_eq!(reply, SettleReply::NotOurs),
        }
    }
    assert_eq!(settled, 1);
    store.close().await;
}

/// A default of `off` answers before the commit is on disk, and a power loss takes what was promised with a 202.
#[tokio::test]
async fn a_commit_is_on_disk_whatever_the_servers_default() {
    let (database, store) = migrated(1).await;
    store.close().await;
    let mut connection = database.connection().await;
    let relax =
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$;
        CREATE TABLE setting (value text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO setting VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT ON event EXECUTE FUNCTION note()";
    connection.execute(relax).await.unwrap();
    let store: Shared = Arc::new(PostgresStore::connect(&database.url.clone().into(), 1).unwrap());
    accept(&store, instance(&store).await, "evt", Class::Urgent).await;
    let value: String = sqlx::query_scalar("SELECT value FROM setting").fetch_one(&mut connection).await.unwrap();
    assert_eq!(value, "on");
    store.close().await;
}

/// Each of ten fan-outs finds twenty devices but one dead, which alone is no leap. What they find together is one, and
/// it does not help that all are settled while nobody has written yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fanouts_that_settle_at_once_know_what_each_other_found() {
    // Three eighths of them are for events.
    let (database, store) = migrated(20).await;
    let boot = instance(&store).await;
    healthy(&store, boot, "well", 50).await;
    let mut ids = Vec::new();
    for i in 0..10 {
        let (id, chunk) = one_chunk(&store, boot, &format!("dead-{i}"), 19).await;
        let dead: Vec<_> = (0..19).map(|i| (i, TokenDead)).collect();
        store.flush(outcomes(&Hold::from(&chunk), &dead)).await.unwrap();
        ids.push(id);
    }
    let mut squatter = database.connection().await;
    squatter.execute("BEGIN").await.unwrap();
    squatter.execute("SELECT 1 FROM dead_share FOR UPDATE").await.unwrap();
    let settling: Vec<_> = ids
        .into_iter()
        .map(|id| {
            let store = store.clone();
            tokio::spawn(async move { settle(&store, id).await.judged })
        })
        .collect();
    let mut watch = database.connection().await;
    soon("ten that wait", async {
        while sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut watch)
        .await
        .unwrap()
            < 10
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    squatter.execute("COMMIT").await.unwrap();
    let mut judged = 0;
    for one in settling {
        judged += one.await.unwrap();
    }
    assert_eq!(judged, 19, "the first alone");
    store.close().await;
}
