//! Owns the list of keys and what a value of each must look like: kind, range, unit, whether it is secret.
//! Must never know: which layer a value came from, or how keys depend on each other.

use std::net::SocketAddr;

use toml::Value;

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// `section.key`.
    pub name: &'static str,
    /// What its value must be.
    pub kind: Kind,
}

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A whole number within bounds.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
        /// What is counted.
        unit: &'static str,
    },
    /// A number within bounds, fractions allowed.
    Number {
        /// Smallest value.
        min: f64,
        /// Largest value.
        max: f64,
        /// What is counted.
        unit: &'static str,
    },
    /// `IP:PORT`.
    Address,
    /// Any text.
    Text,
    /// Text that no message and no print-out ever shows.
    Secret,
    /// One of a few words.
    Choice(&'static [&'static str]),
}

const fn integer(name: &'static str, min: i64, max: i64, unit: &'static str) -> Key {
    Key { name, kind: Kind::Integer { min, max, unit } }
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

/// Every key, in the order of `config/default.toml`.
pub const KEYS: &[Key] = &[
    key("api.listen", Kind::Address),
    key("api.keys", Kind::Secret),
    integer("api.max_in_flight", 0, 65_536, "events"),
    integer("api.max_connections", 1, 65_536, "connections"),
    integer("api.requests_per_s_per_key", 0, 1_000_000, "requests/s"),
    integer("api.max_backlog", 1, 10_000_000, "fan-outs"),
    integer("api.max_backlog_recipients", 500, 1_000_000_000, "recipients"),
    integer("api.max_backlog_s", 1, 86_400, "s"),
    key("ops.listen", Kind::Address),
    key("database.url", Kind::Secret),
    integer("database.max_connections", 1, 1000, "connections"),
    integer("database.ingest_connections", 0, 1000, "connections"),
    key("redis.url", Kind::Secret),
    key("fcm.endpoint", Kind::Text),
    key("fcm.ca_file", Kind::Text),
    key("fcm.project_id", Kind::Text),
    key("fcm.credentials_file", Kind::Text),
    key("fcm.credentials", Kind::Secret),
    key("fcm.metadata_host", Kind::Text),
    integer("fcm.slots", 1, 4096, "attempts"),
    integer("fcm.lent_slots", -1, 4096, "slots"),
    integer("fcm.attempt_timeout_ms", 10, 600_000, "ms"),
    integer("fcm.retry_delay_ms", 0, 20_000, "ms"),
    integer("fcm.stall_after_ms", 1, 600_000, "ms"),
    integer("fcm.streams_per_connection", 1, 1000, "streams"),
    key("ceiling.rate_per_s", Kind::Number { min: 0.01, max: 1_000_000.0, unit: "requests/s" }),
    integer("ceiling.quota_per_minute", 1, 100_000_000, "requests/min"),
    key("types.file", Kind::Text),
    integer("drain.grace_ms", 1, 3_600_000, "ms"),
    integer("retention.keep_days", 2, 3650, "days"),
    key("log.format", Kind::Choice(&["auto", "json", "text"])),
    key("log.filter", Kind::Text),
];

impl Key {
    /// Its name in the environment: `fcm.slots` is `FANFARE__FCM__SLOTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("FANFARE__{}", self.name.replace('.', "__").to_uppercase())
    }

    /// Whether its value must never be shown.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    /// Reads a value given as text.
    ///
    /// # Errors
    /// What is wrong with it; a secret value is not repeated.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        let number = || format!("{} is not a number", shown(text));
        let value = match self.kind {
            Kind::Integer { .. } => Value::Integer(text.parse().map_err(|_| number())?),
            Kind::Number { .. } => Value::Float(text.parse().map_err(|_| number())?),
            _ => Value::String(text.to_owned()),
        };
        self.admit(value)
    }

    /// Takes a value that fits the kind, in the form the settings are read from.
    ///
    /// # Errors
    /// What is wrong with it; a secret value is not repeated.
    pub fn admit(&self, value: Value) -> Result<Value, String> {
        let wrong_type = || format!("is {}", article(value.type_str()));
        match (self.kind, &value) {
            (Kind::Integer { min, max, .. }, Value::Integer(n)) if (min..=max).contains(n) => Ok(value),
            (Kind::Integer { .. }, Value::Integer(n)) => Err(format!("{n} is out of range")),
            (Kind::Number { min, max, .. }, Value::Integer(_) | Value::Float(_)) => {
                let n = value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).unwrap_or(f64::NAN);
                // A NaN is in no range: it is refused here.
                if (min..=max).contains(&n) { Ok(Value::Float(n)) } else { Err(format!("{n} is out of range")) }
            }
            (Kind::Address, Value::String(s)) if s.parse::<SocketAddr>().is_err() => {
                Err(format!("{} is not an address with a port", shown(s)))
            }
            (Kind::Choice(words), Value::String(s)) if !words.contains(&s.as_str()) => {
                Err(format!("{} is not one of its words", shown(s)))
            }
            (Kind::Address | Kind::Text | Kind::Secret | Kind::Choice(_), Value::String(_)) => Ok(value),
            _ => Err(wrong_type()),
        }
    }

    /// What a right value looks like, for the fix in a message.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.kind {
            Kind::Integer { min, max, unit } => format!("a whole number, {min} to {max} {unit}"),
            Kind::Number { min, max, unit } => format!("a number, {min} to {max} {unit}"),
            Kind::Address => "IP:PORT, such as 127.0.0.1:8080 or [::]:8080".to_owned(),
            Kind::Text | Kind::Secret => "a text in quotes".to_owned(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
        }
    }
}

