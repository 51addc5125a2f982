//! Owns the reservation bucket of one process: who may send when, as arithmetic.
//! Must never know: tasks, Redis, or any clock (time is an argument).
//!
//! Its whole state is the time the next grant is due. Asking advances that time and answers "n grants, the first
//! then"; nothing is ever refilled, so idle time cannot be credited twice and a refusal cannot eat it. Up to
//! `burst` grants may be due in the past, after a quiet time. At most [`AHEAD`] is given out in advance, which
//! bounds what an asker that dies takes with it. `reserve.lua` is the same arithmetic for the whole fleet.

use std::time::Duration;

use tokio::time::Instant;

use super::GrantRun;
use super::pace::Pace;

/// How far in advance grants are given out.
pub const AHEAD: Duration = Duration::from_millis(100);

/// What asking for grants comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reservation {
    /// At least one.
    Granted(GrantRun),
    /// None; the first can be had after this time.
    Wait(Duration),
}

/// A reservation bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    per_s: f64,
    burst: f64,
    origin: Instant,
    /// When the next grant is due: nanoseconds since the origin, a real number so that an odd rate stays exact.
    next: f64,
}

impl Bucket {
    /// `per_s` grants a second and up to `burst` (at least 1) at once after a quiet time. The first is due at
    /// `from`: what happened before is unknown, so nothing is credited for it.
    #[must_use]
    pub fn empty_until(from: Instant, per_s: f64, burst: f64) -> Self {
        Self { per_s, burst: burst.max(1.0), origin: from, next: 0.0 }
    }

    /// Changes the rate from now on; what is reserved stays reserved.
    pub fn set_rate(&mut self, per_s: f64, burst: f64) {
        self.per_s = per_s;
        self.burst = burst.max(1.0);
    }

    /// Asks for up to `want` grants (at least 1) at the pace in force, none before the pause is over.
    pub fn reserve(&mut self, want: u32, pace: &Pace, now: Instant) -> Reservation {
        let every = 1e9 / (self.per_s * pace.share(now));
        let quiet = self.nanos(now) - (self.burst - 1.0) * every;
        let due = self.next.max(self.nanos(pace.paused_until())).max(quiet);
        let horizon = self.nanos(now + AHEAD);
        if due > horizon {
            return Reservation::Wait(Duration::from_nanos((due - horizon).ceil() as u64));
        }
        let fits = ((horizon - due) / every).floor() + 1.0;
        let n = f64::from(want.max(1)).min(fits);
        self.next = due + n * every;
        let first = self.origin + Duration::from_nanos(due.max(0.0).ceil() as u64);
        Reservation::Granted(GrantRun {
            n: n as u32,
            first: first.max(now),
            every: Duration::from_nanos(every.ceil() as u64),
        })
    }

    /// Nanoseconds from the origin to `at`, negative before it.
    fn nanos(&self, at: Instant) -> f64 {
        let after = at.saturating_duration_since(self.origin).as_nanos();
        let before = self.origin.saturating_duration_since(at).as_nanos();
        after as f64 - before as f64
    }
}
