//! Placeholder: the lead's branch holds the composition root.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::store::Store;

/// Why the app was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting that only building shows to be wrong.
    #[error("bad configuration: {what}")]
    Config {
        /// What.
        what: String,
    },
    /// A dependency is not there.
    #[error("{what}")]
    Unavailable {
        /// What.
        what: String,
    },
}

/// Why the app ended.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(String);

/// The app.
#[derive(Debug)]
pub struct App {
    config: Config,
}

impl App {
    /// Builds it.
    ///
    /// # Errors
    /// Never in this branch.
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        Ok(Self { config })
    }

    /// The API's address.
    #[must_use]
    pub fn api_addr(&self) -> SocketAddr {
        self.config.api.listen
    }

    /// The operations listener's address.
    #[must_use]
    pub fn ops_addr(&self) -> SocketAddr {
        self.config.ops.listen
    }

    /// Waits for the drain.
    ///
    /// # Errors
    /// Never in this branch.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        shutdown.cancelled().await;
        Ok(())
    }
}

/// Opens the database.
///
/// # Errors
/// Always in this branch.
pub async fn open_store(_: &Config) -> Result<Arc<dyn Store>, BuildError> {
    Err(BuildError::Unavailable { what: "the store is not in this branch".to_owned() })
}
