//! Owns the order of the layers: the defaults, then a file, then the environment; and where each value came from.
//! Must never know: what a setting is for, or which values contradict each other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::fault::{ConfigError, Fault, Origin};
use super::keys::{self, KEYS, Key};
use super::{Config, DEFAULTS, check, credentials, environment};

/// The environment: names and values. Passed in, so that a test is as good as a process.
pub type Environment = BTreeMap<String, String>;

/// One value and where it came from. Without `Debug`: the value may be a secret.
#[derive(Clone)]
pub struct Setting {
    /// The value, of the kind its key asks for.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// The settings by key.
pub type Settings = BTreeMap<&'static str, Setting>;

/// The configuration in force, and where each of its values came from.
#[derive(Clone)]
pub struct Loaded {
    /// The configuration, free of contradictions.
    pub config: Config,
    settings: Settings,
}

/// The settings while the layers are read, and what was wrong with them so far.
#[derive(Default)]
pub(super) struct Draft {
    settings: Settings,
    faults: Vec<Fault>,
}

/// Reads the layers and refuses what cannot work. What only `serve` needs is [`Loaded::serving`]'s to check.
///
/// # Errors
/// Every fault found: a file that cannot be read, an unknown key, a value of the wrong kind or out of range, two
/// settings that contradict each other.
pub fn load(file: Option<&Path>, env: &Environment) -> Result<Loaded, ConfigError> {
    let draft = read(file, env);
    let settings = ConfigError::unless_empty(draft.faults, draft.settings)?;
    let config = assemble(&settings)?;
    let faults = check::contradictions(&config, &settings);
    ConfigError::unless_empty(faults, Loaded { config, settings })
}

/// Every fault at once, those that only keep `serve` from starting among them, and what the settings come to without
/// those at fault: for somebody who wants to look at the rest all the same. Nothing may be started with it.
#[must_use]
pub fn examine(file: Option<&Path>, env: &Environment) -> (Option<Loaded>, Vec<Fault>) {
    let Draft { settings, mut faults } = read(file, env);
    match assemble(&settings) {
        Err(error) => {
            faults.extend(error.faults);
            (None, faults)
        }
        Ok(config) => {
            faults.extend(check::contradictions(&config, &settings));
            faults.extend(check::obstacles(&config, &settings));
            (Some(Loaded { config, settings }), faults)
        }
    }
}

/// All layers, one over the other.
fn read(file: Option<&Path>, env: &Environment) -> Draft {
    let mut draft = Draft::default();
    draft.layer(DEFAULTS, |_| Origin::Default);
    if let Some(path) = file {
        match super::file::read_text(path) {
            Ok(text) => draft.layer(&text, |line| Origin::File { path: path.to_owned(), line }),
            Err(error) => draft.faults.push(unreadable(path, &error)),
        }
    }
    environment::layer(env, &mut draft);
    draft
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Loaded {
    /// The configuration, if `serve` can work with it: also keys and files are there.
    ///
    /// # Errors
    /// Every fault found.
    pub fn serving(self) -> Result<Config, ConfigError> {
        let faults = check::obstacles(&self.config, &self.settings);
        ConfigError::unless_empty(faults, self.config)
    }

    /// Where the value of this key came from, for a message; empty when there is no such key.
    #[must_use]
    pub fn origin(&self, key: &str) -> String {
        self.settings.get(key).map(|setting| setting.origin.to_string()).unwrap_or_default()
    }

    /// How many settings there are, and how many of them a file or the environment gave.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let given = self.settings.values().filter(|setting| setting.origin != Origin::Default).count();
        (self.settings.len(), given)
    }

    /// The settings in force as TOML, each with its origin as a comment; a secret that was set is not shown.
    #[must_use]
    pub fn print(&self) -> String {
        let mut out = String::new();
        let mut section = "";
        for key in KEYS {
            let (Some((of, name)), Some(setting)) = (key.name.split_once('.'), self.settings.get(key.name)) else {
                continue;
            };
            if of != section {
                out.push_str(if section.is_empty() { "" } else { "\n" });
                out.push_str(&format!("[{of}]\n"));
                section = of;
            }
            let hidden = key.is_secret() && setting.origin != Origin::Default && setting.value.as_str() != Some("");
            let value = if hidden { "\"(set, hidden)\"".to_owned() } else { setting.value.to_string() };
            out.push_str(&format!("{:<48} # {}\n", format!("{name} = {value}"), setting.origin));
        }
        out
    }
}

impl Draft {
    /// Puts one TOML text over what is there; `origin` makes the origin of a line.
    fn layer(&mut self, text: &str, origin: impl Fn(usize) -> Origin) {
        let at = |offset: usize| origin(text[..offset.min(text.len())].matches('\n').count() + 1);
        let parsed = DeTable::parse(text).and_then(|spans| Ok((spans, toml::from_str::<Table>(text)?)));
        let (spans, values) = match parsed {
            Ok(parsed) => parsed,
            // Only the message: the library's own rendering quotes the line, which may hold a password.
            Err(error) => {
                let place = at(error.span().map_or(0, |span| span.start));
                return self.refuse("syntax", &place, error.message().to_owned(), "write it as TOML".to_owned());
            }
        };
        for (section, content) in spans.get_ref() {
            let DeValue::Table(table) = content.get_ref() else {
                self.unknown(section.get_ref(), &at(section.span().start));
                continue;
            };
            for name in table.keys() {
                let full = format!("{}.{}", section.get_ref(), name.get_ref());
                let place = at(name.span().start);
                let value = values.get(section.get_ref().as_ref()).and_then(|table| table.get(name.get_ref().as_ref()));
                match (keys::find(&full), value) {
                    (Some(key), Some(value)) => self.put(key, key.admit(value.clone()), place),
                    _ => self.unknown(&full, &place),
                }
            }
        }
    }

