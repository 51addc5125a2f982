//! Owns `fanfare migrate`.
//! Must never know: what a migration changes.

use std::path::Path;

use super::{Failure, configuration, print};
use crate::app;
use crate::store::StoreError;

/// Brings the schema up to date and says how much there was to do. Safe to repeat and to run twice at once.
///
/// # Errors
/// [`Failure::Config`]; [`Failure::Unavailable`] when the database does not answer; [`Failure::Runtime`] when a
/// migration is refused, or the schema is newer than this build.
pub async fn run(file: Option<&Path>) -> Result<(), Failure> {
    let config = configuration(file)?.config;
    let store = app::open_store(&config).await?;
    let applied = store.migrate().await;
    let engine = store.engine();
    store.close().await;
    match applied {
        Ok(0) => print(&format!("{engine}: the schema is up to date\n")),
        Ok(1) => print(&format!("{engine}: 1 migration applied\n")),
        Ok(n) => print(&format!("{engine}: {n} migrations applied\n")),
        Err(error @ StoreError::Unavailable(_)) => Err(app::unavailable(error).into()),
        Err(error) => Err(Failure::Runtime(error.to_string())),
    }
}
