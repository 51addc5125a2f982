//! Owns how many grants to ask for at once: enough that no attempt waits for a round trip, few enough that what an
//! instance cannot use is not taken from the others.
//! Must never know: where grants come from, or any clock (time is an argument).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How far back use is counted.
const LOOK_BACK: Duration = Duration::from_millis(20);
/// Finest step of the count.
const STEP: Duration = Duration::from_millis(5);
/// Most that is asked for at once, as time at the full ceiling.
const LARGEST_ASK_S: f64 = 0.010;
/// Asked for without any use to go by: a cold start.
const FIRST_ASK: u64 = 4;
/// So many forfeited without one used: two cold starts' worth. One can be lost to a machine that stood still.
const STARVED: u64 = 2 * FIRST_ASK;

/// What was used lately.
#[derive(Debug)]
pub struct Demand {
    /// Grants used by then, oldest first; never empty.
    marks: VecDeque<(Instant, u64)>,
    /// Used and forfeited when the last use was seen.
    last_use: (u64, u64),
}

impl Demand {
    /// Nothing used so far.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { marks: VecDeque::from([(now, 0)]), last_use: (0, 0) }
    }

    /// Whether grants were forfeited again and again and none was used since: this instance lacks something else (its
    /// provider has stalled, say), and what it took now would be wasted for the others. Both are counts since the start.
    pub const fn is_starving(&mut self, used: u64, forfeited: u64) -> bool {
        if used != self.last_use.0 {
            self.last_use = (used, forfeited);
        }
        forfeited - self.last_use.1 >= STARVED
    }

    /// Grants used within the last 20 ms; `total` is what was used since the start.
    pub fn recent(&mut self, total: u64, now: Instant) -> u64 {
        let newest = self.marks.back().map_or(now, |mark| mark.0);
        if now.saturating_duration_since(newest) >= STEP {
            self.marks.push_back((now, total));
        }
        while self.marks.get(1).is_some_and(|mark| mark.0 + LOOK_BACK <= now) {
            self.marks.pop_front();
        }
        total - self.marks.front().map_or(total, |mark| mark.1.min(total))
    }
}

/// How many to ask for: no more than `wanted`, than 10 ms at `rate_per_s`, than twice the `recent` use.
#[must_use]
pub fn ask(wanted: u64, recent: u64, rate_per_s: f64) -> u32 {
    let largest = (rate_per_s * LARGEST_ASK_S).max(1.0) as u64;
    let ask = wanted.min(largest).min((2 * recent).max(FIRST_ASK));
    u32::try_from(ask).unwrap_or(u32::MAX)
}

/// Whether `wanted` is worth a round trip now: a millisecond's use. Less can wait that long, so that a busy
/// instance makes at most about a thousand calls a second, however its wants trickle in.
#[must_use]
pub const fn is_worth_asking(wanted: u64, recent: u64) -> bool {
    wanted >= recent / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_cold_start_asks_for_a_few_and_doubles_with_use() {
        assert_eq!(ask(1_000, 0, 9_000.0), 4);
        assert_eq!(ask(1_000, 4, 9_000.0), 8);
        assert_eq!(ask(1_000, 30, 9_000.0), 60);
        assert_eq!(ask(1_000, 500, 9_000.0), 90, "10 ms of the rate at most");
        assert_eq!(ask(3, 500, 9_000.0), 3, "never more than wanted");
        assert_eq!(ask(1_000, 500, 20.0), 1, "a slow ceiling is asked one by one");
    }

    #[test]
    fn use_older_than_20_ms_is_forgotten() {
        let start = Instant::now();
        let mut demand = Demand::new(start);
        for i in 0..100_u64 {
            demand.recent(i, start + MS * i as u32);
        }
        let recent = demand.recent(100, start + 100 * MS);
        assert!((20..=30).contains(&recent), "{recent} within 20 to 30 ms");
        demand.recent(100, start + 300 * MS);
        assert_eq!(demand.recent(100, start + 330 * MS), 0);
    }

    #[test]
    fn an_instance_that_only_forfeits_is_starving_until_it_uses_one() {
        let mut demand = Demand::new(Instant::now());
        assert!(!demand.is_starving(0, 4), "a cold start");
        assert!(!demand.is_starving(10, 30), "some come late in a busy time");
        assert!(!demand.is_starving(10, 37));
        assert!(demand.is_starving(10, 38));
        assert!(demand.is_starving(10, 38), "it has used none since");
        assert!(!demand.is_starving(11, 39));
        assert!(!demand.is_starving(11, 46));
    }

    #[test]
    fn a_busy_instance_saves_round_trips_and_a_quiet_one_waits_for_nothing() {
        assert!(is_worth_asking(1, 0));
        assert!(is_worth_asking(1, 39));
        assert!(!is_worth_asking(8, 180));
        assert!(is_worth_asking(9, 180));
    }
}
