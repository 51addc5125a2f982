//! Owns `fanfare key`.
//! Must never know: how a key is made or checked.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{Failure, print};
use crate::api::keys::{self, Scope};

/// A new API key.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Who will use it, such as backend: 1 to 64 letters, digits, `-`, `_` or `.`; logs show it.
    #[arg(long)]
    pub name: String,
    /// What it may do, separated by commas: events = post them and read their fan-outs, devices = register, follow,
    /// import, ops = read and cancel fan-outs, read the ceiling.
    #[arg(long, value_delimiter = ',', required = true, value_parser = PossibleValuesParser::new(Scope::ALL.iter().map(|scope| scope.as_str())))]
    pub scopes: Vec<String>,
    /// All calls with this key are bulk work, whatever they are: for jobs that must never take a place from live traffic.
    #[arg(long)]
    pub bulk: bool,
}

/// Prints the key and its entry once; neither is stored anywhere.
///
/// # Errors
/// [`Failure::Usage`] for a name that is none, [`Failure::Runtime`] when stdout cannot be written.
pub fn run(args: &KeyArgs) -> Result<(), Failure> {
    let mut scopes: Vec<Scope> = args.scopes.iter().filter_map(|scope| Scope::parse(scope)).collect();
    scopes.sort_unstable();
    scopes.dedup();
    let (secret, entry) = keys::generate(&args.name, &scopes).map_err(|error| Failure::Usage(error.to_string()))?;
    let entry = if args.bulk { format!("{entry}:bulk") } else { entry };
    // What a script reads goes to stdout, two words a line; what a person reads goes to stderr.
    print(&format!("key {secret}\nentry {entry}\n"))?;
    eprintln!(
        "\nThe caller sends the key, shown only this once, as `Authorization: Bearer KEY`.\n\
         The entry holds its hash only: append it to FANFARE_API_KEYS (or api.keys), separated by a comma."
    );
    Ok(())
}
