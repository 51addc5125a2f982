//! Owns the ceiling: the one rate of the whole fleet, the pace under it, and all Redis.
//! Must never know: devices, FCM's bodies, or what a grant is used for.

use std::time::Duration;

use tokio::time::Instant;

/// Grants of one reservation: grant `i` may be used from `first + i * every` on, and is forfeited
/// [`FORFEIT_AFTER`] later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrantRun {
    /// How many.
    pub n: u32,
    /// When the first may be used.
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
    /// Pause still to wait; zero = none.
    pub paused_for: Duration,
    /// Why the mode or the pause is what it is; empty when nothing is out of the ordinary.
    pub reason: String,
}
