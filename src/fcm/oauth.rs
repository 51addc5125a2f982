//! Owns the access token: one request at a time for all who need it, ahead of its expiry.
//! Must never know: who sends with it.
//!
//! A task of its own keeps it fresh and publishes it; nobody waits in line for it, everybody looks at the same state.
//! While a refresh fails the old token is served to its end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::assertion;
use super::bearer::Bearer;
use super::credentials::ServiceAccount;
use super::http::{TokenHttp, Wire};
use super::metadata::MetadataServer;
use super::token_answer::{Granted, TokenError, read, read_metadata, skew};
use crate::domain::charge::Charge;

/// Longest wait for whoever gives access tokens.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Refreshed this long before its end, or in its last fifth if that is later.
const AHEAD: Duration = Duration::from_secs(300);
/// Least time between two refreshes, however short the lives granted.
const BETWEEN_REFRESHES: Duration = Duration::from_secs(1);
/// First and longest wait between two refreshes asked for by 401s: a second revocation is followed at once, but when
/// fresh tokens are refused one after the other, another will not help. Forgotten after a quiet time of twice the longest.
const BETWEEN_REJECTS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// First and longest wait after a failure that may pass by itself.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// First and longest wait after a refusal: only a person can mend that.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));

/// What there is to send with. `Waiting` and `Unavailable` pass by themselves, `Refused` needs a person.
#[derive(Debug, Clone)]
pub enum TokenState {
    /// Being asked for.
    Waiting,
    /// Usable.
    Ready {
        /// For the header.
        bearer: Bearer,
        /// Counts up from 1; named in [`Tokens::reject`].
        generation: u64,
        /// Its end.
        expires: Instant,
    },
    /// No valid token, and the token endpoint cannot be reached, throttles us or makes no sense.
    Unavailable {
        /// Sanitised.
        reason: String,
    },
    /// No valid token, and the key was refused.
    Refused {
        /// Sanitised; names a clock skew where there is one.
        reason: String,
    },
}

/// Handle on the access token. The task behind it ends with the last clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    state: watch::Receiver<TokenState>,
    rejected: Arc<watch::Sender<u64>>,
}

impl Tokens {
    /// Starts the task on the current runtime. Every request is charged first; `clock` is the wall clock.
    #[must_use]
    pub fn start(
        from: impl Into<TokenSource>,
        http: TokenHttp,
        charge: Arc<dyn Charge>,
        clock: fn() -> SystemTime,
    ) -> Self {
        let (publish, state) = watch::channel(TokenState::Waiting);
        let (rejected, rejections) = watch::channel(0);
        let source = Source { from: from.into(), http, charge, clock };
        tokio::spawn(
            Refresher {
                source,
                publish,
                rejections,
                held: None,
                trouble: None,
                failures: 0,
                rejects: Rejects::default(),
            }
            .run(),
        );
        Self { state, rejected: Arc::new(rejected) }
    }

    /// The state, now and whenever it changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<TokenState> {
        self.state.clone()
    }

    /// FCM answered 401 to this generation. The first to say so causes one refresh; the token stays published meanwhile,
    /// since FCM has answered 401 for single devices (firebase-admin-java issue 486). A fresh token that is rejected too
    /// is replaced after 2 s, then 4, and so on up to once a minute.
    pub fn reject(&self, generation: u64) {
        self.rejected.send_if_modified(|highest| {
            let news = generation > *highest;
            *highest = generation.max(*highest);
            news
        });
    }
}

/// Where access tokens come from. Refresh, single flight and states are the same for both.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// A service account signs an assertion for them.
    Account(Box<ServiceAccount>),
    /// Google Cloud's metadata server gives them to this machine.
    Metadata(Box<MetadataServer>),
}

impl From<ServiceAccount> for TokenSource {
    fn from(account: ServiceAccount) -> Self {
        Self::Account(Box::new(account))
    }
}

impl From<MetadataServer> for TokenSource {
    fn from(server: MetadataServer) -> Self {
        Self::Metadata(Box::new(server))
    }
}

/// Asks for an access token once.
struct Source {
    from: TokenSource,
    http: TokenHttp,
    charge: Arc<dyn Charge>,
    clock: fn() -> SystemTime,
}

impl Source {
    async fn ask(&self) -> Result<Granted, TokenError> {
        match &self.from {
            TokenSource::Account(key) => self.exchange(key).await,
            TokenSource::Metadata(server) => {
                self.charge.charge().await;
                let (wire, genuine) = self.http.get_metadata(server.token(), REQUEST_TIMEOUT).await;
                read_metadata(&wire, genuine, (self.clock)())
            }
        }
    }

