//! Placeholder: the lead's branch holds the demo.

/// What the demo uses instead of its own parts.
#[derive(Debug)]
pub struct Options {
    /// End after the account.
    pub exit: bool,
    /// A database instead of SQLite in a fresh directory.
    pub database_url: Option<String>,
    /// Redis.
    pub redis_url: Option<String>,
    /// FCM or an emulator instead of the built-in one.
    pub fcm_endpoint: Option<String>,
    /// Followers to seed.
    pub followers: u32,
}

/// Fails.
///
/// # Errors
/// Always.
pub async fn run(_: Options) -> Result<(), crate::app::BuildError> {
    Err(crate::app::BuildError::Unavailable { what: "the demo is not in this branch".to_owned() })
}
