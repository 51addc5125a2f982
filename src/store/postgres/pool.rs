//! Owns how connections are made: the two pools, their limits and the time limits every session has.
//! Must never know: tables.

use std::str::FromStr;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};

use crate::mutant;
use crate::store::StoreError;

/// Longest wait for a connection: a caller is better answered 503 than kept.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections kept for facts and heartbeats, so that reads, claims and accepts cannot starve them.
const FACT_CONNECTIONS: u32 = 2;

/// Limits of every session. A lease is 15 s: whatever takes longer than these would lose it anyway.
/// Compiling a query (`jit`) costs more than any statement here takes.
const SESSION: [(&str, &str); 5] = [
    ("statement_timeout", "10s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("jit", "off"),
    ("application_name", "fanfare"),
];

/// A commit we answer 202 to is on disk (law 9), whatever the server's default; a stricter default stays.
pub(super) const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false)
     WHERE current_setting('synchronous_commit') = 'off'";

/// Reads the URL. The parser's own message is left out, it may quote the password.
pub(super) fn options(url: &SecretString) -> Result<PgConnectOptions, StoreError> {
    let refuse = |_| StoreError::Statement("the database URL is not of the form postgres://user@host/name".to_owned());
    let options = PgConnectOptions::from_str(url.expose_secret()).map_err(refuse)?;
    Ok(options.options(SESSION).disable_statement_logging())
}

/// The pool for everything but facts.
pub(super) fn main(options: PgConnectOptions, max_connections: u32) -> PgPool {
    sized(max_connections.max(1)).connect_lazy_with(options)
}

/// The pool for facts and heartbeats.
pub(super) fn facts(options: PgConnectOptions) -> PgPool {
    sized(FACT_CONNECTIONS).connect_lazy_with(options)
}

fn sized(max_connections: u32) -> PgPoolOptions {
    PgPoolOptions::new().max_connections(max_connections).acquire_timeout(ACQUIRE_TIMEOUT).after_connect(
        |connection, _| {
            Box::pin(async move {
                if !mutant::on("answer_before_commit") {
                    sqlx::query(DURABLE).execute(connection).await?;
                }
                Ok(())
            })
        },
    )
}

/// Where it is connected to, without the password.
impl std::fmt::Debug for super::PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = self.options.get_host();
        f.debug_struct("PostgresStore").field("host", &host).field("database", &self.options.get_database()).finish()
    }
}
