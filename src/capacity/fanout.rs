//! Owns how long a fan-out takes: the formulas.
//! Must never know: how one is done, or how the formulas are checked (`course` does that).
//!
//! Little's law is all there is to it: what is in flight = rate x time in flight. So `slots` in flight at 91 ms are 352
//! requests a second, whatever anybody meant by "32". A stall holds its slot for its whole time; lending gives the slot
//! to somebody else after `stall_after`.

use serde::Serialize;

use super::latency::Latency;
use super::limiter::Impossible;
use crate::config::Ceiling;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fanout {
    /// Recipients.
    pub recipients: u64,
    /// Attempts in flight at one instance.
    pub slots: u64,
    /// Of these, how many stalled ones may lend their slot out; 0 = strict.
    pub lent: u64,
    /// Age at which an attempt has stalled, s.
    pub stall_after_s: f64,
    /// How long an answer takes.
    pub latency: Latency,
    /// Share of answers that stall.
    pub stall_probability: f64,
    /// How long those take, s.
    pub stall_s: f64,
    /// HTTP/2 connections of one instance.
    pub connections: u64,
    /// Streams of one connection.
    pub streams: u64,
    /// Requests per second of all instances together.
    pub ceiling_per_s: f64,
    /// Instances that work on it.
    pub instances: u64,
    /// From acceptance to the first request, s.
    pub start_up_s: f64,
}

/// What comes out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Duration {
    /// Requests per second the slots allow when nothing stalls (Little's law), all instances together.
    pub slots_per_s: f64,
    /// The same for the streams.
    pub streams_per_s: f64,
    /// From acceptance to the last answer when nothing stalls, s.
    pub calm_s: f64,
    /// The same with stalls, mean over many fan-outs, s.
    pub mean_s: f64,
    /// The same when exactly the mean number of them stalls, s; `None` when that is below one.
    pub typical_s: Option<f64>,
    /// When 99 % of the recipients have been answered, s.
    pub p99_recipient_s: f64,
    /// Stalls in one fan-out, on average.
    pub stalls: f64,
}

impl Fanout {
    /// Checks what the parts cannot say alone.
    ///
    /// # Errors
    /// [`Impossible`] names the option and what to write instead.
    pub fn check(&self) -> Result<(), Impossible> {
        if self.lent > self.slots {
            let (lent, slots) = (self.lent, self.slots);
            return Err(Impossible(format!("--lent {lent}: only {slots} slots are there; lend at most all of them")));
        }
        if self.stall_probability > 0.0 && self.stall_s < self.stall_after_s {
            return Err(Impossible(format!(
                "--stall-time {} s is shorter than what counts as a stall ({} s): raise it, or make it part of --latency-p99",
                self.stall_s, self.stall_after_s
            )));
        }
        Ok(())
    }

    /// The same without lending.
    #[must_use]
    pub const fn strict(self) -> Self {
        Self { lent: 0, ..self }
    }

    /// Attempts in flight that all instances together can hold, when nothing is lent.
    #[must_use]
    pub fn at_once(&self) -> f64 {
        self.slots.min(self.in_streams()) as f64 * self.instances as f64
    }

    /// Streams of one instance.
    #[must_use]
    pub const fn in_streams(&self) -> u64 {
        self.connections * self.streams
    }

    /// The formulas.
    #[must_use]
    pub fn duration(&self) -> Duration {
        let mean = self.latency.mean_s;
        let n = self.instances as f64;
        let calm_launches = self.launches(0.0, 0.0);
        let (holding, held) = self.after_lending(calm_launches);
        let launches = self.launches(holding, held);
        let tail = self.latency.slowest_of(self.at_once().min(self.recipients as f64));
        let stalls = self.stall_probability * self.recipients as f64;
        Duration {
            slots_per_s: self.slots as f64 * n / mean,
            streams_per_s: self.in_streams() as f64 * n / mean,
            calm_s: self.start_up_s + calm_launches + tail,
            mean_s: self.start_up_s + end_with_stalls(launches, launches + tail, self.stall_s, stalls),
            typical_s: (stalls >= 1.0)
                .then(|| self.start_up_s + end_with_exactly(launches, launches + tail, self.stall_s, stalls)),
            p99_recipient_s: self.start_up_s + self.answered(0.99, launches),
            stalls,
        }
    }

