//! Owns the client of our own API, for the command line and the demonstration.
//! Must never know: the server's insides; it sees what any caller sees.

mod again;
mod bulk;

use std::sync::Arc;
use std::time::Duration;

pub use bulk::Pieces;
use reqwest::{Method, RequestBuilder, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use again::Budget;

use crate::wire::{
    CeilingAnswer, DeviceAnswer, DeviceRegistered, DeviceRequest, EventAccepted, EventRequest, Explanation, Fanout,
    FanoutList, FollowsRequest, Problem, ReplayAnswer, ReplayRequest, ResumeRequest, Stats, Sweep, SweepRequest,
};

/// Longest wait for an answer beyond what was asked to be waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells the service how long we shall wait, so that it need not do what nobody waits for.
const TIMEOUT_HEADER: &str = "x-request-timeout-ms";

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address or the key cannot be used.
    #[error("{0}")]
    Setup(String),
    /// No answer.
    #[error("{0}")]
    Unreachable(String),
    /// The service said no.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
    /// An answer that is not one of the API's; something else may be listening there.
    #[error("status {status} with a body that is not of this API")]
    Strange {
        /// HTTP status.
        status: u16,
    },
}

/// Which fan-outs to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Only of this state.
    pub state: Option<String>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Most rows.
    pub limit: Option<u32>,
}

/// A client of one service with one key.
#[derive(Debug, Clone)]
pub struct Client {
    base: Url,
    key: SecretString,
    http: reqwest::Client,
    /// Shared by all clones: they load the same service.
    budget: Arc<Budget>,
}

impl Client {
    /// A client of the service at `url`.
    ///
    /// # Errors
    /// [`ClientError::Setup`] when `url` is not `http://…` or `https://…`, or holds a user or password: errors show the
    /// address.
    pub fn new(url: &str, key: SecretString) -> Result<Self, ClientError> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err(ClientError::Setup(format!("the address {url:?} must begin with http:// or https://")));
        }
        let base = Url::parse(url).map_err(|fault| ClientError::Setup(format!("the address {url:?}: {fault}")))?;
        if !base.username().is_empty() || base.password().is_some() {
            let text = "the address must hold no user and no password: the service knows keys only";
            return Err(ClientError::Setup(text.to_owned()));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|fault| ClientError::Setup(causes(&fault)))?;
        Ok(Self { base, key, http, budget: Arc::default() })
    }

    /// Posts an event; `true` = an identical one was accepted before. Posts it again, for half a minute at most, when it
    /// was refused for now or the answer was lost: its id makes that harmless.
    ///
    /// # Errors
    /// [`ClientError`] of the last try.
    pub async fn post_event(&self, event: &EventRequest) -> Result<(EventAccepted, bool), ClientError> {
        let response = self.persistently(|| self.request(Method::POST, &["events"]).json(event)).await?;
        let repeat = response.status() == reqwest::StatusCode::OK;
        Ok((read(response).await?, repeat))
    }

    /// One fan-out, once it is settled or `wait` (at most 60 s) has passed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fanout(&self, id: &str, wait: Duration) -> Result<Fanout, ClientError> {
        let wait_ms = wait.as_millis().to_string();
        let request = self.asking(&["fanouts", id], &[("wait_ms", Some(&wait_ms))]);
        self.call(request.timeout(wait.saturating_add(PATIENCE))).await
    }

    /// Fan-outs, newest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fanouts(&self, query: &ListQuery) -> Result<FanoutList, ClientError> {
        let limit = query.limit.map(|n| n.to_string());
        let given = [("state", query.state.as_ref()), ("cursor", query.cursor.as_ref()), ("limit", limit.as_ref())];
        self.call(self.asking(&["fanouts"], &given)).await
    }

    /// What became of one device in a fan-out, or why it was no recipient.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn explain(&self, id: &str, device: &str) -> Result<Explanation, ClientError> {
        self.call(self.request(Method::GET, &["fanouts", id, "recipients", device])).await
    }

    /// Cancels a fan-out; it as it stands then.
    ///
    /// # Errors
    /// [`ClientError`]; refused when it was cancelled before, or has ended.
    pub async fn cancel(&self, id: &str) -> Result<Fanout, ClientError> {
        self.call(self.request(Method::POST, &["fanouts", id, "cancel"])).await
    }

    /// Replays a fan-out, or says what a replay would be.
    ///
    /// # Errors
    /// [`ClientError`]; refused when it has not ended, was corrected, or is being replayed.
    pub async fn replay(&self, id: &str, asked: &ReplayRequest) -> Result<ReplayAnswer, ClientError> {
        self.call(self.request(Method::POST, &["fanouts", id, "replay"]).json(asked)).await
    }

    /// Resumes a paused fan-out; it as it stands then.
    ///
    /// # Errors
    /// [`ClientError`]; refused when it is not paused.
    pub async fn resume(&self, id: &str, asked: &ResumeRequest) -> Result<Fanout, ClientError> {
        self.call(self.request(Method::POST, &["fanouts", id, "resume"]).json(asked)).await
    }

    /// Registers a device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_device(&self, id: &str, device: &DeviceRequest) -> Result<DeviceRegistered, ClientError> {
        self.call(self.request(Method::PUT, &["devices", id]).json(device)).await
    }

    /// One device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn device(&self, id: &str) -> Result<DeviceAnswer, ClientError> {
        self.call(self.request(Method::GET, &["devices", id])).await
    }

    /// Replaces what a device follows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_follows(&self, id: &str, follows: &FollowsRequest) -> Result<(), ClientError> {
        self.answer(self.request(Method::PUT, &["devices", id, "follows"]).json(follows)).await.map(drop)
    }

    /// Deletes a device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_device(&self, id: &str) -> Result<(), ClientError> {
        self.answer(self.request(Method::DELETE, &["devices", id])).await.map(drop)
    }

    /// Totals of what was accepted in a window of this length, up to `to`, RFC 3339, or now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stats(&self, window: &str, to: Option<&String>) -> Result<Stats, ClientError> {
        self.call(self.asking(&["stats"], &[("window", Some(&window.to_owned())), ("to", to)])).await
    }

    /// Begins a sweep, or says what one would do.
    ///
    /// # Errors
    /// [`ClientError`]; refused while another one is under way.
    pub async fn begin_sweep(&self, sweep: &SweepRequest) -> Result<Sweep, ClientError> {
        self.call(self.request(Method::POST, &["sweeps"]).json(sweep)).await
    }

    /// One sweep.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn sweep(&self, id: &str) -> Result<Sweep, ClientError> {
        self.call(self.request(Method::GET, &["sweeps", id])).await
    }

    /// Numbers in force.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ceiling(&self) -> Result<CeilingAnswer, ClientError> {
        self.call(self.request(Method::GET, &["ceiling"])).await
    }

    fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        self.to(method, self.url(segments))
    }

    fn asking(&self, segments: &[&str], query: &[(&str, Option<&String>)]) -> RequestBuilder {
        let mut url = self.url(segments);
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.to(Method::GET, url)
    }

    fn to(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url).bearer_auth(self.key.expose_secret()).timeout(PATIENCE)
    }

    /// Segments are escaped, so that an id with a slash or a question mark in it stays one segment.
    fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("v1").extend(segments);
        }
        url
    }

    async fn call<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        read(self.answer(request).await?).await
    }

    /// Sends what may be sent any number of times until it is answered, it is no use, time is up, or too much of what we
    /// send is repeats. A service that is not there at all is told at once: somebody may have mistyped its address.
    async fn persistently(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, ClientError> {
        let until = Instant::now() + PATIENCE;
        self.budget.earn();
        let mut n = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timed = request().timeout(left).header(TIMEOUT_HEADER, left.as_millis().to_string());
            let (asked, fault) = match timed.send().await {
                Ok(response) => match well(response).await {
                    Err(fault) => (again::worth_it(&fault), fault),
                    Ok(response) => return Ok(response),
                },
                Err(fault) => (lost(&fault).then_some(Duration::ZERO), unreachable(&fault)),
            };
            let pause = asked.map(|asked| again::pause(n, asked, rand::random()));
            let Some(pause) = pause.filter(|pause| Instant::now() + *pause < until && self.budget.spend()) else {
                return Err(fault);
            };
            tokio::time::sleep(pause).await;
            n += 1;
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        well(request.send().await.map_err(|fault| unreachable(&fault))?).await
    }
}

