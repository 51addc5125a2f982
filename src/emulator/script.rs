//! Owns the choice of an answer: run-time rules first, then the built-in prefixes of the device token.
//! Must never know: how an answer looks on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::{AnswerId, Number};
use super::table::{ALIASES, ANSWERS};

/// A rule given at run time: all tokens with this prefix get this answer. The longest prefix wins; a rule wins over
/// the built-in prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Start of the device token; empty = every token.
    pub prefix: String,
    /// Name of a built-in answer, without its dash.
    pub answer: String,
    /// Only for the first so many attempts of each message to each token, then `ok`; absent = always.
    #[serde(default)]
    pub times: Option<u32>,
    /// On top of the latency of all answers, ms.
    #[serde(default)]
    pub latency_ms: u64,
    /// Seconds; only answers that take a Retry-After use it.
    #[serde(default)]
    pub retry_after: Option<u32>,
    /// What the N of `name-N-` means for other answers.
    #[serde(default)]
    pub number: Option<u32>,
}

/// What was chosen for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Play {
    /// The answer.
    pub(super) id: AnswerId,
    /// What it means depends on the answer.
    pub(super) number: Option<u32>,
    /// On top of the latency of all answers.
    pub(super) delay: Duration,
}

impl Play {
    /// Just this answer.
    pub(super) fn plain(id: AnswerId) -> Self {
        Self { id, number: None, delay: Duration::ZERO }
    }

    /// Said to be not processed.
    pub(super) fn refused(&self) -> bool {
        self.id.answer().refused(self.number)
    }
}

/// The answer to the `attempt`-th (from 1) attempt of a message to this token.
pub(super) fn choose(rules: &[Rule], token: &str, attempt: u32) -> Play {
    let rule = rules.iter().filter(|r| token.starts_with(&r.prefix)).max_by_key(|r| r.prefix.len());
    match rule {
        Some(rule) => by_rule(rule, attempt),
        None => by_prefix(token, attempt),
    }
}

fn by_rule(rule: &Rule, attempt: u32) -> Play {
    if rule.times.is_some_and(|times| attempt > times) {
        return Play::plain(AnswerId::OK);
    }
    // Rules are checked when they are given, so the name is known.
    let id = AnswerId::named(&rule.answer).unwrap_or(AnswerId::OK);
    let own = rule.number.filter(|_| id.answer().number == Number::DelayMs).map_or(0, u64::from);
    let delay = Duration::from_millis(rule.latency_ms.saturating_add(own));
    Play { id, number: rule.retry_after.or(rule.number), delay }
}

fn by_prefix(token: &str, attempt: u32) -> Play {
    let once = token.strip_prefix("flaky");
    let Some((id, rest)) = longest_name(once.unwrap_or(token)) else { return Play::plain(AnswerId::OK) };
    if once.is_some() && attempt > 1 {
        return Play::plain(AnswerId::OK);
    }
    let number = rest.split_once('-').and_then(|(digits, _)| digits.parse::<u32>().ok());
    match id.answer().number {
        Number::Nothing => Play::plain(id),
        Number::DelayMs => Play { id, number: None, delay: Duration::from_millis(number.map_or(0, u64::from)) },
        _ => Play { id, number, delay: Duration::ZERO },
    }
}

/// The answer whose `name-` starts the text, and what follows. The longest, because `invalid-field-` starts with
/// `invalid-` too.
fn longest_name(text: &str) -> Option<(AnswerId, &str)> {
    let names = ANSWERS.iter().map(|a| a.name).chain(ALIASES.iter().map(|(alias, _)| *alias));
    let (name, rest) = names
        .filter_map(|name| Some((name, text.strip_prefix(name)?.strip_prefix('-')?)))
        .max_by_key(|(name, _)| name.len())?;
    Some((AnswerId::named(name)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(token: &str, attempt: u32) -> &'static str {
        choose(&[], token, attempt).id.answer().name
    }

    #[test]
    fn the_longest_built_in_name_wins_and_anything_else_is_ok() {
        assert_eq!(name("dead-1", 1), "dead");
        assert_eq!(name("dead404apns-1", 1), "dead404apns");
        assert_eq!(name("invalid-1", 1), "invalid");
        assert_eq!(name("invalid-field-1", 1), "invalid-field");
        assert_eq!(name("invalid-field-first-1", 1), "invalid-field-first");
        for token in ["dead", "deadly-1", "cXyz:APA91b", "", "flaky", "flaky-1"] {
            assert_eq!(name(token, 1), "ok", "{token}");
        }
    }

    #[test]
    fn flaky_before_any_name_fails_the_first_attempt_only() {
        assert_eq!((name("flaky503-1", 1), name("flaky503-1", 2)), ("unavailable", "ok"));
        assert_eq!((name("flakyhang-1", 1), name("flakyhang-1", 2)), ("hang", "ok"));
        assert_eq!(name("hang-1", 2), "hang");
    }

    #[test]
    fn the_number_after_the_name_means_what_the_row_says() {
        assert_eq!(choose(&[], "quota-3-a", 1).number, Some(3));
        assert_eq!(choose(&[], "quota-a", 1).number, None);
        assert_eq!(choose(&[], "slow-1500-a", 1).delay, Duration::from_millis(1500));
        assert_eq!(choose(&[], "flakyunavailable-2-a", 1).number, Some(2));
        assert_eq!(choose(&[], "dead-3-a", 1), Play::plain(AnswerId::named("dead").unwrap()));
    }

    #[test]
    fn the_longest_rule_wins_over_the_built_in_prefixes() {
        let rule = |prefix: &str, answer: &str| Rule {
            prefix: prefix.into(),
            answer: answer.into(),
            times: Some(2),
            ..Rule::default()
        };
        let rules = [rule("", "internal"), rule("dead-", "quota")];
        let names = |token: &str| [1, 2, 3].map(|n| choose(&rules, token, n).id.answer().name);
        assert_eq!(names("dead-1"), ["quota", "quota", "ok"]);
        assert_eq!(names("hang-1"), ["internal", "internal", "ok"]);
    }
}
