//! Owns the simulation of a fan-out: launches, answers, stalls and lent slots, one event after the other.
//! Must never know: the formulas, or how the service does it. All instances are one pool here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::fanout::Fanout;
use super::sample::{Draw, Estimate, quantile};
use crate::config::Ceiling;

/// What held the launches up, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Brake {
    /// From acceptance to the first request.
    StartUp,
    /// Every slot was taken.
    Slots,
    /// Every stream was taken.
    Streams,
    /// No grant was due.
    Ceiling,
    /// All were launched; ordinary answers were waited for.
    Answers,
    /// All were launched; only stalled answers were waited for.
    Stalls,
}

impl Brake {
    /// In the order of time.
    pub const ALL: [Self; 6] = [Self::StartUp, Self::Slots, Self::Streams, Self::Ceiling, Self::Answers, Self::Stalls];

    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StartUp => "start-up",
            Self::Slots => "slots",
            Self::Streams => "streams",
            Self::Ceiling => "ceiling",
            Self::Answers => "answers",
            Self::Stalls => "stalled answers",
        }
    }
}

/// One fan-out, s from acceptance.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// The last answer.
    pub end_s: f64,
    /// The last answer that did not stall.
    pub others_s: f64,
    /// When 99 % had been answered.
    pub p99_recipient_s: f64,
    /// How many stalled.
    pub stalls: u64,
    /// Most slots lent at once.
    pub lent_peak: u64,
    /// Time by what held it up, in the order of [`Brake::ALL`].
    pub held_s: [f64; 6],
}

/// Many fan-outs, means unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Courses {
    /// How many were simulated.
    pub runs: u64,
    /// The last answer, s; the interval only from 40 runs on.
    pub mean_s: Estimate,
    /// The mean of those in which the mean number of answers stalled (rounded down or up), s; `None` when there are none.
    pub typical_s: Option<f64>,
    /// The middle 90 % of these, s.
    pub from_5_to_95_s: (f64, f64),
    /// 99 % of the fan-outs have ended by then, s.
    pub p99_s: f64,
    /// The last answer that did not stall, s.
    pub others_s: f64,
    /// When 99 % of the recipients had been answered, s.
    pub p99_recipient_s: f64,
    /// Stalls.
    pub stalls: f64,
    /// Most slots lent at once, in any of them.
    pub lent_peak: u64,
    /// Seconds by what held it up.
    pub held_s: Vec<(Brake, f64)>,
}

impl Courses {
    /// What held the launches up longest: the thing to have more of.
    #[must_use]
    pub fn bottleneck(&self) -> Brake {
        let launching = self.held_s.iter().take(4);
        launching.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Brake::StartUp, |(brake, _)| *brake)
    }
}

/// Recipients simulated in all, when nobody says how many runs.
const ENOUGH: u64 = 1_000_000;

/// Runs enough for about a million recipients, 3 to 400.
#[must_use]
pub fn enough_runs(recipients: u64) -> u64 {
    (ENOUGH / recipients.max(1)).clamp(3, 400)
}

/// Simulates `runs` fan-outs.
#[must_use]
pub fn run(fanout: &Fanout, runs: u64, seed: u64) -> Courses {
    let mut draw = Draw::seeded(seed);
    let courses: Vec<Course> = (0..runs.max(1)).map(|_| one(fanout, &mut draw)).collect();
    let n = courses.len() as f64;
    let mean = |of: &dyn Fn(&Course) -> f64| courses.iter().map(of).sum::<f64>() / n;
    let mut ends: Vec<f64> = courses.iter().map(|course| course.end_s).collect();
    let parts: Vec<(f64, f64)> = ends.iter().map(|end| (*end, 1.0)).collect();
    ends.sort_by(f64::total_cmp);
    let stalls = fanout.stall_probability * fanout.recipients as f64;
    let typical = courses.iter().filter(|course| stalls >= 1.0 && (course.stalls as f64 - stalls).abs() < 1.0);
    let typical: Vec<(f64, f64)> = typical.map(|course| (course.end_s, 1.0)).collect();
    Courses {
        runs: courses.len() as u64,
        mean_s: Estimate::ratio(&parts).unwrap_or(Estimate { value: 0.0, within: 0.0 }),
        typical_s: Estimate::ratio(&typical).map(|typical| typical.value),
        from_5_to_95_s: (quantile(&ends, 0.05), quantile(&ends, 0.95)),
        p99_s: quantile(&ends, 0.99),
        others_s: mean(&|course| course.others_s),
        p99_recipient_s: mean(&|course| course.p99_recipient_s),
        stalls: mean(&|course| course.stalls as f64),
        lent_peak: courses.iter().map(|course| course.lent_peak).max().unwrap_or(0),
        held_s: Brake::ALL.iter().enumerate().map(|(i, brake)| (*brake, mean(&|course| course.held_s[i]))).collect(),
    }
}

/// What happens to an attempt, or to nobody: the time of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Grant,
    Landed(usize),
    Old(usize),
}

