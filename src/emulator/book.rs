//! Owns everything that changes while the emulator runs: log, counts, rules, quota, access tokens, under one lock
//! that is never held across an await.
//! Must never know: HTTP.
//!
//! One lock, so that log, counts and attempt numbers agree at every instant: that is what makes it an oracle.

use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::EmulatorError;
use super::answer::AnswerId;
use super::conduct::{Conduct, Control, TokenCall};
use super::log::{Line, Log, LogEntry, append};
use super::message::Message;
use super::oauth::AccessTokens;
use super::quota::{Limits, Quota, Scope};
use super::script::{Play, choose};
use super::stats::{Counters, Gauge, Stats};

/// One request, as far as the choice of the answer needs it.
pub(super) struct Arrival<'a> {
    pub(super) project: &'a str,
    pub(super) message: &'a Message,
    pub(super) connection: u32,
    /// The answer that is already certain: bad credentials, wrong project, bad body.
    pub(super) refusal: Option<AnswerId>,
}

/// What to do with a request that is now in the log.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) play: Play,
    /// Instead of what the answer says.
    pub(super) retry_after: Option<HeaderValue>,
    /// Unique while the emulator runs.
    pub(super) message_id: u64,
    /// Latency of all answers plus that of this one.
    pub(super) wait: Duration,
}

struct Inner {
    log: Log,
    counters: Counters,
    conduct: Conduct,
    quota: Quota,
    tokens: AccessTokens,
    file: Option<File>,
    messages: u64,
}

/// The lock and what needs none.
pub(super) struct Book {
    inner: Mutex<Inner>,
    started: Instant,
    /// As it was started.
    calm: Control,
    logged: watch::Sender<u64>,
    /// How often everything held was released.
    released: watch::Sender<u64>,
    pub(super) connections: Gauge,
    pub(super) connections_opened: Gauge,
    pub(super) tls_failures: Gauge,
    pub(super) streams: Gauge,
    /// Only its peak counts: the most on one connection.
    pub(super) connection_peak: AtomicU32,
}

