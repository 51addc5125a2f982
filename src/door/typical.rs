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

/// What a doubt takes off: 1.25 %.
const DOUBT: u64 = 80;

/// The least estimate and the least step, µs.
const LEAST_US: u64 = 20;

/// The estimate; nothing is known at first, which reads as no time at all.
#[derive(Debug, Default)]
pub struct Typical(AtomicU64);

impl Typical {
    /// One more request took `time`.
    pub fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = self.0.load(Ordering::Relaxed);
        let step = (now / STEP).max(LEAST_US);
        let next = match us {
            _ if now == 0 => us,
            us if us > now => now.saturating_add(step).min(us),
            us => now.saturating_sub(step).max(us),
        };
        // A lost race loses one step: the next request takes it.
        self.0.store(next.max(LEAST_US), Ordering::Relaxed);
    }

    /// A request was refused because of the estimate. Who is refused cannot prove it wrong, so that it would stand for
    /// ever: a little less of it does, until one is let in and shows how long they take now. While it is right, one in
    /// five or so is.
    pub fn doubt(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.saturating_sub((now / DOUBT).max(1)).max(LEAST_US), Ordering::Relaxed);
    }

    /// Half of the requests take longer.
    #[must_use]
    pub fn p50(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
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
    fn an_estimate_that_lets_nobody_in_does_not_stand() {
        let typical = Typical::default();
        seen([150_000], &typical);
        let refused = (1..).find(|_| {
            typical.doubt();
            typical.p50() < Duration::from_millis(100)
        });
        assert!(refused.is_some_and(|n| (20..50).contains(&n)), "{refused:?}");
        // It was right: whoever is let in takes that long, and one in four or five is.
        let mut let_in = 0;
        for _ in 0..1000 {
            if typical.p50() < Duration::from_millis(100) {
                let_in += 1;
                typical.observe(Duration::from_millis(150));
            } else {
                typical.doubt();
            }
        }
        assert!((150..300).contains(&let_in), "{let_in}");
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
