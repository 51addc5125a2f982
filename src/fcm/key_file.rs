//! Owns the key file while the service runs: it is read again, and says whether it holds another key.
//! Must never know: when it is read, or what is asked with the key.

use std::path::PathBuf;

use super::credentials::{CredentialsError, ServiceAccount, digest, read};

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
    content: [u8; 32],
}

impl KeyFile {
    /// The file that `account` came from; it is not read now: a pipe has nothing more to give, and a file may have changed
    /// since. `project` is the one in force.
    #[must_use]
    pub fn new(path: PathBuf, project: String, account: &ServiceAccount) -> Self {
        let projects = std::iter::once(project).chain(account.project_id.clone()).collect();
        Self { path, projects, content: account.digest }
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
        let content = digest(&text);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(project: &str, email: &str) -> String {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        serde_json::json!({"type": "service_account", "project_id": project, "private_key": pair.serialize_pem(),
            "client_email": email, "token_uri": "https://oauth2.googleapis.com/token"})
        .to_string()
    }

    fn file(dir: &tempfile::TempDir) -> KeyFile {
        let path = dir.path().join("key.json");
        let account = ServiceAccount::parse(&read(&path).unwrap()).unwrap();
        KeyFile::new(path, "p".to_owned(), &account)
    }

    #[test]
    fn another_key_is_told_from_the_same_one_and_a_faulty_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("key.json"), text).unwrap();
        let first = key("p", "a@p");
        write(&first);
        let mut file = file(&dir);
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
        let mut file = file(&dir);
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
        let path = dir.path().join("key.json");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success(), "mkfifo is part of coreutils");
        let account = ServiceAccount::parse(&key("p", "a@p")).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        // Nobody writes to the pipe: whoever opens it waits for ever.
        std::thread::spawn(move || {
            let mut pipe = KeyFile::new(path, "p".to_owned(), &account);
            let _ = tell.send(pipe.read_again().unwrap_err());
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(30)), Ok(KeyFileError::OnceOnly));
    }

    #[test]
    fn a_key_exchanged_since_it_was_read_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.json");
        let account = ServiceAccount::parse(&key("p", "a@p")).unwrap();
        std::fs::write(&path, key("p", "b@p")).unwrap();
        let mut file = KeyFile::new(path, "p".to_owned(), &account);
        assert_eq!(file.read_again().unwrap().unwrap().client_email, "b@p");
    }
}