    /// The time from the first to the last launch, when a share `p` of attempts holds its slot for `held` s, s.
    fn launches(&self, p: f64, held: f64) -> f64 {
        let (at_once, mean) = (self.at_once(), self.latency.mean_s);
        let waiting = (self.recipients as f64 - at_once).max(0.0);
        // Stalls that outlast the fan-out take one slot after the other out: ds/dn = -p.
        let shrinking = if p * waiting >= at_once {
            f64::INFINITY
        } else if p > 0.0 {
            mean / p * -(1.0 - p * waiting / at_once).ln()
        } else {
            waiting * mean / at_once
        };
        // Those that come back sooner only make the mean attempt longer.
        let steady = waiting * ((1.0 - p) * mean + p * held) / at_once;
        let by_slots = if held >= shrinking { shrinking } else { steady };
        let burst = Ceiling { rate_per_s: self.ceiling_per_s, quota_per_minute: 0 }.burst();
        by_slots.max((self.recipients as f64 - burst) / self.ceiling_per_s)
    }

    /// The share of attempts that hold a slot longer than an answer takes, and how long, with lending.
    fn after_lending(&self, launches: f64) -> (f64, f64) {
        let p = self.stall_probability;
        let beyond = self.stall_s - self.stall_after_s;
        // Old at the same time: as many as stall while one is old, or in the whole fan-out.
        let rate = if launches > 0.0 { self.recipients as f64 / launches } else { 0.0 };
        let old = p * (rate * beyond).min(self.recipients as f64) / self.instances as f64;
        // Over a quarter of slots + lent old is a slow provider: lending ends at a third of the slots.
        let may = (self.lent as f64).min(self.slots as f64 / 3.0);
        let not_lent = if old > may { 1.0 - may / old } else { 0.0 };
        (p, if p > 0.0 { self.stall_after_s.min(self.stall_s) + beyond * not_lent } else { 0.0 })
    }

    /// When this share has been answered, with launches spread evenly over `launches` s.
    fn answered(&self, share: f64, launches: f64) -> f64 {
        let done = |now: f64, after: f64| {
            let since = now - after;
            if launches > 0.0 { (since / launches).clamp(0.0, 1.0) } else { f64::from(u8::from(since >= 0.0)) }
        };
        let p = self.stall_probability;
        let (mut low, mut high) = (0.0, launches + self.stall_s + self.latency.mean_s);
        for _ in 0..60 {
            let now = (low + high) / 2.0;
            let reached = (1.0 - p) * done(now, self.latency.mean_s) + p * done(now, self.stall_s);
            if reached >= share { high = now } else { low = now }
        }
        high
    }
}

/// The mean of the later of `others` (when all that did not stall are done) and the end of the last of `stalls` stalls,
/// which begin anywhere in `launches`: the integral of P(the last one begins after x) from where it begins to count.
fn end_with_stalls(launches: f64, others: f64, stall_s: f64, stalls: f64) -> f64 {
    let counts_from = others - stall_s;
    let any = 1.0 - (-stalls).exp();
    let before_start = (-counts_from).max(0.0) * any;
    let from = counts_from.max(0.0);
    if stalls <= 0.0 || from >= launches {
        return others + before_start;
    }
    let k = stalls / launches;
    let span = launches - from;
    others + before_start + span - (1.0 - (-k * span).exp()) / k
}

/// The same with exactly `stalls` of them, at least one.
fn end_with_exactly(launches: f64, others: f64, stall_s: f64, stalls: f64) -> f64 {
    let counts_from = others - stall_s;
    if counts_from >= launches {
        return others;
    }
    let from = counts_from.max(0.0);
    let none_after = |x: f64| if launches > 0.0 { (x / launches).powf(stalls + 1.0) } else { 1.0 };
    others + (-counts_from).max(0.0) + launches - from - launches / (stalls + 1.0) * (1.0 - none_after(from))
}

