//! Owns what becomes of a course of events at a given rate: who is sent to in time, and the rate it takes.
//! Must never know: slots, answers, retries; it only sends, at the rate, in the order the service claims in: the more
//! urgent class first, then by rank (accepted + sent / rate). The floor of 5 % that bulk has is left out.

use serde::Serialize;

use super::sample::{Estimate, PARTS};
use super::season::{Event, Kind};

/// What became of one kind of event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fate {
    /// Its name.
    pub name: String,
    /// Events in one course, on average.
    pub events: f64,
    /// Their recipients, on average.
    pub recipients: f64,
    /// The share of recipients not sent to while it was useful: P(deadline missed).
    pub missed: Estimate,
}

/// Highest rate looked at, requests per second: the highest the configuration takes.
const HIGHEST: f64 = 1_000_000.0;

/// The courses of a season.
#[derive(Debug)]
pub struct Rush<'a> {
    kinds: &'a [Kind],
    courses: Vec<Vec<Event>>,
}

/// Recipients of one kind in one course: all, and those missed.
type Share = (f64, f64);

impl<'a> Rush<'a> {
    /// [`PARTS`] courses, as drawn by `course`.
    #[must_use]
    pub fn new(kinds: &'a [Kind], mut course: impl FnMut() -> Vec<Event>) -> Self {
        Self { kinds, courses: (0..PARTS).map(|_| course()).collect() }
    }

    /// What becomes of each kind at this rate.
    #[must_use]
    pub fn at(&self, per_s: f64) -> Vec<Fate> {
        let shares: Vec<Vec<Share>> = self.courses.iter().map(|course| send(course, self.kinds, per_s)).collect();
        let fate = |(i, kind): (usize, &Kind)| {
            let parts: Vec<(f64, f64)> = shares.iter().map(|share| (share[i].1, share[i].0)).collect();
            let events = self.courses.iter().flatten().filter(|event| event.kind == i).count();
            Fate {
                name: kind.name.clone(),
                events: events as f64 / self.courses.len() as f64,
                recipients: parts.iter().map(|part| part.1).sum::<f64>() / self.courses.len() as f64,
                missed: Estimate::ratio(&parts).unwrap_or(Estimate { value: 0.0, within: 0.0 }),
            }
        };
        self.kinds.iter().enumerate().map(fate).collect()
    }

