//! Owns how the emulator behaves at the moment, and changes of it.
//! Must never know: what has happened so far.

use std::time::Duration;

use http::HeaderValue;
use serde::{Deserialize, Serialize};

use super::EmulatorError;
use super::answer::AnswerId;
use super::network::Network;
use super::quota::Limits;
use super::script::Rule;
use super::token_answers::TokenAnswer;

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
    /// Quota of each device; 0 = none. FCM: 240 for Android.
    pub device_quota_per_minute: Option<u32>,
    /// Retry-After of the quota's own 429: `left` = the seconds left, empty = no header, anything else = just that.
    pub quota_retry_after: Option<String>,
    /// Whether sends need a bearer token issued here.
    pub check_auth: Option<bool>,
    /// Of access tokens issued from now on, seconds.
    pub token_lifetime_s: Option<u64>,
    /// What the token endpoint and the metadata server answer, by name; `ok` = they work.
    pub oauth_answer: Option<String>,
    /// Only to so many calls from now on, then `ok`; absent beside an `oauth_answer` = always.
    pub oauth_times: Option<u32>,
    /// Retry-After of an `oauth_answer` that refuses, seconds; absent beside an `oauth_answer` = no header.
    pub oauth_retry_after: Option<u32>,
    /// Before every answer to a call for a token, ms.
    pub oauth_latency_ms: Option<u64>,
    /// How far the emulator's clock is ahead, seconds: in every `Date`, and where an assertion's times are judged.
    pub clock_skew_s: Option<i64>,
    /// Takes all rules away, before `rules` are added.
    pub clear_rules: bool,
    /// Added; one with the same prefix is replaced.
    pub rules: Vec<Rule>,
    /// Makes every access token issued so far worthless.
    pub revoke: bool,
    /// Starts log, counts and quota anew.
    pub reset: bool,
    /// Gives every answer that is `held`.
    pub release: bool,
    /// First of all brings everything back to how the emulator was started, but for log and counts: no rules, nothing
    /// wrong, everything held released, silent connections ended.
    pub calm: bool,
    /// What is wrong below HTTP.
    pub network: Network,
}

impl Control {
    /// The limits after this change.
    pub(super) fn limits(&self, old: Limits) -> Limits {
        Limits {
            per_s: self.quota_per_s.unwrap_or(old.per_s),
            per_minute: self.quota_per_minute.unwrap_or(old.per_minute),
            device_per_minute: self.device_quota_per_minute.unwrap_or(old.device_per_minute),
        }
    }
}

/// Seconds left until the window is over.
const LEFT: &str = "left";

/// What is in force.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Conduct {
    latency_ms: u64,
    jitter_ms: u64,
    pub(super) check_auth: bool,
    pub(super) token_lifetime_s: u64,
    pub(super) quota_retry_after: String,
    oauth_answer: String,
    oauth_times: Option<u32>,
    oauth_retry_after: Option<u32>,
    oauth_latency_ms: u64,
    pub(super) clock_skew_s: i64,
    pub(super) rules: Vec<Rule>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            latency_ms: 0,
            jitter_ms: 0,
            check_auth: true,
            token_lifetime_s: 3600,
            quota_retry_after: LEFT.to_owned(),
            oauth_answer: "ok".to_owned(),
            oauth_times: None,
            oauth_retry_after: None,
            oauth_latency_ms: 0,
            clock_skew_s: 0,
            rules: Vec::new(),
        }
    }
}

impl Conduct {
    /// All of it or, when something in it cannot be, nothing.
    pub(super) fn apply(&mut self, change: &Control) -> Result<(), EmulatorError> {
        check(change)?;
        self.latency_ms = change.latency_ms.unwrap_or(self.latency_ms);
        self.jitter_ms = change.jitter_ms.unwrap_or(self.jitter_ms);
        self.check_auth = change.check_auth.unwrap_or(self.check_auth);
        self.token_lifetime_s = change.token_lifetime_s.unwrap_or(self.token_lifetime_s);
        self.clock_skew_s = change.clock_skew_s.unwrap_or(self.clock_skew_s);
        self.oauth_latency_ms = change.oauth_latency_ms.unwrap_or(self.oauth_latency_ms);
        if let Some(value) = &change.quota_retry_after {
            self.quota_retry_after.clone_from(value);
        }
        if let Some(name) = &change.oauth_answer {
            self.oauth_answer.clone_from(name);
            (self.oauth_times, self.oauth_retry_after) = (change.oauth_times, change.oauth_retry_after);
        }
        if change.clear_rules {
            self.rules.clear();
        }
        for rule in &change.rules {
            self.rules.retain(|old| old.prefix != rule.prefix);
            self.rules.push(rule.clone());
        }
        Ok(())
    }

