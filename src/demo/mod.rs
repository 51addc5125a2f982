//! Owns the demo: the whole service at work on one machine, with followers and a stand-in for FCM of its own.
//! Must never know: anything of the service a caller could not know. It configures it, and talks to its API.

mod account;
mod home;
mod progress;
mod provider;
mod seed;
mod service;

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::app::{BuildError, RunError};
use crate::client::{Client, ClientError};
use crate::config::ConfigError;
use crate::shutdown;
use crate::wire::{EventRequest, Fanout};
use home::Home;
use progress::Progress;
use provider::Provider;
use service::Service;

/// What the demo uses instead of its own parts.
#[derive(Debug)]
pub struct Options {
    /// End after the account.
    pub exit: bool,
    /// Settings under the demo's own and the environment's.
    pub config: Option<PathBuf>,
    /// A database instead of SQLite in a fresh directory.
    pub database_url: Option<String>,
    /// Redis.
    pub redis_url: Option<String>,
    /// FCM or an emulator instead of the built-in one.
    pub fcm_endpoint: Option<String>,
    /// Followers to seed.
    pub followers: u32,
}

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A setting from the environment, a file or an option cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nothing to prove to the provider who we are.
    #[error(
        "no credentials for {endpoint} ({why}); set GOOGLE_APPLICATION_CREDENTIALS to the path of a service-account \
         key. A running `fanfare emulator` gives its own away at /emulator/key.json"
    )]
    Credentials {
        /// Where the demo was to send to.
        endpoint: String,
        /// Why none was found.
        why: String,
    },
    /// The service could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The service ended badly.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A call of the API failed.
    #[error("the demo's own call of the API failed: {0}")]
    Client(#[from] ClientError),
    /// A part of the demo did not start.
    #[error("{0}")]
    Part(String),
    /// The line is not what the emulator counted.
    #[error("{0}")]
    Disagrees(String),
    /// A signal came before the account.
    #[error("interrupted before the fan-out was settled")]
    Interrupted,
    /// The fan-out did not settle.
    #[error("the fan-out was not settled after {0} s; its last state is above")]
    Unsettled(u64),
}

/// Longest the demo waits for its fan-out: the usefulness of a goal, and some.
const PATIENCE: Duration = Duration::from_secs(130);

/// Runs the demo.
///
/// # Errors
/// [`DemoError`].
pub async fn run(options: Options) -> Result<(), DemoError> {
    let stop = shutdown::on_signals().map_err(|e| DemoError::Part(format!("no signal handler: {e}")))?;
    let home = if options.database_url.is_some() { None } else { Some(Home::fresh()?) };
    let provider = Provider::choose(options.fcm_endpoint.as_deref())?;
    let service = tokio::select! {
        service = Service::start(&options, home.as_ref(), &provider) => service?,
        // Starting may wait for a database.
        () = stop.cancelled() => return Err(DemoError::Interrupted),
    };
    let ended = service.present(&options, &provider, &stop).await;
    if let Some(emulator) = &provider.emulator {
        emulator.stop().await;
    }
    ended
}

/// Followers, the goal, its progress, the account.
async fn tell(api: &str, secret: &str, options: &Options, provider: &Provider) -> Result<(), DemoError> {
    let client = Client::new(api, SecretString::from(secret))?;
    let fanout = show(&client, options.followers).await?;
    print!("{}", account::account(&fanout));
    if let Some(emulator) = &provider.emulator {
        let agrees = account::compare(&fanout, &emulator.stats()).map_err(DemoError::Disagrees)?;
        println!("\n{agrees}");
    }
    println!("The README explains every field of the line.");
    if !options.exit {
        print!("{}", account::next(api, secret, &fanout));
    }
    Ok(())
}

/// Followers, the goal, and its progress.
async fn show(client: &Client, followers: u32) -> Result<Fanout, DemoError> {
    let run = run_name(Uuid::new_v4());
    let imported = client.import(seed::followers(&run, followers)).await?;
    println!("seeded     {} followers of match:{run}: {}", imported.imported, seed::MIX);
    for reject in &imported.rejected {
        println!("           line {} was refused: {}", reject.line, reject.reason);
    }
    let (accepted, _) = client.post_event(&goal(&run)).await?;
    println!("posted     GOAL, 67', Arsenal: accepted as fan-out {}\n", accepted.fanout_id);
    follow(client, &accepted.fanout_id).await
}

/// Part of every name of this run. It begins with a letter: after `flaky503-` a number would be a `Retry-After` to the
/// emulator, and one name in forty of digits alone made two followers wait for an hour.
fn run_name(id: Uuid) -> String {
    format!("r{}", &id.simple().to_string()[..7])
}

fn goal(run: &str) -> EventRequest {
    let fields = [("home", "Arsenal"), ("away", "Chelsea"), ("score", "2-1"), ("player", "Saka")];
    let mut fields: std::collections::BTreeMap<String, serde_json::Value> =
        fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
    fields.insert("minute".to_owned(), 67.into());
    EventRequest {
        id: format!("demo-{run}"),
        kind: "goal".to_owned(),
        match_id: run.to_owned(),
        occurred_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
        subjects: vec![format!("match:{run}"), "team:ars".to_owned()],
        fields,
        data: [("deeplink".to_owned(), format!("app://match/{run}").into())].into(),
        supersedes: None,
        useful_for_s: None,
    }
}

/// Shows how far the fan-out is, until it is settled.
async fn follow(client: &Client, id: &str) -> Result<Fanout, DemoError> {
    let begun = tokio::time::Instant::now();
    let mut progress = Progress::new();
    loop {
        let fanout = client.fanout(id, Duration::from_millis(100)).await?;
        progress.show(&fanout, tokio::time::Instant::now());
        if fanout.settled_at.is_some() {
            return Ok(fanout);
        }
        if begun.elapsed() > PATIENCE {
            println!();
            return Err(DemoError::Unsettled(PATIENCE.as_secs()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_run_is_never_a_number_to_the_emulator() {
        assert_eq!(run_name(Uuid::from_u128(0x8023_9082 << 96)), "r8023908");
    }
}
