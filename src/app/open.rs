//! Owns the choice of database and catalogue from the configuration.
//! Must never know: what they are used for.

use std::sync::Arc;

use super::BuildError;
use crate::config::{Config, Engine};
use crate::domain::catalogue::{BUILT_IN, Catalogue};
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{Store, StoreError};

/// Opens the configured database; the schema is neither made nor checked.
///
/// # Errors
/// [`BuildError::Config`] for a URL that names none, [`BuildError::Unavailable`] when it cannot be opened.
pub async fn open_store(config: &Config) -> Result<Arc<dyn Store>, BuildError> {
    let database = &config.database;
    match database.engine() {
        Some(Engine::Postgres) => {
            let store = PostgresStore::connect(&database.url, database.max_connections).map_err(unavailable)?;
            Ok(Arc::new(store))
        }
        Some(Engine::Sqlite(path)) => Ok(Arc::new(SqliteStore::open(&path).await.map_err(unavailable)?)),
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
        _ => "; check database.url (DATABASE_URL) and that the server runs",
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
    let bytes = std::fs::read(file).map_err(|error| what(error.to_string()))?;
    Catalogue::read(&bytes).map_err(|error| what(error.to_string()))
}
