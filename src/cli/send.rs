//! Placeholder: another branch holds this command.

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct SendArgs {}

/// Fails.
///
/// # Errors
/// Always.
pub async fn run(_: SendArgs) -> Result<(), super::Failure> {
    Err(super::Failure::Runtime("not in this branch".to_owned()))
}
