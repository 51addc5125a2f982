//! Owns what `fanfare doctor` looks at in an SQLite file: it changes nothing, and a running service goes on.
//! Must never know: which answer is well and which is not.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, access, statvfs};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::time::timeout;

use super::fault::{Answer, Fault};
use super::open::{absolute, applied, lock_file, migrator, unavailable};
use super::sql;
use crate::store::detached::detached;
use crate::store::{FileLock, SchemaState, SqliteFacts, StoreError};

/// Looks at the file once, within `within`.
///
/// # Errors
/// [`StoreError::Unavailable`] when there is no directory for it, or its disk cannot be asked.
pub async fn probe(path: &Path, within: Duration) -> Result<SqliteFacts, StoreError> {
    let path = absolute(path)?;
    let directory = path.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    let disk = statvfs(&directory).map_err(|e| unavailable(&directory, &e.into()))?;
    let bytes = std::fs::metadata(&path).ok().map(|found| found.len());
    let lock = lock_state(&path)?;
    let schema = if bytes.is_some() { Some(schema(&path, within).await) } else { None };
    Ok(SqliteFacts {
        bytes,
        free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
        lock,
        unwritable: unwritable(&path, &directory, bytes.is_some()),
        schema,
        path,
    })
}

/// A lock is asked for and given back at once, where there is a lock file: a service leaves it behind.
fn lock_state(path: &Path) -> Result<FileLock, StoreError> {
    let Ok(file) = File::options().read(true).open(lock_file(path)) else { return Ok(FileLock::Free) };
    match file.try_lock_shared() {
        Ok(()) => Ok(FileLock::Free),
        Err(TryLockError::WouldBlock) => Ok(FileLock::Held),
        Err(TryLockError::Error(e)) => Err(unavailable(path, &e)),
    }
}

/// The directory has to be writable too: lock and write-ahead log are made beside the file.
fn unwritable(path: &Path, directory: &Path, there: bool) -> Option<String> {
    let refused = |what: &Path| {
        let error = access(what, Access::WRITE_OK).err()?;
        Some(format!("{}: {}", what.display(), std::io::Error::from(error)))
    };
    refused(directory).or_else(|| if there { refused(path) } else { None })
}

async fn schema(path: &Path, within: Duration) -> Result<SchemaState, StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .read_only(true)
        .busy_timeout(within)
        .disable_statement_logging();
    let reading = async move {
        let mut connection = options.connect().await?;
        let known: bool = sqlx::query_scalar(sql::HAS_MIGRATIONS).fetch_one(&mut connection).await?;
        let applied = if known { applied(&mut connection).await? } else { Vec::new() };
        connection.close().await?;
        Ok(SchemaState::compare(applied, &migrator()))
    };
    let reading = detached(async move {
        let read: Answer<SchemaState> = reading.await;
        read.map_err(|fault: Fault| fault.0)
    });
    let late = |_| StoreError::Unavailable(format!("doctor: no answer within {within:?}"));
    timeout(within, reading).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::*;
    use crate::store::Store;

    const WITHIN: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_file_is_looked_at_before_it_is_made_while_it_is_open_and_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fanfare.db");
        let before = probe(&path, WITHIN).await.unwrap();
        assert_eq!((before.bytes, before.lock, &before.unwritable), (None, FileLock::Free, &None));
        assert!(before.schema.is_none(), "{before:?}");
        assert!(before.free_bytes > 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made by looking");

        let store = SqliteStore::open(&path).await.unwrap();
        let bare = probe(&path, WITHIN).await.unwrap();
        assert!(matches!(bare.schema, Some(Ok(SchemaState::Behind { applied: 0, .. }))), "{bare:?}");
        store.migrate().await.unwrap();
        let open = probe(&path, WITHIN).await.unwrap();
        assert_eq!(open.lock, FileLock::Held);
        assert!(matches!(open.schema, Some(Ok(SchemaState::Current(_)))), "{open:?}");
        store.close().await;
        drop(store);
        assert_eq!(probe(&path, WITHIN).await.unwrap().lock, FileLock::Free);
    }

    #[tokio::test]
    async fn a_file_opened_to_look_is_read_beside_a_service_and_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fanfare.db");
        assert!(SqliteStore::look(&path).is_err(), "nothing is made");
        let store = SqliteStore::open(&path).await.unwrap();
        store.migrate().await.unwrap();
        let boot = crate::domain::ids::BootId::fresh();
        store.heartbeat(boot, 60_000).await.unwrap();
        let looking = SqliteStore::look(&path).unwrap();
        looking.ready().await.unwrap();
        let refused = looking.leave(boot).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        looking.close().await;
        let beat = store.heartbeat(crate::domain::ids::BootId::fresh(), 60_000).await.unwrap();
        assert_eq!(beat.live_instances, 2, "the lease of the service still runs");
        store.close().await;
    }

    #[tokio::test]
    async fn what_is_no_database_and_where_none_can_be_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fanfare.db");
        std::fs::write(&path, "a text that is no database, and long enough to be taken for a header of one".repeat(20))
            .unwrap();
        let found = probe(&path, WITHIN).await.unwrap();
        assert!(matches!(found.schema, Some(Err(StoreError::Corrupt(_)))), "{found:?}");
        let nowhere = probe(&dir.path().join("none/fanfare.db"), WITHIN).await;
        assert!(matches!(nowhere, Err(StoreError::Unavailable(_))), "{nowhere:?}");
    }
}
