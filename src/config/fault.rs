//! Owns what a bad configuration says: which key, where its value came from, what is wrong, how to mend it.
//! Must never know: the rules. It never holds the value of a secret.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `config/default.toml`, compiled in.
    Default,
    /// The file given by `--config`.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// The file whose path an environment variable holds.
    SecretFile(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::SecretFile(name) => write!(f, "file named by {name}"),
        }
    }
}

/// One thing wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key (or the two that contradict each other).
    pub key: String,
    /// Where its value came from.
    pub origin: String,
    /// What is wrong.
    pub fault: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}. Fix: {}", self.key, self.origin, self.fault, self.fix)
    }
}

/// A configuration that cannot be used. Every fault found is in it, so that one try shows them all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// At least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bad configuration:")?;
        for fault in &self.faults {
            write!(f, "{}{fault}", if self.faults.len() == 1 { " " } else { "\n  " })?;
        }
        Ok(())
    }
}

impl ConfigError {
    /// An error when there are faults, `value` when there are none.
    pub(super) fn unless_empty<T>(faults: Vec<Fault>, value: T) -> Result<T, Self> {
        if faults.is_empty() { Ok(value) } else { Err(Self { faults }) }
    }
}
