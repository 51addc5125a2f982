//! Owns asking the provider what `fanfare doctor` wants to know: key, access token, connection, one message to look at.
//! Must never know: what an answer means. Every request is charged to the ceiling, like any other (law 2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::super::BuildError;
use super::super::build::fcm_settings;
use super::super::credentials::{self, Access};
use super::super::open::{CONNECT_TIMEOUT, ca_pem, ceiling_settings};
use super::Patient;
use crate::ceiling::{Ceiling, GrantRun};
use crate::config::Config;
use crate::domain::charge::Charge;
use crate::fcm::bearer::Bearer;
use crate::fcm::checkup::{Looked, Reached, TokenCall, Unreached, reach, token_call};
use crate::fcm::credentials::Credentials;
use crate::fcm::http::TokenHttp;
use crate::inspect::doctor::{self, Account, Charged, Clocks, Endpoint, Finding, Trouble};

/// Longest wait for the project's name, for an access token with its grant, and for FCM's answer.
const WITHIN: Duration = Duration::from_secs(8);
/// Longest wait for leave to send one message.
const GRANT_WITHIN: Duration = Duration::from_secs(3);

/// Settings without which nobody can be asked.
const OF_ENDPOINT: &[&str] = &["fcm.endpoint", "fcm.ca_file"];
const OF_CREDENTIALS: &[&str] =
    &["fcm.ca_file", "fcm.credentials", "fcm.credentials_file", "fcm.project_id", "fcm.metadata_host"];

/// What was found; a text says why something was not asked.
pub(super) struct Provider {
    account: Result<Result<Account, (Trouble, String)>, String>,
    token: Result<(String, TokenCall), String>,
    endpoint: Result<Endpoint, String>,
    looked: Result<Looked, String>,
    charged: Charged,
}

impl Provider {
    /// Asks everything that can be asked.
    pub(super) async fn asked(patient: &Patient, read: Result<Credentials, BuildError>, send: bool) -> Self {
        let config = &patient.config;
        let http = TokenHttp::new(ca_pem(config).ok().flatten().as_deref(), CONNECT_TIMEOUT);
        let http = http.map_err(|error| (Trouble::Config, error.to_string()));
        let access = match patient.blocked(OF_CREDENTIALS) {
            Some(why) => Err(why),
            None => Ok(access(config, read, &http).await),
        };
        let (account, source) = match access {
            Err(why) => (Err(why), None),
            Ok(Err(trouble)) => (Ok(Err(trouble)), None),
            Ok(Ok((access, account))) => (Ok(Ok(account)), Some(access)),
        };
        let project = source.as_ref().map_or("unknown", |access| access.project.as_str());
        let leave = Leave::start(config, project);
        let (token, reached) = tokio::join!(
            ask_token(source.as_ref(), http.as_ref().ok(), leave.charge()),
            connect(patient, project.to_owned())
        );
        let bearer = token.as_ref().ok().and_then(|(_, call)| Some(call.granted.as_ref().ok()?.bearer.clone()));
        let (endpoint, reached) = match reached {
            Err(why) => (Err(why), None),
            Ok(reached) => {
                let told = reached.as_ref().map(|r| (r.streams, r.took)).map_err(Clone::clone);
                (Ok(Endpoint { url: config.fcm.endpoint.clone(), reached: told }), reached.ok())
            }
        };
        let looked = if send { look(reached, bearer, &leave).await } else { Err("--no-send was given".to_owned()) };
        Self { account, token, endpoint, looked, charged: leave.end() }
    }

    /// How far this machine is ahead of whoever was asked.
    pub(super) fn clocks(&self) -> Clocks {
        let token = self.token.as_ref().ok().and_then(|(_, call)| call.ahead_ms);
        let fcm = self.looked.as_ref().ok().and_then(|looked| looked.ahead_ms);
        Clocks { database: None, token, fcm }
    }

    /// In the order in which one needs the other; grants last.
    pub(super) fn findings(&self, config: &Config) -> Vec<Finding> {
        let or =
            |check, finding: Result<Finding, &String>| finding.unwrap_or_else(|why| Finding::unchecked(check, why));
        let known = self.account.as_ref().ok().and_then(|account| account.as_ref().ok());
        let permission = match (known, &self.looked) {
            (Some(account), Ok(looked)) => Ok(doctor::permission(account, looked)),
            (_, Err(why)) => Err(why.clone()),
            (None, Ok(_)) => Err("there is no project".to_owned()),
        };
        vec![
            or("credentials", self.account.as_ref().map(doctor::credentials)),
            or("token", self.token.as_ref().map(|(asked, call)| doctor::token(asked, call))),
            or("streams", self.endpoint.as_ref().map(|e| doctor::streams(e, config.fcm.streams_per_connection))),
            permission.unwrap_or_else(|why| Finding::unchecked("permission", why)),
            doctor::charged(&self.charged),
        ]
    }
}

