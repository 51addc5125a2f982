//! Owns every setting: its default, its unit, its check. Parsed once at start; secrets never show in `Debug`.
//! Must never know: the rooms that use it.

mod check;
mod credentials;
mod environment;
mod fault;
mod file;
mod keys;
mod layers;

use std::net::SocketAddr;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

pub use credentials::is_project_id;
pub use fault::{ConfigError, Fault, Origin};
pub use file::{LONGEST_FILE, read, read_file};
pub use layers::{Environment, Loaded, examine, load};

/// The defaults, compiled in: `config/default.toml` is the documentation of every key.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

/// All settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The API listener.
    pub api: Api,
    /// The operations listener.
    pub ops: Ops,
    /// The database.
    pub database: Database,
    /// Redis.
    pub redis: Redis,
    /// FCM.
    pub fcm: Fcm,
    /// The ceiling.
    pub ceiling: Ceiling,
    /// Event types.
    pub types: Types,
    /// Shutdown.
    pub drain: Drain,
    /// How long what has ended is kept.
    pub retention: Retention,
    /// Logs.
    pub log: Log,
}

/// The API listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `name:scope+scope:sha256hex`, separated by commas.
    pub keys: SecretString,
    /// Events served at once, 0 = a quarter more than the database takes at once; more are answered 503 before body, auth
    /// and database.
    pub max_in_flight: u32,
    /// Open connections; one more takes the place of the longest idle one.
    pub max_connections: u32,
    /// Requests per second of one key; 0 = no quota.
    pub requests_per_s_per_key: u32,
    /// Accepted fan-outs not yet settled; more are answered 503.
    pub max_backlog: u64,
    /// Recipients that wait before an event, of its class and of more urgent ones; more are answered 503.
    pub max_backlog_recipients: u64,
    /// Seconds these take at the pace in force; more are answered 503.
    pub max_backlog_s: u64,
}

/// The operations listener: health, metrics.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ops {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// The database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// `postgres://…` or `sqlite:PATH`. May hold a password.
    pub url: SecretString,
    /// Connections of the pools on Postgres; SQLite ignores it.
    pub max_connections: u32,
    /// How many of them serve events only; 0 = three eighths.
    pub ingest_connections: u32,
}

/// Where the data is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// PostgreSQL, at the whole URL.
    Postgres,
    /// An SQLite file.
    Sqlite(PathBuf),
}

impl Database {
    /// Connections that serve events only.
    #[must_use]
    pub fn for_events(&self) -> u32 {
        let given = if self.ingest_connections == 0 { self.max_connections * 3 / 8 } else { self.ingest_connections };
        given.max(1)
    }

    /// What the scheme of the URL says; `None` = neither, which [`load`] refuses.
    #[must_use]
    pub fn engine(&self) -> Option<Engine> {
        let url = self.url.expose_secret();
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Some(Engine::Postgres);
        }
        // Both `sqlite:PATH` and `sqlite://PATH` are in use. A database in memory would break the promise of a 202.
        let path = url.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_file = !path.is_empty() && !path.contains(['?', '#']) && path != ":memory:";
        is_file.then(|| Engine::Sqlite(PathBuf::from(path)))
    }
}

/// Redis.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// `redis://…`, `rediss://…`, `unix://…`; empty = none. May hold a password.
    pub url: SecretString,
}

/// FCM.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fcm {
    /// Base URL; `http://` means HTTP/2 with prior knowledge and is meant for an emulator.
    pub endpoint: String,
    /// PEM file of an additional root certificate; empty = the system's roots only.
    pub ca_file: PathBuf,
    /// Project id; empty = the one of the key, or of the metadata server.
    pub project_id: String,
    /// Path of the service-account key file; empty = none.
    pub credentials_file: PathBuf,
    /// The service-account key itself, or `metadata`; goes before the file.
    pub credentials: SecretString,
    /// `HOST` or `HOST:PORT` of Google Cloud's metadata server.
    pub metadata_host: String,
    /// Attempts in flight.
    pub slots: u32,
    /// Slots lent to stalled attempts; -1 = half of `slots`, 0 = strict.
    pub lent_slots: i32,
    /// Longest wait for an answer, ms.
    pub attempt_timeout_ms: u64,
    /// Wait before the one retry, ms.
    pub retry_delay_ms: u64,
    /// Age at which an attempt lends its slot out, ms.
    pub stall_after_ms: u64,
    /// Streams used of one HTTP/2 connection.
    pub streams_per_connection: u32,
}

impl Fcm {
    /// Slots that may be lent to stalled attempts.
    #[must_use]
    pub fn lent(&self) -> u32 {
        u32::try_from(self.lent_slots).unwrap_or(self.slots / 2)
    }

    /// Outcomes that may wait to be written.
    #[must_use]
    pub const fn unflushed(&self) -> u32 {
        if self.slots < 2 { 1 } else { self.slots / 2 }
    }

    /// Most recipients a kill can repeat: in flight, lent and unflushed.
    #[must_use]
    pub fn exposure(&self) -> u32 {
        self.slots + self.lent() + self.unflushed()
    }
}

/// The ceiling.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// HTTP requests per second of the whole fleet.
    pub rate_per_s: f64,
    /// The project's quota per minute; `burst + 60 x rate` above it is refused.
    pub quota_per_minute: u64,
}

impl Ceiling {
    /// Grants that may be used at once after a quiet time: 10 ms of the rate, at least 1.
    #[must_use]
    pub fn burst(&self) -> f64 {
        (self.rate_per_s * 0.010).max(1.0)
    }
}

/// Event types.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Types {
    /// A catalogue that replaces the built-in one; empty = built in.
    pub file: PathBuf,
}

/// Shutdown.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Longest shutdown, its last 5 s kept for writing, ms.
    pub grace_ms: u64,
}

/// How long what has ended is kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Days after which a settled fan-out, its event and its rows are deleted.
    pub keep_days: u32,
}

/// Logs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// `json`, `text`, or `auto`: text on a terminal, JSON otherwise.
    pub format: String,
    /// `RUST_LOG` syntax.
    pub filter: String,
}
