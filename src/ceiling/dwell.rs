//! Owns how long an instance stays with its own share after Redis went away, and how it comes back.
//! Must never know: why Redis went away, or any clock (time is an argument).

use std::time::Duration;

use tokio::time::Instant;

/// Least stay, so that a flapping Redis does not make the mode flap: doubles from the first to the second.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(8);
/// Back this long without trouble, the stay starts at its shortest again.
const STEADY: Duration = Duration::from_secs(60);
/// After its return an instance keeps to its own share as well for this long. Others may have flapped more, stay away
/// for the longest stay, and use their shares beside it: two of four back early made 1.6 times the ceiling. The longest
/// stay, a second between two probes, and a second for the probe.
const SETTLING: Duration = Duration::from_secs(10);

/// The history of leaving and coming back.
#[derive(Debug)]
pub(super) struct Dwell {
    stay: Duration,
    back_at: Option<Instant>,
}

impl Dwell {
    pub(super) const fn new() -> Self {
        Self { stay: FIRST, back_at: None }
    }

    /// Redis went away: how long to stay away from it.
    pub(super) fn leave(&mut self, now: Instant) -> Duration {
        self.stay = match self.back_at {
            Some(back) if now < back + STEADY => (self.stay * 2).min(LAST),
            _ => FIRST,
        };
        self.stay
    }

    /// Redis is back.
    pub(super) const fn come_back(&mut self, now: Instant) {
        self.back_at = Some(now);
    }

    /// Whether the return is so recent that the own share still applies.
    pub(super) fn is_settling(&self, now: Instant) -> bool {
        self.back_at.is_some_and(|back| now < back + SETTLING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_stay_doubles_while_redis_flaps_and_is_short_again_after_a_steady_minute() {
        let mut now = Instant::now();
        let mut dwell = Dwell::new();
        for expected in [1, 2, 4, 8, 8] {
            assert_eq!(dwell.leave(now), expected * SECOND);
            dwell.come_back(now + expected * SECOND);
            now += (expected + 59) * SECOND;
        }
        now += SECOND;
        assert_eq!(dwell.leave(now), SECOND);
    }

    #[test]
    fn the_own_share_applies_until_everybody_is_back_and_not_at_the_start() {
        let now = Instant::now();
        let mut dwell = Dwell::new();
        assert!(!dwell.is_settling(now));
        dwell.come_back(now);
        assert!(dwell.is_settling(now + LAST + SECOND));
        assert!(!dwell.is_settling(now + LAST + 2 * SECOND));
    }
}
