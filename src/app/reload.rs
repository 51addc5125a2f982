//! Owns reading event types and key anew while the service runs.
//! Must never know: what asked for it, or who uses them.

use std::path::PathBuf;

use super::open::types_file;
use crate::domain::catalogue::{Catalogue, Changes, LiveCatalogue};
use crate::fcm::oauth::Tokens;

/// Reads the types file anew, and has the key file read anew. What the types change holds for what begins afterwards: the
/// next post, the next import, the texts of fan-outs that this instance has not begun to send. Another key is tried at once.
#[derive(Debug, Clone)]
pub struct Reload {
    pub(super) file: PathBuf,
    pub(super) catalogue: LiveCatalogue,
    pub(super) tokens: Tokens,
}

impl Reload {
    /// Reads both once, and says in the log what became of it. A file that cannot take the place of the old one, for
    /// whatever reason, leaves the old one in force.
    pub async fn run(&self) {
        self.tokens.read_key_again();
        self.types().await;
    }

    async fn types(&self) {
        let file = self.file.display();
        if self.file.as_os_str().is_empty() {
            tracing::info!(target: "fanfare::app", setting = "types.file", "no types file is set, so none was read anew");
            return;
        }
        match self.replace().await {
            Ok(Changes { added, changed, types, texts }) => {
                let (added, changed) = (added.join(","), changed.join(","));
                tracing::info!(target: "fanfare::app", %file, added, changed, types, texts, "event types read anew");
            }
            Err(error) => {
                tracing::error!(target: "fanfare::app", %file, error, "event types not read anew; the old ones stay in force");
            }
        }
    }

    async fn replace(&self) -> Result<Changes, String> {
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || types_file(&file)).await.map_err(|error| error.to_string())?;
        let bytes = read.map_err(|error| error.to_string())?;
        let new = Catalogue::read(&bytes).map_err(|error| error.in_one_line())?;
        self.catalogue.replace(new).map_err(|error| error.in_one_line())
    }
}
