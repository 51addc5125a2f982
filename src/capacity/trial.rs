//! Owns the simulation of limiters: one request after the other, against the same question as the formulas.
//! Must never know: the formulas.

use serde::Serialize;

use super::limiter::{Kind, Limiter};
use super::sample::{Draw, Estimate, PARTS};

/// Where a refused request asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Again {
    /// At the limiter that refused it.
    Same,
    /// At any of them, that one too.
    Random,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Counted {
    /// Where retries went.
    pub again: Again,
    /// Windows gone through.
    pub windows: u64,
    /// Window: the share of windows in which a limiter was asked (retries not counted) more than its limit. Bucket: the
    /// share of first requests refused.
    pub over_share: Estimate,
    /// Window: requests in an exceeded window.
    pub mean_when_over: Option<Estimate>,
    /// Refusals per second.
    pub refused_per_s: Estimate,
    /// Requests per second that passed.
    pub served_per_s: Estimate,
    /// Exceeded windows, or first requests refused: what the figures above rest on.
    pub seen: f64,
}

/// Requests a simulation draws when nobody says how many windows.
const ENOUGH: f64 = 3e6;

/// Windows enough for about three million requests, within bounds.
#[must_use]
pub fn enough_windows(limiter: &Limiter) -> u64 {
    let windows = ENOUGH / (limiter.rate_per_s * limiter.window_s);
    let most = 2e7 / limiter.limiters as f64;
    windows.min(most).clamp(5.0 * PARTS as f64, 400_000.0) as u64
}

/// What one part of the time saw.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    arrived: f64,
    served: f64,
    refused: f64,
    first_refused: f64,
    exceeded: f64,
    in_exceeded: f64,
}

/// The limiters: how much each has given out in this window, or holds.
#[derive(Debug)]
struct Limiters {
    kind: Kind,
    limit: f64,
    per_s: f64,
    burst: f64,
    /// Window: requests let through. Bucket: requests it holds.
    level: Vec<f64>,
    /// Bucket: when that was, s.
    at: Vec<f64>,
    /// First requests in this window.
    asked: Vec<f64>,
}

impl Limiters {
    fn new(limiter: &Limiter) -> Self {
        let n = limiter.limiters as usize;
        let burst = if let Kind::Bucket { burst } = limiter.kind { (burst / limiter.limiters) as f64 } else { 0.0 };
        let limit = limiter.limit_each() as f64;
        Self {
            kind: limiter.kind,
            limit,
            per_s: limit / limiter.window_s,
            burst,
            level: vec![burst; n],
            at: vec![0.0; n],
            asked: vec![0.0; n],
        }
    }

    fn admits(&mut self, i: usize, now: f64) -> bool {
        match self.kind {
            Kind::Window => {
                let fits = self.level[i] < self.limit;
                self.level[i] += f64::from(u8::from(fits));
                fits
            }
            Kind::Bucket { .. } => {
                self.level[i] = (self.level[i] + (now - self.at[i]) * self.per_s).min(self.burst);
                self.at[i] = now;
                let fits = self.level[i] >= 1.0;
                self.level[i] -= f64::from(u8::from(fits));
                fits
            }
        }
    }

    /// Ends the window.
    fn close(&mut self, part: &mut Part) {
        for asked in &mut self.asked {
            if *asked > self.limit {
                part.exceeded += 1.0;
                part.in_exceeded += *asked;
            }
            *asked = 0.0;
        }
        if self.kind == Kind::Window {
            self.level.fill(0.0);
        }
    }
}

/// Runs `windows` windows (rounded up to whole parts) after a tenth as many that are not counted, for buckets to forget
/// that they began full.
#[must_use]
pub fn run(limiter: &Limiter, again: Again, windows: u64, seed: u64) -> Counted {
    let each = windows.div_ceil(PARTS as u64).max(1);
    let before = (each * PARTS as u64).div_ceil(10);
    let mut parts = [Part::default(); PARTS];
    let mut unseen = Part::default();
    let mut limiters = Limiters::new(limiter);
    let mut draw = Draw::seeded(seed);
    let (mut now, mut window) = (0.0, 0);
    loop {
        now += draw.gap(limiter.rate_per_s);
        let next = (now / limiter.window_s) as u64;
        if next > window {
            limiters.close(part_of(window, before, each, &mut parts, &mut unseen));
            window = next;
        }
        if window >= before + each * PARTS as u64 {
            return counted(limiter, again, each, &parts);
        }
        let part = part_of(window, before, each, &mut parts, &mut unseen);
        one(&mut limiters, part, (limiter.retries, again, now), &mut draw);
    }
}

fn part_of<'a>(window: u64, before: u64, each: u64, parts: &'a mut [Part], unseen: &'a mut Part) -> &'a mut Part {
    match window.checked_sub(before) {
        Some(counted) => parts.get_mut((counted / each) as usize).unwrap_or(unseen),
        None => unseen,
    }
}

/// One request with its retries.
fn one(limiters: &mut Limiters, part: &mut Part, (retries, again, now): (u32, Again, f64), draw: &mut Draw) {
    let n = limiters.asked.len();
    let mut at = draw.below(n);
    limiters.asked[at] += 1.0;
    part.arrived += 1.0;
    for attempt in 0..=retries {
        if limiters.admits(at, now) {
            part.served += 1.0;
            return;
        }
        part.refused += 1.0;
        part.first_refused += f64::from(u8::from(attempt == 0));
        if again == Again::Random {
            at = draw.below(n);
        }
    }
}

