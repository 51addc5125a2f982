//! Owns the service-account key: read, checked field by field, never shown.
//! Must never know: access tokens.

use std::fmt;
use std::time::SystemTime;

use jsonwebtoken::EncodingKey;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::super::assertion;
use super::super::http::Target;
use super::{CredentialsError, kinds, pem, wrapped};

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
    pub(in crate::fcm) token_endpoint: Target,
    /// The private key.
    pub(in crate::fcm) key: EncodingKey,
    /// Of the text it was read from, so that another text can be told.
    pub(in crate::fcm) digest: [u8; 32],
}

impl ServiceAccount {
    /// Reads a key in any wrapping and signs once with it, so that a broken one is found at start.
    ///
    /// # Errors
    /// [`CredentialsError`] names the first field that is wrong.
    pub fn parse(text: &str) -> Result<Self, CredentialsError> {
        let fields = wrapped::object(text)?;
        if let Some(what) = kinds::of_object(&fields) {
            return Err(CredentialsError::Other { what });
        }
        required(&fields, "type")?;
        let token_uri = required(&fields, "token_uri")?;
        let account = Self {
            client_email: required(&fields, "client_email")?,
            key: pem::private_key(&required(&fields, "private_key")?)?,
            token_endpoint: token_endpoint(&token_uri)?,
            token_uri,
            project_id: optional(&fields, "project_id"),
            key_id: optional(&fields, "private_key_id"),
            digest: digest(text),
        };
        assertion::sign(&account, SystemTime::now()).map_err(|_| pem::UNREADABLE)?;
        Ok(account)
    }
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceAccount({}, key redacted)", self.client_email)
    }
}

pub(in crate::fcm) fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn optional(fields: &Map<String, Value>, field: &str) -> Option<String> {
    fields.get(field).and_then(Value::as_str).filter(|v| !v.is_empty()).map(str::to_owned)
}

fn required(fields: &Map<String, Value>, field: &'static str) -> Result<String, CredentialsError> {
    optional(fields, field).ok_or(CredentialsError::Missing { field })
}

/// An assertion is as good as an access token for an hour, so it leaves this machine only under TLS.
fn token_endpoint(uri: &str) -> Result<Target, CredentialsError> {
    let bad = |problem| CredentialsError::Bad { field: "token_uri", problem };
    let target = Target::parse(uri)
        .ok_or_else(|| bad("is not an http(s) URL; Google's is https://oauth2.googleapis.com/token"))?;
    if target.is_https() || target.is_loopback() {
        return Ok(target);
    }
    Err(bad("is http:// to another machine; Google's is https://oauth2.googleapis.com/token"))
}
