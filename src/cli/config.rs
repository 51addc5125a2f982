//! Owns `fanfare config check|print`.
//! Must never know: any single setting.

use std::path::Path;

use clap::Subcommand;

use super::{Failure, configuration, print, serving};
use crate::app;

/// What to do with the configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Say `ok`, or exit 78 and say for every fault the key, where its value came from, and the fix;
    /// the same for the event types in types.file, by line. Connects nowhere.
    Check,
    /// Print the settings in force as TOML, each with where it came from; secrets stay hidden.
    Print,
}

/// Runs it on what `serve` would read.
///
/// # Errors
/// [`Failure::Config`].
pub fn run(command: &ConfigCommand, file: Option<&Path>) -> Result<(), Failure> {
    match command {
        ConfigCommand::Print => print(&configuration(file)?.print()),
        ConfigCommand::Check => {
            app::check(&serving(file)?)?;
            print("ok\n")
        }
    }
}
