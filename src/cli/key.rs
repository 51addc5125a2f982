//! Owns `fanfare key`.
//! Must never know: how a key is made or checked.

use clap::{Args, ValueEnum};

use super::{Failure, print};
use crate::api::keys;

/// What the key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeName {
    /// Post events, and read the fan-outs they became.
    Events,
    /// Register, import and delete devices.
    Devices,
    /// Everything an operator does: list, explain, cancel, replay.
    Ops,
}

/// A new API key.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Who will use it: 1 to 64 of a-z, 0-9, `-` and `_`; logs show it.
    #[arg(long, value_parser = name)]
    pub name: String,
    /// What it may do.
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    pub scopes: Vec<ScopeName>,
}

fn name(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if (1..=64).contains(&text.len()) && text.chars().all(known) {
        return Ok(text.to_owned());
    }
    Err("1 to 64 of a-z, 0-9, `-` and `_`".to_owned())
}

/// Prints the key and its entry once; neither is stored anywhere.
///
/// # Errors
/// [`Failure::Runtime`] when stdout cannot be written.
pub fn run(args: &KeyArgs) -> Result<(), Failure> {
    let mut scopes: Vec<&str> = Vec::new();
    for scope in &args.scopes {
        let word = match scope {
            ScopeName::Events => "events",
            ScopeName::Devices => "devices",
            ScopeName::Ops => "ops",
        };
        if !scopes.contains(&word) {
            scopes.push(word);
        }
    }
    let new = keys::generate(&args.name, &scopes);
    // What a script reads goes to stdout, two words a line; what a person reads goes to stderr.
    print(&format!("key {}\nentry {}\n", new.secret, new.entry))?;
    eprintln!(
        "\nThe caller sends the key, shown only this once, as `Authorization: Bearer KEY`.\n\
         The entry holds its hash only: append it to FANFARE_API_KEYS (or api.keys), separated by a comma."
    );
    Ok(())
}
