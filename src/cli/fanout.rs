//! Placeholder: another branch holds this command.

/// Arguments.
#[derive(Debug, clap::Subcommand)]
pub enum FanoutCommand {
    /// Nothing.
    Show,
}

/// Fails.
///
/// # Errors
/// Always.
pub async fn run(_: FanoutCommand) -> Result<(), super::Failure> {
    Err(super::Failure::Runtime("not in this branch".to_owned()))
}
