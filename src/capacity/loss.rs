//! Owns how often a bucket is empty when somebody comes: the loss of a queue with one steady server.
//! Must never know: what the bucket is for.
//!
//! A bucket of `burst` grants that is refilled steadily refuses whoever finds less than one in it. That is the queue
//! M/D/1/K with K = burst: what is missing in the bucket is the work that waits, and one more fits in as long as at most
//! K - 1 are there. Its loss is known exactly (Cooper, Introduction to Queueing Theory, chapter 5: 1 - 1 / (p0 + load)).

use super::poisson;

/// Largest burst this is worked out for; the work grows with it.
pub const MOST_BURST: u64 = 100_000;

/// The share of arrivals that find the bucket empty, with `load` arrivals in the time of one grant and a bucket of
/// `burst` (1 to [`MOST_BURST`]).
#[must_use]
pub fn share_refused(load: f64, burst: u64) -> f64 {
    // Where next to nothing is lost, rounding may take the difference below nothing.
    (1.0 - 1.0 / (idle_after_leaving(load, burst) + load)).max(0.0)
}

/// The probability that who leaves a queue of at most `burst` leaves nobody behind.
///
/// With x[k] = how often k are left behind, in units of x[0], and `more[m]` = the chance that more than m come during
/// one service, as many steps lead up over k as down: x[k+1] a0 = x[0] more[k] + sum of x[i] more[k - i + 1]. All terms
/// are positive, so nothing cancels.
fn idle_after_leaving(load: f64, burst: u64) -> f64 {
    let more = chances_of_more(load, burst);
    let none = (-load).exp();
    let mut x = vec![1.0_f64];
    let mut sum = 1.0_f64;
    for k in 0..burst.saturating_sub(1) as usize {
        let reach = more.len().min(k + 1);
        let up: f64 = (1..reach).map(|m| more[m] * x[k + 1 - m]).sum();
        let next = (up + more.get(k).copied().unwrap_or(0.0)) / none;
        sum += next;
        if !sum.is_finite() {
            return 0.0;
        }
        x.push(next);
    }
    1.0 / sum
}

/// P(more than m arrive during one service) for m = 0, 1, ... until it no longer counts.
fn chances_of_more(load: f64, burst: u64) -> Vec<f64> {
    let chance = |m: u64| poisson::excess(load, m).share;
    (0..=burst).map(chance).take_while(|p| *p > 1e-18).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_place_loses_what_erlang_says() {
        // M/G/1/1: load / (1 + load), whatever the service.
        for load in [0.01, 0.5, 1.0, 3.0] {
            let share = share_refused(load, 1);
            assert!((share - load / (1.0 + load)).abs() < 1e-12, "{load}: {share}");
        }
    }

    #[test]
    fn two_places_lose_what_pencil_and_paper_say() {
        // M/D/1/2: x = 1, (e^load - 1), so p0 = e^-load.
        for load in [0.2_f64, 1.0, 2.0] {
            let expected = 1.0 - 1.0 / ((-load).exp() + load);
            assert!((share_refused(load, 2) - expected).abs() < 1e-12, "{load}");
        }
    }

    #[test]
    fn a_huge_bucket_loses_only_what_is_too_much() {
        assert!(share_refused(0.9, 10_000) < 1e-12);
        assert!((share_refused(1.25, 10_000) - 0.2).abs() < 1e-9);
        assert!((share_refused(8.0, 100) - 0.875).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_larger_bucket_refuses_less_and_more_load_is_refused_more(load in 0.05..3.0_f64, burst in 1..300_u64) {
            let share = share_refused(load, burst);
            prop_assert!((0.0..1.0).contains(&share), "{share}");
            prop_assert!(share_refused(load, burst + 1) <= share + 1e-12);
            prop_assert!(share_refused(load * 1.01, burst) >= share - 1e-12);
            prop_assert!(share >= 1.0 - 1.0 / load.max(1.0) - 1e-12, "never less than what is too much");
        }
    }
}
