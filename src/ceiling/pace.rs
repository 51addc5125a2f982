//! Owns what one lane remembers of the provider's throttles: until when nothing may leave, and the pace after it.
//! Must never know: Redis, grants, or any clock (time is an argument).
//!
//! A throttle pauses the lane and halves its pace, once per pause: the answers of attempts that were already in
//! flight say nothing new. After the pause the pace recovers by a twentieth of the ceiling per second.

use std::time::Duration;

use tokio::time::Instant;

/// Longest pause obeyed. A provider that asks for more is asked again after an hour.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Shortest pause, also when the provider asks for none: the pace halves once per pause, and a pause of nothing would
/// halve it once per answer.
pub const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Pause when the provider named none: Google's quotas are per minute.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(60);
/// The pace never falls below this share of the ceiling, so that recovery is seen.
pub const LOWEST_PACE: f64 = 0.05;
/// Share of the ceiling the pace regains per second.
pub const RECOVERY_PER_S: f64 = 0.05;

/// Pause and pace of one lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    paused_until: Instant,
    cut_to: f64,
    cut_at: Instant,
}

impl Pace {
    /// Never throttled.
    #[must_use]
    pub const fn full(now: Instant) -> Self {
        Self { paused_until: now, cut_to: 1.0, cut_at: now }
    }

    /// Share of the ceiling that applies now: [`LOWEST_PACE`] to 1.
    #[must_use]
    pub fn share(&self, now: Instant) -> f64 {
        let recovering = now.saturating_duration_since(self.cut_at.max(self.paused_until));
        (self.cut_to + RECOVERY_PER_S * recovering.as_secs_f64()).min(1.0)
    }

    /// When the pause ends or ended.
    #[must_use]
    pub const fn paused_until(&self) -> Instant {
        self.paused_until
    }

    /// Pause still to wait.
    #[must_use]
    pub fn paused_for(&self, now: Instant) -> Duration {
        self.paused_until.saturating_duration_since(now)
    }

    /// The provider throttled this instance: nothing until then, and half the pace unless a pause is in force.
    pub fn throttle(&mut self, until: Instant, now: Instant) {
        if self.paused_until <= now {
            self.lower((self.share(now) / 2.0).max(LOWEST_PACE), now);
        }
        self.pause(until);
    }

    /// Nothing may leave before `until`. A pause never gets shorter.
    pub fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(until);
    }

    /// The pace is at most `share` now and recovers from there.
    pub fn lower(&mut self, share: f64, now: Instant) {
        if share < self.share(now) {
            self.cut_to = share.max(LOWEST_PACE);
            self.cut_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn a_throttle_pauses_and_halves_once_per_pause() {
        let start = Instant::now();
        let mut pace = Pace::full(start);
        pace.throttle(start + 10 * SECOND, start);
        pace.throttle(start + 12 * SECOND, start + SECOND);
        assert!(near(pace.share(start + SECOND), 0.5), "{pace:?}");
        assert_eq!(pace.paused_for(start + SECOND), 11 * SECOND);
        pace.throttle(start + 20 * SECOND, start + 12 * SECOND);
        assert!(near(pace.share(start + 12 * SECOND), 0.25), "the next pause halves again: {pace:?}");
    }

    #[test]
    fn a_shorter_pause_does_not_end_a_longer_one() {
        let start = Instant::now();
        let mut pace = Pace::full(start);
        pace.throttle(start + 60 * SECOND, start);
        pace.throttle(start + 2 * SECOND, start + SECOND);
        assert_eq!(pace.paused_for(start), 60 * SECOND);
    }

    #[test]
    fn the_pace_recovers_a_twentieth_per_second_once_the_pause_is_over() {
        let start = Instant::now();
        let mut pace = Pace::full(start);
        pace.throttle(start + 60 * SECOND, start);
        assert!(near(pace.share(start + 60 * SECOND), 0.5), "not during the pause");
        assert!(near(pace.share(start + 64 * SECOND), 0.7));
        assert!(near(pace.share(start + 70 * SECOND), 1.0));
        assert!(near(pace.share(start + 900 * SECOND), 1.0));
    }

    #[test]
    fn the_pace_never_falls_below_its_floor() {
        let start = Instant::now();
        let mut pace = Pace::full(start);
        for i in 0..20 {
            pace.throttle(start + i * SECOND + SECOND / 2, start + i * SECOND);
        }
        assert!(pace.share(start + 19 * SECOND) >= LOWEST_PACE);
        pace.lower(0.0, start + 100 * SECOND);
        assert!(near(pace.share(start + 100 * SECOND), LOWEST_PACE));
    }
}
