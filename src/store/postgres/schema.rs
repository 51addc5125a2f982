//! Owns the schema's version: applies migrations and says whether the schema is the one this build needs.
//! Must never know: what the tables are for.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::fault::{Fault, count};
use crate::store::StoreError;

/// One migration at a time in the whole fleet, and an exact answer to "how many were applied now".
pub(super) const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended('fanfare migrate', 0))";
pub(super) const APPLIED: &str = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
pub(super) const EXISTS: &str = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";

/// While a migration waits for its table, everybody who comes after it waits behind it: so it waits no longer than this,
/// lets the others through, and asks again.
pub(super) const BRIEFLY: &str = "SET lock_timeout = '1s'";
/// How long the others are let through.
const LET_THROUGH: Duration = Duration::from_secs(1);
/// How often a migration asks for its table: about five minutes.
const TRIES: u32 = 150;

/// The migrations compiled into this build.
pub(super) fn migrator() -> Migrator {
    sqlx::migrate!("migrations/postgres")
}

/// Applies what is missing, on a connection of its own without time limits: building an index takes as long as it takes.
pub(super) async fn migrate(options: &PgConnectOptions) -> Result<u32, Fault> {
    let unlimited = [("statement_timeout", "0"), ("lock_timeout", "0"), ("idle_in_transaction_session_timeout", "0")];
    let mut connection = options.clone().options(unlimited).connect().await?;
    sqlx::query(LOCK).execute(&mut connection).await?;
    let before = applied_count(&mut connection).await?;
    let mut migrator = migrator();
    migrator.set_locking(false);
    // `run` takes an `Acquire`, which no future that must be `Send` can name; this is the driver's own way around.
    sqlx::query(BRIEFLY).execute(&mut connection).await?;
    let mut tries = 1;
    while let Err(error) = migrator.run_direct(None, &mut connection, false).await {
        let Some(version) = waiting(&error).filter(|_| tries < TRIES) else { return Err(refused(error)) };
        tracing::warn!(target: "fanfare::store", version, tries, "a migration waits for a table that a long transaction holds; it asks again");
        tries += 1;
        tokio::time::sleep(LET_THROUGH).await;
    }
    let after = applied_count(&mut connection).await?;
    connection.close().await?;
    count("number of migrations", after - before)
}

/// The migration that did not get its table in time. It was rolled back.
fn waiting(error: &MigrateError) -> Option<i64> {
    let MigrateError::ExecuteMigration(sqlx::Error::Database(e), version) = error else { return None };
    (e.code().as_deref() == Some("55P03")).then_some(*version)
}

async fn applied_count(connection: &mut PgConnection) -> Result<i64, Fault> {
    let exists: bool = sqlx::query_scalar(EXISTS).fetch_one(&mut *connection).await?;
    if !exists {
        return Ok(0);
    }
    let rows: Vec<(i64, Vec<u8>, bool)> = sqlx::query_as(APPLIED).fetch_all(connection).await?;
    i64::try_from(rows.len()).map_err(|_| Fault::Ours(StoreError::Schema("too many migrations".to_owned())))
}

/// Keeps the type of a database error; the driver's own refusals become schema errors.
fn refused(e: MigrateError) -> Fault {
    use MigrateError as M;
    match e {
        M::Execute(e) => Fault::Database(e),
        M::ExecuteMigration(e, version) => match super::fault::explain("migrate", Fault::Database(e)) {
            StoreError::Unavailable(text) => Fault::Ours(StoreError::Unavailable(text)),
            other => Fault::Ours(StoreError::Schema(format!("migration {version}: {other}"))),
        },
        // Applied by a newer build; what `check` says of it.
        M::VersionMissing(version) => newer(version),
        other => Fault::Ours(StoreError::Schema(other.to_string())),
    }
}

/// Number and checksum of what was applied. One that failed half-way is as good as none.
pub(super) async fn applied(conn: &mut PgConnection) -> Result<Vec<(i64, Vec<u8>)>, Fault> {
    let rows: Vec<(i64, Vec<u8>, bool)> = sqlx::query_as(APPLIED).fetch_all(conn).await?;
    Ok(rows.into_iter().filter(|(_, _, whole)| *whole).map(|(version, sum, _)| (version, sum)).collect())
}

/// Compares what was applied with what this build brings.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), Fault> {
    let rows: Vec<(i64, Vec<u8>, bool)> = sqlx::query_as(APPLIED).fetch_all(&mut *conn).await?;
    let mut applied: BTreeMap<i64, (Vec<u8>, bool)> = rows.into_iter().map(|(v, sum, ok)| (v, (sum, ok))).collect();
    for migration in migrator().iter() {
        match applied.remove(&migration.version) {
            None => return Err(schema(format!("migration {} is missing: run `fanfare migrate`", migration.version))),
            Some((sum, true)) if sum == *migration.checksum => {}
            Some(_) => return Err(schema(format!("migration {} differs from this build's", migration.version))),
        }
    }
    match applied.keys().next() {
        None => Ok(()),
        Some(version) => Err(newer(*version)),
    }
}

fn newer(version: i64) -> Fault {
    schema(format!("migration {version} is newer than this build: run the newer one"))
}

fn schema(text: String) -> Fault {
    Fault::Ours(StoreError::Schema(text))
}
