//! Owns what `fanfare doctor` asks a PostgreSQL server, on one connection of its own that is not one of a pool's.
//! Must never know: which answer is well and which is not.

use std::time::{Duration, Instant, SystemTime};

use secrecy::SecretString;
use sqlx::{ConnectOptions, Connection, FromRow, PgConnection};
use tokio::time::timeout;

use super::fault::{Fault, count, explain};
use super::{PostgresStore, pool, schema};
use crate::store::detached::detached;
use crate::store::{ConnectionFacts, PostgresFacts, SchemaState, StoreError};

/// `reserved_connections` exists since PostgreSQL 16. A superuser is exempt from what is reserved and from the limits of
/// role and database. What somebody else does is hidden from a plain user, but not that
/// he is connected.
pub(super) const LIMITS: &str = "
SELECT current_setting('server_version') AS version,
       current_setting('max_connections')::bigint AS server,
       current_setting('superuser_reserved_connections')::bigint
           + coalesce(nullif(current_setting('reserved_connections', true), '')::bigint, 0) AS reserved,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_super,
       (SELECT rolconnlimit::bigint FROM pg_roles WHERE rolname = current_user) AS of_role,
       (SELECT datconnlimit::bigint FROM pg_database WHERE datname = current_database()) AS of_database,
       (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_backend_pid()) AS open,
       (SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'fanfare' AND pid <> pg_backend_pid()) AS ours,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean AS read_only";

/// Works without any of our migrations.
pub(super) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
pub(super) const HAS_INSTANCES: &str = "SELECT to_regclass('instance') IS NOT NULL";
pub(super) const LIVE: &str = "SELECT count(*) FROM instance
     WHERE lease_until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

#[derive(FromRow)]
struct Limits {
    version: String,
    server: i64,
    reserved: i64,
    is_super: Option<bool>,
    of_role: Option<i64>,
    of_database: Option<i64>,
    open: i64,
    ours: i64,
    read_only: bool,
}

/// Asks the server once, within `within`.
///
/// # Errors
/// [`StoreError`]: the URL does not parse, nobody answers, or it refuses.
pub async fn probe(url: &SecretString, within: Duration) -> Result<PostgresFacts, StoreError> {
    let options = pool::options(url)?;
    let place = PostgresStore::place_of(&options);
    let asking = async move {
        let mut connection = options.connect().await?;
        let facts = ask(&mut connection, place).await?;
        connection.close().await?;
        Ok(facts)
    };
    let asking = detached(async move { asking.await.map_err(|fault: Fault| explain("doctor", fault)) });
    let late = |_| StoreError::Unavailable(format!("doctor: no answer within {within:?}"));
    timeout(within, asking).await.map_err(late)?
}

async fn ask(conn: &mut PgConnection, place: String) -> Result<PostgresFacts, Fault> {
    let limits: Limits = sqlx::query_as(LIMITS).fetch_one(&mut *conn).await?;
    let (before, begun) = (ms(SystemTime::now()), Instant::now());
    let theirs: i64 = sqlx::query_scalar(CLOCK).fetch_one(&mut *conn).await?;
    let (ours, answers_in) = (before.midpoint(ms(SystemTime::now())), begun.elapsed());
    let known: bool = sqlx::query_scalar(schema::EXISTS).fetch_one(&mut *conn).await?;
    let applied = if known { schema::applied(&mut *conn).await? } else { Vec::new() };
    let counted: bool = sqlx::query_scalar(HAS_INSTANCES).fetch_one(&mut *conn).await?;
    let live: Option<i64> = if counted { Some(sqlx::query_scalar(LIVE).fetch_one(&mut *conn).await?) } else { None };
    Ok(PostgresFacts {
        place,
        answers_in,
        ahead_ms: ours.saturating_sub(theirs),
        read_only: limits.read_only,
        schema: SchemaState::compare(applied, &schema::migrator()),
        live: live.map(|live| count("live instances", live)).transpose()?,
        connections: limits.connections()?,
        version: limits.version,
    })
}

impl Limits {
    /// -1 is no limit.
    fn connections(&self) -> Result<ConnectionFacts, Fault> {
        let plain = self.is_super != Some(true);
        let reserved = if plain { self.reserved } else { 0 };
        let server = format!("max_connections {} less {reserved} reserved", self.server);
        let named = [
            (Some(self.server - reserved), server),
            (self.of_role.filter(|_| plain), "the limit of the role".to_owned()),
            (self.of_database.filter(|_| plain), "the limit of the database".to_owned()),
        ];
        let known = named.into_iter().filter_map(|(n, limit)| Some((n.filter(|n| *n >= 0)?, limit)));
        let (allowed, limit) = known.min_by_key(|(n, _)| *n).unwrap_or_default();
        Ok(ConnectionFacts {
            allowed: count("connections allowed", allowed)?,
            limit,
            others: count("connections open", self.open - self.ours)?,
            ours: count("connections of ours", self.ours)?,
        })
    }
}

fn ms(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_limits_is_the_one_that_counts() {
        let limits = |of_role, of_database| Limits {
            version: String::new(),
            server: 100,
            reserved: 3,
            is_super: Some(false),
            of_role,
            of_database,
            open: 9,
            ours: 4,
            read_only: false,
        };
        let none = limits(Some(-1), Some(-1)).connections().unwrap();
        assert_eq!((none.allowed, none.others, none.ours), (97, 5, 4));
        assert!(none.limit.contains("max_connections 100"), "{none:?}");
        let role = limits(Some(20), Some(50)).connections().unwrap();
        assert_eq!((role.allowed, role.limit.as_str()), (20, "the limit of the role"));
        assert_eq!(limits(None, Some(0)).connections().unwrap().allowed, 0);
        let superuser = Limits { is_super: Some(true), ..limits(Some(20), Some(50)) };
        assert_eq!(superuser.connections().unwrap().allowed, 100, "is exempt");
    }
}
