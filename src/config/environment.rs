//! Owns the environment layer: the exact names, the names everybody knows, and `NAME_FILE` for secrets.
//! Must never know: which values contradict each other.

use toml::Value;

use super::fault::Origin;
use super::keys::{self, KEYS, Key};
use super::layers::{Draft, Environment};

/// Names everybody knows, by the key they set when the exact name is absent.
const KNOWN: &[(&str, &str)] = &[
    ("api.keys", "FANFARE_API_KEYS"),
    ("api.listen", "PORT"),
    ("database.url", "DATABASE_URL"),
    ("redis.url", "REDIS_URL"),
    ("fcm.credentials_file", "GOOGLE_APPLICATION_CREDENTIALS"),
    ("fcm.metadata_host", "GCE_METADATA_HOST"),
    ("log.filter", "RUST_LOG"),
    ("log.format", "LOG_FORMAT"),
];

/// What is wrong with a variable, and how to mend it.
struct Unusable {
    origin: Origin,
    fault: String,
    fix: String,
}

/// Puts the environment over what is in `draft`.
pub(super) fn layer(env: &Environment, draft: &mut Draft) {
    for key in KEYS {
        let known = KNOWN.iter().find(|(name, _)| *name == key.name).map(|(_, variable)| *variable);
        let found = match named(env, key, &key.variable(), false) {
            Ok(None) => known.map_or(Ok(None), |variable| named(env, key, variable, true)),
            found => found,
        };
        match found {
            Ok(Some((port, origin))) if origin == Origin::Variable("PORT".to_owned()) => {
                listen_to_everybody(key, &port, origin, draft);
            }
            Ok(Some((text, origin))) => draft.put(key, key.read(&text), origin),
            Ok(None) => {}
            Err(Unusable { origin, fault, fix }) => draft.refuse(key.name, &origin, fault, fix),
        }
    }
    for name in env.keys() {
        refuse_mistyped(name, draft);
    }
}

/// The value of one variable, or of the file its `_FILE` twin names. `skip_empty`: nothing counts as absent.
fn named(env: &Environment, key: &Key, variable: &str, skip_empty: bool) -> Result<Option<(String, Origin)>, Unusable> {
    let direct = env.get(variable).filter(|value| !(skip_empty && value.is_empty()));
    let twin = format!("{variable}_FILE");
    let path = env.get(&twin).filter(|path| key.is_secret() && !is_a_key(&twin) && !path.is_empty());
    let unusable = |of: &str, fault, fix| Err(Unusable { origin: Origin::Variable(of.to_owned()), fault, fix });
    match (direct, path) {
        (Some(_), Some(_)) => {
            let fault = format!("{twin} is set too, and only one of them can count");
            unusable(variable, fault, format!("unset {variable} or {twin}"))
        }
        // A process may be given bytes that are no text; they arrive here with this mark in their place.
        (Some(value), None) if value.contains(char::REPLACEMENT_CHARACTER) => {
            unusable(variable, "is not UTF-8".to_owned(), "set it as UTF-8".to_owned())
        }
        (Some(value), None) => Ok(Some((value.clone(), Origin::Variable(variable.to_owned())))),
        (None, Some(path)) => match super::file::read_text(path.as_ref()) {
            // Editors and `echo` end a file with a line break that is no part of the secret.
            Ok(text) => Ok(Some((text.trim_end_matches(['\r', '\n']).to_owned(), Origin::SecretFile(twin)))),
            Err(error) => {
                let fault = format!("{} cannot be read: {error}", keys::shown(path));
                unusable(&twin, fault, "name a file that exists and may be read".to_owned())
            }
        },
        (None, None) => Ok(None),
    }
}

/// `PORT` alone means every address of the machine, as the platforms that set it expect.
fn listen_to_everybody(key: &'static Key, port: &str, origin: Origin, draft: &mut Draft) {
    match port.parse::<u16>() {
        Ok(port) => draft.put(key, Ok(Value::String(format!("0.0.0.0:{port}"))), origin),
        Err(_) => {
            let fault = format!("{} is not a port", keys::shown(port));
            draft.refuse(key.name, &origin, fault, "give it a whole number, 0 to 65535".to_owned());
        }
    }
}

fn is_a_key(variable: &str) -> bool {
    KEYS.iter().any(|key| key.variable() == variable)
}