impl Book {
    /// An error when `start` cannot be.
    pub(super) fn new(file: Option<File>, start: &Control) -> Result<Self, EmulatorError> {
        let inner = Inner {
            log: Log::default(),
            counters: Counters::default(),
            conduct: Conduct::default(),
            quota: Quota::new(Limits::default()),
            tokens: AccessTokens::default(),
            file,
            messages: 0,
        };
        let book = Self {
            inner: Mutex::new(inner),
            started: Instant::now(),
            calm: start.clone(),
            logged: watch::Sender::new(0),
            released: watch::Sender::new(0),
            connections: Gauge::default(),
            connections_opened: Gauge::default(),
            tls_failures: Gauge::default(),
            streams: Gauge::default(),
            connection_peak: AtomicU32::new(0),
        };
        book.control(start)?;
        Ok(book)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a send with this bearer token may pass.
    pub(super) fn admits(&self, bearer: Option<&str>) -> Result<(), AnswerId> {
        let inner = self.lock();
        match bearer {
            _ if !inner.conduct.check_auth => Ok(()),
            None => Err(AnswerId::NO_CREDENTIALS),
            Some(token) if inner.tokens.holds(token) => Ok(()),
            Some(_) => Err(AnswerId::UNAUTHENTICATED),
        }
    }

    /// Chooses the answer and logs the request. After this the reply may go out, or never.
    pub(super) fn decide(&self, arrival: &Arrival<'_>) -> Decision {
        let mut inner = self.lock();
        let t_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let decision = inner.decide(arrival, t_ns);
        // Under the lock, or a smaller number could overwrite a larger one.
        self.logged.send_replace(inner.log.len() as u64);
        decision
    }

    /// Counts a call for a token; what it gets.
    pub(super) fn oauth_call(&self) -> TokenCall {
        let mut inner = self.lock();
        inner.counters.oauth_calls += 1;
        inner.conduct.token_call()
    }

    /// How far the emulator's clock is ahead, seconds.
    pub(super) fn clock_skew_s(&self) -> i64 {
        self.lock().conduct.clock_skew_s
    }

    /// A new access token and its lifetime in seconds.
    pub(super) fn issue_token(&self) -> (String, u64) {
        let mut inner = self.lock();
        inner.counters.oauth_issued += 1;
        let lifetime_s = inner.conduct.token_lifetime_s;
        (inner.tokens.issue(Duration::from_secs(lifetime_s)), lifetime_s)
    }

    /// The access token issued last and the seconds left of it, if they are at least so many.
    pub(super) fn last_token(&self, at_least_s: u64) -> Option<(String, u64)> {
        self.lock().tokens.last().filter(|(_, left_s)| *left_s >= at_least_s)
    }

    /// How often what is held was released.
    pub(super) fn releases(&self) -> u64 {
        *self.released.borrow()
    }

    /// Waits until it was released once more than so often.
    pub(super) async fn released(&self, releases: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.released.subscribe().wait_for(|times| *times > releases).await;
    }

    /// Waits until the log has `n` entries.
    pub(super) async fn logged(&self, n: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.logged.subscribe().wait_for(|logged| *logged >= n).await;
    }

    /// `seq` of the last entry.
    pub(super) fn log_len(&self) -> u64 {
        self.lock().log.len() as u64
    }

    /// Up to `most` entries after `seq`.
    pub(super) fn log_after(&self, seq: u64, most: usize) -> Vec<LogEntry> {
        self.lock().log.after(seq, most).collect()
    }

    pub(super) fn stats(&self) -> Stats {
        let inner = self.lock();
        Stats {
            distinct_accepted: inner.log.distinct_accepted() as u64,
            connections_opened: self.connections_opened.now(),
            connections_open: self.connections.now(),
            tls_failures: self.tls_failures.now(),
            streams_open: self.streams.now(),
            peak_streams: self.streams.peak(),
            peak_streams_per_connection: self.connection_peak.load(Ordering::Relaxed),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..inner.counters.stats()
        }
    }

    /// What is in force, for people.
    pub(super) fn in_force(&self) -> serde_json::Value {
        let inner = self.lock();
        let mut shown = serde_json::json!(inner.conduct);
        for (name, limit) in inner.quota.limits().named() {
            shown[name] = limit.into();
        }
        shown
    }

    /// All of it or, when something in it cannot be, nothing.
    pub(super) fn control(&self, change: &Control) -> Result<(), EmulatorError> {
        let mut inner = self.lock();
        let mut conduct = if change.calm { Conduct::default() } else { inner.conduct.clone() };
        if change.calm {
            conduct.apply(&self.calm)?;
        }
        conduct.apply(change)?;
        inner.conduct = conduct;
        if change.calm {
            inner.quota = Quota::new(Limits::default());
            inner.limit(&self.calm);
        }
        inner.limit(change);
        if change.calm || change.release {
            self.released.send_modify(|times| *times += 1);
        }
        if change.revoke {
            inner.tokens = AccessTokens::default();
        }
        if change.reset {
            inner.log = Log::default();
            inner.counters = Counters::default();
            self.logged.send_replace(0);
        }
        Ok(())
    }
}

impl Inner {
    fn decide(&mut self, arrival: &Arrival<'_>, t_ns: u64) -> Decision {
        let message = arrival.message;
        let attempt = self.log.attempt(&message.target, message.content);
        let (play, left_s) = self.play(arrival, attempt, t_ns);
        let accepted = play.id.answer().taken && !message.dry_run;
        let line = Line {
            t_ns,
            project: arrival.project,
            token: &message.target,
            content: message.content,
            collapse_key: message.collapse_key.as_deref(),
            ttl_s: message.ttl_s,
            connection: arrival.connection,
            attempt,
            answer: play.id,
            accepted,
        };
        let duplicate = self.log.push(&line);
        self.counters.count(t_ns, &play);
        self.counters.accepted += u64::from(accepted);
        self.counters.duplicates += u64::from(duplicate);
        self.write_last();
        self.messages += 1;
        let retry_after = left_s.and_then(|left_s| self.conduct.over_quota(left_s));
        Decision { play, retry_after, message_id: self.messages, wait: self.conduct.wait(play.delay) }
    }

    /// What is refused anyway, then the script, then the quota, of which it says when there will be some. Google counts
    /// every answer but 429 towards it.
    fn play(&mut self, arrival: &Arrival<'_>, attempt: u32, t_ns: u64) -> (Play, Option<u32>) {
        let play = match arrival.refusal {
            Some(id) => Play::plain(id),
            None => choose(&self.conduct.rules, &arrival.message.target, attempt),
        };
        if play.id.answer().status() == 429 || play.refused() {
            return (play, None);
        }
        match self.quota.take(&arrival.message.target, t_ns) {
            Ok(()) => (play, None),
            Err((Scope::Project, left_s)) => (Play::plain(AnswerId::OVER_QUOTA), Some(left_s)),
            Err((Scope::Device, left_s)) => (Play::plain(AnswerId::OVER_DEVICE_QUOTA), Some(left_s)),
        }
    }

    fn limit(&mut self, change: &Control) {
        let (old, new) = (self.quota.limits(), change.limits(self.quota.limits()));
        if change.reset || new != old {
            self.quota = Quota::new(new);
        }
    }

    /// Under the lock: the file has the same order as the log, and is complete whenever a reply is out.
    fn write_last(&mut self) {
        let Some(file) = &mut self.file else { return };
        let last = self.log.len().saturating_sub(1) as u64;
        for entry in self.log.after(last, 1) {
            self.counters.log_write_failures += u64::from(!append(file, &entry));
        }
    }
}
