//! Owns when the client tries again: how long it waits, and how often it may at all.
//! Must never know: what is asked for.
//!
//! A service that sheds is helped by callers who come back late, at different times, and not all of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::ClientError;

/// The first wait, at most; it doubles with every further one.
const FIRST: Duration = Duration::from_millis(100);

/// The longest wait that is not asked for.
const LONGEST: Duration = Duration::from_secs(10);

/// Further tries that may be made for one first try: a tenth more load, however bad it gets.
const SHARE: f64 = 0.1;

/// What may be saved up. A client that asks once still has some tries.
const SAVED: f64 = 3.0;

/// Tries that may be made still.
#[derive(Debug)]
pub(super) struct Budget(Mutex<f64>);

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new(SAVED))
    }
}

impl Budget {
    /// A first try is made, which earns a part of a further one.
    pub(super) fn earn(&self) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *left = (*left + SHARE).min(SAVED);
    }

    /// Whether a further try may be made; counts it.
    pub(super) fn spend(&self) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = *left >= 1.0;
        if enough {
            *left -= 1.0;
        }
        enough
    }
}

/// Longest time that is listened to, s: a day. Whoever says more says "never" as well.
const LATEST_S: u64 = 86_400;

/// Whether the same request may succeed later, and when at the earliest.
pub(super) fn worth_it(fault: &ClientError) -> Option<Duration> {
    match fault {
        ClientError::Refused(problem) if problem.retryable => {
            Some(Duration::from_secs(problem.retry_after_s.unwrap_or(0).min(LATEST_S)))
        }
        _ => None,
    }
}

/// The wait before the `n`-th further try, from 0, not shorter than `asked`. `random` is between 0 and 1: those who were
/// refused together come back apart, whether they were told a time or not ("full jitter").
pub(super) fn pause(n: u32, asked: Duration, random: f64) -> Duration {
    let most = FIRST.saturating_mul(2_u32.saturating_pow(n)).min(LONGEST);
    asked + most.mul_f64(random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tries_cost_a_tenth_more_and_no_further() {
        let budget = Budget::default();
        let mut further = 0;
        for _ in 0..1000 {
            budget.earn();
            while budget.spend() {
                further += 1;
            }
        }
        assert!((100..=103).contains(&further), "{further}");
    }

    proptest! {
        #[test]
        fn nobody_comes_back_before_it_was_asked_to_nor_much_later(
            n in 0_u32..100, asked_ms in 0_u64..100_000, random in 0.0_f64..1.0
        ) {
            let asked = Duration::from_millis(asked_ms);
            let wait = pause(n, asked, random);
            prop_assert!(wait >= asked && wait <= asked + LONGEST);
            prop_assert!(n > 0 || wait <= asked + FIRST);
        }
    }
}