    /// Puts one value over what is there, or notes why not. A key where its path belongs counts as the key, so that it
    /// is treated as the secret it is.
    pub(super) fn put(&mut self, key: &'static Key, read: Result<Value, String>, origin: Origin) {
        match read {
            Ok(value) => {
                let (key, value) = match value.as_str().filter(|_| key.name == "fcm.credentials_file") {
                    Some(text) if credentials::is_key(text) => (keys::find("fcm.credentials").unwrap_or(key), value),
                    Some(text) => (key, Value::from(credentials::plain_path(text))),
                    None => (key, value),
                };
                self.settings.insert(key.name, Setting { value, origin });
            }
            Err(wrong) => self.refuse(key.name, &origin, wrong, format!("give it {}", key.expected())),
        }
    }

    /// Notes a name that is no setting.
    pub(super) fn unknown(&mut self, name: &str, origin: &Origin) {
        let fix = match (keys::nearest(name), origin) {
            (Some(key), Origin::Variable(_)) => format!("did you mean {}?", key.variable()),
            (Some(key), _) => format!("did you mean {}?", key.name),
            (None, _) => "remove it; `fanfare config print` lists every setting".to_owned(),
        };
        self.refuse(name, origin, "there is no such setting".to_owned(), fix);
    }

    /// Notes a fault.
    pub(super) fn refuse(&mut self, key: &str, origin: &Origin, fault: String, fix: String) {
        self.faults.push(Fault { key: key.to_owned(), origin: origin.to_string(), fault, fix });
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Fault {
    Fault {
        key: "--config".to_owned(),
        origin: path.display().to_string(),
        fault: format!("cannot be read: {error}"),
        fix: "name a file that exists and may be read".to_owned(),
    }
}

/// Turns checked values into the typed configuration.
fn assemble(settings: &Settings) -> Result<Config, ConfigError> {
    let mut sections = Table::new();
    for (full, setting) in settings {
        if let Some((section, name)) = full.split_once('.')
            && let Value::Table(table) = sections.entry(section).or_insert_with(|| Value::Table(Table::new()))
        {
            table.insert(name.to_owned(), setting.value.clone());
        }
    }
    // Every value has the kind its key asks for, so only a key the table of keys and the struct disagree on fails here.
    Config::deserialize(sections).map_err(|error| ConfigError {
        faults: vec![Fault {
            key: "settings".to_owned(),
            origin: Origin::Default.to_string(),
            fault: error.message().to_owned(),
            fix: "report this as a bug".to_owned(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn faults_of(text: &str) -> Vec<Fault> {
        load(Some(file(text).path()), &Environment::new()).expect_err(text).faults
    }

    #[test]
    fn the_defaults_alone_are_a_configuration() {
        let config = load(None, &Environment::new()).unwrap().config;
        assert_eq!(config.api.listen.to_string(), "127.0.0.1:8080");
        assert_eq!((config.fcm.slots, config.fcm.lent(), config.fcm.unflushed()), (32, 16, 16));
        assert_eq!((config.ceiling.rate_per_s, config.ceiling.burst()), (9000.0, 90.0));
    }

    #[test]
    fn a_file_wins_over_the_defaults_and_the_environment_over_both() {
        let file = file("[fcm]\nslots = 8\nretry_delay_ms = 100\n");
        let loaded = load(Some(file.path()), &env(&[("FANFARE__FCM__SLOTS", "4")])).unwrap();
        assert_eq!((loaded.config.fcm.slots, loaded.config.fcm.retry_delay_ms), (4, 100));
        assert_eq!(loaded.config.fcm.stall_after_ms, 1000);
        assert_eq!(loaded.settings["fcm.slots"].origin, Origin::Variable("FANFARE__FCM__SLOTS".to_owned()));
        let line = Origin::File { path: file.path().to_owned(), line: 3 };
        assert_eq!(loaded.settings["fcm.retry_delay_ms"].origin, line);
        assert_eq!(loaded.settings["fcm.stall_after_ms"].origin, Origin::Default);
    }

    #[test]
    fn defaults_struct_and_table_of_keys_name_the_same_settings() {
        let defaults: Table = toml::from_str(DEFAULTS).unwrap();
        let in_file: Vec<String> = KEYS
            .iter()
            .map(|key| key.name.to_owned())
            .filter(|name| {
                let (section, key) = name.split_once('.').unwrap();
                defaults.get(section).and_then(|table| table.get(key)).is_some()
            })
            .collect();
        assert_eq!(in_file.len(), KEYS.len(), "a key without a default");
        let values: usize = defaults.values().map(|section| section.as_table().unwrap().len()).sum();
        assert_eq!(values, KEYS.len(), "a default without a key");
        assert!(KEYS.len() <= 35, "{} settings", KEYS.len());
        // The struct denies unknown keys, so it has no fewer; and misses each one that is taken away, so it has them all.
        Config::deserialize(defaults.clone()).unwrap();
        for key in KEYS {
            let (section, name) = key.name.split_once('.').unwrap();
            let mut without = defaults.clone();
            without[section].as_table_mut().unwrap().remove(name);
            let error = Config::deserialize(without).expect_err(key.name).to_string();
            assert!(error.contains(name), "{}: {error}", key.name);
        }
    }

    #[test]
    fn every_default_is_explained_with_its_range_and_unit() {
        let mut section = String::new();
        let mut comment = String::new();
        let mut explained = 0;
        for line in DEFAULTS.lines() {
            if let Some(text) = line.strip_prefix("# ") {
                comment.push_str(text);
                comment.push(' ');
            } else if line.starts_with('[') {
                section = line.trim_matches(['[', ']']).to_owned();
            } else if let Some((name, _)) = line.split_once(" = ") {
                let key = keys::find(&format!("{section}.{name}")).unwrap();
                let range = match key.kind {
                    keys::Kind::Integer { min, max, unit } => format!("{min} to {max} {unit}"),
                    keys::Kind::Number { min, max, unit } => format!("{min} to {max} {unit}"),
                    _ => String::new(),
                };
                assert!(comment.contains(&range), "{}: {range:?} is not in {comment:?}", key.name);
                assert!(comment.len() > 60, "{}: no reason given: {comment:?}", key.name);
                assert_eq!(comment.contains("A secret"), key.is_secret(), "{}", key.name);
                comment.clear();
                explained += 1;
            } else {
                comment.clear();
            }
        }
        assert_eq!(explained, KEYS.len());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_one() {
        let faults = faults_of("# mine\n[fcm]\nslots = 8\nretry_delay = 100\n");
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].key, "fcm.retry_delay");
        assert!(faults[0].origin.ends_with(" line 4"), "{}", faults[0].origin);
        assert_eq!(faults[0].fix, "did you mean fcm.retry_delay_ms?");
        assert_eq!(faults_of("slots = 8")[0].fix, "did you mean fcm.slots?");
        assert!(faults_of("[weather]\nsun = true")[0].fix.contains("config print"));
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_with_what_is_expected() {
        let faults = faults_of("[fcm]\nslots = \"many\"\nattempt_timeout_ms = 1.5\n[ceiling]\nrate_per_s = nan\n");
        let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        let wants = [
            ("fcm.slots", "is a string", "a whole number, 1 to 4096 attempts"),
            ("fcm.attempt_timeout_ms", "is a float", "10 to 600000 ms"),
            ("ceiling.rate_per_s", "NaN is out of range", "a number, 0.01 to 1000000 requests/s"),
        ];
        for (key, wrong, expected) in wants {
            let fault = said.iter().find(|fault| fault.starts_with(key)).expect(key);
            assert!(fault.contains(wrong) && fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn a_broken_file_is_refused_with_its_line_and_without_its_text() {
        let fault = faults_of("[database]\nurl = \"postgres://u:hunter2@h/d\n").remove(0);
        assert!(fault.origin.ends_with(" line 2"), "{}", fault.origin);
        for text in
            ["[redis]\nurl = hunter2\n", "[redis]\nurl = \"redis://hunter2\" x\n", "[redis\nurl=\"hunter2\"", "hunter2"]
        {
            let said = load(Some(file(text).path()), &Environment::new()).unwrap_err().to_string();
            assert!(!said.contains("redis://") && !said.contains("u:hunter2"), "{said}");
        }
        assert!(!fault.to_string().contains("hunter2"), "{fault}");
    }

    #[test]
    fn a_file_that_is_not_there_is_refused() {
        let error = load(Some(Path::new("/nonexistent/f.toml")), &Environment::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("bad configuration: --config (/nonexistent/f.toml): cannot be read"),
            "{error}"
        );
    }

    #[test]
    fn a_print_out_reads_back_as_the_same_settings_and_hides_secrets() {
        let pairs = [("DATABASE_URL", "postgres://u:hunter2@h/d"), ("FANFARE__FCM__SLOTS", "7"), ("RUST_LOG", "warn")];
        let printed = load(None, &env(&pairs)).unwrap().print();
        assert!(!printed.contains("hunter2"), "{printed}");
        assert!(printed.contains("url = \"(set, hidden)\""), "{printed}");
        assert!(printed.contains("# environment variable DATABASE_URL"), "{printed}");
        assert!(!printed.contains("keys = \"(set"), "an empty secret is not set: {printed}");
        let read: Table = toml::from_str(&printed).unwrap();
        assert_eq!(read["fcm"]["slots"], Value::Integer(7));
        assert_eq!(read["log"]["filter"], Value::String("warn".to_owned()));
        let keys: usize = read.values().map(|section| section.as_table().unwrap().len()).sum();
        assert_eq!(keys, KEYS.len());
    }

    #[test]
    fn no_secret_shows_in_debug() {
        let pairs = [("DATABASE_URL", "postgres://u:hunter2@h/d"), ("FANFARE__FCM__CREDENTIALS", "hunter2")];
        let loaded = load(None, &env(&pairs)).unwrap();
        assert!(!format!("{:?}", loaded.config).contains("hunter2"));
        assert!(!format!("{loaded:?}").contains("hunter2"));
    }
}