/// The account and its project; a metadata server may have to be asked for it.
async fn access(
    config: &Config,
    read: Result<Credentials, BuildError>,
    http: &Result<TokenHttp, (Trouble, String)>,
) -> Result<(Access, Account), (Trouble, String)> {
    let told = |error: BuildError| match error {
        BuildError::Config { what } => (Trouble::Config, what),
        BuildError::Unavailable { what } => (Trouble::Unavailable, what),
    };
    let (read, http) = (read.map_err(told)?, http.as_ref().map_err(Clone::clone)?);
    let own = read.project_id().map(str::to_owned);
    let late = |_| (Trouble::Unavailable, format!("the metadata server named no project within {WITHIN:?}"));
    let access = timeout(WITHIN, credentials::access(config, read, http)).await.map_err(late)?.map_err(told)?;
    let other = own.filter(|own| *own != access.project);
    let account =
        Account { email: credentials::email(&access.source).to_owned(), project: access.project.clone(), other };
    Ok((access, account))
}

async fn ask_token(
    access: Option<&Access>,
    http: Option<&TokenHttp>,
    charge: Arc<dyn Charge>,
) -> Result<(String, TokenCall), String> {
    let (Some(access), Some(http)) = (access, http) else { return Err("there are no credentials".to_owned()) };
    let asked = access.source.asks();
    match timeout(WITHIN, token_call(&access.source, http, charge)).await {
        Ok(call) => Ok((asked, call)),
        Err(_) => Err(format!("{asked} gave no answer, or the ceiling no grant, within {WITHIN:?}")),
    }
}

async fn connect(patient: &Patient, project: String) -> Result<Result<Reached, Unreached>, String> {
    if let Some(why) = patient.blocked(OF_ENDPOINT) {
        return Err(why);
    }
    let pem = ca_pem(&patient.config).map_err(|error| error.to_string())?;
    Ok(reach(&fcm_settings(&patient.config, project, pem)).await)
}

async fn look(reached: Option<Reached>, bearer: Option<Bearer>, leave: &Leave) -> Result<Looked, String> {
    let bearer = bearer.ok_or("there is no access token")?;
    let reached = reached.ok_or("there is no connection")?;
    leave.granted().await?;
    Ok(reached.look(&bearer, WITHIN).await)
}

/// Leave for the requests of this check, from where the fleet's comes from; and how many were made.
struct Leave {
    ceiling: Ceiling,
    grants: tokio::sync::Mutex<mpsc::Receiver<GrantRun>>,
    requests: Arc<AtomicU32>,
    stop: CancellationToken,
}

impl Leave {
    fn start(config: &Config, project: &str) -> Self {
        let stop = CancellationToken::new();
        let (_, live) = watch::channel(1);
        let (ceiling, grants) = Ceiling::start(ceiling_settings(config, project), live, stop.clone());
        Self { ceiling, grants: grants.into(), requests: Arc::default(), stop }
    }

    /// For access tokens.
    fn charge(&self) -> Arc<dyn Charge> {
        Arc::new(Counted { charge: self.ceiling.charger(), requests: Arc::clone(&self.requests) })
    }

    /// For one message.
    async fn granted(&self) -> Result<(), String> {
        self.ceiling.want(1);
        let run = timeout(GRANT_WITHIN, async { self.grants.lock().await.recv().await }).await;
        self.ceiling.want(0);
        let Ok(Some(run)) = run else {
            let snapshot = self.ceiling.snapshot();
            let paused = snapshot.paused_for.as_secs();
            return Err(format!(
                "the ceiling gave no grant within {GRANT_WITHIN:?}, it is paused for {paused} s ({})",
                snapshot.reason
            ));
        };
        sleep_until(run.first).await;
        self.ceiling.used(1);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn end(self) -> Charged {
        self.stop.cancel();
        let requests = self.requests.load(Ordering::Relaxed);
        Charged { requests, mode: self.ceiling.snapshot().mode.as_str() }
    }
}

/// Counts what was charged.
struct Counted {
    charge: Arc<dyn Charge>,
    requests: Arc<AtomicU32>,
}

#[async_trait]
impl Charge for Counted {
    async fn charge(&self) {
        self.charge.charge().await;
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}
