//! Owns what `fanfare doctor` is told of a database, whichever it is, and how the schema compares with this build's.
//! Must never know: how a server or a file is asked, or which answer is well and which is not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::migrate::Migrator;

use super::StoreError;

/// How the schema compares with the one this build needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaState {
    /// All of so many migrations are applied.
    Current(usize),
    /// Some are not.
    Behind {
        /// Applied.
        applied: usize,
        /// Brought by this build.
        brought: usize,
    },
    /// It cannot be used with this build, and why.
    Foreign(String),
}

impl SchemaState {
    /// Of migrations applied (number, checksum) and those this build brings.
    pub(super) fn compare(applied: Vec<(i64, Vec<u8>)>, migrator: &Migrator) -> Self {
        let mut applied: BTreeMap<i64, Vec<u8>> = applied.into_iter().collect();
        let (had, mut brought) = (applied.len(), 0);
        for migration in migrator.iter() {
            brought += 1;
            match applied.remove(&migration.version) {
                Some(sum) if sum != *migration.checksum => {
                    return Self::Foreign(format!("migration {} differs from this build's", migration.version));
                }
                _ => {}
            }
        }
        match applied.keys().next() {
            Some(version) => Self::Foreign(format!("migration {version} is newer than this build")),
            None if had == brought => Self::Current(had),
            None => Self::Behind { applied: had, brought },
        }
    }
}

/// What a PostgreSQL server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresFacts {
    /// Server and database, without anything secret.
    pub place: String,
    /// `server_version`.
    pub version: String,
    /// One question and its answer.
    pub answers_in: Duration,
    /// How far this machine's clock is ahead of the server's, ms.
    pub ahead_ms: i64,
    /// Nothing can be written: a standby, or a read-only default.
    pub read_only: bool,
    /// The schema.
    pub schema: SchemaState,
    /// Instances whose lease is running; none when there is no table of them.
    pub live: Option<u32>,
    /// Connections.
    pub connections: ConnectionFacts,
}

/// Connections of a PostgreSQL server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// Most that this user can have at once: the least of the server's, the database's and the role's limit.
    pub allowed: u32,
    /// Where that comes from, in words.
    pub limit: String,
    /// Open now that count against it and are not Fanfare's, the one that asks not among them.
    pub others: u32,
    /// Open now, of Fanfare's instances on this database.
    pub ours: u32,
}

/// Who has the lock of an SQLite file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLock {
    /// Nobody: no service runs on it.
    Free,
    /// A running service.
    Held,
}

/// What is found of an SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteFacts {
    /// Absolute.
    pub path: PathBuf,
    /// Its size, bytes; none = it is not there yet.
    pub bytes: Option<u64>,
    /// Free on its disk, bytes.
    pub free_bytes: u64,
    /// Its lock.
    pub lock: FileLock,
    /// Why it cannot be written.
    pub unwritable: Option<String>,
    /// The schema; none without a file. An error: it cannot be read.
    pub schema: Option<Result<SchemaState, StoreError>>,
}
