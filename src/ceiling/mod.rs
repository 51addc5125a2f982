//! Owns the ceiling: the one rate of the whole fleet, the pace under it, and all Redis.
//! Must never know: devices, FCM's bodies, or what a grant is used for.
//!
//! A count of workers is not a rate: fifty of them under "100 a second" once made 1,650 calls a second. So the rate
//! is kept where all callers compete for it: in Redis for a fleet, in one bucket for a process. One task, the
//! feeder, reserves runs of grants ahead of time and hands them to the dispatcher, which never waits for a round
//! trip per attempt.
//!
//! `source` says where grants come from at this moment, `lane` what one operation remembers, `bucket` and `pace`
//! are the arithmetic, `reserve.lua` the same arithmetic inside Redis.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::charge::Charge;
use board::Board;
use charger::Charger;
use feeder::Feeder;
use source::{InForce, Source};

pub use probe::{RedisFacts, RedisRefused, RedisServer, probe};
pub use quotas::Quotas;
pub use redis::RedisAway;

mod board;
pub mod bucket;
mod charger;
mod demand;
mod dwell;
mod feeder;
mod lane;
mod link;
pub mod pace;
mod probe;
mod quotas;
mod redis;
mod report;
mod source;

/// What the ceiling needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// HTTP requests per second of the whole fleet. Above 0.
    pub rate_per_s: f64,
    /// Requests at once after a quiet time, at least 1.
    pub burst: f64,
    /// Where Redis is; none = no Redis.
    pub redis_url: Option<SecretString>,
    /// The FCM project: all instances that send for it share its ceiling.
    pub project: String,
    /// Whether other instances may work on the same database.
    pub shared_database: bool,
}

impl Settings {
    /// Refuses a Redis URL that is none. The error does not repeat it.
    ///
    /// # Errors
    /// [`RedisAway::BadUrl`].
    pub fn check(&self) -> Result<(), RedisAway> {
        self.redis_url.as_ref().map_or(Ok(()), |url| redis::client(url).map(drop))
    }
}

/// Grants of one reservation: grant `i` may be used from `first + i * every` on, and is forfeited
/// [`FORFEIT_AFTER`] later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrantRun {
    /// How many.
    pub n: u32,
    /// When the first may be used; in the past after a quiet time, when a burst may leave at once.
    pub first: Instant,
    /// Distance between two of them.
    pub every: Duration,
}

/// A grant used later than this after its time would let two windows' worth out at once.
pub const FORFEIT_AFTER: Duration = Duration::from_millis(50);

/// Where the rate is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In Redis, for the whole fleet.
    Shared,
    /// Ceiling / live instances, each on its own: Redis is away or not configured beside a shared database.
    Split,
    /// One process owns all of it: SQLite.
    Single,
}

impl Mode {
    /// `shared`, `split` or `single`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Split => "split",
            Self::Single => "single",
        }
    }
}

/// The numbers in force.
#[derive(Debug, Clone, PartialEq)]
pub struct CeilingSnapshot {
    /// Where the rate is kept.
    pub mode: Mode,
    /// The configured ceiling of the fleet, per second.
    pub rate: f64,
    /// The pace applied by the fleet now, per second.
    pub pace: f64,
    /// What this instance may use now, per second.
    pub share: f64,
    /// Grants this instance used in the last full second.
    pub used_per_s: f64,
    /// Grants the dispatcher would use at once if it had them.
    pub waiting: u64,
    /// Grants forfeited since start.
    pub forfeited: u64,
    /// Grants used since start.
    pub used: u64,
    /// Time since start in which grants were wanted and the ceiling had none left to reserve: held by our own ceiling.
    pub held_for: Duration,
    /// Time since start in which a pause of the provider was in force: throttled by the provider.
    pub throttled_for: Duration,
    /// Pause still to wait; zero = none.
    pub paused_for: Duration,
    /// Why the mode or the pause is what it is; empty when nothing is out of the ordinary.
    pub reason: String,
}

