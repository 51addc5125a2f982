//! Owns how long answers take: always the same, or a bell curve of the logarithm (log-normal), as answers of services do.
//! Must never know: who answers.

use serde::Serialize;

use super::limiter::Impossible;
use super::sample::Draw;

/// The 99th percentile of the bell curve, in deviations (tables: 2.3263).
const Z99: f64 = 2.326_347_874;

/// How long an answer takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Mean, s: what Little's law asks for.
    pub mean_s: f64,
    /// Deviation of the logarithm; 0 = always the mean.
    pub sigma: f64,
}

impl Latency {
    /// Always the same.
    #[must_use]
    pub const fn constant(mean_s: f64) -> Self {
        Self { mean_s, sigma: 0.0 }
    }

    /// Log-normal with this mean and 99th percentile, s: p99 / mean = exp(2.3263 sigma - sigma^2 / 2).
    ///
    /// # Errors
    /// [`Impossible`] when the percentile is below the mean, or so far above that no such curve has both.
    pub fn with_p99(mean_s: f64, p99_s: f64) -> Result<Self, Impossible> {
        let ratio = (p99_s / mean_s).ln();
        let root = Z99 * Z99 - 2.0 * ratio;
        if ratio < 0.0 {
            return Err(Impossible("--latency-p99 is below --latency, which is the mean: raise it".to_owned()));
        }
        if root < 0.0 {
            return Err(Impossible(
                "--latency-p99 is more than 14.9 times --latency, which no log-normal curve has: describe the slow ones by \
                 --stall-probability and --stall-time"
                    .to_owned(),
            ));
        }
        Ok(Self { mean_s, sigma: Z99 - root.sqrt() })
    }

    /// Log-normal with this median and 99th percentile, which is above it, s.
    #[must_use]
    pub fn with_median(median_s: f64, p99_s: f64) -> Self {
        let sigma = (p99_s / median_s).ln().max(0.0) / Z99;
        Self { mean_s: median_s * (sigma * sigma / 2.0).exp(), sigma }
    }

    /// One answer, s.
    pub fn draw(&self, draw: &mut Draw) -> f64 {
        if self.sigma == 0.0 { self.mean_s } else { self.at(draw.bell()) }
    }

    /// About how long the slowest of `n` takes, s: their quantile n / (n + 1).
    #[must_use]
    pub fn slowest_of(&self, n: f64) -> f64 {
        if self.sigma == 0.0 { self.mean_s } else { self.at(deviations(n / (n + 1.0))) }
    }

    fn at(&self, deviations: f64) -> f64 {
        self.mean_s * (self.sigma * deviations - self.sigma * self.sigma / 2.0).exp()
    }
}

/// The quantile of the bell curve for a share of a half or more (Abramowitz and Stegun 26.2.23; right to 0.00045).
fn deviations(share: f64) -> f64 {
    let t = (-2.0 * (1.0 - share).ln()).sqrt();
    t - (2.515_517 + t * (0.802_853 + t * 0.010_328)) / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::sample::quantile;

    #[test]
    fn what_is_drawn_has_the_mean_and_the_percentile_asked_for() {
        let latency = Latency::with_p99(0.040, 0.150).unwrap();
        let mut draw = Draw::seeded(1);
        let mut drawn: Vec<f64> = (0..200_000).map(|_| latency.draw(&mut draw)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        drawn.sort_by(f64::total_cmp);
        assert!((mean / 0.040 - 1.0).abs() < 0.01, "{mean}");
        assert!((quantile(&drawn, 0.99) / 0.150 - 1.0).abs() < 0.03, "{}", quantile(&drawn, 0.99));
        assert!((latency.slowest_of(99.0) / 0.150 - 1.0).abs() < 0.01, "{}", latency.slowest_of(99.0));
    }

    #[test]
    fn a_median_and_a_percentile_describe_the_same_curve_as_a_mean_and_the_percentile() {
        let latency = Latency::with_median(0.030, 0.150);
        let same = Latency::with_p99(latency.mean_s, 0.150).unwrap();
        assert!((latency.sigma - same.sigma).abs() < 1e-6, "{latency:?} {same:?}");
        assert!(latency.mean_s > 0.030);
    }

    #[test]
    fn a_curve_that_cannot_be_is_refused_with_the_way_out() {
        assert!(Latency::with_p99(0.040, 0.039).unwrap_err().to_string().contains("raise it"));
        assert!(Latency::with_p99(0.040, 0.600).unwrap_err().to_string().contains("--stall-probability"));
        assert!(Latency::with_p99(0.040, 0.590).is_ok());
        assert_eq!(Latency::with_p99(0.040, 0.040).unwrap().sigma, 0.0);
    }
}
