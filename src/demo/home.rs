//! Owns the demo's directory: made fresh, readable by its user only, removed when the demo ends however it ends.
//! Must never know: what is put into it.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use uuid::Uuid;

use super::DemoError;

/// A directory that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub struct Home(PathBuf);

impl Home {
    /// A new directory among the system's temporary ones.
    ///
    /// # Errors
    /// [`DemoError::Part`] when it cannot be made; names the way to choose another place.
    pub fn fresh() -> Result<Self, DemoError> {
        let path = std::env::temp_dir().join(format!("fanfare-demo-{}", Uuid::new_v4().simple()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| DemoError::Part(format!("{}: {e}; set TMPDIR to a directory that exists", path.display())))?;
        Ok(Self(path))
    }

    /// The SQLite database in it, as a URL.
    #[must_use]
    pub fn database_url(&self) -> String {
        format!("sqlite:{}", self.0.join("fanfare.db").display())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // It holds nothing but what the demo made; leaving it behind would only cost disk.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_gone_with_everything_in_it_when_the_demo_ends() {
        let home = Home::fresh().unwrap();
        let database = home.database_url();
        let file = PathBuf::from(database.strip_prefix("sqlite:").unwrap());
        std::fs::write(&file, "x").unwrap();
        drop(home);
        assert!(!file.parent().unwrap().exists());
    }
}
