//! Owns what a limit refuses when requests come at random: the formulas.
//! Must never know: how a limiter is built, or how the formula is checked (`trial` does that).
//!
//! Requests come independently of each other (Poisson), `rate_per_s` of them before retries. A limit of L per window,
//! kept by n limiters, is L / n for each, and each sees 1 / n of the requests. In a fixed window all above the limit is
//! refused: E[(N - L)+] per limiter and window. Who is refused and asks the same limiter again at once, `retries` times,
//! is refused each time, as the window is still full: (1 + r) times as many refusals, of the same requests.

use serde::Serialize;

use super::{loss, poisson};

/// How a limiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A counter set back to 0 at the start of each window.
    Window,
    /// A bucket refilled steadily, that holds at most `burst`, all limiters together.
    Bucket {
        /// Requests.
        burst: u64,
    },
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limiter {
    /// Requests per second before retries.
    pub rate_per_s: f64,
    /// Requests that pass per window, all limiters together.
    pub limit: u64,
    /// Length of a window, s.
    pub window_s: f64,
    /// Limiters that know nothing of each other.
    pub limiters: u64,
    /// How often who is refused asks again, at once.
    pub retries: u32,
    /// How they count.
    pub kind: Kind,
}

/// What cannot be asked, with the option to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Impossible(pub String);

/// What comes out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Refusals {
    /// Window: P(N > L), that one limiter's window is exceeded. Bucket: the share of time it is empty.
    pub over_share: f64,
    /// Window: E[N | N > L], requests in an exceeded window.
    pub mean_when_over: Option<f64>,
    /// Window: exceeded windows per minute, all limiters together.
    pub exceeded_per_min: Option<f64>,
    /// Refusals per second, those of retries too.
    pub refused_per_s: f64,
    /// Window: the same when the excess is counted from limit + 1.
    pub refused_from_next_per_s: Option<f64>,
    /// Requests per second that pass.
    pub served_per_s: f64,
    /// Requests per second that never pass, however often they ask.
    pub lost_per_s: f64,
}

impl Limiter {
    /// Checks what the parts cannot say alone.
    ///
    /// # Errors
    /// [`Impossible`] names the option and what to write instead.
    pub fn check(&self) -> Result<(), Impossible> {
        let of = |option: &str, n: u64| {
            Impossible(format!(
                "--{option} {n} for --limiters {}: less than one request for each; write at least {0} or fewer limiters",
                self.limiters
            ))
        };
        match self.kind {
            _ if self.limit < self.limiters => Err(of("limit", self.limit)),
            Kind::Bucket { burst } if burst < self.limiters => Err(of("burst", burst)),
            Kind::Bucket { burst } if burst / self.limiters > loss::MOST_BURST => Err(Impossible(format!(
                "--burst {burst}: at most {} for each limiter can be worked out; a bucket that large refuses only what is \
                 above the rate",
                loss::MOST_BURST
            ))),
            _ => Ok(()),
        }
    }

    /// What one limiter lets through per window: whole requests.
    #[must_use]
    pub const fn limit_each(&self) -> u64 {
        self.limit / self.limiters
    }

    /// Requests of one limiter in one window, on average.
    #[must_use]
    pub fn mean_each(&self) -> f64 {
        self.rate_per_s * self.window_s / self.limiters as f64
    }

    /// The same with another number of limiters.
    #[must_use]
    pub const fn over(self, limiters: u64) -> Self {
        Self { limiters, ..self }
    }

    /// The formulas.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        match self.kind {
            Kind::Window => self.windows(),
            Kind::Bucket { burst } => self.buckets(burst),
        }
    }

    fn windows(&self) -> Refusals {
        let excess = poisson::excess(self.mean_each(), self.limit_each());
        let windows_per_s = self.limiters as f64 / self.window_s;
        let asked = 1.0 + f64::from(self.retries);
        let lost = excess.over * windows_per_s;
        Refusals {
            over_share: excess.share,
            mean_when_over: excess.mean_when_over(self.limit_each()),
            exceeded_per_min: Some(60.0 * excess.share * windows_per_s),
            refused_per_s: asked * lost,
            refused_from_next_per_s: Some(asked * excess.over_the_next() * windows_per_s),
            served_per_s: self.rate_per_s - lost,
            lost_per_s: lost,
        }
    }

    fn buckets(&self, burst: u64) -> Refusals {
        let load = self.mean_each() / self.limit_each() as f64;
        let share = loss::share_refused(load, burst / self.limiters);
        let lost = share * self.rate_per_s;
        Refusals {
            over_share: share,
            mean_when_over: None,
            exceeded_per_min: None,
            refused_per_s: (1.0 + f64::from(self.retries)) * lost,
            refused_from_next_per_s: None,
            served_per_s: self.rate_per_s - lost,
            lost_per_s: lost,
        }
    }
}

