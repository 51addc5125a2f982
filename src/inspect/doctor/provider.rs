//! Owns the checks of the provider: the key, an access token, the connection, the right to send.
//! Must never know: HTTP.

use std::time::Duration;

use super::{Finding, Trouble};
use crate::domain::outcome::{CredentialFault, Verdict};
use crate::fcm::checkup::{Looked, TokenCall, TokenError, Unreached};

/// Who sends, and for which project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The account's address; empty = the metadata server knows.
    pub email: String,
    /// The project sent for.
    pub project: String,
    /// The key's own project, where it is another.
    pub other: Option<String>,
}

/// The credentials, or why they cannot be used.
#[must_use]
pub fn credentials(read: &Result<Account, (Trouble, String)>) -> Finding {
    let name = "credentials";
    let account = match read {
        Ok(account) => account,
        Err((trouble, why)) => {
            let fix = "Firebase console, Project settings, Service accounts, Generate new private key; its path goes into \
                       GOOGLE_APPLICATION_CREDENTIALS";
            return Finding::fail(name, *trouble, why.clone(), fix);
        }
    };
    let who = if account.email.is_empty() { "the metadata server's account" } else { &account.email };
    let found = format!("{who}, for project {}", account.project);
    match &account.other {
        None => Finding::ok(name, found),
        Some(other) => {
            let fix = "leave fcm.project_id empty, unless that account may send for the other project";
            Finding::warn(name, format!("{found}; the key is of project {other}"), fix)
        }
    }
}

/// One real access token from whoever `asked` names.
#[must_use]
pub fn token(asked: &str, call: &TokenCall) -> Finding {
    let took = ms(call.took);
    let name = "token";
    match &call.granted {
        Ok(granted) => Finding::ok(
            name,
            format!("{asked} gave an access token in {took} ms; it lives {} s", granted.life.as_secs()),
        ),
        Err(TokenError::Refused(why)) => {
            let fix = "make a new key in the Firebase console (the account may be disabled or the key revoked), and look at \
                       the clock";
            Finding::fail(name, Trouble::Unavailable, format!("{asked}, {took} ms: {why}"), fix)
        }
        Err(TokenError::Throttled(pause)) => {
            let found = format!("{asked} throttles: it asks to wait {} s", pause.as_secs());
            Finding::warn(name, found, "wait; find out who asks so often with this key")
        }
        Err(TokenError::Unavailable(why)) => {
            let fix = "check name resolution, firewall and proxy rules for that host, and fcm.ca_file";
            Finding::fail(name, Trouble::Unavailable, format!("{asked}, {took} ms: {why}"), fix)
        }
    }
}

/// The connection to the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `fcm.endpoint`.
    pub url: String,
    /// Streams allowed, and how long it took to connect; or why there is no connection.
    pub reached: Result<(u32, Duration), Unreached>,
}

/// HTTP/2 streams allowed against those that are to be used of a connection.
#[must_use]
pub fn streams(endpoint: &Endpoint, wanted: u32) -> Finding {
    let (name, url) = ("streams", &endpoint.url);
    match &endpoint.reached {
        Err(error @ Unreached::Settings(_)) => {
            Finding::fail(name, Trouble::Config, error.to_string(), "mend that setting")
        }
        Err(error) => {
            let fix = "check name resolution, firewall and proxy rules for that host; HTTP/2 has to pass unchanged";
            Finding::fail(name, Trouble::Unavailable, format!("{url}: {error}"), fix)
        }
        Ok((allowed, took)) => {
            let limit =
                if *allowed > i32::MAX.unsigned_abs() { "without limit".to_owned() } else { allowed.to_string() };
            let found = format!(
                "{url} allows {limit} streams on a connection, {wanted} are used; connected in {} ms",
                ms(*took)
            );
            if *allowed >= wanted {
                return Finding::ok(name, found);
            }
            let fix =
                format!("set fcm.streams_per_connection to {}: more connections are opened instead", (*allowed).max(1));
            Finding::warn(name, found, fix)
        }
    }
}

/// What FCM said to one message that it was only to look at.
#[must_use]
pub fn permission(account: &Account, looked: &Looked) -> Finding {
    let (attempted, project) = (&looked.attempted, &account.project);
    let said = format!("a validate_only message was answered {:?} in {} ms", attempted.text, ms(attempted.took));
    let name = "permission";
    let fail = |found: String, fix: String| Finding::fail(name, Trouble::Unavailable, found, fix);
    match attempted.verdict {
        Verdict::Accepted => Finding::ok(name, format!("may send for project {project}: {said}")),
        Verdict::TokenDead | Verdict::TokenInvalid | Verdict::TokenSuspect => {
            Finding::ok(name, format!("may send for project {project}: {said}, about the made-up device token alone"))
        }
        Verdict::Payload => Finding::warn(
            name,
            format!("may send for project {project}, but {said}"),
            "report this: the message of the check was refused, not its device token",
        ),
        Verdict::TokenForeign => fail(
            format!("the key is of another sender than project {project}: {said}"),
            "use a key of the project the app registers with, and leave fcm.project_id empty".to_owned(),
        ),
        Verdict::Credential(fault) => fail(said, credential_fix(account, fault, attempted.status)),
        Verdict::Throttled(_) => Finding::warn(
            name,
            format!("FCM throttles: {said}"),
            "wait, and see who else sends for the project: ceiling.rate_per_s is for all of them together",
        ),
        Verdict::Failed(..) | Verdict::Unprocessed | Verdict::Unsent | Verdict::Unopened => fail(
            said,
            "try again; if it stays, look at https://status.firebase.google.com and at proxies between".to_owned(),
        ),
    }
}

fn credential_fix(account: &Account, fault: CredentialFault, status: u16) -> String {
    let (who, project) = (&account.email, &account.project);
    let who = if who.is_empty() { "the account of this machine" } else { who };
    match (fault, status) {
        (CredentialFault::AccessToken, _) => {
            "FCM takes no access token of this key: make a new key, and see that the account is enabled".to_owned()
        }
        (CredentialFault::Platform, _) => {
            "upload the APNs or web push key in the Firebase console (Project settings, Cloud Messaging)".to_owned()
        }
        (CredentialFault::Project, 404) => {
            format!("there is no project {project}: mend fcm.project_id, or leave it empty for the key's own")
        }
        (CredentialFault::Project, _) => format!(
            "give {who} the role roles/firebasecloudmessaging.admin in project {project}, and enable the Firebase Cloud \
             Messaging API there (fcm.googleapis.com)"
        ),
    }
}

/// Requests of this check to the provider, and where leave for them came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charged {
    /// Requests made.
    pub requests: u32,
    /// `shared`, `split` or `single`.
    pub mode: &'static str,
}

/// Whether what this check sent was counted where the fleet's requests are.
#[must_use]
pub fn charged(charged: &Charged) -> Finding {
    let Charged { requests, mode } = charged;
    let made = if *requests == 1 { "1 request".to_owned() } else { format!("{requests} requests") };
    if *mode == "shared" {
        return Finding::ok(
            "grants",
            format!("{made} to the provider, each with a grant of the fleet's ceiling in Redis"),
        );
    }
    Finding::ok(
        "grants",
        format!("{made} to the provider, beside what running instances count: there is no Redis to ask"),
    )
}

fn ms(time: Duration) -> u128 {
    time.as_millis()
}