    async fn exchange(&self, key: &ServiceAccount) -> Result<Granted, TokenError> {
        // First the grant: the assertion is dated, and must not grow old while it waits.
        self.charge.charge().await;
        let signed = assertion::sign(key, (self.clock)());
        let signed = signed.map_err(|_| TokenError::Refused("the private key cannot sign".to_owned()))?;
        let fields = [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", signed.as_str())];
        let wire = self.http.post_form(&key.token_endpoint, &fields, REQUEST_TIMEOUT).await;
        let now = (self.clock)();
        if let Wire::Answer(answer) = &wire
            && let Some(skew) = skew(answer, now)
        {
            tracing::warn!(target: "fanfare::fcm", skew, "clock skew");
        }
        read(&wire, now)
    }
}

/// The token held, and when to ask for the next.
struct Held {
    generation: u64,
    expires: Instant,
    valid: bool,
}

/// Keeps the state fresh.
struct Refresher {
    source: Source,
    publish: watch::Sender<TokenState>,
    rejections: watch::Receiver<u64>,
    held: Option<Held>,
    trouble: Option<TokenError>,
    failures: u32,
    rejects: Rejects,
}

/// When a rejected token was replaced last, and how long the next replacement waits from there.
#[derive(Debug, Default, Clone, Copy)]
struct Rejects(Option<(Instant, Duration)>);

impl Rejects {
    /// When the token rejected now is to be replaced.
    fn next(&mut self, now: Instant) -> Instant {
        let (first, longest) = BETWEEN_REJECTS;
        let recent = self.0.filter(|(last, _)| now.saturating_duration_since(*last) <= longest * 2);
        let (at, gap) = recent.map_or((now, first), |(last, gap)| (now.max(last + gap), (gap * 2).min(longest)));
        self.0 = Some((at, gap));
        at
    }
}

/// Nobody holds a handle any more.
struct Abandoned;

impl Refresher {
    async fn run(mut self) {
        loop {
            let asked = Instant::now();
            let due = match self.source.ask().await {
                Ok(granted) => self.hold(granted, asked),
                Err(error) => self.put_off(error),
            };
            self.expire();
            if self.rest(due).await.is_err() {
                return;
            }
        }
    }

    /// Publishes a token and says when the next is due.
    fn hold(&mut self, granted: Granted, asked: Instant) -> Instant {
        let generation = self.held.as_ref().map_or(1, |held| held.generation + 1);
        let expires = asked + granted.life;
        self.failures = 0;
        self.trouble = None;
        self.held = Some(Held { generation, expires, valid: true });
        tracing::info!(target: "fanfare::fcm", generation, life_s = granted.life.as_secs(), "access token refreshed");
        self.publish.send_replace(TokenState::Ready { bearer: granted.bearer, generation, expires });
        (expires - AHEAD.min(granted.life / 5)).max(asked + BETWEEN_REFRESHES)
    }

    /// Says when to ask again after a failure.
    fn put_off(&mut self, error: TokenError) -> Instant {
        let wait = wait_after(&error, self.failures).mul_f64(rand::rng().random_range(1.0..1.2));
        self.failures = self.failures.saturating_add(1);
        let (failures, retry_in_s) = (self.failures, wait.as_secs());
        tracing::warn!(target: "fanfare::fcm", %error, failures, retry_in_s, "no new access token");
        self.trouble = Some(error);
        Instant::now() + wait
    }

    /// Withdraws a token whose end has come, and says why there is no newer one.
    fn expire(&mut self) {
        match &mut self.held {
            Some(held) if held.expires > Instant::now() => return,
            Some(held) => held.valid = false,
            None => {}
        }
        self.publish.send_replace(match &self.trouble {
            None => TokenState::Waiting,
            Some(error @ TokenError::Refused(_)) => TokenState::Refused { reason: error.to_string() },
            Some(error) => TokenState::Unavailable { reason: error.to_string() },
        });
    }

    /// Waits until the next request is due, because it is time or because the token was rejected.
    async fn rest(&mut self, mut due: Instant) -> Result<(), Abandoned> {
        loop {
            let end = self.held.as_ref().filter(|held| held.valid).map(|held| held.expires);
            tokio::select! {
                () = sleep_until(due) => return Ok(()),
                () = sleep_until(end.unwrap_or(due)), if end.is_some() => self.expire(),
                changed = self.rejections.changed() => {
                    changed.map_err(|_| Abandoned)?;
                    let rejected = *self.rejections.borrow_and_update();
                    // After a failure the pause stands: a rejection must not break a throttle.
                    if self.trouble.is_none() && self.is_held(rejected) {
                        due = due.min(self.rejects.next(Instant::now()));
                    }
                }
            }
        }
    }

    fn is_held(&self, generation: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.generation == generation)
    }
}

/// Doubles from the first wait to the longest; what the provider asked for is never shortened.
fn wait_after(error: &TokenError, failures: u32) -> Duration {
    let (first, longest) = match error {
        TokenError::Throttled(pause) => (*pause, (*pause).max(RETRY.1)),
        TokenError::Refused(_) => REFUSED_RETRY,
        TokenError::Unavailable(_) => RETRY,
    };
    first.saturating_mul(1 << failures.min(16)).clamp(first, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_revocation_is_followed_soon_and_tokens_refused_in_a_row_once_a_minute() {
        let (s, begin) = (Duration::from_secs, Instant::now());
        let mut rejects = Rejects::default();
        let mut now = begin;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let at = rejects.next(now);
            waits.push((at - now).as_secs());
            now = at;
        }
        assert_eq!(waits, [0, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(rejects.next(now + s(121)), now + s(121), "forgotten after a quiet time");
    }

    #[test]
    fn waits_grow_to_a_limit_and_never_undercut_what_was_asked() {
        let s = Duration::from_secs;
        let trouble = TokenError::Unavailable(String::new());
        assert_eq!([0, 1, 2, 6, 40].map(|n| wait_after(&trouble, n)), [s(1), s(2), s(4), s(60), s(60)]);
        let refused = TokenError::Refused(String::new());
        assert_eq!([0, 1, 4, 40].map(|n| wait_after(&refused, n)), [s(60), s(120), s(600), s(600)]);
        assert_eq!([0, 3].map(|n| wait_after(&TokenError::Throttled(s(300)), n)), [s(300), s(300)]);
        assert_eq!([0, 3].map(|n| wait_after(&TokenError::Throttled(s(5)), n)), [s(5), s(40)]);
    }
}
