//! Owns the soak's directory: database, catalogue, logs. A temporary one is removed when the soak ends, one that was asked
//! for stays.
//! Must never know: what is put into it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::SoakError;

/// A directory.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    /// To be removed.
    ours: bool,
}

impl Home {
    /// `asked`, made if it is not there, or a new one among the system's temporary ones, for this user only.
    ///
    /// # Errors
    /// [`SoakError::Part`] when it cannot be made.
    pub fn open(asked: Option<&Path>) -> Result<Self, SoakError> {
        let temporary = || std::env::temp_dir().join(format!("fanfare-soak-{}", Uuid::new_v4().simple()));
        let path = asked.map_or_else(temporary, Path::to_owned);
        let made = std::fs::DirBuilder::new().mode(0o700).recursive(asked.is_some()).create(&path);
        made.map_err(|fault| SoakError::Part(format!("{}: {fault}", path.display())))?;
        let path = path.canonicalize().map_err(|fault| SoakError::Part(format!("{}: {fault}", path.display())))?;
        Ok(Self { path, ours: asked.is_none() })
    }

    /// A file or directory in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in it.
    ///
    /// # Errors
    /// [`SoakError::Part`].
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, SoakError> {
        let path = self.file(name);
        std::fs::write(&path, text).map_err(|fault| SoakError::Part(format!("{}: {fault}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.ours {
            // It holds nothing but what the soak made; leaving it behind would only cost disk.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_goes_and_one_that_was_asked_for_stays() {
        let home = Home::open(None).unwrap();
        let file = home.write("a", "x").unwrap();
        drop(home);
        assert!(!file.exists());
        let asked = tempfile::tempdir().unwrap();
        let home = Home::open(Some(&asked.path().join("a/b"))).unwrap();
        let file = home.write("c", "x").unwrap();
        drop(home);
        assert!(file.exists());
    }
}
