//! Owns everything that changes while the emulator runs: log, counts, rules, quota, access tokens, under one lock
//! that is never held across an await.
//! Must never know: HTTP.
//!
//! One lock, so that log, counts and attempt numbers agree at every instant: that is what makes it an oracle.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::EmulatorError;
use super::answer::AnswerId;
use super::log::{Line, Log, LogEntry};
use super::message::Message;
use super::oauth::AccessTokens;
use super::quota::Quota;
use super::script::{Play, Rule, choose};
use super::stats::{Counters, Gauge, Stats};

/// A change of conduct, at start or while it runs; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Before every answer, ms.
    pub latency_ms: Option<u64>,
    /// On top of it, evenly spread between 0 and this, ms.
    pub jitter_ms: Option<u64>,
    /// Quota of the project; 0 = none.
    pub quota_per_s: Option<u32>,
    /// Quota of the project; 0 = none.
    pub quota_per_minute: Option<u32>,
    /// Whether sends need a bearer token issued here.
    pub check_auth: Option<bool>,
    /// Of access tokens issued from now on, seconds.
    pub token_lifetime_s: Option<u64>,
    /// What the token endpoint answers, by name; `ok` = works.
    pub oauth_answer: Option<String>,
    /// Takes all rules away, before `rules` are added.
    pub clear_rules: bool,
    /// Added; one with the same prefix is replaced.
    pub rules: Vec<Rule>,
    /// Makes every access token issued so far worthless.
    pub revoke: bool,
    /// Starts log, counts and quota anew.
    pub reset: bool,
}

/// What is in force.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Conduct {
    latency_ms: u64,
    jitter_ms: u64,
    check_auth: bool,
    token_lifetime_s: u64,
    #[serde(skip)]
    oauth_answer: AnswerId,
    rules: Vec<Rule>,
}

/// One request, as far as the choice of the answer needs it.
pub(super) struct Arrival<'a> {
    pub(super) project: &'a str,
    pub(super) message: &'a Message,
    pub(super) connection: u32,
    /// The answer that is already certain: bad credentials, wrong project, bad body.
    pub(super) refusal: Option<AnswerId>,
}

/// What to do with a request that is now in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    pub(super) play: Play,
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
    logged: watch::Sender<u64>,
    pub(super) connections: Gauge,
    pub(super) connections_opened: Gauge,
    pub(super) tls_failures: Gauge,
    pub(super) streams: Gauge,
    /// Only its peak counts: the most on one connection.
    pub(super) connection_peak: std::sync::atomic::AtomicU32,
}

impl Book {
    pub(super) fn new(file: Option<File>) -> Self {
        let conduct = Conduct {
            latency_ms: 0,
            jitter_ms: 0,
            check_auth: true,
            token_lifetime_s: 3600,
            oauth_answer: AnswerId::OK,
            rules: Vec::new(),
        };
        let inner = Inner {
            log: Log::default(),
            counters: Counters::default(),
            conduct,
            quota: Quota::new(0, 0),
            tokens: AccessTokens::default(),
            file,
            messages: 0,
        };
        Self {
            inner: Mutex::new(inner),
            started: Instant::now(),
            logged: watch::Sender::new(0),
            connections: Gauge::default(),
            connections_opened: Gauge::default(),
            tls_failures: Gauge::default(),
            streams: Gauge::default(),
            connection_peak: std::sync::atomic::AtomicU32::new(0),
        }
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
        let logged = inner.log.len() as u64;
        drop(inner);
        self.logged.send_replace(logged);
        decision
    }

    /// Counts a call of the token endpoint; what it answers.
    pub(super) fn oauth_call(&self) -> AnswerId {
        let mut inner = self.lock();
        inner.counters.oauth_calls += 1;
        inner.conduct.oauth_answer
    }

    /// A new access token and its lifetime in seconds.
    pub(super) fn issue_token(&self) -> (String, u64) {
        let mut inner = self.lock();
        inner.counters.oauth_issued += 1;
        let lifetime_s = inner.conduct.token_lifetime_s;
        (inner.tokens.issue(Duration::from_secs(lifetime_s)), lifetime_s)
    }

