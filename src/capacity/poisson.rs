//! Owns the tail of the Poisson distribution: how often more arrive than fit, and how many more.
//! Must never know: what arrives.

use std::f64::consts::PI;

/// How far N goes above a limit, for N arrivals with a Poisson distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Excess {
    /// P(N > L).
    pub share: f64,
    /// E[(N - L)+], arrivals: what is above the limit, on average over all windows.
    pub over: f64,
}

impl Excess {
    /// E[N | N > L], arrivals; `None` when that never happens.
    #[must_use]
    pub fn mean_when_over(&self, limit: u64) -> Option<f64> {
        (self.share > 0.0).then(|| limit as f64 + self.over / self.share)
    }

    /// E[(N - L - 1)+], arrivals: the same counted from the first one after the one above the limit.
    #[must_use]
    pub fn over_the_next(&self) -> f64 {
        (self.over - self.share).max(0.0)
    }
}

/// P(N = k) with this mean, which is above 0.
#[must_use]
pub fn probability(mean: f64, k: u64) -> f64 {
    let n = k as f64;
    (n * mean.ln() - mean - ln_factorial(k)).exp()
}

/// The excess over `limit` of arrivals with this mean, which is above 0.
#[must_use]
pub fn excess(mean: f64, limit: u64) -> Excess {
    if limit as f64 >= mean { above(mean, limit) } else { rest_of_below(mean, limit) }
}

/// Adds up what lies above the limit; right of the mean the terms only fall.
fn above(mean: f64, limit: u64) -> Excess {
    let mut k = limit + 1;
    let mut p = probability(mean, k);
    let (mut share, mut over) = (0.0, 0.0);
    loop {
        let term = p * (k - limit) as f64;
        share += p;
        over += term;
        if term <= over * 1e-17 {
            return Excess { share, over };
        }
        k += 1;
        p *= mean / k as f64;
    }
}

/// What is left of everything once the part up to the limit is taken off; left of the mean that part is the small one.
fn rest_of_below(mean: f64, limit: u64) -> Excess {
    let mut p = probability(mean, limit);
    let (mut share, mut under) = (0.0, 0.0);
    for k in (0..=limit).rev() {
        let term = p * (limit - k) as f64;
        share += p;
        under += term;
        if p <= share * 1e-17 {
            break;
        }
        p *= k as f64 / mean;
    }
    Excess { share: 1.0 - share, over: mean - limit as f64 + under }
}

/// ln(k!): added up for small k, by Stirling's series from 16 on, where its next term is below 1e-13.
fn ln_factorial(k: u64) -> f64 {
    if k < 16 {
        return (2..=k).map(|i| (i as f64).ln()).sum();
    }
    let n = k as f64;
    let series = (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / (1680.0 * n * n)) / (n * n)) / (n * n)) / n;
    n * n.ln() - n + 0.5 * (2.0 * PI * n).ln() + series
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64, by: f64) -> bool {
        (a - b).abs() <= by
    }

    #[test]
    fn factorials_are_exact_where_they_can_be_multiplied_out() {
        let mut product = 1.0_f64;
        for k in 1..=170_u64 {
            product *= k as f64;
            assert!(near(ln_factorial(k), product.ln(), 1e-11), "{k}: {} {}", ln_factorial(k), product.ln());
        }
    }

    #[test]
    fn small_cases_are_those_of_pencil_and_paper() {
        let e = (-1.0_f64).exp();
        let one = excess(1.0, 0);
        assert!(near(one.share, 1.0 - e, 1e-14) && near(one.over, 1.0, 1e-14), "{one:?}");
        let two = excess(1.0, 1);
        assert!(near(two.share, 1.0 - 2.0 * e, 1e-14) && near(two.over, e, 1e-14), "{two:?}");
    }

    #[test]
    fn far_from_the_mean_it_is_all_or_nothing() {
        let all = excess(5_000.0, 100);
        assert!(near(all.share, 1.0, 1e-15) && near(all.over, 4_900.0, 1e-9), "{all:?}");
        let nothing = excess(10.0, 5_000);
        assert_eq!((nothing.share, nothing.mean_when_over(5_000)), (0.0, None));
    }

    proptest! {
        #[test]
        fn both_ways_of_adding_up_say_the_same(mean in 4.0..400.0_f64, off in -4.0..4.0_f64) {
            let limit = (mean + off * mean.sqrt()).max(1.0) as u64;
            // Each way starts at the limit; far on the other side of the mean it would start with next to nothing.
            let (up, down) = (above(mean, limit), rest_of_below(mean, limit));
            prop_assert!(near(up.share, down.share, 1e-11), "{up:?} {down:?}");
            prop_assert!(near(up.over, down.over, 1e-8), "{up:?} {down:?}");
        }

        #[test]
        fn a_higher_limit_lets_more_through(mean in 0.1..5_000.0_f64, limit in 0..6_000_u64) {
            let (tight, loose) = (excess(mean, limit), excess(mean, limit + 1));
            prop_assert!(loose.over <= tight.over + 1e-9 && loose.share <= tight.share + 1e-12);
            prop_assert!(near(loose.over, tight.over_the_next(), 1e-8), "{tight:?} {loose:?}");
            prop_assert!(tight.over >= (mean - limit as f64).max(0.0) - 1e-9);
        }
    }
}
