//! Owns what a failure of SQLite or of a stored value means to the caller.
//! Must never know: which statement failed, or any bound value.

use std::panic::Location;

use sqlx::migrate::MigrateError;

use crate::domain::bitmap::BitmapError;
use crate::domain::ids::IdError;
use crate::domain::outcome::UnknownCode;
use crate::store::StoreError;

/// What went wrong inside a job or a read; a type of its own so that `?` reads the driver's errors.
#[derive(Debug)]
pub(in crate::store) struct Fault(pub(super) StoreError);

/// What a job or a read answers.
pub(super) type Answer<T> = Result<T, Fault>;

/// Primary result codes after which the same call may succeed later (<https://sqlite.org/rescode.html>):
/// `BUSY`, `LOCKED`, `NOMEM`, `READONLY`, `IOERR`, `FULL`, `CANTOPEN`, `PROTOCOL`.
const PASSING: [i32; 8] = [5, 6, 7, 8, 10, 13, 14, 15];

/// Primary result codes of a damaged file: `CORRUPT`, `NOTADB`.
const DAMAGED: [i32; 2] = [11, 26];

impl From<sqlx::Error> for Fault {
    /// SQLite's own messages name tables and columns, never values. The place says which statement it was.
    #[track_caller]
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        let text = format!("{error} ({})", place(Location::caller()));
        Self(match &error {
            E::Database(inner) => {
                // The low byte of an extended code is its primary code.
                let primary = inner.code().and_then(|c| c.parse::<i32>().ok()).map(|c| c & 0xff);
                match primary {
                    Some(code) if PASSING.contains(&code) => StoreError::Unavailable(text),
                    Some(code) if DAMAGED.contains(&code) => StoreError::Corrupt(text),
                    _ if missing(inner.message()) => StoreError::Schema(format!("{text}: run `fanfare migrate`")),
                    _ => StoreError::Statement(text),
                }
            }
            E::Io(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed | E::BeginFailed => {
                StoreError::Unavailable(text)
            }
            E::ColumnDecode { .. } | E::Decode(_) | E::ColumnNotFound(_) => StoreError::Corrupt(text),
            _ => StoreError::Statement(text),
        })
    }
}

/// SQLite has no result code of its own for a table or column that is not there.
fn missing(message: &str) -> bool {
    ["no such table", "no such column"].iter().any(|start| message.starts_with(start))
}

/// `claim.rs:41`: the path of the build machine is nobody's business.
fn place(at: &Location<'_>) -> String {
    let file = at.file().rsplit(['/', '\\']).next().unwrap_or_default();
    format!("{file}:{}", at.line())
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<UnknownCode> for Fault {
    fn from(error: UnknownCode) -> Self {
        corrupt(error.to_string())
    }
}

impl From<BitmapError> for Fault {
    fn from(error: BitmapError) -> Self {
        corrupt(error.to_string())
    }
}

impl From<IdError> for Fault {
    fn from(error: IdError) -> Self {
        corrupt(format!("stored identifier {error}"))
    }
}

impl From<MigrateError> for Fault {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(inner) | MigrateError::ExecuteMigration(inner, _) => match Self::from(inner).0 {
                StoreError::Statement(text) => Self(StoreError::Schema(text)),
                other => Self(other),
            },
            // Applied by a newer build; what `check` says of it.
            MigrateError::VersionMissing(version) => Self(newer(version)),
            other => Self(StoreError::Schema(other.to_string())),
        }
    }
}

/// The database has been migrated by a build that knows more.
pub(super) fn newer(version: i64) -> StoreError {
    StoreError::Schema(format!("migration {version} is newer than this build: run the newer one"))
}

/// A stored value this build cannot read.
pub(super) fn corrupt(what: impl Into<String>) -> Fault {
    Fault(StoreError::Corrupt(what.into()))
}