    /// Waits until the log has `n` entries.
    pub(super) async fn logged(&self, n: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.logged.subscribe().wait_for(|logged| *logged >= n).await;
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
            peak_streams_per_connection: self.connection_peak.load(std::sync::atomic::Ordering::Relaxed),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..inner.counters.stats()
        }
    }

    /// What is in force, for people.
    pub(super) fn in_force(&self) -> serde_json::Value {
        let inner = self.lock();
        let (per_s, per_minute) = inner.quota.limits();
        let mut shown = serde_json::json!(inner.conduct);
        shown["oauth_answer"] = inner.conduct.oauth_answer.answer().name.into();
        shown["quota_per_s"] = per_s.into();
        shown["quota_per_minute"] = per_minute.into();
        shown
    }

    /// All of it or, when a name is unknown, nothing.
    pub(super) fn control(&self, change: &Control) -> Result<(), EmulatorError> {
        for rule in &change.rules {
            named(&rule.answer)?;
        }
        let oauth_answer = change.oauth_answer.as_deref().map(named).transpose()?;
        let mut inner = self.lock();
        inner.conduct.apply(change, oauth_answer);
        inner.limit(change);
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

fn named(name: &str) -> Result<AnswerId, EmulatorError> {
    AnswerId::named(name).ok_or_else(|| EmulatorError::UnknownAnswer(name.to_owned()))
}

impl Conduct {
    fn apply(&mut self, change: &Control, oauth_answer: Option<AnswerId>) {
        self.latency_ms = change.latency_ms.unwrap_or(self.latency_ms);
        self.jitter_ms = change.jitter_ms.unwrap_or(self.jitter_ms);
        self.check_auth = change.check_auth.unwrap_or(self.check_auth);
        self.token_lifetime_s = change.token_lifetime_s.unwrap_or(self.token_lifetime_s);
        self.oauth_answer = oauth_answer.unwrap_or(self.oauth_answer);
        if change.clear_rules {
            self.rules.clear();
        }
        for rule in &change.rules {
            self.rules.retain(|old| old.prefix != rule.prefix);
            self.rules.push(rule.clone());
        }
    }

    fn wait(&self, own: Duration) -> Duration {
        let jitter = if self.jitter_ms == 0 { 0 } else { rand::random_range(0..=self.jitter_ms) };
        own + Duration::from_millis(self.latency_ms + jitter)
    }
}

impl Inner {
    fn decide(&mut self, arrival: &Arrival<'_>, t_ns: u64) -> Decision {
        let message = arrival.message;
        let attempt = self.log.attempt(&message.target, message.content);
        let play = self.play(arrival, attempt, t_ns);
        let accepted = matches!(play.id.answer().wire, super::answer::Wire::Accept) && !message.dry_run;
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
        self.counters.count(t_ns, play.id);
        self.counters.accepted += u64::from(accepted);
        self.counters.duplicates += u64::from(duplicate);
        self.write_last();
        self.messages += 1;
        Decision { play, message_id: self.messages, wait: self.conduct.wait(play.delay) }
    }

    /// What is refused anyway, then the script, then the quota. Google counts every answer but 429 towards it.
    fn play(&mut self, arrival: &Arrival<'_>, attempt: u32, t_ns: u64) -> Play {
        let play = match arrival.refusal {
            Some(id) => Play::plain(id),
            None => choose(&self.conduct.rules, &arrival.message.target, attempt),
        };
        if play.id.answer().status() == 429 || play.id.answer().refused() {
            return play;
        }
        match self.quota.take(t_ns) {
            Ok(()) => play,
            Err(rest_s) => Play { retry_after: Some(rest_s), ..Play::plain(AnswerId::OVER_QUOTA) },
        }
    }

    fn limit(&mut self, change: &Control) {
        let (per_s, per_minute) = self.quota.limits();
        if change.reset || change.quota_per_s.is_some() || change.quota_per_minute.is_some() {
            self.quota = Quota::new(change.quota_per_s.unwrap_or(per_s), change.quota_per_minute.unwrap_or(per_minute));
        }
    }

    /// One small write into the page cache per request, under the lock: the file has the same order as the log, and
    /// is complete whenever a reply is out.
    fn write_last(&mut self) {
        let Some(file) = &mut self.file else { return };
        let last = self.log.len().saturating_sub(1) as u64;
        for entry in self.log.after(last, 1) {
            let mut line = serde_json::to_vec(&entry).unwrap_or_default();
            line.push(b'\n');
            if let Err(error) = file.write_all(&line) {
                self.counters.log_write_failures += 1;
                tracing::error!(target: "fanfare::emulator", %error, seq = entry.seq, "log file not written");
            }
        }
    }
}
