//! Owns the signed assertion a service account shows for an access token (RFC 7523).
//! Must never know: how it is sent.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, Header};
use serde::Serialize;

use super::credentials::ServiceAccount;

/// The narrow scope: sending messages (FCM's discovery document lists it for `messages:send`).
pub const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";

/// Seconds an assertion is back-dated, for token servers whose clock is behind ours.
pub const BACKDATED_S: u64 = 10;

/// Longest life Google allows an assertion, seconds.
pub const MAX_LIFE_S: u64 = 3600;

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    scope: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
}

/// Signs an assertion with RS256. `now` is the wall clock.
///
/// # Errors
/// When the key cannot sign.
pub fn sign(account: &ServiceAccount, now: SystemTime) -> Result<String, jsonwebtoken::errors::Error> {
    // Names the crypto provider instead of relying on cargo features alone. Installed before: nothing to do.
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let iat = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().saturating_sub(BACKDATED_S);
    let (iss, aud) = (account.client_email.as_str(), account.token_uri.as_str());
    let claims = Claims { iss, scope: SCOPE, aud, iat, exp: iat + MAX_LIFE_S };
    let mut header = Header::new(Algorithm::RS256);
    header.kid = account.key_id.clone();
    jsonwebtoken::encode(&header, &claims, &account.key)
}
