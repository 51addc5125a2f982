//! Placeholder: another branch holds this command.

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct EmulatorArgs {}

/// Fails.
///
/// # Errors
/// Always.
pub async fn run(_: EmulatorArgs) -> Result<(), String> {
    Err("not in this branch".to_owned())
}