async fn well(response: Response) -> Result<Response, ClientError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let problem = response.json().await.map_err(|_| ClientError::Strange { status: status.as_u16() })?;
    Err(ClientError::Refused(Box::new(problem)))
}

/// It may have been done, but its answer did not come.
fn lost(fault: &reqwest::Error) -> bool {
    !fault.is_connect() && !fault.is_builder() && !fault.is_timeout()
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    let status = response.status().as_u16();
    response.json().await.map_err(|fault| match fault.is_decode() {
        true => ClientError::Strange { status },
        false => unreachable(&fault),
    })
}

fn unreachable(fault: &reqwest::Error) -> ClientError {
    if fault.is_builder() { ClientError::Setup(causes(fault)) } else { ClientError::Unreachable(causes(fault)) }
}

/// The outer message says only that something failed; the reason lies at the bottom of the chain.
fn causes(fault: &dyn std::error::Error) -> String {
    let chain: Vec<String> =
        std::iter::successors(Some(fault), |fault| fault.source()).map(ToString::to_string).collect();
    chain.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_one_segment_and_a_prefix_is_kept() {
        let client = Client::new("http://127.0.0.1:1/fanfare/", "k".to_owned().into()).unwrap();
        let url = |id: &str| client.request(Method::GET, &["devices", id]).build().unwrap().url().to_string();
        assert_eq!(url("a/b?c"), "http://127.0.0.1:1/fanfare/v1/devices/a%2Fb%3Fc");
        assert_eq!(url("d1"), "http://127.0.0.1:1/fanfare/v1/devices/d1");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_said_so() {
        for url in ["", "localhost:8080", "127.0.0.1:8680", "ftp://x", "mailto:a@b", "http://"] {
            assert!(matches!(Client::new(url, "k".to_owned().into()), Err(ClientError::Setup(_))), "{url:?}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let client = Client::new("http://127.0.0.1:1", "fanfare_secret".to_owned().into()).unwrap();
        assert!(!format!("{client:?}").contains("fanfare_secret"));
    }
}
