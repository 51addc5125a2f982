//! Owns the commands: their names, what they share, and which exit code a failure becomes.
//! Must never know: how the work is done; a command reads its arguments and calls the room that does it.

pub mod config;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod emulator;
pub mod fanout;
pub mod healthcheck;
mod ids;
pub mod key;
pub mod migrate;
pub mod openapi;
pub mod plan;
pub mod send;
pub mod serve;
pub mod shadow;
pub mod soak;
pub mod stats;
pub mod sweep;
pub mod target;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use secrecy::ExposeSecret;

use crate::api::keys::Keys;
use crate::app::BuildError;
use crate::config::{Config, ConfigError, Environment, Loaded, load};
use crate::demo::DemoError;
use crate::telemetry::TelemetryError;

/// Why a command failed; decides the exit code. The text is the one message on stderr, without a secret in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// 1: it did not work.
    #[error("{0}")]
    Runtime(String),
    /// 2: it was asked for in a way that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// 69: something it depends on cannot be reached (`EX_UNAVAILABLE` of sysexits.h).
    #[error("{0}")]
    Unavailable(String),
    /// 75: refused for now, by a quota or because the service is at its limit (`EX_TEMPFAIL`).
    #[error("{0}")]
    Paused(String),
    /// 78: the configuration cannot be used (`EX_CONFIG`).
    #[error("{0}")]
    Config(String),
}

