//! Owns the typical time a request takes here: a live estimate of the median.
//! Must never know: what the requests are.
//!
//! The estimate takes one step up for a longer time and one step down for a shorter one, so that it rests where half
//! are longer. It needs no list of times, follows a change within some fifty requests, and one very long time moves it no
//! further than any other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A step: 5 % of the estimate.
const STEP: u64 = 20;

/// What a doubt takes off: 5 % of the estimate.
const DOUBT: u64 = 20;

/// The least estimate and the least step, µs.
const LEAST_US: u64 = 20;

/// The estimate; nothing is known at first, which reads as no time at all.
#[derive(Debug, Default)]
pub struct Typical {
    us: AtomicU64,
    /// Since a time was last seen.
    doubts: AtomicU64,
}

impl Typical {
    /// One more request took `time`.
    pub fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = self.us.load(Ordering::Relaxed);
        let step = (now / STEP).max(LEAST_US);
        let next = match us {
            _ if now == 0 => us,
            us if us > now => now.saturating_add(step).min(us),
            us => now.saturating_sub(step).max(us),
        };
        // A lost race loses one step: the next request takes it.
        self.us.store(next.max(LEAST_US), Ordering::Relaxed);
        self.doubts.store(0, Ordering::Relaxed);
    }

    /// A request was refused because of the estimate. Who is refused cannot prove it wrong, so that it would stand for
    /// ever: for those in a hurry a little less of it does, until one is let in and shows how long they take now.
    /// [`Typical::p50`] stays: it says how many may wait, and who is refused needs no key.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::Relaxed);
    }

    /// The least that a request must have time for.
    #[must_use]
    pub fn doubted(&self) -> Duration {
        let us = self.us.load(Ordering::Relaxed);
        let doubts = self.doubts.load(Ordering::Relaxed).min(DOUBT);
        Duration::from_micros(us - us * doubts / DOUBT)
    }

    /// Half of the requests take longer.
    #[must_use]
    pub fn p50(&self) -> Duration {
        Duration::from_micros(self.us.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times_us: impl IntoIterator<Item = u64>, typical: &Typical) -> u64 {
        times_us.into_iter().for_each(|us| typical.observe(Duration::from_micros(us)));
        u64::try_from(typical.p50().as_micros()).unwrap()
    }

    #[test]
    fn an_estimate_that_lets_nobody_in_does_not_stand_and_the_queue_does_not_hear_of_it() {
        let typical = Typical::default();
        seen([150_000], &typical);
        let mut let_in = 0;
        for _ in 0..1000 {
            if typical.doubted() < Duration::from_millis(100) {
                let_in += 1;
                // It was right: whoever is let in takes that long.
                typical.observe(Duration::from_millis(150));
            } else {
                typical.doubt();
            }
            assert_eq!(typical.p50(), Duration::from_millis(150));
        }
        assert!((100..200).contains(&let_in), "{let_in}");
        (0..1_000_000).for_each(|_| typical.doubt());
        assert_eq!((typical.doubted(), typical.p50()), (Duration::ZERO, Duration::from_millis(150)));
        assert_eq!(seen([150_000], &typical), 150_000);
        assert_eq!(typical.doubted(), Duration::from_millis(150), "one that is seen ends all doubt");
    }

    #[test]
    fn the_estimate_rests_at_the_median_and_follows_a_change() {
        let typical = Typical::default();
        assert_eq!(typical.p50(), Duration::ZERO);
        // 1 to 9 ms, the middle 5 ms, and one in ten a second: a mean would say 100 ms.
        let times = |n: u64| if n.is_multiple_of(10) { 1_000_000 } else { (n * 7 % 9 + 1) * 1000 };
        let p50 = seen((0..2000).map(times), &typical);
        assert!((4_000..=7_500).contains(&p50), "{p50}");
        let slower = seen((0..200).map(|_| 50_000), &typical);
        assert_eq!(slower, 50_000);
        assert_eq!(seen([u64::MAX], &typical), 52_500, "one step, however long it took");
    }
}
