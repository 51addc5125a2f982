//! Owns whether a rate fits a quota, and whether a goal can be reached under it at all.
//! Must never know: how a goal is written, or what is sent.

use serde::Serialize;

use crate::config::Ceiling;

/// A rate against a quota per minute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shape {
    /// Requests per second.
    pub rate_per_s: f64,
    /// Requests at once after a quiet time.
    pub burst: f64,
    /// Most requests in any minute: burst + 60 x rate.
    pub most_per_min: f64,
    /// Requests a minute the project may make.
    pub quota_per_min: u64,
    /// Whether that fits.
    pub fits: bool,
    /// The highest rate that would, requests per second.
    pub highest_per_s: f64,
}

/// The shape of this rate under this quota.
#[must_use]
pub fn shape(rate_per_s: f64, quota_per_min: u64) -> Shape {
    let burst = Ceiling { rate_per_s, quota_per_minute: quota_per_min }.burst();
    let (most, quota) = (burst + 60.0 * rate_per_s, quota_per_min as f64);
    // The burst is 10 ms of the rate, and 1 at least: the second holds below 100/s.
    let highest = if quota / 60.01 >= 100.0 { quota / 60.01 } else { ((quota - 1.0) / 60.0).max(0.0) };
    Shape { rate_per_s, burst, most_per_min: most, quota_per_min, fits: most <= quota, highest_per_s: highest }
}

/// "90 % of 1.9 million within 2 minutes".
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goal {
    /// Share of the recipients to reach.
    pub share: f64,
    /// Recipients.
    pub recipients: u64,
    /// Time for it, s.
    pub within_s: f64,
}

/// What a goal comes to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reach {
    /// The goal.
    pub goal: Goal,
    /// Recipients to reach.
    pub to_reach: f64,
    /// Requests per second it takes, one for each.
    pub needed_per_s: f64,
    /// Whether the quota allows that at all, with everything else ideal.
    pub under_the_quota: bool,
    /// Whether the rate in question is enough.
    pub at_this_rate: bool,
    /// Time at the highest rate the quota allows, s.
    pub least_s: f64,
    /// Recipients reached in time at that rate.
    pub most_recipients: f64,
    /// The quota it would take, requests per minute.
    pub quota_needed_per_min: f64,
}

impl Goal {
    /// Whether it can be reached at this rate under this quota.
    #[must_use]
    pub fn reach(&self, shape: &Shape) -> Reach {
        let to_reach = (self.share * self.recipients as f64).ceil();
        let needed = to_reach / self.within_s;
        let burst = Ceiling { rate_per_s: needed, quota_per_minute: 0 }.burst();
        let most = (shape.highest_per_s * self.within_s).floor();
        Reach {
            goal: *self,
            to_reach,
            needed_per_s: needed,
            under_the_quota: most >= to_reach,
            at_this_rate: shape.rate_per_s >= needed,
            least_s: to_reach / shape.highest_per_s,
            most_recipients: most.min(self.recipients as f64),
            quota_needed_per_min: (burst + 60.0 * needed).ceil(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_rate_fits_the_default_quota_and_the_highest_is_that_of_the_configuration() {
        let default = shape(9_000.0, 600_000);
        assert!(default.fits && default.most_per_min == 540_090.0 && default.burst == 90.0, "{default:?}");
        assert!((default.highest_per_s - 9_998.33).abs() < 0.01, "{default:?}");
        assert!(!shape(10_000.0, 600_000).fits);
    }

    #[test]
    fn nine_tenths_of_1_9_million_in_two_minutes_are_more_than_the_quota() {
        let goal = Goal { share: 0.9, recipients: 1_900_000, within_s: 120.0 };
        let reach = goal.reach(&shape(9_000.0, 600_000));
        assert!(!reach.under_the_quota && !reach.at_this_rate, "{reach:?}");
        assert!((reach.needed_per_s - 14_250.0).abs() < 1e-6 && reach.quota_needed_per_min == 855_143.0, "{reach:?}");
        assert!((reach.least_s - 171.03).abs() < 0.01 && reach.most_recipients == 1_199_800.0, "{reach:?}");
        let more = goal.reach(&shape(14_250.0, 855_143));
        assert!(more.under_the_quota && more.at_this_rate && shape(14_250.0, 855_143).fits, "{more:?}");
    }

    proptest! {
        #[test]
        fn the_highest_rate_fits_and_nothing_above_it(quota in 2..2_000_000_u64) {
            let highest = shape(1.0, quota).highest_per_s;
            prop_assume!(highest > 0.001);
            prop_assert!(shape(highest * (1.0 - 1e-9), quota).fits);
            prop_assert!(!shape(highest * (1.0 + 1e-6) + 1e-6, quota).fits);
        }
    }
}
