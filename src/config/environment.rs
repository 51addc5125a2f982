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
        (None, Some(path)) => match std::fs::read_to_string(path) {
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
