//! Placeholder: the API branch holds the keys.

use sha2::{Digest, Sha256};

/// A new key.
#[derive(Debug)]
pub struct NewKey {
    /// What the caller sends.
    pub secret: String,
    /// What the configuration holds.
    pub entry: String,
}

/// Makes one.
#[must_use]
pub fn generate(name: &str, scopes: &[&str]) -> NewKey {
    let secret = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let hash: String = Sha256::digest(&secret).iter().map(|b| format!("{b:02x}")).collect();
    NewKey { entry: format!("{name}:{}:{hash}", scopes.join("+")), secret }
}
