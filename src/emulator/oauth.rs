//! Owns the emulator's service account: its key, the check of a JWT-bearer grant, and the access tokens given out.
//! Must never know: what is sent with them.
//!
//! Refusals are worded as Google words them, because people search for those words.

use std::collections::HashMap;
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use tokio::time::Instant;

use super::EmulatorError;

/// How far a clock may be off, seconds.
const SKEW_S: i64 = 300;
/// The longest an assertion may live, seconds (Google's rule), and what libraries add to it for skew.
const ASSERTION_MAX_S: i64 = 3600 + 10;
/// The only grant type.
const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Scopes that allow sending; either is enough.
const SCOPES: [&str; 2] =
    ["https://www.googleapis.com/auth/firebase.messaging", "https://www.googleapis.com/auth/cloud-platform"];
/// Some libraries name this audience whatever the key's `token_uri` says, so Google's own has to pass.
const GOOGLE_AUDIENCE: &str = "https://oauth2.googleapis.com/token";

/// A refused grant: `error` and `error_description`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) &'static str, pub(super) String);

/// The service account.
pub(super) struct Account {
    project: String,
    email: String,
    key_id: String,
    token_uri: String,
    private_pem: String,
    public: DecodingKey,
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: i64,
    exp: i64,
    #[serde(default)]
    scope: String,
}

impl Account {
    /// A fresh RSA key of 2048 bits. `token_uri` is the emulator's own endpoint.
    pub(super) fn generate(project: &str, token_uri: String) -> Result<Self, EmulatorError> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256)?;
        Ok(Self {
            project: project.to_owned(),
            email: format!("emulator@{project}.iam.gserviceaccount.com"),
            key_id: uuid::Uuid::new_v4().simple().to_string(),
            token_uri,
            private_pem: pair.serialize_pem(),
            public: DecodingKey::from_rsa_der(pair.public_key_raw()),
        })
    }

    /// The key file, as Google hands it out.
    pub(super) fn key_json(&self) -> String {
        let key = serde_json::json!({
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": self.key_id,
            "private_key": self.private_pem,
            "client_email": self.email,
            "client_id": "100000000000000000000",
            "token_uri": self.token_uri,
            "universe_domain": "googleapis.com",
        });
        format!("{key:#}\n")
    }

    /// The project it belongs to.
    pub(super) fn project(&self) -> &str {
        &self.project
    }

    /// Its name.
    pub(super) fn email(&self) -> &str {
        &self.email
    }

    /// As a metadata server shows it.
    pub(super) fn shown(&self) -> serde_json::Value {
        serde_json::json!({"aliases": ["default"], "email": self.email, "scopes": SCOPES})
    }

    /// Checks a form body. `now_s` is Unix time.
    pub(super) fn check(&self, form: &[u8], now_s: i64) -> Result<(), Refusal> {
        let (mut grant_type, mut assertion) = (None, None);
        for (key, value) in form_urlencoded::parse(form) {
            match key.as_ref() {
                "grant_type" => grant_type = Some(value),
                "assertion" => assertion = Some(value),
                _ => {}
            }
        }
        match grant_type.as_deref() {
            None => return Err(Refusal("invalid_request", "Required parameter is missing: grant_type".into())),
            Some(GRANT_TYPE) => {}
            Some(other) => return Err(Refusal("unsupported_grant_type", format!("Invalid grant_type: {other}"))),
        }
        let assertion =
            assertion.ok_or_else(|| Refusal("invalid_request", "Missing required parameter: assertion".into()))?;
        self.check_claims(&self.verified(&assertion)?, now_s)
    }

    fn verified(&self, assertion: &str) -> Result<Claims, Refusal> {
        let mut rules = Validation::new(Algorithm::RS256);
        // Only the signature is checked here; the claims need Google's words.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let token = jsonwebtoken::decode::<Claims>(assertion, &self.public, &rules).map_err(|error| {
            use jsonwebtoken::errors::ErrorKind::{InvalidAlgorithm, InvalidSignature, Json};
            match error.kind() {
                InvalidSignature | InvalidAlgorithm => grant("Invalid JWT Signature."),
                Json(_) => grant("Invalid JWT: a required claim is missing or has the wrong type."),
                _ => grant("Bad Request"),
            }
        })?;
        match token.header.kid {
            Some(kid) if kid != self.key_id => Err(grant("Invalid JWT Signature.")),
            _ => Ok(token.claims),
        }
    }

    fn check_claims(&self, claims: &Claims, now_s: i64) -> Result<(), Refusal> {
        if claims.iss != self.email {
            return Err(grant("Invalid grant: account not found"));
        }
        if claims.aud != self.token_uri && claims.aud != GOOGLE_AUDIENCE {
            let text = format!("Invalid JWT: Failed audience check. The right audience is {}", self.token_uri);
            return Err(grant(&text));
        }
        let lived = claims.exp.saturating_sub(claims.iat);
        let timely = claims.iat <= now_s + SKEW_S && claims.exp > now_s - SKEW_S;
        if !timely || !(1..=ASSERTION_MAX_S).contains(&lived) {
            return Err(grant(
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. \
                 Check your iat and exp values in the JWT claim.",
            ));
        }
        if !claims.scope.split(' ').any(|scope| SCOPES.contains(&scope)) {
            return Err(Refusal("invalid_scope", "Invalid OAuth scope or ID token audience provided.".into()));
        }
        Ok(())
    }
}

fn grant(text: &str) -> Refusal {
    Refusal("invalid_grant", text.to_owned())
}

/// Access tokens that are out, each with its end, and the one issued last.
#[derive(Debug, Default)]
pub(super) struct AccessTokens {
    ends: HashMap<String, Instant>,
    last: Option<String>,
}

impl AccessTokens {
    /// A new one. Expired ones go, so that a long run with short lifetimes keeps few.
    pub(super) fn issue(&mut self, lifetime: Duration) -> String {
        let now = Instant::now();
        self.ends.retain(|_, end| *end > now);
        let token = format!("ya29.emulator-{}", uuid::Uuid::new_v4().simple());
        self.ends.insert(token.clone(), now + lifetime);
        self.last = Some(token.clone());
        token
    }

    /// The one issued last and what is left of it, whole seconds.
    pub(super) fn last(&self) -> Option<(String, u64)> {
        let token = self.last.as_ref()?;
        let left = self.ends.get(token)?.checked_duration_since(Instant::now())?;
        Some((token.clone(), left.as_secs()))
    }

    /// Whether it was issued here and is still good.
    pub(super) fn holds(&self, token: &str) -> bool {
        self.ends.get(token).is_some_and(|end| *end > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_access_token_ends_with_its_lifetime() {
        let mut tokens = AccessTokens::default();
        let token = tokens.issue(Duration::from_secs(60));
        assert!(tokens.holds(&token) && !tokens.holds("another"));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(tokens.holds(&token));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!tokens.holds(&token));
        tokens.issue(Duration::from_secs(60));
        assert_eq!(tokens.ends.len(), 1);
    }
}
