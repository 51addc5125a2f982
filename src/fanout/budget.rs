//! Owns the retry budget: second attempts are at most a tenth of all attempts of the last ten seconds.
//! Must never know: who is retried.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::mutant;

/// Seconds looked back.
const SECONDS: u64 = 10;
/// Share of attempts that may be retries, one in this many.
const ONE_IN: u64 = 10;
/// Retries a second always allowed, so that a slow service may retry at all.
const FLOOR_PER_S: u64 = 10;

/// Spent by attempting, whatever comes of it (law 5).
#[derive(Debug, Default)]
pub struct RetryBudget {
    buckets: VecDeque<(Instant, u64, u64)>,
}

impl RetryBudget {
    /// Counts one attempt.
    pub fn attempted(&mut self, retry: bool, now: Instant) {
        self.prune(now);
        let fresh =
            self.buckets.back().is_none_or(|(t, ..)| now.saturating_duration_since(*t) >= Duration::from_secs(1));
        if fresh {
            self.buckets.push_back((now, 0, 0));
        }
        if let Some((_, attempts, retries)) = self.buckets.back_mut() {
            *attempts += 1;
            *retries += u64::from(retry && !mutant::on("budget_counts_successes"));
        }
    }

    /// Whether one more retry may leave now.
    pub fn allows(&mut self, now: Instant) -> bool {
        self.prune(now);
        let attempts: u64 = self.buckets.iter().map(|b| b.1).sum();
        let retries: u64 = self.buckets.iter().map(|b| b.2).sum();
        retries < (attempts / ONE_IN).max(FLOOR_PER_S * SECONDS)
    }

    fn prune(&mut self, now: Instant) {
        // A bucket holds a second: its last attempt is forgotten ten seconds after it, not after nine.
        let old = |t: Instant| now.saturating_duration_since(t) >= Duration::from_secs(SECONDS + 1);
        while self.buckets.front().is_some_and(|(t, ..)| old(*t)) {
            self.buckets.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenth_of_the_attempts_or_the_floor() {
        let t = Instant::now();
        let mut budget = RetryBudget::default();
        for _ in 0..100 {
            assert!(budget.allows(t));
            budget.attempted(true, t);
        }
        assert!(!budget.allows(t), "the floor is spent, by failures just the same");
        for _ in 0..1_900 {
            budget.attempted(false, t);
        }
        assert!(budget.allows(t), "a tenth of 2,000 is 200");
        assert!(budget.allows(t + Duration::from_secs(11)), "an old window is forgotten");
    }
}
