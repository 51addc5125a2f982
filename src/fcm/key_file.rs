//! Owns the key file while the service runs: it is read again, and says whether it holds another key.
//! Must never know: when it is read, or what is asked with the key.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::credentials::{CredentialsError, ServiceAccount, read};

/// Why the file does not take the place of the key in force. Names the field and the fix, never a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// It holds no key.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A pipe, say, which gives its content once.
    #[error("it is no regular file, so it was read at the start only; restart to change the key")]
    OnceOnly,
    /// Everything accepted so far is for the project in force.
    #[error(
        "the service-account key's \"project_id\" is {named:?}, and this instance sends for {in_force:?}; restart it to \
         change the project"
    )]
    Project {
        /// In the new file, shortened.
        named: String,
        /// Of the instance.
        in_force: String,
    },
}

/// A key file, and what was in it when it was read last.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
    /// Projects a key may be of: the one in force, and that of the key at the start, which a setting may have overruled.
    projects: Vec<String>,
    content: Option<[u8; 32]>,
}

impl KeyFile {
    /// The file the key came from. `project` is the one in force, `own` the one that the key named.
    #[must_use]
    pub fn new(path: PathBuf, project: String, own: Option<String>) -> Self {
        let content = read(&path).ok().map(|text| digest(&text));
        let projects = std::iter::once(project).chain(own).collect();
        Self { path, projects, content }
    }

    /// Where it is.
    #[must_use]
    pub const fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Reads it again: another key, or `None` when it says what it said before. Blocks on the file system.
    ///
    /// # Errors
    /// [`KeyFileError`]; the same fault is told each time.
    pub fn read_again(&mut self) -> Result<Option<ServiceAccount>, KeyFileError> {
        if std::fs::metadata(&self.path).is_ok_and(|known| !known.is_file()) {
            return Err(KeyFileError::OnceOnly);
        }
        let text = read(&self.path)?;
        let content = Some(digest(&text));
        if content == self.content {
            return Ok(None);
        }
        let account = ServiceAccount::parse(&text)?;
        if let Some(named) = account.project_id.as_ref().filter(|named| !self.projects.contains(named)) {
            let named = named.chars().take(64).collect();
            return Err(KeyFileError::Project { named, in_force: self.projects[0].clone() });
        }
        self.content = content;
        Ok(Some(account))
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(project: &str, email: &str) -> String {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        serde_json::json!({"type": "service_account", "project_id": project, "private_key": pair.serialize_pem(),
            "client_email": email, "token_uri": "https://oauth2.googleapis.com/token"})
        .to_string()
    }

    fn file(dir: &tempfile::TempDir, own: Option<&str>) -> KeyFile {
        KeyFile::new(dir.path().join("key.json"), "p".to_owned(), own.map(str::to_owned))
    }

    #[test]
    fn another_key_is_told_from_the_same_one_and_a_faulty_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("key.json"), text).unwrap();
        let first = key("p", "a@p");
        write(&first);
        let mut file = file(&dir, Some("p"));
        assert!(file.read_again().unwrap().is_none());
        write(&first.replace("client_email", "client_mail"));
        for _ in 0..2 {
            let error = file.read_again().unwrap_err();
            assert!(error.to_string().contains("client_email"), "{error}");
        }
        write("");
        assert!(file.read_again().unwrap_err().to_string().contains("it is empty"));
        write(&first);
        assert!(file.read_again().unwrap().is_none(), "mended as it was");
        write(&key("p", "b@p"));
        assert_eq!(file.read_again().unwrap().unwrap().client_email, "b@p");
        assert!(file.read_again().unwrap().is_none());
        std::fs::remove_file(dir.path().join("key.json")).unwrap();
        assert!(file.read_again().unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_key_of_another_project_is_refused_and_both_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("key.json"), text).unwrap();
        write(&key("own", "a@own"));
        let mut file = file(&dir, Some("own"));
        write(&key("other", "a@other"));
        let said = file.read_again().unwrap_err().to_string();
        assert!(said.contains("\"other\"") && said.contains("\"p\"") && said.contains("restart"), "{said}");
        for project in ["own", "p"] {
            write(&key(project, "b@x"));
            assert!(file.read_again().unwrap().is_some(), "{project}: as at the start, or that of the instance");
        }
    }

    #[test]
    fn what_can_be_read_once_only_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut pipe = KeyFile::new(dir.path().to_owned(), "p".to_owned(), None);
        assert_eq!(pipe.read_again().unwrap_err(), KeyFileError::OnceOnly);
    }
}