/// The rate before retries, when so many were served and so many refusals were counted, and who was refused had asked
/// 1 + r times.
#[must_use]
pub fn rate_before_retries(served_per_s: f64, refused_per_s: f64, retries: u32) -> f64 {
    served_per_s + refused_per_s / (1.0 + f64::from(retries))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn published(rate_per_s: f64, limiters: u64, retries: u32) -> Limiter {
        Limiter { rate_per_s, limit: 150, window_s: 1.0, limiters, retries, kind: Kind::Window }
    }

    /// As many digits as were published.
    fn to(digits: usize, value: f64) -> String {
        format!("{value:.digits$}")
    }

    #[test]
    fn the_published_case_comes_out_to_the_last_digit() {
        let seen = rate_before_retries(129.01, 7.27, 0);
        assert_eq!(to(2, seen), "136.28");
        let plain = published(seen, 1, 0).refusals();
        assert_eq!(to(4, plain.over_share), "0.1128");
        assert_eq!(to(1, plain.mean_when_over.unwrap()), "156.4");
        assert_eq!(to(2, plain.exceeded_per_min.unwrap()), "6.77");

        let before = rate_before_retries(129.01, 7.27, 1);
        assert_eq!(to(3, before), "132.645");
        // limiters, retries, rate, refusals per second, the same from limit + 1 as the article counts
        let table = [
            (published(seen, 1, 0), "0.726", "0.613"),
            (published(before, 1, 1), "0.727", "0.601"),
            (published(before, 6, 1), "9.61", "6.85"),
        ];
        for (limiter, refused, from_next) in table {
            let said = limiter.refusals();
            let digits = refused.split('.').nth(1).unwrap().len();
            assert_eq!(to(digits, said.refused_per_s), refused, "{limiter:?}");
            assert_eq!(to(digits, said.refused_from_next_per_s.unwrap()), from_next, "{limiter:?}");
        }
    }

    #[test]
    fn a_bucket_of_a_full_window_refuses_far_less_than_the_window() {
        let window = published(136.28, 1, 0);
        let bucket = Limiter { kind: Kind::Bucket { burst: 150 }, ..window };
        assert!(bucket.refusals().refused_per_s < 0.01 * window.refusals().refused_per_s);
        assert!(bucket.refusals().exceeded_per_min.is_none());
    }

    #[test]
    fn a_share_below_one_request_is_refused_by_name() {
        assert!(published(10.0, 150, 0).check().is_ok());
        let fault = published(10.0, 151, 0).check().unwrap_err().to_string();
        assert!(fault.contains("--limit 150") && fault.contains("at least 151"), "{fault}");
        let bucket = Limiter { kind: Kind::Bucket { burst: 5 }, ..published(10.0, 6, 0) };
        assert!(bucket.check().unwrap_err().to_string().contains("--burst 5"));
        let huge = Limiter { kind: Kind::Bucket { burst: 100_001 }, ..published(10.0, 1, 0) };
        assert!(huge.check().unwrap_err().to_string().contains("at most 100000"));
    }

    proptest! {
        #[test]
        fn more_limiters_of_a_smaller_share_never_refuse_less(
            each in 1..40_u64, n in 1..12_u64, times in 2..5_u64, load in 0.3..1.6_f64, retries in 0..3_u32,
        ) {
            // Both numbers of limiters divide the limit, so that nothing is lost by rounding.
            let limit = each * n * times;
            for kind in [Kind::Window, Kind::Bucket { burst: limit }] {
                let few = Limiter { rate_per_s: load * limit as f64, limit, window_s: 1.0, limiters: n, retries, kind };
                let (few, many) = (few.refusals(), few.over(n * times).refusals());
                prop_assert!(many.refused_per_s >= few.refused_per_s - 1e-9, "{kind:?}: {few:?} {many:?}");
                prop_assert!(many.served_per_s <= few.served_per_s + 1e-9);
            }
        }

        #[test]
        fn nothing_appears_or_gets_lost(
            rate in 0.5..2_000.0_f64, limit in 1..2_000_u64, retries in 0..4_u32, bucket in any::<bool>(),
        ) {
            let kind = if bucket { Kind::Bucket { burst: limit } } else { Kind::Window };
            let limiter = Limiter { rate_per_s: rate, limit, window_s: 1.0, limiters: 1, retries, kind };
            let said = limiter.refusals();
            prop_assert!((said.served_per_s + said.lost_per_s - rate).abs() < 1e-6);
            prop_assert!((said.refused_per_s - (1.0 + f64::from(retries)) * said.lost_per_s).abs() < 1e-6);
            prop_assert!(said.served_per_s <= limit as f64 + 1e-6, "{said:?}");
            let fuller = Limiter { rate_per_s: rate * 1.1, ..limiter }.refusals();
            prop_assert!(fuller.refused_per_s >= said.refused_per_s - 1e-9);
        }
    }
}
