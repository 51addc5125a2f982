//! Owns the quota of one caller: how many requests per second each name may make.
//! Must never know: how a caller proves its name.
//!
//! One token bucket per name, filled at the rate and holding one second of it. Names come from the configured keys
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

    /// Counts one request of `name` at `now`.
    ///
    /// # Errors
    /// How long until the next one is allowed. A refused request is not counted.
    pub fn take(&self, name: &str, now: Instant) -> Result<(), Duration> {
        if self.per_s == 0.0 {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if !buckets.contains_key(name) {
            buckets.insert(name.to_owned(), Bucket { level: self.per_s, at: now });
        }
        let Some(bucket) = buckets.get_mut(name) else { return Ok(()) };
        let filled = bucket.level + self.per_s * now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.level = filled.min(self.per_s);
        bucket.at = now.max(bucket.at);
        if bucket.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.level) / self.per_s));
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
    fn each_name_has_its_own_quota() {
        let (quota, now) = (Quota::new(2), Instant::now());
        assert_eq!(quota.take("a", now), Ok(()));
        assert_eq!(quota.take("a", now), Ok(()));
        assert_eq!(quota.take("a", now), Err(Duration::from_millis(500)));
        assert_eq!(quota.take("b", now), Ok(()));
        assert_eq!(quota.take("a", now + Duration::from_millis(500)), Ok(()));
    }

    #[test]
    fn zero_means_no_quota() {
        let (quota, now) = (Quota::new(0), Instant::now());
        assert!((0..10_000).all(|_| quota.take("a", now).is_ok()));
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
                match quota.take("a", now) {
                    Ok(()) => taken += 1,
                    Err(wait) => {
                        prop_assert!(quota.take("a", now + wait / 2).is_err());
                        now += wait + Duration::from_micros(1);
                        prop_assert!(quota.take("a", now).is_ok());
                        taken += 1;
                    }
                }
                let allowed = f64::from(per_s) * (1.0 + (now - start).as_secs_f64());
                prop_assert!(f64::from(taken) <= allowed + 1e-6, "{} > {}", taken, allowed);
            }
        }
    }
}