/// Refuses a variable that is meant for us and sets nothing. Other `FANFARE_` names are left alone: Kubernetes makes
/// `FANFARE_SERVICE_HOST` and its like for a service called fanfare.
fn refuse_mistyped(variable: &str, draft: &mut Draft) {
    let origin = Origin::Variable(variable.to_owned());
    let names = |key: &Key| {
        let exact = key.variable();
        variable == exact || (key.is_secret() && variable.strip_suffix("_FILE") == Some(&exact))
    };
    if KEYS.iter().any(names) || KNOWN.iter().any(|(_, known)| *known == variable) {
        return;
    }
    if let Some(rest) = variable.strip_prefix("FANFARE__") {
        return draft.unknown(&rest.replace("__", ".").to_lowercase(), &origin);
    }
    let single = |name: &str| name.replace("__", "_");
    if let Some(meant) = KEYS.iter().find(|key| single(&key.variable()) == single(variable)) {
        let fault = "this variable sets nothing: its parts are separated by two underscores".to_owned();
        draft.refuse(meant.name, &origin, fault, format!("call it {}", meant.variable()));
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::config::{Config, ConfigError, load};

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn config(pairs: &[(&str, &str)]) -> Config {
        load(None, &env(pairs)).unwrap_or_else(|error| panic!("{pairs:?}: {error}")).config
    }

    fn error(pairs: &[(&str, &str)]) -> ConfigError {
        load(None, &env(pairs)).expect_err(&format!("{pairs:?} was taken"))
    }

    #[test]
    fn the_names_everybody_knows_set_what_they_are_known_for() {
        let config = config(&[
            ("DATABASE_URL", "postgres://u:p@h/d"),
            ("REDIS_URL", "redis://r"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/keys/sa.json"),
            ("GCE_METADATA_HOST", "127.0.0.1:8081"),
            ("PORT", "7070"),
            ("FANFARE_API_KEYS", "ci:events:00"),
            ("RUST_LOG", "debug"),
            ("LOG_FORMAT", "json"),
        ]);
        assert_eq!(config.database.url.expose_secret(), "postgres://u:p@h/d");
        assert_eq!(config.redis.url.expose_secret(), "redis://r");
        assert_eq!(config.fcm.credentials_file.to_str(), Some("/keys/sa.json"));
        assert_eq!(config.fcm.metadata_host, "127.0.0.1:8081");
        assert_eq!(config.api.listen.to_string(), "0.0.0.0:7070");
        assert_eq!(config.api.keys.expose_secret(), "ci:events:00");
        assert_eq!((config.log.filter.as_str(), config.log.format.as_str()), ("debug", "json"));
    }

    #[test]
    fn the_exact_name_wins_over_the_known_one() {
        let both = config(&[("DATABASE_URL", "sqlite:known.db"), ("FANFARE__DATABASE__URL", "sqlite:exact.db")]);
        assert_eq!(both.database.url.expose_secret(), "sqlite:exact.db");
        let port = config(&[("PORT", "7070"), ("FANFARE__API__LISTEN", "127.0.0.1:6060")]);
        assert_eq!(port.api.listen.to_string(), "127.0.0.1:6060");
    }

    #[test]
    fn a_known_name_set_to_nothing_is_absent() {
        let config = config(&[("DATABASE_URL", ""), ("PORT", ""), ("RUST_LOG", "")]);
        assert_eq!(config.database.url.expose_secret(), "sqlite:fanfare.db");
        assert_eq!(config.api.listen.port(), 8080);
        assert_eq!(config.log.filter, "info");
    }

    #[test]
    fn every_secret_can_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "sqlite:from-file.db\n").unwrap();
        let path = file.path().to_str().unwrap();
        for variable in ["DATABASE_URL_FILE", "FANFARE__DATABASE__URL_FILE"] {
            assert_eq!(config(&[(variable, path)]).database.url.expose_secret(), "sqlite:from-file.db");
        }
        for variable in ["FANFARE_API_KEYS_FILE", "FANFARE__API__KEYS_FILE"] {
            assert_eq!(config(&[(variable, path)]).api.keys.expose_secret(), "sqlite:from-file.db");
        }
        std::fs::write(file.path(), "redis://from-file").unwrap();
        for variable in ["REDIS_URL_FILE", "FANFARE__REDIS__URL_FILE"] {
            assert_eq!(config(&[(variable, path)]).redis.url.expose_secret(), "redis://from-file");
        }
    }

    #[test]
    fn the_name_of_the_key_file_setting_is_not_read_as_a_secret_file() {
        let config = config(&[("FANFARE__FCM__CREDENTIALS_FILE", "/keys/sa.json")]);
        assert_eq!(config.fcm.credentials_file.to_str(), Some("/keys/sa.json"));
        assert_eq!(config.fcm.credentials.expose_secret(), "");
    }

    #[test]
    fn a_key_where_its_path_belongs_is_a_secret_and_counts_as_the_key() {
        let key = r#"{"private_key": "hunter2"}"#;
        for variable in ["GOOGLE_APPLICATION_CREDENTIALS", "FANFARE__FCM__CREDENTIALS_FILE"] {
            let loaded = load(None, &env(&[(variable, key)])).unwrap();
            assert_eq!(loaded.config.fcm.credentials.expose_secret(), key);
            assert_eq!(loaded.config.fcm.credentials_file.to_str(), Some(""));
            assert_eq!(loaded.origin("fcm.credentials"), format!("environment variable {variable}"));
            assert!(!loaded.print().contains("hunter2"));
        }
        let both = config(&[("GOOGLE_APPLICATION_CREDENTIALS", key), ("FANFARE__FCM__CREDENTIALS", "metadata")]);
        assert_eq!(both.fcm.credentials.expose_secret(), "metadata", "the exact name wins");
        let empty = config(&[("GOOGLE_APPLICATION_CREDENTIALS", key), ("FANFARE__FCM__CREDENTIALS", "")]);
        assert_eq!(empty.fcm.credentials.expose_secret(), "", "also when it says: none");
    }

    #[test]
    fn a_secret_given_twice_or_in_a_missing_file_is_refused() {
        let twice = error(&[("DATABASE_URL", "sqlite:a.db"), ("DATABASE_URL_FILE", "/nonexistent")]);
        assert_eq!(twice.faults[0].key, "database.url");
        assert_eq!(twice.faults[0].fix, "unset DATABASE_URL or DATABASE_URL_FILE");
        let missing = error(&[("REDIS_URL_FILE", "/nonexistent")]).to_string();
        assert!(missing.contains("redis.url (environment variable REDIS_URL_FILE)"), "{missing}");
        assert!(missing.contains("\"/nonexistent\" cannot be read"), "{missing}");
    }

    #[test]
    fn a_wrong_value_names_the_variable_and_what_is_expected() {
        for (variable, value, key, expected) in [
            ("FANFARE__FCM__SLOTS", "lots", "fcm.slots", "a whole number, 1 to 4096 attempts"),
            ("FANFARE__FCM__SLOTS", "0", "fcm.slots", "0 is out of range"),
            ("FANFARE__CEILING__RATE_PER_S", "fast", "ceiling.rate_per_s", "a number, 0.01 to 1000000 requests/s"),
            ("FANFARE__API__LISTEN", ":8080", "api.listen", "IP:PORT"),
            ("PORT", "70000", "api.listen", "a whole number, 0 to 65535"),
            ("LOG_FORMAT", "xml", "log.format", "one of auto, json, text"),
            ("DATABASE_URL", "postgres://\u{fffd}", "database.url", "not UTF-8"),
        ] {
            let error = error(&[(variable, value)]).to_string();
            let start = format!("bad configuration: {key} (environment variable {variable}): ");
            assert!(error.starts_with(&start) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_variable_that_sets_nothing_is_refused_with_the_right_name() {
        for (variable, meant) in [
            ("FANFARE__FCM__SLOT", "did you mean FANFARE__FCM__SLOTS?"),
            ("FANFARE__FCM__SLOTS_FILE", "there is no such setting"),
            ("FANFARE__SLOTS", "did you mean FANFARE__FCM__SLOTS?"),
            ("FANFARE_FCM_SLOTS", "call it FANFARE__FCM__SLOTS"),
            ("FANFARE__COLOUR", "`fanfare config print` lists every setting"),
        ] {
            let error = error(&[(variable, "8")]).to_string();
            assert!(error.contains(variable) && error.contains(meant), "{variable}: {error}");
        }
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        config(&[("FANFARE_SERVICE_HOST", "10.0.0.1"), ("FANFARE_PORT", "tcp://10.0.0.1:80"), ("HOME", "/root")]);
    }
}
