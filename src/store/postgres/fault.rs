//! Owns what an error of Postgres means to a caller, and which of them are worth another try at once.
//! Must never know: statements.

use sqlx::error::DatabaseError;

use crate::domain::bitmap::BitmapError;
use crate::domain::ids::IdError;
use crate::domain::outcome::UnknownCode;
use crate::store::StoreError;

/// What went wrong inside one operation, before it is told to the caller.
#[derive(Debug)]
pub(in crate::store) enum Fault {
    /// The driver or the server said so.
    Database(sqlx::Error),
    /// We found it ourselves.
    Ours(StoreError),
}

impl From<sqlx::Error> for Fault {
    fn from(e: sqlx::Error) -> Self {
        Self::Database(e)
    }
}

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        Self::Ours(e)
    }
}

impl From<UnknownCode> for Fault {
    fn from(e: UnknownCode) -> Self {
        corrupt(e.to_string())
    }
}

impl From<BitmapError> for Fault {
    fn from(e: BitmapError) -> Self {
        corrupt(e.to_string())
    }
}

impl From<IdError> for Fault {
    fn from(e: IdError) -> Self {
        corrupt(format!("stored identifier {e}"))
    }
}

/// A stored value this build does not understand.
pub(super) fn corrupt(what: impl Into<String>) -> Fault {
    Fault::Ours(StoreError::Corrupt(what.into()))
}

/// A number that must not be negative or too large for its kind.
pub(super) fn count<T: TryFrom<i64>>(what: &str, n: i64) -> Result<T, Fault> {
    T::try_from(n).map_err(|_| corrupt(format!("{what} is {n}")))
}

/// Serialisation failure and deadlock; and a unique violation, which only a concurrent insert can bring about:
/// every statement of ours has looked before it inserts, or inserts `ON CONFLICT`.
pub(super) fn lost_a_race(fault: &Fault) -> bool {
    let Fault::Database(sqlx::Error::Database(e)) = fault else { return false };
    matches!(e.code().as_deref(), Some("40001" | "40P01" | "23505"))
}

/// Tells a fault to the caller. The server's own message is left out: it may quote a bound value, a device token say.
pub(super) fn explain(operation: &str, fault: Fault) -> StoreError {
    match fault {
        Fault::Ours(e) => e,
        Fault::Database(sqlx::Error::Database(e)) => refused(operation, e.as_ref()),
        Fault::Database(e) => broken(operation, &e),
    }
}

fn refused(operation: &str, e: &dyn DatabaseError) -> StoreError {
    let code = e.code().unwrap_or_default();
    let mut text = format!("{operation}: SQLSTATE {code}{}", in_words(&code));
    for (what, name) in [("table", e.table()), ("constraint", e.constraint())] {
        if let Some(name) = name {
            text = format!("{text}, {what} {name}");
        }
    }
    match code.as_ref() {
        // No such table, column or function.
        "42P01" | "42703" | "42883" => StoreError::Schema(format!("{text}: run `fanfare migrate`")),
        // Bit strings of different length; no bit at that place.
        "22026" | "2202E" => StoreError::Corrupt(text),
        // Read-only; idle in transaction for too long; a lock not had in time.
        "25006" | "25P03" | "55P03" | "23505" => StoreError::Unavailable(text),
        // The protocol was broken, by us: the one of class 08 that no waiting mends.
        "08P01" => StoreError::Statement(text),
        _ if unavailable_class(&code) => StoreError::Unavailable(text),
        _ => StoreError::Statement(text),
    }
}

/// What an operator meets at the first start, said for those who do not know the codes by heart.
fn in_words(code: &str) -> &'static str {
    match code.get(..2) {
        Some("28") => " (the server refuses this user or password)",
        Some("3D") => " (there is no such database)",
        _ => "",
    }
}

/// Connection, authorisation, no such database, rollback, resources, operator's intervention, system error:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn unavailable_class(code: &str) -> bool {
    let classes = ["08", "28", "3D", "40", "53", "57", "58"];
    classes.iter().any(|class| code.starts_with(class))
}

fn broken(operation: &str, e: &sqlx::Error) -> StoreError {
    use sqlx::Error as E;
    match e {
        // The system's or the resolver's words, which quote no value: a host that is not found has no kind of its own.
        E::Io(io) => StoreError::Unavailable(format!("{operation}: {io}")),
        E::Tls(_) => StoreError::Unavailable(format!("{operation}: TLS with the database failed")),
        E::PoolTimedOut => StoreError::Unavailable(format!("{operation}: no connection in time")),
        E::PoolClosed => StoreError::Unavailable(format!("{operation}: the store is closed")),
        // A half-read answer of a server that went away.
        E::Protocol(_) | E::BeginFailed | E::WorkerCrashed => {
            StoreError::Unavailable(format!("{operation}: the connection broke"))
        }
        E::ColumnDecode { index, .. } => StoreError::Corrupt(format!("{operation}: column {index}")),
        E::Decode(_) => StoreError::Corrupt(format!("{operation}: a value of another type")),
        _ => StoreError::Statement(format!("{operation}: the driver refused it")),
    }
}
