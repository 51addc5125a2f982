//! Owns the arguments of `fanfare demo`.
//! Must never know: what the demo shows.

use std::path::Path;

use clap::Args;

use super::Failure;
use crate::demo::{self, DemoError};

/// What the demo uses instead of its own parts.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// End after the account instead of serving on.
    #[arg(long)]
    pub exit: bool,
    /// A database of yours, postgres://... or sqlite:PATH; it is migrated, and keeps the demo's devices [default: SQLite in a fresh directory].
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// A Redis of yours [default: none].
    #[arg(long, value_name = "URL")]
    pub redis_url: Option<String>,
    /// An emulator of yours, whose key is fetched, or FCM, with GOOGLE_APPLICATION_CREDENTIALS set [default: a built-in emulator on a free port].
    #[arg(long, value_name = "URL")]
    pub fcm_endpoint: Option<String>,
    /// Followers to seed.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub followers: u32,
}

/// Runs the demo.
///
/// # Errors
/// Whatever ended it early.
pub async fn run(args: DemoArgs, file: Option<&Path>) -> Result<(), Failure> {
    let options = demo::Options {
        exit: args.exit,
        config: file.map(Path::to_owned),
        database_url: args.database_url,
        redis_url: args.redis_url,
        fcm_endpoint: args.fcm_endpoint,
        followers: args.followers,
    };
    demo::run(options).await.map_err(|error| match error {
        DemoError::Config(fault) => fault.into(),
        DemoError::Build(fault) => fault.into(),
        DemoError::Credentials { .. } => Failure::Config(error.to_string()),
        other => Failure::Runtime(other.to_string()),
    })
}
