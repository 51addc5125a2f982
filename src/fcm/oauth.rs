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

use super::bearer::Bearer;
use super::http::TokenHttp;
pub use super::source::TokenSource;
use super::source::{Asker, Source};
use super::token_answer::{Granted, TokenError};
use crate::domain::charge::Charge;

/// Refreshed this long before its end, or in its last fifth if that is later.
const AHEAD: Duration = Duration::from_secs(300);
/// Least time between two refreshes, however short the lives granted.
const BETWEEN_REFRESHES: Duration = Duration::from_secs(1);
/// First and longest wait between two refreshes asked for by 401s: a second revocation is followed at once, but when
/// fresh tokens are refused one after the other, another will not help. Forgotten after a quiet time of twice the longest.
const BETWEEN_REJECTS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// First and longest wait after a failure that may pass by itself: what a goal may wait for nothing once it has passed, so
/// as short as a breaker's.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// First and longest wait after a refusal. A person has to mend that, and a goal that waits for it is worth two minutes: with
/// the jitter a minute at most.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(50));
/// Longest wait after a throttle that names a short time.
const THROTTLED_RETRY: Duration = Duration::from_secs(60);

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

/// What the holders of a handle have asked for so far.
#[derive(Debug, Default, Clone, Copy)]
struct Asked {
    /// The highest generation that FCM rejected.
    rejected: u64,
    /// How often the key was to be read again.
    key: u64,
    /// How often work began to wait.
    work: u64,
}

/// Handle on the access token. The task behind it ends with the last clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    state: watch::Receiver<TokenState>,
    asked: Arc<watch::Sender<Asked>>,
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
        let (ask, asked) = watch::channel(Asked::default());
        tokio::spawn(
            Refresher {
                source: Source::new(from.into(), http, charge, clock),
                publish,
                asked,
                heard: Asked::default(),
                held: None,
                trouble: None,
                failures: 0,
                last: Instant::now(),
                rejects: Rejects::default(),
            }
            .run(),
        );
        Self { state, asked: Arc::new(ask) }
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
        self.asked.send_if_modified(|asked| {
            let news = generation > asked.rejected;
            asked.rejected = generation.max(asked.rejected);
            news
        });
    }

    /// The key file may have changed: it is read again, and another key is tried at once. What came of it is logged.
    pub fn read_key_again(&self) {
        self.asked.send_modify(|asked| asked.key += 1);
    }

    /// There is work where there was none: after a failure the waits begin anew. A throttle is waited for all the same.
    pub fn work_waits(&self) {
        self.asked.send_modify(|asked| asked.work += 1);
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
    asked: watch::Receiver<Asked>,
    heard: Asked,
    held: Option<Held>,
    trouble: Option<TokenError>,
    failures: u32,
    /// When the last request began.
    last: Instant,
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
            if matches!(self.trouble, Some(TokenError::Refused(_))) && self.source.read_key_again(Asker::Refusal).await
            {
                self.failures = 0;
            }
            if self.charge().await.is_err() {
                return;
            }
            self.last = Instant::now();
            let due = match self.source.ask().await {
                Ok(granted) => self.hold(granted, self.last),
                Err(error) => self.put_off(error),
            };
            self.expire();
            if self.rest(due).await.is_err() {
                return;
            }
        }
    }

    /// Waits for the grant of the next request: in a pause that is up to an hour, and what is asked meanwhile is heard. The
    /// request is made with the key that is in force then.
    async fn charge(&mut self) -> Result<(), Abandoned> {
        let charge = self.source.charge();
        let mut charged = charge.charge();
        loop {
            tokio::select! {
                () = &mut charged => return Ok(()),
                changed = self.asked.changed() => {
                    changed.map_err(|_| Abandoned)?;
                    self.hear(Instant::now()).await;
                }
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
                changed = self.asked.changed() => {
                    changed.map_err(|_| Abandoned)?;
                    due = self.hear(due).await;
                }
            }
        }
    }

    /// When the next request is due after what was asked just now.
    async fn hear(&mut self, due: Instant) -> Instant {
        let asked = *self.asked.borrow_and_update();
        let before = std::mem::replace(&mut self.heard, asked);
        let another_key = asked.key != before.key && self.source.read_key_again(Asker::Operator).await;
        // After a failure the pause stands: a rejection must not break a throttle, and neither must anything else.
        if let Some(TokenError::Throttled(_)) = self.trouble {
            return due;
        }
        if another_key {
            self.failures = 0;
            return Instant::now();
        }
        match &self.trouble {
            None if asked.rejected != before.rejected && self.is_held(asked.rejected) => {
                due.min(self.rejects.next(Instant::now()))
            }
            Some(error) if asked.work != before.work => {
                self.failures = 0;
                due.min(self.last + wait_after(error, 0))
            }
            _ => due,
        }
    }

    fn is_held(&self, generation: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.generation == generation)
    }
}

