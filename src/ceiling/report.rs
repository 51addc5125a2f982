//! Owns the line that says what is in force, and the rate of use in it.
//! Must never know: how grants are had.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::board::Board;
use super::snapshot;
use super::source::Source;

/// Seconds between two lines.
const LINE_EVERY_S: u32 = 10;

/// What a look once a second needs to remember.
#[derive(Debug)]
pub(super) struct Report {
    at: Instant,
    used: u64,
    used_per_s: f64,
    wanted: bool,
    since_line: u32,
    /// Time held and time throttled until the last line.
    before: (Duration, Duration),
}

impl Report {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            at: now,
            used: 0,
            used_per_s: 0.0,
            wanted: false,
            since_line: 0,
            before: (Duration::ZERO, Duration::ZERO),
        }
    }

    /// Grants are wanted: the next line is due.
    pub(super) const fn wanted(&mut self) {
        self.wanted = true;
    }

    /// Grants used per second when last looked.
    pub(super) const fn used_per_s(&self) -> f64 {
        self.used_per_s
    }

    /// A second has passed.
    pub(super) fn second(&mut self, source: &Source, board: &Board) {
        let (now, used) = (Instant::now(), board.used());
        let took = now.saturating_duration_since(self.at).as_secs_f64();
        self.used_per_s = (used - self.used) as f64 / took.max(f64::MIN_POSITIVE);
        (self.at, self.used) = (now, used);
        self.since_line += 1;
        if self.since_line < LINE_EVERY_S {
            return;
        }
        if self.wanted {
            self.line(source, board);
        }
        self.before = (board.held(), board.throttled());
        (self.wanted, self.since_line) = (false, 0);
    }

    fn line(&self, source: &Source, board: &Board) {
        let now = snapshot(&source.in_force(self.used_per_s), board, source.rate());
        tracing::info!(
            target: "fanfare::ceiling",
            mode = now.mode.as_str(),
            rate = now.rate,
            pace = now.pace,
            used_per_s = now.used_per_s,
            waiting = now.waiting,
            forfeited = now.forfeited,
            held_ms = (now.held_for - self.before.0).as_millis() as u64,
            throttled_ms = (now.throttled_for - self.before.1).as_millis() as u64,
            paused_until_ms = wall_ms(now.paused_for),
            reason = now.reason,
            "ceiling in force"
        );
    }
}

/// Milliseconds since the epoch of this time from now; 0 for none.
fn wall_ms(ahead: Duration) -> u64 {
    if ahead.is_zero() {
        return 0;
    }
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + ahead;
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}
