//! Owns the demo: the whole service at work on one machine, with followers and a stand-in for FCM of its own.
//! Must never know: anything of the service a caller could not know. It configures it, and talks to its API.

mod account;
mod seed;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::{Scope, keys};
use crate::app::{App, BuildError, RunError, open_store, unavailable};
use crate::client::{Client, ClientError};
use crate::config::{Config, ConfigError, Environment, load};
use crate::emulator::{self, Emulator};
use crate::wire::{EventRequest, Fanout};
use crate::{shutdown, telemetry};

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

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A setting from the environment or an option cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The service could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The service ended badly.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A call of the API failed.
    #[error("the demo's own call of the API failed: {0}")]
    Client(#[from] ClientError),
    /// The emulator did not start, or a file could not be written.
    #[error("{0}")]
    Part(String),
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
    let home = fresh_directory()?;
    let provider = Provider::choose(&options)?;
    let (secret, entry) = keys::generate("demo", Scope::ALL).map_err(|e| DemoError::Part(e.to_string()))?;
    let config = configure(&options, &home, &provider, &entry)?;
    // The line alone, as an operator would see it, and whatever goes wrong.
    let _ = telemetry::init(&config.log.format, "warn,fanfare::fanout=info");
    if options.database_url.is_some() {
        open_store(&config).await?.migrate().await.map_err(unavailable)?;
    }
    let database = options.database_url.as_deref().map_or_else(|| format!("SQLite in {}", home.display()), redacted);
    let app = App::build(config).await?;
    let urls = (format!("http://{}", app.api_addr()), format!("http://{}", app.ops_addr()));
    println!("database   {database}\nFCM        {}\nAPI        {}\noperations {}\n", provider.name(), urls.0, urls.1);

    let drain = CancellationToken::new();
    let service = tokio::spawn(app.run(drain.clone()));
    let client = Client::new(&urls.0, SecretString::from(secret.clone()))?;
    let shown = tokio::select! {
        shown = show(&client, options.followers) => shown,
        () = stop.cancelled() => Err(DemoError::Part("interrupted".to_owned())),
    };
    if let Ok(fanout) = &shown {
        account::tell(fanout, provider.emulator.as_ref().map(Emulator::stats).as_ref());
        if !options.exit {
            account::next(&urls, &secret, fanout);
            stop.cancelled().await;
        }
    }
    drain.cancel();
    let ended = service.await.map_err(|e| DemoError::Part(format!("the service panicked: {e}")))?;
    if let Some(emulator) = &provider.emulator {
        emulator.stop().await;
    }
    if options.exit && options.database_url.is_none() {
        // The directory is the demo's own; leaving it behind would only cost disk.
        let _ = std::fs::remove_dir_all(&home);
    }
    shown?;
    Ok(ended?)
}

/// Followers, the goal, and its progress.
async fn show(client: &Client, followers: u32) -> Result<Fanout, DemoError> {
    let run = Uuid::new_v4().simple().to_string()[..8].to_owned();
    let imported = client.import(seed::followers(&run, followers)).await?;
    println!("seeded     {} followers of match:{run}: {}", imported.imported, seed::MIX);
    for reject in &imported.rejected {
        println!("           line {} was refused: {}", reject.line, reject.reason);
    }
    let (accepted, _) = client.post_event(&goal(&run)).await?;
    println!("posted     GOAL, 67', Arsenal -> 202, fan-out {}\n", accepted.fanout_id);
    progress(client, &accepted.fanout_id).await
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
async fn progress(client: &Client, id: &str) -> Result<Fanout, DemoError> {
    let begun = tokio::time::Instant::now();
    loop {
        let fanout = client.fanout(id, Duration::from_millis(100)).await?;
        let settled = fanout.settled_at.is_some();
        print!("\r{}", account::bar(&fanout));
        let _ = std::io::stdout().flush();
        if settled {
            println!("\n");
            return Ok(fanout);
        }
        if begun.elapsed() > PATIENCE {
            println!();
            return Err(DemoError::Unsettled(PATIENCE.as_secs()));
        }
    }
}

/// The FCM the demo sends to.
struct Provider {
    endpoint: String,
    emulator: Option<Emulator>,
}

impl Provider {
    fn choose(options: &Options) -> Result<Self, DemoError> {
        if let Some(endpoint) = &options.fcm_endpoint {
            return Ok(Self { endpoint: endpoint.clone(), emulator: None });
        }
        let part = |e: emulator::EmulatorError| DemoError::Part(format!("emulator: {e}"));
        let emulator = Emulator::start(emulator::Settings::default()).map_err(part)?;
        let slow = emulator::Control { latency_ms: Some(20), jitter_ms: Some(30), ..emulator::Control::default() };
        emulator.control(&slow).map_err(part)?;
        Ok(Self { endpoint: emulator.endpoint().to_owned(), emulator: Some(emulator) })
    }

    fn name(&self) -> String {
        let kind = if self.emulator.is_some() { "built-in emulator, 20-50 ms per answer, at" } else { "yours, at" };
        format!("{kind} {}", self.endpoint)
    }
}

fn fresh_directory() -> Result<PathBuf, DemoError> {
    let home = std::env::temp_dir().join(format!("fanfare-demo-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&home).map_err(|e| DemoError::Part(format!("{}: {e}", home.display())))?;
    Ok(home)
}

/// The environment's settings with the demo's own on top.
fn configure(options: &Options, home: &std::path::Path, provider: &Provider, keys: &str) -> Result<Config, DemoError> {
    let sqlite = format!("sqlite:{}", home.join("fanfare.db").display());
    let mut env: Environment = std::env::vars().collect();
    let mut set = |name: &str, value: &str| {
        // The file variant of a setting goes before nothing here: the demo's own value is the one that counts.
        env.remove(&format!("FANFARE__{name}_FILE"));
        env.insert(format!("FANFARE__{name}"), value.to_owned());
    };
    set("API__KEYS", keys);
    set("API__LISTEN", "127.0.0.1:0");
    set("OPS__LISTEN", "127.0.0.1:0");
    set("DATABASE__URL", options.database_url.as_deref().unwrap_or(&sqlite));
    set("REDIS__URL", options.redis_url.as_deref().unwrap_or(""));
    set("FCM__ENDPOINT", &provider.endpoint);
    if let Some(emulator) = &provider.emulator {
        set("FCM__CREDENTIALS", &emulator.key_json());
        set("FCM__PROJECT_ID", emulator.project());
    }
    Ok(load(None, &env)?.serving()?)
}

/// A database URL without its password.
fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_url_is_shown_without_its_password() {
        assert_eq!(redacted("postgres://u:secret@db/x"), "postgres://…@db/x");
        assert_eq!(redacted("sqlite:/tmp/x.db"), "sqlite:/tmp/x.db");
    }
}
