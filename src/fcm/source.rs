//! Owns the request for an access token, and the key it is signed with, which may change while the service runs.
//! Must never know: when a token is due.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::assertion;
use super::credentials::ServiceAccount;
use super::http::{TokenHttp, Wire};
use super::key_file::KeyFile;
use super::metadata::MetadataServer;
use super::token_answer::{Granted, TokenError, read, read_metadata, skew};
use crate::domain::charge::Charge;

/// Longest wait for whoever gives access tokens.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Where access tokens come from. Refresh, single flight and states are the same for all.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// A service account signs an assertion for them. Its file, if its key came from one, is read again.
    Account(Box<ServiceAccount>, Option<KeyFile>),
    /// Google Cloud's metadata server gives them to this machine.
    Metadata(Box<MetadataServer>),
}

impl From<ServiceAccount> for TokenSource {
    fn from(account: ServiceAccount) -> Self {
        Self::Account(Box::new(account), None)
    }
}

impl From<MetadataServer> for TokenSource {
    fn from(server: MetadataServer) -> Self {
        Self::Metadata(Box::new(server))
    }
}

impl TokenSource {
    /// Who is asked, as a person would name it; nothing secret.
    #[must_use]
    pub fn asks(&self) -> String {
        match self {
            Self::Account(account, _) => account.token_uri.clone(),
            Self::Metadata(server) => server.token().uri().to_string(),
        }
    }
}

fn date(wire: &Wire) -> Option<String> {
    match wire {
        Wire::Answer(answer) => answer.date.clone(),
        Wire::Broken(_) => None,
    }
}

/// Who wants the key file read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// Somebody who wants to know what came of it.
    Operator,
    /// A refusal: only what is new is told.
    Refusal,
}

/// Asks for an access token once.
pub(super) struct Source {
    from: TokenSource,
    http: TokenHttp,
    charge: Arc<dyn Charge>,
    clock: fn() -> SystemTime,
    /// What was wrong with the key file when it was read last.
    fault: Option<String>,
}

impl Source {
    pub(super) fn new(from: TokenSource, http: TokenHttp, charge: Arc<dyn Charge>, clock: fn() -> SystemTime) -> Self {
        Self { from, http, charge, clock, fault: None }
    }

    /// What each request is charged to, before it is made.
    pub(super) fn charge(&self) -> Arc<dyn Charge> {
        Arc::clone(&self.charge)
    }

    /// The request; it is charged already, so that an assertion, which is dated, does not grow old while it waits.
    pub(super) async fn ask(&self) -> Result<Granted, TokenError> {
        self.ask_dated().await.0
    }

    /// The same with the `Date` of the answer.
    pub(super) async fn ask_dated(&self) -> (Result<Granted, TokenError>, Option<String>) {
        match &self.from {
            TokenSource::Account(key, _) => self.exchange(key).await,
            TokenSource::Metadata(server) => {
                let (wire, genuine) = self.http.get_metadata(server.token(), REQUEST_TIMEOUT).await;
                (read_metadata(&wire, genuine, (self.clock)()), date(&wire))
            }
        }
    }

    async fn exchange(&self, key: &ServiceAccount) -> (Result<Granted, TokenError>, Option<String>) {
        let Ok(signed) = assertion::sign(key, (self.clock)()) else {
            return (Err(TokenError::Refused("the private key cannot sign".to_owned())), None);
        };
        let fields = [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", signed.as_str())];
        let wire = self.http.post_form(&key.token_endpoint, &fields, REQUEST_TIMEOUT).await;
        let now = (self.clock)();
        if let Wire::Answer(answer) = &wire
            && let Some(skew) = skew(answer, now)
        {
            tracing::warn!(target: "fanfare::fcm", skew, "clock skew");
        }
        (read(&wire, now), date(&wire))
    }

    /// Reads the key file again; whether there is another key now. A file with a fault leaves the old key in force.
    pub(super) async fn read_key_again(&mut self, asker: Asker) -> bool {
        let TokenSource::Account(key, Some(file)) = &mut self.from else {
            if asker == Asker::Operator {
                tracing::info!(target: "fanfare::fcm", setting = "fcm.credentials", "the key did not come from a file, so it cannot change while the service runs");
            }
            return false;
        };
        let mut reading = file.clone();
        let read = tokio::task::spawn_blocking(move || (reading.read_again(), reading)).await;
        // A panic of the reader, or the end of the process: the old key stays.
        let Ok((read, after)) = read else { return false };
        *file = after;
        let path = file.path().display();
        match read {
            Ok(Some(account)) => {
                tracing::info!(target: "fanfare::fcm", file = %path, client_email = account.client_email, "key read anew");
                (**key, self.fault) = (account, None);
                true
            }
            Ok(None) => {
                if asker == Asker::Operator {
                    tracing::info!(target: "fanfare::fcm", file = %path, "key read anew; it is the same");
                }
                self.fault = None;
                false
            }
            Err(error) => {
                let error = error.to_string();
                if asker == Asker::Operator || self.fault.as_ref() != Some(&error) {
                    tracing::warn!(target: "fanfare::fcm", file = %path, error, "key not read anew; the old one stays in force");
                }
                self.fault = Some(error);
                false
            }
        }
    }
}
