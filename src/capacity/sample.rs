//! Owns chance from a seed, and how sure a simulated figure is.
//! Must never know: what is simulated.

use std::f64::consts::TAU;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Parts a simulation is cut into; how much they differ says how sure the whole is.
pub const PARTS: usize = 40;

/// Student's t for [`PARTS`] - 1 degrees of freedom, 99.9 % in the middle (tables: 3.558 for 39).
const T_999: f64 = 3.558;

/// Draws numbers. The generator is named, not "the small one", so that a seed means the same on every machine.
#[derive(Debug, Clone)]
pub struct Draw(Xoshiro256PlusPlus);

impl Draw {
    /// Everything follows from the seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Above 0 and up to 1, all alike.
    pub fn unit(&mut self) -> f64 {
        1.0 - self.0.random::<f64>()
    }

    /// 0 to `n` - 1, all alike; `n` is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    /// The time to the next of things that happen `per_s` times a second on average, s.
    pub fn gap(&mut self, per_s: f64) -> f64 {
        -self.unit().ln() / per_s
    }

    /// The bell curve: mean 0, deviation 1 (Box and Muller).
    pub fn bell(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

/// A simulated figure with the half of its 99.9 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// What came out.
    pub value: f64,
    /// The true value is within this of it, 999 times in 1,000.
    pub within: f64,
}

impl Estimate {
    /// The sum of all numerators by the sum of all denominators; `None` when there is nothing to divide by. Parts that
    /// follow each other in time must be long enough to forget each other.
    #[must_use]
    pub fn ratio(parts: &[(f64, f64)]) -> Option<Self> {
        let (over, under) = parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        if under <= 0.0 {
            return None;
        }
        let value = over / under;
        let n = parts.len() as f64;
        let spread: f64 = parts.iter().map(|(a, b)| (a - value * b).powi(2)).sum();
        let error = (spread * n / (n - 1.0).max(1.0)).sqrt() / under;
        Some(Self { value, within: T_999 * error })
    }

    /// What the simulation says of a formula's figure, when it has seen `seen` of the events that make it up.
    #[must_use]
    pub fn says_of(&self, formula: f64, seen: f64) -> Verdict {
        if seen < FEW {
            Verdict::TooRare
        } else if (self.value - formula).abs() <= self.within {
            Verdict::Agrees
        } else {
            Verdict::Differs
        }
    }
}

/// Events below which their mean is no bell curve yet, and the interval means little.
const FEW: f64 = 100.0;

/// Whether a formula and its simulation say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The formula's figure lies in the simulation's 99.9 % interval.
    Agrees,
    /// It does not.
    Differs,
    /// It happened less than a hundred times, which proves nothing.
    TooRare,
}

impl Verdict {
    /// For a table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "DIFFERS",
            Self::TooRare => "too rare to tell",
        }
    }
}

/// The value below which the given share of `sorted` lies; 0 when there is none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64) * share).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_draws_the_same() {
        let draw = |seed| {
            let mut draw = Draw::seeded(seed);
            (draw.unit(), draw.below(1000), draw.gap(2.0), draw.bell())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn what_is_drawn_has_the_mean_and_the_spread_it_should() {
        let mut draw = Draw::seeded(1);
        let n = 200_000;
        let gaps: f64 = (0..n).map(|_| draw.gap(4.0)).sum::<f64>() / f64::from(n);
        assert!((gaps - 0.25).abs() < 0.003, "{gaps}");
        let bell: Vec<f64> = (0..n).map(|_| draw.bell()).collect();
        let mean = bell.iter().sum::<f64>() / f64::from(n);
        let spread = bell.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.01 && (spread - 1.0).abs() < 0.02, "{mean} {spread}");
    }

    #[test]
    fn an_interval_of_999_in_1000_holds_the_truth_about_that_often() {
        let mut draw = Draw::seeded(3);
        let missed = (0..1_000)
            .filter(|_| {
                let parts: Vec<(f64, f64)> = (0..PARTS).map(|_| (5.0 + draw.bell(), 1.0)).collect();
                let estimate = Estimate::ratio(&parts).unwrap();
                estimate.says_of(5.0, 1e6) == Verdict::Differs
            })
            .count();
        assert!(missed <= 8, "{missed} of 1,000");
        let parts: Vec<(f64, f64)> = (0..PARTS).map(|_| (5.0 + draw.bell(), 1.0)).collect();
        assert_eq!(Estimate::ratio(&parts).unwrap().says_of(8.0, 1e6), Verdict::Differs);
    }

    #[test]
    fn what_was_hardly_seen_proves_nothing() {
        let nothing = Estimate::ratio(&[(0.0, 1.0), (0.0, 1.0)]).unwrap();
        assert_eq!(nothing.says_of(0.3, 0.0), Verdict::TooRare);
        assert_eq!(Estimate::ratio(&[(1.0, 0.0)]), None);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.99), quantile(&sorted, 1.0), quantile(&[], 0.5)), (99.0, 100.0, 0.0));
    }
}