/// An attempt.
#[derive(Debug, Clone, Copy, Default)]
struct Attempt {
    stalls: bool,
    old: bool,
    lent: bool,
}

/// A fan-out under way. Times are whole nanoseconds, so that they have an order.
#[derive(Debug)]
struct Field<'a> {
    fanout: &'a Fanout,
    slots: usize,
    streams: usize,
    may_lend: usize,
    every: f64,
    burst: f64,
    next_grant: f64,
    /// Whether the time of the next grant is among the events already.
    awaited: bool,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    attempts: Vec<Attempt>,
    flying: usize,
    ordinary: usize,
    old: Vec<usize>,
    lent: usize,
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

fn one(fanout: &Fanout, draw: &mut Draw) -> Course {
    let mut field = Field::new(fanout);
    let recipients = fanout.recipients as usize;
    let mut ends = Vec::with_capacity(recipients);
    let mut course = Course {
        end_s: 0.0,
        others_s: 0.0,
        p99_recipient_s: 0.0,
        stalls: 0,
        lent_peak: 0,
        held_s: [fanout.start_up_s, 0.0, 0.0, 0.0, 0.0, 0.0],
    };
    let mut now = nanos(fanout.start_up_s);
    let mut brake = field.launch(now, draw);
    while let Some(Reverse((at, event))) = field.events.pop() {
        course.held_s[brake as usize] += (at - now) as f64 / 1e9;
        now = at;
        if let Event::Landed(i) = event {
            let seconds = now as f64 / 1e9;
            ends.push(seconds);
            course.end_s = seconds;
            if field.attempts[i].stalls { course.stalls += 1 } else { course.others_s = seconds }
        }
        field.happens(event);
        field.lend();
        course.lent_peak = course.lent_peak.max(field.lent as u64);
        brake = field.launch(now, draw);
    }
    course.p99_recipient_s = quantile(&ends, 0.99);
    course
}

impl<'a> Field<'a> {
    fn new(fanout: &'a Fanout) -> Self {
        let n = fanout.instances as usize;
        let ceiling = Ceiling { rate_per_s: fanout.ceiling_per_s, quota_per_minute: 0 };
        Self {
            fanout,
            slots: fanout.slots as usize * n,
            streams: fanout.in_streams() as usize * n,
            may_lend: fanout.lent as usize * n,
            every: 1e9 / fanout.ceiling_per_s,
            burst: ceiling.burst() - 1.0,
            next_grant: 0.0,
            awaited: false,
            events: BinaryHeap::new(),
            attempts: Vec::new(),
            flying: 0,
            ordinary: 0,
            old: Vec::new(),
            lent: 0,
        }
    }

    /// Takes the event in.
    fn happens(&mut self, event: Event) {
        match event {
            Event::Grant => self.awaited = false,
            Event::Landed(i) => {
                let attempt = self.attempts[i];
                self.flying -= 1;
                self.ordinary -= usize::from(!attempt.stalls);
                self.lent -= usize::from(attempt.lent);
                if attempt.old {
                    self.old.retain(|old| *old != i);
                }
            }
            Event::Old(i) => {
                self.attempts[i].old = true;
                self.old.push(i);
            }
        }
    }

    fn free(&self) -> usize {
        (self.slots + self.lent).saturating_sub(self.flying)
    }

    /// Lends slots of old attempts out, unless so many are old that the provider is slow (law 12).
    fn lend(&mut self) {
        for i in 0..self.old.len() {
            let slow = self.old.len() * 4 > self.slots + self.lent;
            let asks = self.old.len() == self.flying && self.free() == 0;
            if self.lent >= self.may_lend || (slow && !asks) {
                return;
            }
            let attempt = &mut self.attempts[self.old[i]];
            if !attempt.lent {
                attempt.lent = true;
                self.lent += 1;
            }
        }
    }

    /// Launches what can be; what holds up the rest.
    fn launch(&mut self, now: u64, draw: &mut Draw) -> Brake {
        while (self.attempts.len() as u64) < self.fanout.recipients {
            if self.flying >= self.streams {
                return Brake::Streams;
            }
            if self.free() == 0 {
                return Brake::Slots;
            }
            let due = self.next_grant.max(now as f64 - self.burst * self.every);
            if due > now as f64 {
                if !self.awaited {
                    self.awaited = true;
                    self.events.push(Reverse((due.ceil() as u64, Event::Grant)));
                }
                return Brake::Ceiling;
            }
            self.next_grant = due + self.every;
            self.fly(now, draw);
        }
        if self.ordinary > 0 { Brake::Answers } else { Brake::Stalls }
    }