fn counted(limiter: &Limiter, again: Again, each: u64, parts: &[Part]) -> Counted {
    let seconds = each as f64 * limiter.window_s;
    let limiter_windows = each as f64 * limiter.limiters as f64;
    let ratio = |pair: &dyn Fn(&Part) -> (f64, f64)| Estimate::ratio(&parts.iter().map(pair).collect::<Vec<_>>());
    let none = Estimate { value: 0.0, within: 0.0 };
    let sum = |of: fn(&Part) -> f64| parts.iter().map(of).sum::<f64>();
    let window = limiter.kind == Kind::Window;
    let share = if window {
        ratio(&|part| (part.exceeded, limiter_windows))
    } else {
        ratio(&|part| (part.first_refused, part.arrived))
    };
    Counted {
        again,
        windows: each * PARTS as u64,
        over_share: share.unwrap_or(none),
        mean_when_over: if window { ratio(&|part| (part.in_exceeded, part.exceeded)) } else { None },
        refused_per_s: ratio(&|part| (part.refused, seconds)).unwrap_or(none),
        served_per_s: ratio(&|part| (part.served, seconds)).unwrap_or(none),
        seen: if window { sum(|part| part.exceeded) } else { sum(|part| part.first_refused) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::sample::Verdict;

    fn limiter(limiters: u64, retries: u32, kind: Kind) -> Limiter {
        Limiter { rate_per_s: 132.645, limit: 150, window_s: 1.0, limiters, retries, kind }
    }

    #[test]
    fn every_formula_lies_in_the_interval_of_its_simulation() {
        let busy = Limiter { rate_per_s: 170.0, window_s: 0.5, limit: 80, ..limiter(4, 2, Kind::Window) };
        let small = Kind::Bucket { burst: 12 };
        let cases = [
            limiter(1, 0, Kind::Window),
            limiter(1, 1, Kind::Window),
            limiter(6, 1, Kind::Window),
            busy,
            Limiter { kind: small, ..busy },
            limiter(6, 1, Kind::Bucket { burst: 30 }),
            limiter(3, 0, small),
        ];
        for (i, limiter) in cases.iter().enumerate() {
            let (said, seen) = (limiter.refusals(), run(limiter, Again::Same, 5_000, i as u64));
            let agrees = |estimate: Estimate, formula| {
                assert_eq!(estimate.says_of(formula, seen.seen), Verdict::Agrees, "{limiter:?} {said:?} {seen:?}");
            };
            agrees(seen.over_share, said.over_share);
            agrees(seen.refused_per_s, said.refused_per_s);
            agrees(seen.served_per_s, said.served_per_s);
            if let (Some(estimate), Some(formula)) = (seen.mean_when_over, said.mean_when_over) {
                agrees(estimate, formula);
            }
        }
    }

    #[test]
    fn an_interval_is_narrow_enough_to_tell_the_published_counting_from_ours() {
        let limiter = limiter(6, 1, Kind::Window);
        let (said, seen) = (limiter.refusals(), run(&limiter, Again::Same, 8_000, 1));
        let from_next = said.refused_from_next_per_s.unwrap();
        assert_eq!(seen.refused_per_s.says_of(from_next, seen.seen), Verdict::Differs);
    }

    #[test]
    fn a_retry_elsewhere_saves_some_that_one_at_the_same_place_cannot() {
        for kind in [Kind::Window, Kind::Bucket { burst: 12 }] {
            let limiter = limiter(6, 1, kind);
            let (same, random) = (run(&limiter, Again::Same, 2_000, 1), run(&limiter, Again::Random, 2_000, 1));
            assert!(random.served_per_s.value > same.served_per_s.value + 0.5, "{same:?} {random:?}");
            assert!(random.refused_per_s.value < same.refused_per_s.value, "{same:?} {random:?}");
        }
    }

    #[test]
    fn with_one_limiter_there_is_no_elsewhere() {
        let limiter = limiter(1, 1, Kind::Window);
        let (same, random) = (run(&limiter, Again::Same, 2_000, 1), run(&limiter, Again::Random, 2_000, 2));
        let apart = (same.refused_per_s.value - random.refused_per_s.value).abs();
        assert!(apart <= same.refused_per_s.within + random.refused_per_s.within, "{same:?} {random:?}");
    }

    #[test]
    fn the_same_seed_counts_the_same() {
        let limiter = limiter(6, 1, Kind::Window);
        assert_eq!(run(&limiter, Again::Random, 800, 9), run(&limiter, Again::Random, 800, 9));
        assert_ne!(run(&limiter, Again::Random, 800, 9), run(&limiter, Again::Random, 800, 10));
    }

    #[test]
    fn the_work_is_bounded_whatever_is_asked() {
        let slow = Limiter { rate_per_s: 0.01, ..limiter(1, 0, Kind::Window) };
        let fast = Limiter { rate_per_s: 1e6, ..slow };
        assert_eq!((enough_windows(&slow), enough_windows(&fast)), (400_000, 200));
    }
}
