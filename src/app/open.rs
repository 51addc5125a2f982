//! Owns what is read and chosen from the configuration before anything is wired: database, catalogue, keys.
//! Must never know: what they are used for.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;

use super::{BuildError, credentials};
use crate::api::Keys;
use crate::ceiling;
use crate::config::{self, Config, Engine};
use crate::domain::catalogue::{BUILT_IN, Catalogue};
use crate::fcm::credentials::Credentials;
use crate::fcm::http::TokenHttp;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

/// Longest wait for TCP and TLS with FCM and with whoever gives access tokens.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the configuration names, read and checked; nothing is connected.
pub(super) struct Inputs {
    pub(super) catalogue: Catalogue,
    pub(super) keys: Keys,
    pub(super) credentials: Credentials,
    pub(super) ca_pem: Option<Vec<u8>>,
    pub(super) http: TokenHttp,
}

impl Inputs {
    pub(super) fn read(config: &Config) -> Result<Self, BuildError> {
        let bad = |what: String| BuildError::Config { what };
        let catalogue = open_catalogue(config)?;
        let keys = Keys::parse(config.api.keys.expose_secret()).map_err(|e| bad(format!("api.keys: {e}")))?;
        let credentials = credentials::read(config)?;
        let ca_pem = ca_pem(config)?;
        let http = TokenHttp::new(ca_pem.as_deref(), CONNECT_TIMEOUT).map_err(|e| bad(e.to_string()))?;
        ceiling_settings(config, "").check().map_err(|_| {
            bad("redis.url: host, port or database cannot be read; write redis://HOST:PORT/0".to_owned())
        })?;
        Ok(Self { catalogue, keys, credentials, ca_pem, http })
    }
}

/// Refuses what `serve` would refuse without asking anybody: catalogue, API keys, credentials, certificate, URLs.
///
/// # Errors
/// [`BuildError::Config`] for the first.
pub fn check(config: &Config) -> Result<(), BuildError> {
    Inputs::read(config).map(drop)
}

/// What the ceiling needs to know.
pub(super) fn ceiling_settings(config: &Config, project: &str) -> ceiling::Settings {
    let redis = &config.redis.url;
    ceiling::Settings {
        rate_per_s: config.ceiling.rate_per_s,
        burst: config.ceiling.burst(),
        redis_url: (!redis.expose_secret().is_empty()).then(|| redis.clone()),
        project: project.to_owned(),
        shared_database: config.database.engine() == Some(Engine::Postgres),
    }
}

pub(super) fn ca_pem(config: &Config) -> Result<Option<Vec<u8>>, BuildError> {
    let file = &config.fcm.ca_file;
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let what = |e: io::Error| BuildError::Config { what: format!("fcm.ca_file {}: {e}", file.display()) };
    config::read_file(file).map(Some).map_err(what)
}

/// Opens the configured database; the schema is neither made nor checked.
///
/// # Errors
/// [`BuildError::Config`] for a URL that names none, [`BuildError::Unavailable`] when it cannot be opened.
pub async fn open_store(config: &Config) -> Result<Arc<dyn Store>, BuildError> {
    let database = &config.database;
    match database.engine() {
        Some(Engine::Postgres) => {
            let store = PostgresStore::connect_with(&database.url, database.max_connections, database.for_events())
                .map_err(unavailable)?;
            tracing::info!(target: "fanfare::app", engine = "postgres", database = store.place(), "database");
            Ok(Arc::new(store))
        }
        Some(Engine::Sqlite(path)) => {
            tracing::info!(target: "fanfare::app", engine = "sqlite", database = path.display().to_string(), "database");
            Ok(Arc::new(SqliteStore::open(&path).await.map_err(unavailable)?))
        }
        None => Err(BuildError::Config {
            what: "database.url names no database; write postgres://HOST/NAME or sqlite:PATH".to_owned(),
        }),
    }
}

/// What a failing database says at start.
#[must_use]
pub fn unavailable(error: StoreError) -> BuildError {
    let fix = match &error {
        // It names its own: not every schema is mended by migrating.
        StoreError::Schema(_) => "",
        StoreError::Corrupt(_) => "; check that database.url (DATABASE_URL) names a database of Fanfare",
        _ => "; check database.url (DATABASE_URL): a server has to run, a file to be writable",
    };
    BuildError::Unavailable { what: format!("{error}{fix}") }
}

/// The catalogue: the configured file, or the built-in one.
///
/// # Errors
/// [`BuildError::Config`] names the file, and each fault with line, column and fix.
pub fn open_catalogue(config: &Config) -> Result<Catalogue, BuildError> {
    let file = &config.types.file;
    if file.as_os_str().is_empty() {
        let what = |error| BuildError::Config { what: format!("the built-in catalogue: {error}") };
        return Catalogue::parse(BUILT_IN).map_err(what);
    }
    let what = |error: String| BuildError::Config { what: format!("types.file {}: {error}", file.display()) };
    let bytes = types_file(file).map_err(|error| what(error.to_string()))?;
    Catalogue::read(&bytes).map_err(|error| what(error.to_string()))
}

/// The bytes of the types file. It is read again while serving, so a pipe, which would keep that waiting, is refused.
///
/// # Errors
/// It is no regular file, cannot be read, or is too long.
pub(super) fn types_file(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    config::read_file(path)
}
