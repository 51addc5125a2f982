//! Owns how the emulator behaves at the moment, and changes of it.
//! Must never know: what has happened so far.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::EmulatorError;
use super::answer::AnswerId;
use super::script::Rule;

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
    pub(super) check_auth: bool,
    pub(super) token_lifetime_s: u64,
    #[serde(serialize_with = "by_name")]
    pub(super) oauth_answer: AnswerId,
    pub(super) rules: Vec<Rule>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            latency_ms: 0,
            jitter_ms: 0,
            check_auth: true,
            token_lifetime_s: 3600,
            oauth_answer: AnswerId::OK,
            rules: Vec::new(),
        }
    }
}

impl Conduct {
    /// All of it or, when a name is unknown, nothing.
    pub(super) fn apply(&mut self, change: &Control) -> Result<(), EmulatorError> {
        for rule in &change.rules {
            named(&rule.answer)?;
        }
        self.oauth_answer = change.oauth_answer.as_deref().map_or(Ok(self.oauth_answer), named)?;
        self.latency_ms = change.latency_ms.unwrap_or(self.latency_ms);
        self.jitter_ms = change.jitter_ms.unwrap_or(self.jitter_ms);
        self.check_auth = change.check_auth.unwrap_or(self.check_auth);
        self.token_lifetime_s = change.token_lifetime_s.unwrap_or(self.token_lifetime_s);
        if change.clear_rules {
            self.rules.clear();
        }
        for rule in &change.rules {
            self.rules.retain(|old| old.prefix != rule.prefix);
            self.rules.push(rule.clone());
        }
        Ok(())
    }

    /// How long an answer waits that has this latency of its own.
    pub(super) fn wait(&self, own: Duration) -> Duration {
        let jitter = if self.jitter_ms == 0 { 0 } else { rand::random_range(0..=self.jitter_ms) };
        own + Duration::from_millis(self.latency_ms + jitter)
    }
}

fn named(name: &str) -> Result<AnswerId, EmulatorError> {
    AnswerId::named(name).ok_or_else(|| EmulatorError::UnknownAnswer(name.to_owned()))
}

fn by_name<S: Serializer>(id: &AnswerId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.answer().name)
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
