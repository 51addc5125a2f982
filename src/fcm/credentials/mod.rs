//! Owns what may stand where credentials are expected: a service-account key in any of the forms people have it in, or
//! the word for the metadata server. Names what is wrong with anything else.
//! Must never know: access tokens, or which setting the text is from.
//!
//! `account` reads the key field by field. `wrapped` takes off what environments and secret stores put around it,
//! `kinds` knows Google's other files by their looks, `pem` and `der` read the private key itself.

mod account;
mod der;
mod kinds;
mod pem;
mod wrapped;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use account::ServiceAccount;
pub(super) use account::digest;

/// The word that asks for the metadata server.
pub const METADATA: &str = "metadata";

/// Longest key read, bytes. Google's have 2.4 KiB; whatever is longer is something else.
const LONGEST: u64 = 1024 * 1024;

/// Why credentials were refused; names the field and the fix, never shows a value. The caller knows which setting they
/// are from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Nothing was given.
    #[error(
        "there are no credentials; set fcm.credentials_file (GOOGLE_APPLICATION_CREDENTIALS) to the path of a \
         service-account key, or fcm.credentials to \"metadata\" on Google Cloud"
    )]
    None,
    /// The file cannot be read.
    #[error("the file cannot be read: {problem}")]
    File {
        /// What the system said, or what is wrong with the file.
        problem: String,
    },
    /// Not a JSON object, in no known wrapping.
    #[error(
        "the service-account key is not a JSON object (line {line}); use the file the Firebase console made, unchanged \
         or in base64"
    )]
    NotJson {
        /// Line of the fault; 0 = it is JSON, but no object.
        line: usize,
    },
    /// Credentials of another kind.
    #[error(
        "this is {what}; a service-account key is needed: Firebase console, Project settings, Service accounts, \
         Generate new private key"
    )]
    Other {
        /// What it is, and why it will not do.
        what: &'static str,
    },
    /// A field is absent, empty or not a string.
    #[error("the service-account key lacks {field:?}; download the key again")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field cannot be used.
    #[error("the service-account key's {field:?} {problem}")]
    Bad {
        /// Name of the field.
        field: &'static str,
        /// What is wrong and how to mend it.
        problem: &'static str,
    },
}

/// Where access tokens come from.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A service account's key signs for them.
    Account(Box<ServiceAccount>),
    /// Google Cloud's metadata server gives them.
    Metadata,
}

impl Credentials {
    /// Takes what is given inline, else what is in the file; empty = not given. Inline may be the key in any form, the
    /// path of its file, or [`METADATA`].
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn load(inline: &str, file: &Path) -> Result<Self, CredentialsError> {
        let given = wrapped::trimmed(inline);
        if given.is_empty() {
            if file.as_os_str().is_empty() {
                return Err(CredentialsError::None);
            }
            return account(&read(file)?);
        }
        let plain = wrapped::trimmed(wrapped::unquoted(given).unwrap_or(given));
        if plain == METADATA {
            return Ok(Self::Metadata);
        }
        if is_path(plain) { account(&read(Path::new(plain))?) } else { account(given) }
    }

    /// The file that [`Credentials::load`] takes the key from, if it takes it from one.
    #[must_use]
    pub fn key_file(inline: &str, file: &Path) -> Option<PathBuf> {
        let given = wrapped::trimmed(inline);
        if given.is_empty() {
            return Some(file.to_owned()).filter(|file| !file.as_os_str().is_empty());
        }
        let plain = wrapped::trimmed(wrapped::unquoted(given).unwrap_or(given));
        (plain != METADATA && is_path(plain)).then(|| PathBuf::from(plain))
    }

    /// The project they name, if they do.
    #[must_use]
    pub fn project_id(&self) -> Option<&str> {
        match self {
            Self::Account(account) => account.project_id.as_deref(),
            Self::Metadata => None,
        }
    }
}

fn account(text: &str) -> Result<Credentials, CredentialsError> {
    ServiceAccount::parse(text).map(|account| Credentials::Account(Box::new(account)))
}

/// A key in JSON has braces, and in base64 it begins with `e`.
fn is_path(text: &str) -> bool {
    let rooted = ["/", "./", "../", "~/"].iter().any(|root| text.starts_with(root));
    !text.contains(['{', '\n']) && (rooted || text.ends_with(".json"))
}

pub(super) fn read(path: &Path) -> Result<String, CredentialsError> {
    let problem = |problem: String| CredentialsError::File { problem };
    if path.is_dir() {
        return Err(problem("it is a directory; name the key file in it".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| problem(e.to_string()))?;
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|e| problem(e.to_string()))?;
    if bytes.len() as u64 > LONGEST {
        return Err(problem("it is longer than 1 MiB, so it is no key".to_owned()));
    }
    match String::from_utf8(bytes) {
        Ok(text) if wrapped::trimmed(&text).is_empty() => Err(problem("it is empty".to_owned())),
        Ok(text) => Ok(text),
        Err(error) if matches!(error.as_bytes(), [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) => {
            Err(problem("it is UTF-16, as PowerShell's > writes it; save it as UTF-8".to_owned()))
        }
        Err(_) => Err(problem("it is not UTF-8 text".to_owned())),
    }
}

#[cfg(test)]
mod tests;