    /// The least rate at which no kind misses more than this share, to 1 %; `None` when no rate does.
    #[must_use]
    pub fn needed(&self, missed: f64) -> Option<f64> {
        let enough = |per_s: f64| self.is_enough(per_s, missed);
        let mut high = 1.0;
        while !enough(high) {
            high *= 2.0;
            if high > HIGHEST {
                return None;
            }
        }
        let mut low = high / 2.0;
        while high > low * 1.01 {
            let middle = (low + high) / 2.0;
            if enough(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// Whether no kind misses more than this share; given up at the first course that is too much for all of them.
    fn is_enough(&self, per_s: f64, missed: f64) -> bool {
        let mut may_miss = vec![0.0; self.kinds.len()];
        for event in self.courses.iter().flatten() {
            may_miss[event.kind] += missed * event.recipients as f64;
        }
        let mut within = |course: &Vec<Event>| {
            let shares = send(course, self.kinds, per_s);
            may_miss.iter_mut().zip(shares).all(|(left, share)| {
                *left -= share.1;
                // What is left of sums of this size by rounding is nobody.
                *left >= -1e-3
            })
        };
        self.courses.iter().all(&mut within)
    }
}

/// A fan-out under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    event: Event,
    sent: f64,
    until_s: f64,
}

/// Sends one course; for each kind its recipients and those it missed.
fn send(course: &[Event], kinds: &[Kind], per_s: f64) -> Vec<Share> {
    let mut shares = vec![(0.0, 0.0); kinds.len()];
    let mut open: Vec<Open> = Vec::new();
    let (mut now, mut next) = (0.0_f64, 0);
    loop {
        if open.is_empty() {
            let Some(event) = course.get(next) else { return shares };
            now = now.max(event.at_s);
        }
        while let Some(event) = course.get(next).filter(|event| event.at_s <= now) {
            shares[event.kind].0 += event.recipients as f64;
            open.push(Open { event: *event, sent: 0.0, until_s: event.at_s + kinds[event.kind].useful_for_s });
            next += 1;
        }
        open.retain(|fanout| {
            let late = now >= fanout.until_s;
            if late {
                shares[fanout.event.kind].1 += fanout.event.recipients as f64 - fanout.sent;
            }
            !late
        });
        let rank = |fanout: &Open| (kinds[fanout.event.kind].urgency, fanout.event.at_s + fanout.sent / per_s);
        let first = (0..open.len()).min_by(|a, b| {
            let (a, b) = (rank(&open[*a]), rank(&open[*b]));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let Some(first) = first else { continue };
        now += step(&mut open[first], now, per_s);
        if open[first].sent >= open[first].event.recipients as f64 {
            open.swap_remove(first);
        }
    }
}

/// Sends the next part of one: a chunk, or a tenth of a second, or a twentieth of what is left, but never past its
/// deadline. The time that takes.
fn step(fanout: &mut Open, now: f64, per_s: f64) -> f64 {
    let left = fanout.event.recipients as f64 - fanout.sent;
    let part = (per_s / 10.0).max(500.0).max(left / 20.0).min(per_s).min(left);
    // Below a second's worth of a very low rate, at least one recipient at a time.
    let seconds = (part.max(1.0_f64.min(left)) / per_s).min(fanout.until_s - now);
    fanout.sent = (fanout.sent + seconds * per_s).min(fanout.event.recipients as f64);
    if left - seconds * per_s < 1e-6 {
        fanout.sent = fanout.event.recipients as f64;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capacity::habits::Habit;

    fn kind(name: &str, urgency: u8, useful_for_s: f64) -> Kind {
        let habit = Habit { per_match: 1.0, scheduled: true, from: 0, to: 0, reach: 1.0 };
        Kind { name: name.into(), urgency, useful_for_s, habit }
    }

    fn kinds() -> Vec<Kind> {
        vec![kind("goal", 0, 120.0), kind("corner", 1, 20.0), kind("full_time", 2, 3_600.0)]
    }

    fn event(at_s: f64, kind: usize, recipients: u64) -> Event {
        Event { at_s, kind, recipients }
    }

    fn missed(course: &[Event], per_s: f64) -> Vec<f64> {
        let kinds = kinds();
        let fates = Rush::new(&kinds, || course.to_vec()).at(per_s);
        fates.iter().map(|fate| fate.missed.value).collect()
    }

    #[test]
    fn what_does_not_fit_before_the_deadline_is_missed() {
        // 1,000/s for 120 s are 120,000 of 160,000.
        let share = missed(&[event(0.0, 0, 160_000)], 1_000.0)[0];
        assert!((share - 0.25).abs() < 1e-6, "{share}");
        assert_eq!(missed(&[event(0.0, 0, 120_000)], 1_000.0)[0], 0.0);
    }

    #[test]
    fn the_more_urgent_goes_first_and_the_rest_has_what_is_left() {
        // The corner has 20 s; a goal of 15,000 takes 15 of them.
        let course = [event(0.0, 1, 20_000), event(0.0, 0, 15_000), event(0.0, 2, 100_000)];
        let share = missed(&course, 1_000.0);
        assert_eq!((share[0], share[2]), (0.0, 0.0));
        assert!((share[1] - 0.75).abs() < 0.06, "{share:?}");
    }

    #[test]
    fn two_of_one_class_share_the_rate_and_the_later_one_does_not_wait_for_all_of_the_first() {
        let course = [event(0.0, 0, 130_000), event(60.0, 0, 500)];
        let share = missed(&course, 1_000.0)[0];
        assert!((share - 10_500.0 / 130_500.0).abs() < 1e-3, "only the large one is late: {share}");
    }

    #[test]
    fn the_rate_needed_is_the_least_that_is_enough() {
        let kinds = kinds();
        let course = [event(0.0, 0, 120_000), event(0.0, 1, 1_000)];
        let rush = Rush::new(&kinds, || course.to_vec());
        let needed = rush.needed(0.0).unwrap();
        // The corner waits behind the goal: both have to be done in 20 s.
        assert!((6_050.0..6_120.0).contains(&needed), "{needed}");
        assert!(rush.needed(0.5).unwrap() < needed);
        let never = [event(0.0, 1, 30_000_000)];
        assert_eq!(Rush::new(&kinds, || never.to_vec()).needed(0.0), None);
        for (per_s, missed) in [(6_200.0, 0.0), (5_900.0, 0.0), (3_000.0, 0.5), (1_000.0, 0.01), (1_000.0, 1.0)] {
            let all = rush.at(per_s).iter().all(|fate| fate.missed.value <= missed + 1e-9);
            assert_eq!(rush.is_enough(per_s, missed), all, "{per_s}/s, {missed}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_higher_rate_misses_no_more_of_one_kind_and_nobody_is_counted_twice(
            sizes in prop::collection::vec((0.0..300.0_f64, 1..50_000_u64), 1..8), per_s in 10.0..5_000.0_f64,
        ) {
            let mut course: Vec<Event> = sizes.iter().map(|(at, n)| event(*at, 0, *n)).collect();
            course.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
            let (slow, fast) = (missed(&course, per_s)[0], missed(&course, per_s * 2.0)[0]);
            prop_assert!((0.0..=1.0).contains(&slow), "{slow}");
            prop_assert!(fast <= slow + 1e-6, "{slow} {fast}");
        }
    }
}