/// Doubles from the first wait to the longest; what the provider asked for is never shortened.
fn wait_after(error: &TokenError, failures: u32) -> Duration {
    let (first, longest) = match error {
        TokenError::Throttled(pause) => (*pause, (*pause).max(THROTTLED_RETRY)),
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
        assert_eq!([0, 1, 2, 6, 40].map(|n| wait_after(&trouble, n)), [s(1), s(2), s(4), s(10), s(10)]);
        let refused = TokenError::Refused(String::new());
        assert_eq!([0, 1, 2, 3, 4, 5, 40].map(|n| wait_after(&refused, n)), [2, 4, 8, 16, 32, 50, 50].map(s));
        assert_eq!([0, 3].map(|n| wait_after(&TokenError::Throttled(s(300)), n)), [s(300), s(300)]);
        assert_eq!([0, 3].map(|n| wait_after(&TokenError::Throttled(s(5)), n)), [s(5), s(40)]);
    }

    struct Free;

    #[async_trait::async_trait]
    impl Charge for Free {
        async fn charge(&self) {}
    }

    fn source(charge: Arc<dyn Charge>) -> Source {
        let http = TokenHttp::new(None, Duration::from_secs(5)).unwrap();
        let from = TokenSource::from(super::super::metadata::MetadataServer::at("127.0.0.1:1").unwrap());
        Source::new(from, http, charge, SystemTime::now)
    }

    /// Somebody who has just been told `trouble`, for the `failures`th time; and the handle that is asked.
    fn told(trouble: Option<TokenError>, failures: u32) -> (Refresher, watch::Sender<Asked>) {
        let (ask, asked) = watch::channel(Asked::default());
        let refresher = Refresher {
            source: source(Arc::new(Free)),
            publish: watch::channel(TokenState::Waiting).0,
            asked,
            heard: Asked::default(),
            held: Some(Held { generation: 1, expires: Instant::now() + Duration::from_secs(3600), valid: true }),
            trouble,
            failures,
            last: Instant::now(),
            rejects: Rejects::default(),
        };
        (refresher, ask)
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_begins_to_wait_starts_the_waits_over_but_no_throttle() {
        let s = Duration::from_secs;
        for (trouble, expected) in [
            (Some(TokenError::Refused(String::new())), 2),
            (Some(TokenError::Unavailable(String::new())), 1),
            (Some(TokenError::Throttled(s(40))), 40),
            (None, 40),
        ] {
            let (mut refresher, ask) = told(trouble.clone(), 9);
            let due = refresher.last + s(40);
            ask.send_modify(|asked| asked.work += 1);
            assert_eq!(refresher.hear(due).await, refresher.last + s(expected), "{trouble:?}");
            if expected < 40 {
                assert_eq!(refresher.failures, 0, "and grow from there");
                assert_eq!(
                    refresher.hear(refresher.last + s(1)).await,
                    refresher.last + s(1),
                    "never later than before"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejection_is_heard_when_the_last_refresh_went_well_and_else_waits_with_it() {
        let (mut refresher, ask) = told(None, 0);
        let later = Instant::now() + Duration::from_secs(40);
        ask.send_modify(|asked| asked.rejected = 1);
        assert_eq!(refresher.hear(later).await, Instant::now());
        let (mut refresher, ask) = told(Some(TokenError::Refused(String::new())), 3);
        ask.send_modify(|asked| asked.rejected = 1);
        assert_eq!(refresher.hear(later).await, later);
        let (mut refresher, ask) = told(None, 0);
        ask.send_modify(|asked| asked.key += 1);
        assert_eq!(refresher.hear(later).await, later, "there is no key file, so there is no other key");
    }

    /// Charges when it is let go on.
    struct Paused(Arc<tokio::sync::Notify>);

    #[async_trait::async_trait]
    impl Charge for Paused {
        async fn charge(&self) {
            self.0.notified().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_during_a_pause_is_heard_and_does_not_end_it() {
        let (mut refresher, ask) = told(None, 0);
        let end = Arc::new(tokio::sync::Notify::new());
        refresher.source = source(Arc::new(Paused(Arc::clone(&end))));
        for asked in 1..=2 {
            ask.send_modify(|asked| asked.key += 1);
            let waits = tokio::time::timeout(Duration::from_secs(1800), refresher.charge()).await;
            assert!(waits.is_err(), "the pause goes on");
            assert_eq!(refresher.heard.key, asked);
        }
        end.notify_one();
        assert!(refresher.charge().await.is_ok());
        drop(ask);
        assert!(refresher.charge().await.is_err(), "nobody holds a handle any more");
    }
}