/// The handle of the dispatcher and of all who look. Cheap to clone; nothing it does waits or locks, except that
/// [`Ceiling::snapshot`] reads the published numbers.
#[derive(Debug, Clone)]
pub struct Ceiling {
    rate: f64,
    board: Arc<Board>,
    published: watch::Receiver<InForce>,
    charger: Charger,
}

impl Ceiling {
    /// Starts the feeder on the current runtime. `live` is the number of live instances by their heartbeats in the
    /// database. Runs of grants come out of the receiver, one at a time: the next is reserved once the last was
    /// taken. The feeder ends with `cancel`, or when the receiver is dropped.
    #[must_use]
    pub fn start(
        settings: Settings,
        live: watch::Receiver<u32>,
        cancel: CancellationToken,
    ) -> (Self, mpsc::Receiver<GrantRun>) {
        let board = Arc::new(Board::new(Instant::now()));
        let source = Source::new(&settings, *live.borrow(), Arc::clone(&board));
        let (publish, published) = watch::channel(source.in_force(0.0));
        let (runs, receiver) = mpsc::channel(1);
        let (charger, charges) = Charger::new();
        let feeder = Feeder::new(source, Arc::clone(&board), runs, publish);
        tokio::spawn(feeder.run(charges, live, cancel));
        (Self { rate: settings.rate_per_s, board, published, charger }, receiver)
    }

    /// The dispatcher could use `n` grants now on top of those it has, those on their way included. Replaces what
    /// was said before. A stock of some milliseconds' use in `n` keeps attempts from waiting for the feeder.
    pub fn want(&self, n: u64) {
        self.board.want(n);
    }

    /// `n` grants were used: that many requests left.
    pub fn used(&self, n: u64) {
        self.board.count_used(n);
    }

    /// `n` grants were given up: more than [`FORFEIT_AFTER`] late, or inside a pause.
    pub fn forfeited(&self, n: u64) {
        self.board.count_forfeited(n);
    }

    /// The provider throttled the project, not one device: the whole fleet pauses, and the pace halves once per
    /// pause. `retry_after` is obeyed between a second and an hour; none = 60 s.
    pub fn throttled(&self, retry_after: Option<Duration>) {
        let pause = retry_after.unwrap_or(pace::DEFAULT_PAUSE).clamp(pace::SHORTEST_PAUSE, pace::LONGEST_PAUSE);
        self.board.throttle(Instant::now() + pause);
    }

    /// The end of the pause in force. Grants in hand that are due before it are to be given up: they were reserved
    /// before it was known.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        Some(self.board.paused_until()).filter(|until| *until > Instant::now())
    }

    /// The numbers in force.
    #[must_use]
    pub fn snapshot(&self) -> CeilingSnapshot {
        let in_force = self.published.borrow().clone();
        snapshot(&in_force, &self.board, self.rate)
    }

    /// Leave for the OAuth call, from a lane of its own.
    #[must_use]
    pub fn charger(&self) -> Arc<dyn Charge> {
        Arc::new(self.charger.clone())
    }
}

/// The published numbers as of now.
fn snapshot(in_force: &InForce, board: &Board, rate: f64) -> CeilingSnapshot {
    let now = Instant::now();
    let pace = rate * in_force.pace.share(now);
    let paused_for = board.paused_until().saturating_duration_since(now);
    let throttled = if paused_for > Duration::ZERO || pace < rate { "throttled by the provider" } else { "" };
    let reasons = [in_force.reason.as_str(), throttled];
    CeilingSnapshot {
        mode: in_force.mode,
        rate,
        pace,
        share: if in_force.mode == Mode::Split { pace / f64::from(in_force.live) } else { pace },
        used_per_s: in_force.used_per_s,
        waiting: board.wanted(),
        forfeited: board.forfeited(),
        used: board.used(),
        held_for: board.held(),
        throttled_for: board.throttled(),
        paused_for,
        reason: reasons.into_iter().filter(|reason| !reason.is_empty()).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests;