    /// What the next call for a token gets.
    pub(super) fn token_call(&mut self) -> TokenCall {
        let used_up = self.oauth_times == Some(0);
        self.oauth_times = self.oauth_times.map(|times| times.saturating_sub(1));
        // Names are checked when they are given.
        let answer = TokenAnswer::named(&self.oauth_answer).filter(|_| !used_up).unwrap_or(TokenAnswer::Works);
        let wait = Duration::from_millis(self.oauth_latency_ms);
        TokenCall { answer, retry_after: self.oauth_retry_after, wait }
    }

    /// The Retry-After of the quota's own 429 with so many seconds left.
    pub(super) fn over_quota(&self, left_s: u32) -> Option<HeaderValue> {
        match self.quota_retry_after.as_str() {
            "" => None,
            LEFT => Some(left_s.into()),
            // Checked when it was given.
            other => HeaderValue::from_str(other).ok(),
        }
    }

    /// How long an answer waits that has this latency of its own.
    pub(super) fn wait(&self, own: Duration) -> Duration {
        let jitter = if self.jitter_ms == 0 { 0 } else { rand::random_range(0..=self.jitter_ms) };
        own + Duration::from_millis(self.latency_ms + jitter)
    }
}

/// How one call for a token is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenCall {
    pub(super) answer: TokenAnswer,
    /// Seconds.
    pub(super) retry_after: Option<u32>,
    pub(super) wait: Duration,
}

/// RFC 9113, 6.9.1: a larger one ends the connection.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

fn check(change: &Control) -> Result<(), EmulatorError> {
    let unknown = |name: &str| EmulatorError::UnknownAnswer(name.to_owned());
    for rule in &change.rules {
        AnswerId::named(&rule.answer).ok_or_else(|| unknown(&rule.answer))?;
    }
    if let Some(name) = &change.oauth_answer {
        TokenAnswer::named(name).ok_or_else(|| unknown(name))?;
    } else if change.oauth_times.is_some() || change.oauth_retry_after.is_some() {
        return Err(EmulatorError::Alone);
    }
    if let Some(value) = &change.quota_retry_after {
        HeaderValue::from_str(value).map_err(|_| EmulatorError::NoHeader(value.clone()))?;
    }
    match change.network.initial_window {
        Some(size) if size > LARGEST_WINDOW => Err(EmulatorError::Window(size)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &str, answer: &str) -> Rule {
        Rule { prefix: prefix.into(), answer: answer.into(), ..Rule::default() }
    }

    #[test]
    fn an_unknown_name_changes_nothing() {
        let mut conduct = Conduct::default();
        let good = Control { latency_ms: Some(5), rules: vec![rule("a", "dead")], ..Control::default() };
        let bad_rule = Control { rules: vec![rule("a", "dead"), rule("b", "sunshine")], ..good.clone() };
        let bad_oauth = Control { oauth_answer: Some("sunshine".into()), ..good.clone() };
        for bad in [bad_rule, bad_oauth] {
            assert!(matches!(conduct.apply(&bad), Err(EmulatorError::UnknownAnswer(name)) if name == "sunshine"));
            assert_eq!((conduct.latency_ms, conduct.rules.len()), (0, 0));
        }
        for (size, fits) in [(LARGEST_WINDOW, true), (LARGEST_WINDOW + 1, false)] {
            let network = super::super::Network { initial_window: Some(size), ..Default::default() };
            assert_eq!(conduct.apply(&Control { network, ..Control::default() }).is_ok(), fits);
        }
        conduct.apply(&good).unwrap();
        assert_eq!((conduct.latency_ms, conduct.rules.len()), (5, 1));
    }

    #[test]
    fn a_rule_with_the_same_prefix_is_replaced_and_all_can_be_cleared_first() {
        let mut conduct = Conduct::default();
        let add = |rule: Rule, clear_rules: bool| Control { rules: vec![rule], clear_rules, ..Control::default() };
        conduct.apply(&add(rule("a", "dead"), false)).unwrap();
        conduct.apply(&add(rule("b", "dead"), false)).unwrap();
        conduct.apply(&add(rule("a", "quota"), false)).unwrap();
        assert_eq!(conduct.rules, [rule("b", "dead"), rule("a", "quota")]);
        conduct.apply(&add(rule("c", "dead"), true)).unwrap();
        assert_eq!(conduct.rules, [rule("c", "dead")]);
    }

    #[test]
    fn the_wait_is_latency_and_own_delay_and_at_most_the_jitter_more() {
        let mut conduct = Conduct::default();
        conduct.apply(&Control { latency_ms: Some(20), jitter_ms: Some(10), ..Control::default() }).unwrap();
        let waits: Vec<u128> = (0..500).map(|_| conduct.wait(Duration::from_millis(7)).as_millis()).collect();
        assert!(waits.iter().all(|ms| (27..=37).contains(ms)), "{waits:?}");
        assert!(waits.iter().any(|ms| *ms != waits[0]), "no jitter at all");
    }
}
