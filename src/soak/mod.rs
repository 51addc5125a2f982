//! Owns the soak: a realistic day compressed into minutes, faults on purpose, and a verdict on every law the service
//! promises. It starts service processes of its own to kill them; the emulator in this process is the judge.
//! Must never know: anything of the service a caller, an operator or the operating system could not know.

mod audience;
mod collect;
mod compare;
mod day;
mod dice;
mod faults;
mod fleet;
mod home;
mod inflict;
mod observed;
mod oracle;
mod poster;
mod progress;
mod redis_server;
mod report;
mod sample;
mod verdict;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::ConfigError;
use crate::{emulator, shutdown};
pub use compare::moved;
use day::Day;
use faults::Faults;
pub use faults::{Fault, Mix};
use fleet::Seats;
use observed::Observed;
use progress::{Progress, State};
pub use report::{
    Absent, Band, Done, Freshness, Latency, Memory, Report, SCHEMA, Series, Setup, Stalls, Totals, page, summary,
};
pub use verdict::{Invariant, State as InvariantState};
use world::World;

/// What to play, on what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the day, minutes.
    pub minutes: f64,
    /// Of day and faults.
    pub seed: u64,
    /// Which faults.
    pub faults: Mix,
    /// PostgreSQL of yours, or SQLite; absent = SQLite in the soak's directory.
    pub database_url: Option<String>,
    /// A Redis of yours; absent = with PostgreSQL one of the soak's own.
    pub redis_url: Option<String>,
    /// Instances.
    pub instances: usize,
    /// Ceiling, requests per second.
    pub rate: f64,
    /// Share of the ceiling that the day takes on average.
    pub load: f64,
    /// Where database and logs are kept; absent = in a temporary directory, which goes.
    pub out: Option<PathBuf>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    /// It was asked for in a way that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A setting cannot be used.
    #[error("{0}")]
    Config(String),
    /// A dependency is not there.
    #[error("{0}")]
    Unavailable(String),
    /// A part of the soak did not work.
    #[error("{0}")]
    Part(String),
    /// A signal came.
    #[error("interrupted before the verdict")]
    Interrupted,
}

impl From<ConfigError> for SoakError {
    fn from(fault: ConfigError) -> Self {
        Self::Config(fault.to_string())
    }
}

impl From<emulator::EmulatorError> for SoakError {
    fn from(fault: emulator::EmulatorError) -> Self {
        Self::Part(format!("the emulator: {fault}"))
    }
}

/// Time in which connections of pools and of callers go after the last fan-out.
const IDLE: Duration = Duration::from_secs(3);

/// Plays the day and judges it. Shows progress on stderr.
///
/// # Errors
/// [`SoakError`]; a violated invariant is none, the report says so.
pub async fn run(options: &Options) -> Result<Report, SoakError> {
    let stop = shutdown::on_signals().map_err(|fault| SoakError::Part(format!("no signal handler: {fault}")))?;
    tokio::select! {
        report = whole(options) => report,
        () = stop.cancelled() => Err(SoakError::Interrupted),
    }
}

async fn whole(options: &Options) -> Result<Report, SoakError> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked by the command: minutes of a few days"
    )]
    let length_ms = (options.minutes * 60_000.0) as u64;
    let day = Day::plan(options.seed, length_ms, options.rate * options.load);
    // It begins with a letter: after `dead-` a number would mean something to the emulator.
    let run = format!("r{}", &Uuid::new_v4().simple().to_string()[..7]);
    let mut world = World::start(options, &run).await?;
    world.import(&day).await?;
    let faults = Faults::plan(options.seed, options.faults, length_ms, world.victims());
    let setup = world.setup(options, &day);
    let progress = Progress::new();
    progress.say(&format!(
        "soaking    {:.0} s, faults {}, seed {}: {} instance(s) on {}, Redis {}, ceiling {}/s, {} matches, {} devices, {} posts",
        setup.seconds, setup.faults, setup.seed, setup.instances, setup.database, setup.redis, setup.rate, setup.matches,
        setup.devices, day.posts.len()
    ));
    for (fault, why) in &faults.absent {
        progress.say(&format!("not done   {}: {why}", fault.name()));
    }
    let mut observed = Observed { length_ms, rate: options.rate, ..world.observed() };
    play(&mut world, &day, &faults, options.seed, (progress, &mut observed)).await;
    world.settle(&mut observed).await;
    sleep(IDLE).await;
    world.close(&mut observed, &faults).await?;
    Ok(Report::new(setup, &faults, &observed))
}

/// The day itself: callers, faults, looks and progress beside each other, until callers and faults are done.
async fn play(world: &mut World, day: &Day, faults: &Faults, seed: u64, shown: (Progress, &mut Observed)) {
    let (progress, o) = shown;
    world.rest_before().await;
    let (began_ns, began_unix_ms) = world.now();
    (o.began_ns, o.began_unix_ms) = (began_ns, began_unix_ms);
    let begun = Instant::now();
    let (posts, over) = (std::sync::atomic::AtomicUsize::new(0), CancellationToken::new());
    let seats = world.seats();
    let run = world.run.clone();
    let (mut samples, mut late, mut crowd) = (Vec::new(), Vec::new(), Vec::new());
    let shown = Shown { day, faults, seats: &seats, posts: &posts, rate: o.rate };
    let (targets, emulator) = world.targets();
    let acts = async {
        let told = |n| posts.store(n, std::sync::atomic::Ordering::Relaxed);
        let done = tokio::join!(
            poster::play(day, &run, &seats, begun, told),
            inflict::all(targets, faults, seed, begun),
            tokio::time::sleep_until(begun + Duration::from_millis(day.length_ms)),
        );
        over.cancel();
        done
    };
    let looks = async {
        tokio::select! {
            () = sample::watch(&seats, begun, &mut samples) => {}
            () = sample::lateness(begun, &mut late) => {}
            () = sample::crowd(emulator, begun, &mut crowd) => {}
            () = show(progress, &shown, emulator, begun) => {}
            () = over.cancelled() => {}
        }
    };
    let ((posted, done, ()), ()) = tokio::join!(acts, looks);
    (o.posted, o.samples, o.late, o.crowd) = (posted, samples, late, crowd);
    done.into_observed(o);
}

/// What progress looks at.
struct Shown<'a> {
    day: &'a Day,
    faults: &'a Faults,
    seats: &'a Seats,
    posts: &'a std::sync::atomic::AtomicUsize,
    rate: f64,
}

/// Shows progress. Never ends.
async fn show(mut progress: Progress, shown: &Shown<'_>, emulator: &emulator::Emulator, begun: Instant) {
    loop {
        let now = Instant::now();
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let stats = emulator.stats();
        let faults = shown.faults.windows.iter().filter(|w| (w.from_ms..=w.to_ms + 1_000).contains(&ms));
        let state = State {
            now_s: ms / 1000,
            of_s: shown.day.length_ms / 1000,
            posts: shown.posts.load(std::sync::atomic::Ordering::Relaxed),
            accepted: stats.accepted,
            fullest: stats.max_in_1s,
            rate: shown.rate,
            running: shown.seats.all().len(),
            faults: faults.map(|w| w.fault.name()).collect::<Vec<_>>().join(", "),
        };
        progress.show(&state, now);
        sleep(Duration::from_millis(500)).await;
    }
}
