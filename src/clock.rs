//! Owns time: the boot-time clock of this machine and the estimate of the database's clock.
//! Must never know: who asks.
//!
//! Deadlines are in database time, so that instances with skewed clocks agree. Every heartbeat tells the clock
//! what time the database had; between heartbeats the boot-time clock carries it on, through suspends too.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// An instant of the boot-time clock (`CLOCK_BOOTTIME`), which goes on while the machine sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boot(Duration);

impl Boot {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(ID);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Self(Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos))
    }

    /// This much later.
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0 + d)
    }

    /// Time since `earlier`; zero when that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    fn ms(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }
}

/// The estimate of the database's clock.
#[derive(Debug)]
pub struct DbClock {
    /// Database ms minus boot-time ms.
    offset: AtomicI64,
}

impl DbClock {
    /// Starts from the wall clock; [`DbClock::observe`] corrects it.
    #[must_use]
    pub fn from_wall() -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        Self { offset: AtomicI64::new(wall - Boot::now().ms()) }
    }

    /// The database said `db_ms` in answer to a question asked at `asked` and answered at `answered`. It read its clock
    /// somewhere in between, which bounds the offset from both sides; the estimate moves only as far as that demands, so
    /// that a slow answer neither ends deadlines early nor turns time back.
    pub fn observe(&self, db_ms: i64, asked: Boot, answered: Boot) {
        let (least, most) = (db_ms - answered.ms(), db_ms - asked.ms());
        let offset = self.offset.load(Ordering::Relaxed).clamp(least.min(most), most);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Database time now, ms since the epoch.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        Boot::now().ms() + self.offset.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_database_and_goes_on() {
        let clock = DbClock::from_wall();
        clock.observe(1_000_000, Boot::now(), Boot::now());
        let first = clock.now_ms();
        assert!((1_000_000..1_001_000).contains(&first), "{first}");
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now_ms() > first);
    }

    #[test]
    fn a_slow_answer_moves_the_estimate_only_as_far_as_it_must() {
        let clock = DbClock::from_wall();
        let asked = Boot::now();
        clock.observe(1_000_000, asked, asked);
        let answered = asked.plus(Duration::from_secs(2));
        clock.observe(1_002_000, asked, answered);
        let drift = clock.now_ms() - 1_000_000;
        assert!(drift < 1_000, "the answer is consistent with the estimate, which stays: {drift}");
        clock.observe(5_000_000, asked, answered);
        assert!(clock.now_ms() >= 4_998_000, "a jump of the database's clock is followed");
    }
}
