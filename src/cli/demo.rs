//! Owns the arguments of `fanfare demo`.
//! Must never know: what the demo shows.

use clap::Args;

use super::Failure;
use crate::demo;

/// What the demo uses instead of its own parts.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// End after the account instead of serving on.
    #[arg(long)]
    pub exit: bool,
    /// A database of yours [default: SQLite in a fresh directory].
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// A Redis of yours [default: none].
    #[arg(long, value_name = "URL")]
    pub redis_url: Option<String>,
    /// FCM, or an emulator of yours [default: a built-in emulator on a free port].
    #[arg(long, value_name = "URL")]
    pub fcm_endpoint: Option<String>,
    /// Followers to seed.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub followers: u32,
}

/// Runs the demo.
///
/// # Errors
/// Whatever ended it early.
pub async fn run(args: DemoArgs) -> Result<(), Failure> {
    let options = demo::Options {
        exit: args.exit,
        database_url: args.database_url,
        redis_url: args.redis_url,
        fcm_endpoint: args.fcm_endpoint,
        followers: args.followers,
    };
    Ok(demo::run(options).await?)
}
