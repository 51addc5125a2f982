//! Owns the service-account key: read, checked field by field, never shown.
//! Must never know: access tokens.

use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use jsonwebtoken::EncodingKey;
use serde_json::{Map, Value};

use super::assertion;
use super::http::Target;
use super::sanitise::clean;

/// Why a key was refused; names the field of the key and the fix, never shows a value of it. The caller knows which
/// setting the key is from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Neither a file nor a key was given.
    #[error("no service-account key; set fcm.credentials_file (or GOOGLE_APPLICATION_CREDENTIALS) to its path")]
    None,
    /// The file cannot be read.
    #[error("the file cannot be read: {problem}")]
    File {
        /// What the system said.
        problem: String,
    },
    /// Not a JSON object.
    #[error(
        "the service-account key is not a JSON object (line {line}); use the file the Firebase console made, unchanged"
    )]
    NotJson {
        /// Line of the fault; 0 = it is JSON, but no object.
        line: usize,
    },
    /// Another kind of Google credentials.
    #[error(
        "the key's \"type\" is {found:?}; only \"service_account\" is supported: create a key for a service account"
    )]
    WrongType {
        /// The type found, sanitised.
        found: String,
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

/// A service account, able to sign.
#[derive(Clone)]
pub struct ServiceAccount {
    /// Firebase project the key belongs to, if the key says so.
    pub project_id: Option<String>,
    /// `iss` of the assertion.
    pub client_email: String,
    /// `kid` of the assertion.
    pub key_id: Option<String>,
    /// `aud` of the assertion, and where it is posted.
    pub token_uri: String,
    /// The same, checked.
    pub(super) token_endpoint: Target,
    /// The private key.
    pub(super) key: EncodingKey,
}

impl ServiceAccount {
    /// Takes the key given inline, else the one in the file; empty = not given.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn load(inline: &str, file: &Path) -> Result<Self, CredentialsError> {
        if !inline.trim().is_empty() {
            return Self::parse(inline);
        }
        if file.as_os_str().is_empty() {
            return Err(CredentialsError::None);
        }
        let json = std::fs::read_to_string(file).map_err(|e| CredentialsError::File { problem: e.to_string() })?;
        Self::parse(&json)
    }

    /// Reads a key and signs once with it, so that a broken one is found at start.
    ///
    /// # Errors
    /// [`CredentialsError`] names the first field that is wrong.
    pub fn parse(json: &str) -> Result<Self, CredentialsError> {
        let value: Value = serde_json::from_str(json).map_err(|e| CredentialsError::NotJson { line: e.line() })?;
        let Value::Object(fields) = value else { return Err(CredentialsError::NotJson { line: 0 }) };
        check_type(&fields)?;
        let token_uri = required(&fields, "token_uri")?;
        let account = Self {
            client_email: required(&fields, "client_email")?,
            key: private_key(&required(&fields, "private_key")?)?,
            token_endpoint: token_endpoint(&token_uri)?,
            token_uri,
            project_id: optional(&fields, "project_id"),
            key_id: optional(&fields, "private_key_id"),
        };
        assertion::sign(&account, SystemTime::now()).map_err(|_| BAD_KEY)?;
        Ok(account)
    }
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceAccount({}, key redacted)", self.client_email)
    }
}

const BAD_KEY: CredentialsError = CredentialsError::Bad {
    field: "private_key",
    problem: "is not an RSA private key in PEM form; download the key again and keep its line breaks (\\n)",
};

fn check_type(fields: &Map<String, Value>) -> Result<(), CredentialsError> {
    match required(fields, "type")?.as_str() {
        "service_account" => Ok(()),
        other => Err(CredentialsError::WrongType { found: clean(other) }),
    }
}

fn optional(fields: &Map<String, Value>, field: &str) -> Option<String> {
    fields.get(field).and_then(Value::as_str).filter(|v| !v.is_empty()).map(str::to_owned)
}

fn required(fields: &Map<String, Value>, field: &'static str) -> Result<String, CredentialsError> {
    optional(fields, field).ok_or(CredentialsError::Missing { field })
}

/// Environment variables and secret stores often turn the line breaks of a PEM into a backslash and an `n`.
fn private_key(pem: &str) -> Result<EncodingKey, CredentialsError> {
    let pem = pem.replace("\\r", "").replace("\\n", "\n");
    EncodingKey::from_rsa_pem(pem.trim().as_bytes()).map_err(|_| BAD_KEY)
}

fn token_endpoint(uri: &str) -> Result<Target, CredentialsError> {
    Target::parse(uri).ok_or(CredentialsError::Bad {
        field: "token_uri",
        problem: "is not an http(s) URL; Google's is https://oauth2.googleapis.com/token",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pem() -> String {
        rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap().serialize_pem()
    }

    fn key_file(pem: &str) -> Value {
        json!({"type": "service_account", "project_id": "p", "private_key_id": "k1", "private_key": pem,
            "client_email": "a@p.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token"})
    }

    #[test]
    fn a_key_is_taken_with_real_and_with_escaped_line_breaks() {
        let pem = pem();
        for form in [pem.clone(), pem.replace('\n', "\\n"), pem.replace('\n', "\\r\\n"), format!("\n{pem}\n\n")] {
            let account = ServiceAccount::parse(&key_file(&form).to_string()).unwrap();
            assert_eq!(account.project_id.as_deref(), Some("p"));
            assert_eq!(format!("{account:?}"), "ServiceAccount(a@p.iam.gserviceaccount.com, key redacted)");
        }
    }

    #[test]
    fn every_refusal_names_the_field_and_shows_no_value() {
        let good = key_file(&pem());
        let elliptic = rcgen::KeyPair::generate().unwrap().serialize_pem();
        for (field, value) in [
            ("type", json!(null)),
            ("type", json!("authorized_user")),
            ("private_key", json!("")),
            ("private_key", json!(7)),
            ("private_key", json!("hunter2")),
            ("private_key", json!(elliptic)),
            ("private_key", json!("-----BEGIN PRIVATE KEY-----\nhunter2x\n-----END PRIVATE KEY-----\n")),
            ("client_email", json!(null)),
            ("token_uri", json!("")),
            ("token_uri", json!("hunter2")),
            ("token_uri", json!("file:///x")),
        ] {
            let mut bad = good.clone();
            bad[field] = value.clone();
            let said = ServiceAccount::parse(&bad.to_string()).unwrap_err().to_string();
            assert!(said.contains(&format!("{field:?}")), "{value}: {said}");
            assert!(!said.contains("hunter2") && !said.contains("BEGIN"), "{said}");
        }
        for text in ["", "hunter2", "[]", "\"hunter2\"", "{\"private_key\": hunter2"] {
            let said = ServiceAccount::parse(text).unwrap_err();
            assert!(
                matches!(said, CredentialsError::NotJson { .. }) && !said.to_string().contains("hunter2"),
                "{said}"
            );
        }
    }

    #[test]
    fn the_inline_key_goes_before_the_file_and_a_missing_file_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), key_file(&pem()).to_string()).unwrap();
        assert!(ServiceAccount::load("", file.path()).is_ok());
        assert!(matches!(ServiceAccount::load("{", file.path()), Err(CredentialsError::NotJson { .. })));
        assert_eq!(ServiceAccount::load(" ", Path::new("")).unwrap_err(), CredentialsError::None);
        let said = ServiceAccount::load("", Path::new("/nowhere/key.json")).unwrap_err().to_string();
        assert!(said.starts_with("the file cannot be read"), "the caller names it: {said}");
    }
}
