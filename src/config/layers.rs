//! Owns the order of the layers: the defaults, then a file, then the environment; and where each value came from.
//! Must never know: what a setting is for, or which values contradict each other.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::fault::{ConfigError, Fault, Origin};
use super::keys::{self, KEYS, Key};
use super::{Config, DEFAULTS, check, environment};

/// The environment: names and values. Passed in, so that a test is as good as a process.
pub type Environment = BTreeMap<String, String>;

/// One value and where it came from.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The value, of the kind its key asks for.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// The settings by key.
pub type Settings = BTreeMap<&'static str, Setting>;

/// The configuration in force, and where each of its values came from.
#[derive(Debug, Clone)]
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
    let mut draft = Draft::default();
    draft.layer(DEFAULTS, |_| Origin::Default);
    if let Some(path) = file {
        match std::fs::read_to_string(path) {
            Ok(text) => draft.layer(&text, |line| Origin::File { path: path.to_owned(), line }),
            Err(error) => draft.faults.push(unreadable(path, &error)),
        }
    }
    environment::layer(env, &mut draft);
    let settings = ConfigError::unless_empty(draft.faults, draft.settings)?;
    let config = assemble(&settings)?;
    let faults = check::contradictions(&config, &settings);
    ConfigError::unless_empty(faults, Loaded { config, settings })
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

    /// Puts one value over what is there, or notes why not.
    pub(super) fn put(&mut self, key: &'static Key, read: Result<Value, String>, origin: Origin) {
        match read {
            Ok(value) => {
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