/// Requests per second of so many in flight, by Little's law.
#[must_use]
pub fn little(in_flight: f64, mean_s: f64) -> f64 {
    in_flight / mean_s
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// About 1,018 recipients, 32 slots, 2.9 s when calm: 91 ms per answer.
    pub(in crate::capacity) fn published(stalls: f64) -> Fanout {
        Fanout {
            recipients: 1_018,
            slots: 32,
            lent: 0,
            stall_after_s: 1.0,
            latency: Latency::constant(0.091),
            stall_probability: stalls / 1_018.0,
            stall_s: 15.4,
            connections: 1,
            streams: 100,
            ceiling_per_s: 9_000.0,
            instances: 1,
            start_up_s: 0.0,
        }
    }

    #[test]
    fn the_published_fan_out_takes_2_9_s_and_with_four_or_five_stalls_17_6_to_18_1() {
        let calm = published(0.0).duration();
        assert!((2.85..2.95).contains(&calm.mean_s) && (calm.mean_s - calm.calm_s).abs() < 1e-9, "{calm:?}");
        for stalls in [4.0, 4.5, 5.0] {
            let said = published(stalls).duration();
            assert!((17.6..18.1).contains(&said.typical_s.unwrap()), "{stalls}: {said:?}");
            assert!(said.mean_s < said.typical_s.unwrap(), "some have fewer, some none: {said:?}");
            assert!(said.p99_recipient_s < 3.3, "the others hardly notice: {said:?}");
        }
    }

    #[test]
    fn fifty_workers_at_30_ms_are_not_50_a_second() {
        assert!((little(50.0, 0.030) - 1_666.7).abs() < 0.1);
        // What was measured, 1,650/s, is 30.3 ms.
        assert!((little(50.0, 0.0303) - 1_650.0).abs() < 0.2);
    }

    #[test]
    fn lending_gives_back_what_stalls_take() {
        let many = Fanout { recipients: 20_000, stall_probability: 0.01, ..published(0.0) };
        let (strict, lent) = (many.duration(), Fanout { lent: 16, ..many }.duration());
        assert!(lent.p99_recipient_s < strict.p99_recipient_s - 5.0, "{strict:?} {lent:?}");
        let calm = Fanout { recipients: 20_000, ..published(0.0) }.duration();
        assert!(lent.mean_s > calm.mean_s, "a stalled slot is only lent after a second");
    }

    #[test]
    fn what_is_short_decides() {
        let base = Fanout { recipients: 90_000, slots: 4_000, connections: 40, ..published(0.0) };
        assert!((base.duration().mean_s - 10.08).abs() < 0.01, "the ceiling: {:?}", base.duration());
        let few = Fanout { connections: 1, ..base };
        assert!((few.duration().mean_s - 81.9).abs() < 0.2, "100 streams at 91 ms: {:?}", few.duration());
        let two = Fanout { instances: 2, ..few };
        assert!((two.duration().mean_s - 40.9).abs() < 0.2, "{:?}", two.duration());
        let tiny = Fanout { recipients: 3, start_up_s: 0.5, ..base };
        assert!((tiny.duration().mean_s - 0.591).abs() < 0.001, "{:?}", tiny.duration());
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_the_name_of_the_option() {
        let lent = Fanout { lent: 33, ..published(4.0) }.check().unwrap_err();
        assert!(lent.to_string().contains("--lent 33"));
        let short = Fanout { stall_s: 0.5, ..published(4.0) }.check().unwrap_err();
        assert!(short.to_string().contains("--stall-time 0.5 s"));
        assert!(published(4.0).check().is_ok());
    }

    proptest! {
        #[test]
        fn more_of_anything_helpful_never_takes_longer(
            recipients in 1..200_000_u64, slots in 1..500_u64, p in 0.0..0.02_f64, lent in 0..100_u64,
        ) {
            let fanout = Fanout { recipients, slots, lent: lent.min(slots), stall_probability: p, connections: 10, ..published(0.0) };
            let said = fanout.duration();
            let at_most = said.mean_s * 1.001 + 0.001;
            prop_assert!(said.mean_s >= said.calm_s - 1e-9, "{said:?}");
            for better in [
                Fanout { ceiling_per_s: 18_000.0, ..fanout },
                Fanout { instances: 2, ..fanout },
                Fanout { recipients: recipients.div_ceil(2), ..fanout },
            ] {
                prop_assert!(better.duration().calm_s <= said.calm_s + 1e-9, "{better:?}");
                prop_assert!(better.duration().mean_s.is_finite() && at_most.is_finite());
            }
        }
    }
}