/// The key of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The key a mistyped name most likely means: the fewest edits, and no more than a third of its letters.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static Key> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let distance = |key: &Key| {
        let key_last = key.name.rsplit('.').next().unwrap_or(key.name);
        // The right key in a wrong section counts as one edit.
        edits(name, key.name).min(edits(last, key_last) + 1)
    };
    let best = KEYS.iter().min_by_key(|key| distance(key))?;
    (distance(best) <= (last.len() / 3).max(2)).then_some(best)
}

/// Levenshtein's distance between two names.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// A value as a message shows it: quoted, control characters escaped, 60 characters at most.
pub(super) fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

fn article(toml_type: &str) -> String {
    let vowel = toml_type.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {toml_type}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_its_range_is_refused_at_both_ends() {
        let slots = find("fcm.slots").unwrap();
        assert!(slots.read("0").is_err());
        assert_eq!(slots.read("1").unwrap(), Value::Integer(1));
        assert_eq!(slots.read("4096").unwrap(), Value::Integer(4096));
        assert!(slots.read("4097").is_err());
        assert!(find("fcm.lent_slots").unwrap().read("-2").is_err());
    }

    #[test]
    fn a_rate_must_be_a_positive_finite_number() {
        let rate = find("ceiling.rate_per_s").unwrap();
        for text in ["0", "-1", "NaN", "inf", "", "9k"] {
            assert!(rate.read(text).is_err(), "{text:?} was taken");
        }
        assert_eq!(rate.read("0.5").unwrap(), Value::Float(0.5));
        assert_eq!(rate.admit(Value::Integer(9000)).unwrap(), Value::Float(9000.0));
    }

    #[test]
    fn a_wrong_type_is_named_without_its_value() {
        let url = find("database.url").unwrap();
        let fault = url.admit(Value::Array(vec!["postgres://u:hunter2@h/d".into()])).unwrap_err();
        assert_eq!(fault, "is an array");
    }

    #[test]
    fn the_nearest_key_is_found_across_typos_and_sections() {
        for (typo, meant) in [
            ("fcm.slot", Some("fcm.slots")),
            ("fcm.retry_delay", Some("fcm.retry_delay_ms")),
            ("ceiling.rate_per_sec", Some("ceiling.rate_per_s")),
            ("listen", Some("api.listen")),
            ("slots", Some("fcm.slots")),
            ("api.colour", None),
        ] {
            assert_eq!(nearest(typo).map(|key| key.name), meant, "{typo}");
        }
    }
}