impl Failure {
    /// The exit code.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime(_) => 1,
            Self::Usage(_) => 2,
            Self::Unavailable(_) => 69,
            Self::Paused(_) => 75,
            Self::Config(_) => 78,
        }
    }

    /// The same with more to say.
    fn and(mut self, more: &str) -> Self {
        match &mut self {
            Self::Runtime(text)
            | Self::Usage(text)
            | Self::Unavailable(text)
            | Self::Paused(text)
            | Self::Config(text) => text.push_str(more),
        }
        self
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<TelemetryError> for Failure {
    fn from(error: TelemetryError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let text = error.to_string();
        match error {
            BuildError::Config { .. } => Self::Config(text),
            BuildError::Unavailable { .. } => Self::Unavailable(text),
        }
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        match error {
            DemoError::Config(error) => error.into(),
            DemoError::Build(error) => error.into(),
            other => Self::Runtime(other.to_string()),
        }
    }
}

/// Fans one match event out to every follower's phone through FCM HTTP v1.
///
/// Exit codes: 0 ok, 1 failure, 2 usage, 69 a dependency is unavailable, 75 refused for now (quota or
/// overload) or paused: try again later, 78 bad configuration; 130 and 143 after a second SIGINT or SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "fanfare", version, arg_required_else_help = true)]
pub struct Cli {
    /// Settings for serve, demo, migrate, healthcheck, doctor, shadow and config, in TOML: they override the built-in ones, and the
    /// environment overrides them [default: none].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Where the settings of this process come from.
#[derive(Debug, Clone, clap::Args)]
struct Settings {
    /// Settings in TOML: they override the built-in ones, and the environment overrides them [default: none].
    // Global for what is below the command; another id than the one before the command, which only holds there.
    #[arg(id = "settings", long = "config", global = true, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and send, until SIGTERM or SIGINT.
    #[command(after_help = serve::NEEDS)]
    Serve(Settings),
    /// Show the whole thing at work: a goal, 1,000 followers, a database and a stand-in for FCM, all made for it.
    Demo {
        #[command(flatten)]
        args: demo::DemoArgs,
        #[command(flatten)]
        settings: Settings,
    },
    /// Run the stand-in for FCM, for this or any other sender.
    Emulator(emulator::EmulatorArgs),
    /// Bring the schema of database.url (DATABASE_URL) up to date; `serve` does it itself on SQLite only.
    Migrate(Settings),
    /// Post an event to a running service.
    Send(send::SendArgs),
    /// List, show, explain, cancel, replay and resume fan-outs of a running service.
    #[command(subcommand)]
    Fanout(fanout::FanoutCommand),
    /// Import, export and look at devices of a running service.
    #[command(subcommand)]
    Devices(devices::DevicesCommand),
    /// Find dead devices without sending anything: a running service asks FCM with validate_only.
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(sweep::SweepArgs),
    /// Show what a running service accepted in a window of time, and what became of it.
    #[command(after_help = stats::EXAMPLES)]
    Stats(stats::StatsArgs),
    /// Work out capacity before it is needed: limiters, fan-outs, a season. Needs no service.
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Play a realistic day with faults on purpose against instances of its own, and judge every promise.
    #[command(after_help = soak::EXAMPLES)]
    Soak(soak::SoakArgs),
    /// Check everything `serve` depends on, and say what is wrong and how to mend it.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor {
        #[command(flatten)]
        args: doctor::DoctorArgs,
        #[command(flatten)]
        settings: Settings,
    },
    /// Compare our recipients with another system's list, and say why they differ.
    #[command(after_help = shadow::EXAMPLES)]
    Shadow {
        #[command(flatten)]
        args: shadow::ShadowArgs,
        #[command(flatten)]
        settings: Settings,
    },
    #[command(after_help = KEY)]
    /// Make an API key: prints the key and the entry that admits it, once.
    Key(key::KeyArgs),
    #[command(after_help = HEALTHCHECK)]
    /// Ask a running service whether it is ready: exit 0 or 1.
    Healthcheck {
        #[command(flatten)]
        args: healthcheck::HealthcheckArgs,
        #[command(flatten)]
        settings: Settings,
    },
    /// Check or print the configuration.
    Config {
        #[command(flatten)]
        settings: Settings,
        #[command(subcommand)]
        command: config::ConfigCommand,
    },
    #[command(after_help = OPENAPI)]
    /// Print the API's OpenAPI 3.1 document; a running service answers it at /openapi.json.
    Openapi,
}

const KEY: &str = "\
Example:
  fanfare key --name backend --scopes events,devices > api-key.txt
  export FANFARE_API_KEYS=\"$(sed -n 's/^entry //p' api-key.txt)\"    for the service
  export FANFARE_KEY=\"$(sed -n 's/^key //p' api-key.txt)\"          for whoever calls it";

const HEALTHCHECK: &str = "\
Examples:
  fanfare healthcheck
  until fanfare healthcheck 2>/dev/null; do sleep 1; done
  fanfare healthcheck --addr 10.0.0.7:9090 --timeout-ms 500";

const OPENAPI: &str = "\
Examples:
  fanfare openapi > openapi.json
  fanfare openapi | jq '.paths | keys'";

const NO_SETTINGS: &str = "this command reads no settings, so --config has no place before it: what talks to a service \
                           takes --url and --key (FANFARE_URL, FANFARE_KEY)";

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever ended it early, with its exit code.
    pub async fn run(self) -> Result<(), Failure> {
        let before = self.config;
        let or_before = |settings: Settings| settings.file.or_else(|| before.clone());
        match self.command {
            Command::Serve(settings) => serve::run(or_before(settings).as_deref()).await,
            Command::Demo { args, settings } => demo::run(args, or_before(settings).as_deref()).await,
            Command::Migrate(settings) => migrate::run(or_before(settings).as_deref()).await,
            Command::Healthcheck { args, settings } => healthcheck::run(args, or_before(settings).as_deref()).await,
            Command::Doctor { args, settings } => doctor::run(args, or_before(settings).as_deref()).await,
            Command::Shadow { args, settings } => shadow::run(args, or_before(settings).as_deref()).await,
            Command::Config { settings, command } => config::run(&command, or_before(settings).as_deref()),
            _ if before.is_some() => Err(Failure::Usage(NO_SETTINGS.to_owned())),
            Command::Emulator(args) => emulator::run(args).await,
            Command::Send(args) => send::run(args).await,
            Command::Fanout(command) => fanout::run(command).await,
            Command::Devices(command) => devices::run(command).await,
            Command::Sweep(args) => sweep::run(args).await,
            Command::Stats(args) => stats::run(args).await,
            Command::Plan(command) => plan::run(&command),
            Command::Soak(args) => soak::run(args).await,
            Command::Key(args) => key::run(&args),
            Command::Openapi => openapi::run(),
        }
    }
}

/// Reads the configuration of this process.
fn configuration(file: Option<&Path>) -> Result<Loaded, Failure> {
    Ok(load(file, &environment())?)
}

/// The environment of this process.
fn environment() -> Environment {
    // Bytes that are no text keep a mark in their place, for the setting they belong to to be refused by name.
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

/// The configuration of this process, if `serve` can work with it.
fn serving(file: Option<&Path>) -> Result<Config, Failure> {
    let loaded = configuration(file)?;
    let origin = loaded.origin("api.keys");
    let config = loaded.serving()?;
    match Keys::parse(config.api.keys.expose_secret()) {
        Ok(_) => Ok(config),
        Err(error) => Err(Failure::Config(format!(
            "bad configuration: api.keys ({origin}): {error}. Fix: copy the entry as `fanfare key` printed it"
        ))),
    }
}

/// Writes to stdout. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Runtime(format!("stdout cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
