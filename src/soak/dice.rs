//! Owns chance that is the same in every run: a seed gives the same numbers on every machine and in every version.
//! Must never know: what they decide.

/// Numbers from a seed (SplitMix64: short, and not for secrets).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a seed and a name, so that two users of one seed do not follow each other.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let mixed = name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(0x0100_0000_01B3) ^ u64::from(byte));
        Self(mixed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly in `[0, 1)`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From `from` up to `to`, without it; `from` when nothing lies between.
    pub fn roll(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % to.saturating_sub(from).max(1)
    }

    /// Whether something happens that does with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// A number of events that come independently, `mean` of them on average.
    pub fn poisson(&mut self, mean: f64) -> u32 {
        let (limit, mut product, mut n) = ((-mean).exp(), self.share(), 0);
        while product > limit && n < 1000 {
            product *= self.share();
            n += 1;
        }
        n
    }

    /// At least 1, with a tail so heavy that the largest of many is a large part of their sum (Pareto, exponent 1.1).
    pub fn heavy(&mut self) -> f64 {
        (1.0 - self.share()).max(1e-9).powf(-1.0 / 1.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_name_give_the_same_numbers_and_another_name_others() {
        let numbers = |name: &str| {
            let mut dice = Dice::new(7, name);
            (0..20).map(|_| dice.roll(0, 1_000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers("day"), numbers("day"));
        assert_ne!(numbers("day"), numbers("faults"));
    }

    #[test]
    fn shares_are_even_and_counts_have_their_mean() {
        let mut dice = Dice::new(1, "even");
        let mean = (0..10_000).map(|_| dice.share()).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        let mean = (0..10_000).map(|_| f64::from(dice.poisson(3.0))).sum::<f64>() / 10_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
    }

    #[test]
    fn a_heavy_tail_has_many_small_and_few_huge() {
        let mut dice = Dice::new(3, "tail");
        let mut sizes: Vec<f64> = (0..1_000).map(|_| dice.heavy()).collect();
        sizes.sort_by(f64::total_cmp);
        assert!(sizes[500] < 3.0 && sizes[999] > 50.0, "{} {}", sizes[500], sizes[999]);
    }
}