    fn fly(&mut self, now: u64, draw: &mut Draw) {
        let i = self.attempts.len();
        let stalls = self.fanout.stall_probability > 0.0 && draw.unit() <= self.fanout.stall_probability;
        let takes = if stalls { self.fanout.stall_s } else { self.fanout.latency.draw(draw) };
        self.events.push(Reverse((now + nanos(takes), Event::Landed(i))));
        if takes > self.fanout.stall_after_s {
            self.events.push(Reverse((now + nanos(self.fanout.stall_after_s), Event::Old(i))));
        }
        self.attempts.push(Attempt { stalls, ..Attempt::default() });
        self.flying += 1;
        self.ordinary += usize::from(!stalls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::fanout::tests::published;
    use crate::capacity::latency::Latency;

    #[test]
    fn the_published_fan_out_happens_as_it_did() {
        let calm = run(&published(0.0), 3, 1);
        assert!((2.85..2.95).contains(&calm.mean_s.value), "{calm:?}");
        let stalled = run(&published(4.5), 400, 1);
        let (from, to) = stalled.from_5_to_95_s;
        assert!((17.6..18.1).contains(&stalled.typical_s.unwrap()), "with 4 or 5 stalls: {stalled:?}");
        assert!(from < 17.6 && (18.1..18.6).contains(&to), "the published 17.6 to 18.1 s lie in it: {stalled:?}");
        assert!((4.2..4.8).contains(&stalled.stalls), "{stalled:?}");
        assert_eq!(stalled.bottleneck(), Brake::Slots);
    }

    #[test]
    fn the_formula_is_near_what_happens() {
        let many = Fanout { recipients: 20_000, slots: 64, ..published(0.0) };
        let cases = [
            published(0.0),
            published(4.5),
            Fanout { lent: 16, ..published(4.5) },
            Fanout { ceiling_per_s: 300.0, ..published(0.0) },
            Fanout { latency: Latency::with_p99(0.04, 0.2).unwrap(), ..published(0.0) },
            Fanout { stall_probability: 0.002, ..many },
            Fanout { stall_probability: 0.002, lent: 32, ..many },
            Fanout { instances: 3, connections: 2, slots: 150, ..many },
            Fanout { recipients: 5, start_up_s: 0.3, ..published(0.0) },
        ];
        for fanout in cases {
            let (said, seen) = (fanout.duration(), run(&fanout, if fanout.recipients > 2_000 { 8 } else { 100 }, 3));
            let off = said.mean_s / seen.mean_s.value - 1.0;
            assert!(off.abs() < 0.08, "{off:.3} {fanout:?} {said:?} {seen:?}");
        }
    }

    #[test]
    fn lent_slots_keep_the_others_going() {
        let stalling = Fanout { recipients: 20_000, stall_probability: 0.0015, ..published(0.0) };
        let calm = run(&Fanout { stall_probability: 0.0, ..stalling }, 1, 1);
        let (strict, lent) = (run(&stalling, 5, 1), run(&Fanout { lent: 16, ..stalling }, 5, 1));
        let cost = |of: &Courses| of.others_s - calm.others_s;
        assert!(cost(&strict) > 5.0 && cost(&lent) < 0.5 * cost(&strict), "{lent:?} {strict:?}");
        assert!(strict.lent_peak == 0 && (1..=16).contains(&lent.lent_peak), "{lent:?}");
    }

    #[test]
    fn a_slow_provider_is_not_lent_to() {
        // All answers are old: over a quarter, so that only the one slot that asks is lent, again and again.
        let slow = Fanout { latency: Latency::constant(3.0), lent: 16, recipients: 320, ..published(0.0) };
        let (lent, strict) = (run(&slow, 1, 1), run(&slow.strict(), 1, 1));
        assert!(lent.mean_s.value > 0.6 * strict.mean_s.value, "{lent:?} {strict:?}");
    }

    #[test]
    fn the_bottleneck_has_the_name_of_what_is_short() {
        let base = Fanout { recipients: 9_000, slots: 200, connections: 4, ..published(0.0) };
        let cases = [
            (base, Brake::Slots),
            (Fanout { connections: 1, ..base }, Brake::Streams),
            (Fanout { ceiling_per_s: 500.0, ..base }, Brake::Ceiling),
            (Fanout { recipients: 100, start_up_s: 0.2, ..base }, Brake::StartUp),
        ];
        for (fanout, brake) in cases {
            let seen = run(&fanout, 1, 1);
            assert_eq!(seen.bottleneck(), brake, "{seen:?}");
            let held: f64 = seen.held_s.iter().map(|(_, held)| held).sum();
            assert!((held - seen.mean_s.value).abs() < 1e-6, "all time has a name: {seen:?}");
        }
    }

    #[test]
    fn no_second_has_more_launches_than_the_ceiling_and_its_burst() {
        let fanout =
            Fanout { recipients: 3_000, slots: 3_000, connections: 30, ceiling_per_s: 1_000.0, ..published(0.0) };
        let seen = run(&fanout, 1, 1);
        assert!((2.99..3.01 + 0.091).contains(&seen.mean_s.value), "{seen:?}");
    }

    #[test]
    fn the_same_seed_takes_the_same_course() {
        assert_eq!(run(&published(4.5), 5, 7), run(&published(4.5), 5, 7));
        assert_ne!(run(&published(4.5), 5, 7), run(&published(4.5), 5, 8));
    }
}
