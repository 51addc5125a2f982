//! Owns the quota of one caller: how many requests per second each name may make.
//! Must never know: how a caller proves its name.
//!
//! One token bucket per name, filled at this instance's share of the rate and holding one second of it. Names come from the configured keys
//! only, so the table cannot grow with traffic.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The quota, the same for every name.
#[derive(Debug)]
pub struct Quota {
    per_s: f64,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Quota {
    /// Allows each name `per_s` requests per second; 0 = no quota.
    #[must_use]
    pub fn new(per_s: u32) -> Self {
        Self { per_s: f64::from(per_s), buckets: Mutex::default() }
    }

    /// A request of `name` was counted for all instances together at `now`: should this one have to count alone from now
    /// on, it begins with nothing, or whoever used up the quota there would have it once more here.
    pub fn counted_elsewhere(&self, name: &str, now: Instant) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get_mut(name) {
            Some(bucket) => (bucket.level, bucket.at) = (0.0, now),
            None => {
                buckets.insert(name.to_owned(), Bucket { level: 0.0, at: now });
            }
        }
    }

    /// Counts one request of `name` at `now`, when `instances` share the quota.
    ///
    /// # Errors
    /// How long until the next one is allowed. A refused request is not counted.
    pub fn take(&self, name: &str, instances: u32, now: Instant) -> Result<(), Duration> {
        if self.per_s == 0.0 {
            return Ok(());
        }
        let per_s = self.per_s / f64::from(instances.max(1));
        // A bucket that cannot hold one whole request would let none through, ever.
        let most = per_s.max(1.0);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if !buckets.contains_key(name) {
            buckets.insert(name.to_owned(), Bucket { level: most, at: now });
        }
        let Some(bucket) = buckets.get_mut(name) else { return Ok(()) };
        let filled = bucket.level + per_s * now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.level = filled.min(most);
        bucket.at = now.max(bucket.at);
        if bucket.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.level) / per_s));
        }
        bucket.level -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_counted_elsewhere_is_not_to_be_had_once_more() {
        let (quota, now) = (Quota::new(4), Instant::now());
        quota.counted_elsewhere("a", now);
        assert_eq!(quota.take("a", 1, now), Err(Duration::from_millis(250)));
        assert_eq!(quota.take("a", 1, now + Duration::from_millis(250)), Ok(()));
        assert_eq!(quota.take("b", 1, now), Ok(()), "others are not meant");
    }

    #[test]
    fn each_name_has_its_own_quota() {
        let (quota, now) = (Quota::new(2), Instant::now());
        assert_eq!(quota.take("a", 1, now), Ok(()));
        assert_eq!(quota.take("a", 1, now), Ok(()));
        assert_eq!(quota.take("a", 1, now), Err(Duration::from_millis(500)));
        assert_eq!(quota.take("b", 1, now), Ok(()));
        assert_eq!(quota.take("a", 1, now + Duration::from_millis(500)), Ok(()));
    }

    #[test]
    fn zero_means_no_quota() {
        let (quota, now) = (Quota::new(0), Instant::now());
        assert!((0..10_000).all(|_| quota.take("a", 1, now).is_ok()));
    }

    #[test]
    fn instances_share_a_quota_and_a_small_share_is_still_one() {
        let (quota, start) = (Quota::new(2), Instant::now());
        let taken = (0..4_000).filter(|ms| quota.take("a", 8, start + Duration::from_millis(*ms)).is_ok()).count();
        assert_eq!(taken, 1, "a quarter of a request per second, and one to begin with");
        assert!(quota.take("a", 8, start + Duration::from_millis(4_001)).is_ok());
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_a_second_of_rate_and_the_hint_is_true(
            per_s in 1_u32..50, gaps in proptest::collection::vec(0_u64..400, 1..200)
        ) {
            let (quota, start) = (Quota::new(per_s), Instant::now());
            let (mut now, mut taken) = (start, 0_u32);
            for gap in gaps {
                now += Duration::from_millis(gap);
                match quota.take("a", 1, now) {
                    Ok(()) => taken += 1,
                    Err(wait) => {
                        prop_assert!(quota.take("a", 1, now + wait / 2).is_err());
                        now += wait + Duration::from_micros(1);
                        prop_assert!(quota.take("a", 1, now).is_ok());
                        taken += 1;
                    }
                }
                let allowed = f64::from(per_s) * (1.0 + (now - start).as_secs_f64());
                prop_assert!(f64::from(taken) <= allowed + 1e-6, "{} > {}", taken, allowed);
            }
        }
    }
}
