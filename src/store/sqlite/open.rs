//! Owns opening the file: the lock that keeps a second instance out, how connections behave, and the schema's version.
//! Must never know: what is kept in it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection, SqlitePool, query_as};
use tokio::sync::Semaphore;

use super::fault::{Answer, Fault, newer};
use super::writer::Writer;
use super::{SqliteStore, lease, sql};
use crate::store::StoreError;

/// Connections that read. A read is short, and the API answers few at once.
const READERS: u32 = 3;
/// As many of them as callers may use at once.
const FOR_CALLERS: usize = 2;
/// Longest wait for another program that holds the file's write lock, a backup tool for instance.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a connection that reads: a caller is better answered 503 than kept.
pub(super) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// The write-ahead log is cut back to this after a checkpoint.
const WAL_KEPT_BYTES: &str = "134217728";
/// Pages of the log after which it is written into the file: 128 MiB, what is kept of the log anyway. With SQLite's own
/// 1,000 a large import writes the same pages of the trees again and again.
const CHECKPOINT_PAGES: &str = "32000";
/// Pages kept in memory by the writer: 64 MiB, enough for the upper levels of the follow table's tree.
const CACHE_KIB: &str = "-65536";

impl SqliteStore {
    /// Opens the database, creating the file when it is not there, and locks `<path>.lock` until it is closed.
    /// Every lease in the file ends here: the lock proves that the process it was given to is dead.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the directory is missing, the file cannot be opened, or another process
    /// has it open; [`StoreError::Corrupt`] when it is no database.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let path = absolute(path)?;
        let lock = lock(&path)?;
        let options = options(&path);
        let writer = Writer::start(options.clone(), &path, lock).await.map_err(|fault| named(&path, fault.0))?;
        writer.run(1, |c| expire_leases(c).boxed()).await.map_err(|error| named(&path, error))?;
        Ok(Self { writer, readers: readers(options), turns: Arc::new(Semaphore::new(FOR_CALLERS)) })
    }

    /// Opens the database to read, beside a running service or without one: neither lock nor leases are touched, and
    /// whatever writes is answered [`StoreError::Unavailable`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the file is not there.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        let path = absolute(path)?;
        std::fs::metadata(&path).map_err(|e| unavailable(&path, &e))?;
        let turns = Arc::new(Semaphore::new(FOR_CALLERS));
        Ok(Self { writer: Writer::none(), readers: readers(options(&path)), turns })
    }
}

fn readers(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options.create_if_missing(false).read_only(true))
}

/// Not in a file of a newer build, which is refused: what its tables mean is not known here.
async fn expire_leases(conn: &mut SqliteConnection) -> Answer<()> {
    match applied(conn).await {
        Ok(applied) if !applied.is_empty() && applied.iter().all(|(v, _)| migrator().version_exists(*v)) => {
            lease::expire_all(conn).await
        }
        Ok(_) | Err(Fault(StoreError::Schema(_))) => Ok(()),
        Err(fault) => Err(fault),
    }
}

/// SQLite reads a name that begins with `file:` as a URL; an absolute path never does.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    let path = std::path::absolute(path).map_err(|e| unavailable(path, &e))?;
    match path.parent() {
        Some(directory) if !directory.is_dir() => Err(StoreError::Unavailable(format!(
            "the directory {} does not exist: create it, or choose another place for the database",
            directory.display()
        ))),
        _ => Ok(path),
    }
}

/// What is locked: a file beside it, for SQLite has locks of its own on the database.
pub(super) fn lock_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let name = lock_file(path);
    let file = File::options().create(true).write(true).truncate(false).open(&name);
    let file = file.map_err(|e| unavailable(&name, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Unavailable(format!(
            "another instance has {} open: SQLite serves one instance, use Postgres for more",
            path.display()
        ))),
        Err(TryLockError::Error(e)) => Err(unavailable(&name, &e)),
    }
}

/// SQLite's own messages do not say which file.
fn named(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{}: {text}", path.display())),
        other => other,
    }
}

pub(super) fn unavailable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("{}: {error}", path.display()))
}

/// `FULL`: a commit we answer 202 to survives a power loss (law 9).
fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(false)
        .pragma("journal_size_limit", WAL_KEPT_BYTES)
        .pragma("cache_size", CACHE_KIB)
        // What a savepoint remembers of each page it changes would go through a file otherwise.
        .pragma("temp_store", "MEMORY")
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        .disable_statement_logging()
}

/// The migrations compiled into this build.
pub(super) fn migrator() -> Migrator {
    sqlx::migrate!("migrations/sqlite")
}

/// Applies what is missing, in the writer's transaction; how many.
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Answer<u32> {
    let before = applied(conn).await.map_or(0, |rows| rows.len());
    // `Migrator::run` asks for a bound on `&mut SqliteConnection` that a boxed future cannot give.
    migrator().run_direct(None, &mut *conn, false).await?;
    let after = applied(conn).await?.len();
    Ok(u32::try_from(after - before).unwrap_or(u32::MAX))
}

pub(super) async fn applied(conn: &mut SqliteConnection) -> Answer<Vec<(i64, Vec<u8>)>> {
    Ok(query_as(sql::APPLIED).fetch_all(conn).await?)
}

/// Compares what was applied with what this build brings.
pub(super) async fn check(conn: &mut SqliteConnection) -> Answer<()> {
    let mut applied = applied(conn).await?;
    for migration in migrator().iter() {
        let at = applied.iter().position(|(version, _)| *version == migration.version);
        let version = migration.version;
        match at.map(|at| applied.swap_remove(at)) {
            None => return Err(schema(format!("migration {version} is missing: run `fanfare migrate`"))),
            Some((_, sum)) if sum == *migration.checksum => {}
            Some(_) => return Err(schema(format!("migration {version} differs from this build's"))),
        }
    }
    match applied.first() {
        None => Ok(()),
        Some((version, _)) => Err(newer(*version).into()),
    }
}

fn schema(text: String) -> Fault {
    StoreError::Schema(text).into()
}
