//! Owns knowing the database file again. A file that was deleted or replaced while it is open can still be written, and
//! all of that is gone with the last close: nothing may be promised on it.
//! Must never know: what is written.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::fault::{Answer, Fault};
use crate::store::StoreError;

/// The file that was opened. Its inode tells it from any other under the same path, which is how SQLite itself looks for
/// a moved file: device numbers are not the same for ever on every file system.
pub(super) struct OpenFile {
    path: PathBuf,
    inode: u64,
}

impl OpenFile {
    /// The file at this path now.
    pub(super) async fn at(path: &Path) -> Answer<Self> {
        let inode = inode(path).await.map_err(|e| gone(path, &e.to_string()))?;
        Ok(Self { path: path.to_owned(), inode })
    }

    /// Whether the path still leads to it. It may again: a file that was moved can be moved back.
    pub(super) async fn check(&self) -> Answer<()> {
        match inode(&self.path).await {
            Ok(inode) if inode == self.inode => Ok(()),
            Ok(_) => Err(gone(&self.path, "another file is in its place")),
            Err(e) => Err(gone(&self.path, &e.to_string())),
        }
    }
}

async fn inode(path: &Path) -> io::Result<u64> {
    Ok(tokio::fs::metadata(path).await?.ino())
}

fn gone(path: &Path, why: &str) -> Fault {
    let path = path.display();
    StoreError::Unavailable(format!("{path} is not the file that was opened ({why}): put it back, or restart")).into()
}
