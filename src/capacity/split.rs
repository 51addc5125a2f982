//! Owns what it costs to keep one limit in n places that know nothing of each other: refusals for a limiter that refuses,
//! waiting for a ceiling like Fanfare's, which never refuses and makes requests wait instead.
//! Must never know: how the ceiling is kept; it only knows its shape (rate / n, a burst of 10 ms of it, at least 1).

use serde::Serialize;

use super::limiter::{Kind, Limiter};
use super::sample::{Draw, Estimate, PARTS, quantile};
use crate::config::Ceiling;

/// Recipients of a chunk, which one instance sends alone.
const CHUNK: f64 = 500.0;

/// Numbers of limiters shown when nobody names them.
const SHOWN: [u64; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

/// Requests drawn to see how long they wait.
const DRAWN: usize = 200_000;

/// What one number of limiters or instances costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// How many share the limit.
    pub limiters: u64,
    /// Requests per window that pass at each.
    pub limit_each: u64,
    /// Fixed windows: refusals per second.
    pub window_refused_per_s: f64,
    /// Buckets as large as the limit of a window: refusals per second.
    pub bucket_refused_per_s: f64,
    /// The `split` mode; `None` at or above the rate, where the wait has no end.
    pub split: Option<Wait>,
    /// The `split` mode: seconds one instance needs for the 500 recipients of a chunk.
    pub chunk_s: f64,
}

/// How long requests wait for a grant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Wait {
    /// Mean, s.
    pub mean_s: Estimate,
    /// 99th percentile, s.
    pub p99_s: f64,
    /// Mean by the formula for a queue without any burst (M/D/1), s: what it can be at most.
    pub formula_s: f64,
}

/// Costs of the numbers of limiters worth showing, the one asked for among them.
#[must_use]
pub fn costs(limiter: &Limiter, seed: u64) -> Vec<Cost> {
    let mut shown: Vec<u64> = SHOWN.iter().copied().chain([limiter.limiters]).collect();
    shown.retain(|n| *n <= limiter.limit);
    shown.sort_unstable();
    shown.dedup();
    let queue = Queue::of(limiter.rate_per_s * limiter.window_s / limiter.limit as f64, seed);
    shown.into_iter().map(|n| cost(&limiter.over(n), &queue)).collect()
}

fn cost(limiter: &Limiter, queue: &Queue) -> Cost {
    let refused = |kind| Limiter { kind, ..*limiter }.refusals().refused_per_s;
    let per_s = limiter.limit as f64 / limiter.window_s / limiter.limiters as f64;
    Cost {
        limiters: limiter.limiters,
        limit_each: limiter.limit_each(),
        window_refused_per_s: refused(Kind::Window),
        bucket_refused_per_s: refused(Kind::Bucket { burst: limiter.limit }),
        split: queue.wait(per_s),
        chunk_s: CHUNK / per_s,
    }
}

/// What waits before each request, in grants, in order of time and of size: the same whatever the rate, as only the load
/// counts.
#[derive(Debug)]
struct Queue {
    load: f64,
    before: Vec<f64>,
    sorted: Vec<f64>,
}

impl Queue {
    /// One request after the other: each finds what the one before found, and that one, less what has gone meanwhile.
    fn of(load: f64, seed: u64) -> Self {
        let mut draw = Draw::seeded(seed);
        let mut waiting = 0.0_f64;
        let mut next = || {
            let found = waiting;
            waiting = (waiting + 1.0 - draw.gap(load)).max(0.0);
            found
        };
        let before: Vec<f64> = if load < 1.0 { (0..DRAWN).map(|_| next()).collect() } else { Vec::new() };
        let mut sorted = before.clone();
        sorted.sort_by(f64::total_cmp);
        Self { load, before, sorted }
    }

    /// The wait where grants come `per_s` times a second.
    fn wait(&self, per_s: f64) -> Option<Wait> {
        if self.before.is_empty() {
            return None;
        }
        let at_once = Ceiling { rate_per_s: per_s, quota_per_minute: 0 }.burst() - 1.0;
        let wait = |found: &f64| (found - at_once).max(0.0) / per_s;
        let part = |found: &[f64]| (found.iter().map(wait).sum::<f64>(), found.len() as f64);
        let parts: Vec<(f64, f64)> = self.before.chunks(DRAWN / PARTS).map(part).collect();
        Some(Wait {
            mean_s: Estimate::ratio(&parts)?,
            p99_s: wait(&quantile(&self.sorted, 0.99)),
            formula_s: self.load / (2.0 * (1.0 - self.load)) / per_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::sample::Verdict;

    fn costs_at(rate_per_s: f64) -> Vec<Cost> {
        let kind = Kind::Window;
        costs(&Limiter { rate_per_s, limit: 150, window_s: 1.0, limiters: 6, retries: 1, kind }, 1)
    }

    #[test]
    fn n_shares_wait_n_times_as_long_and_refuse_nobody() {
        let costs = costs_at(120.0);
        let of = |n| costs.iter().find(|cost| cost.limiters == n).unwrap();
        // 150/s in 2 parts and more have a burst of 1, so that the times are exact multiples.
        let (two, six) = (of(2), of(6));
        let (a, b) = (two.split.unwrap(), six.split.unwrap());
        assert!((b.mean_s.value / a.mean_s.value - 3.0).abs() < 1e-9 && (b.p99_s / a.p99_s - 3.0).abs() < 1e-9);
        assert_eq!(b.mean_s.says_of(b.formula_s, 1e6), Verdict::Agrees, "{b:?}");
        assert!((six.chunk_s - 20.0).abs() < 1e-9, "{six:?}");
        // The burst of 1.5 that the undivided rate has saves some of the wait.
        let one = of(1).split.unwrap();
        assert!(one.mean_s.value < one.formula_s, "{one:?}");
    }

    #[test]
    fn the_table_has_the_published_six() {
        let six = costs_at(132.645).into_iter().find(|cost| cost.limiters == 6).unwrap();
        assert_eq!((format!("{:.2}", six.window_refused_per_s).as_str(), six.limit_each), ("9.61", 25));
    }

    #[test]
    fn above_the_rate_the_wait_has_no_end() {
        assert!(costs_at(150.0).iter().all(|cost| cost.split.is_none()));
    }

    #[test]
    fn no_more_limiters_are_shown_than_there_are_requests() {
        let kind = Kind::Window;
        let tight = Limiter { rate_per_s: 3.0, limit: 4, window_s: 1.0, limiters: 2, retries: 0, kind };
        assert_eq!(costs(&tight, 1).iter().map(|cost| cost.limiters).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
