//! Owns the reservation bucket of one process: who may send when, as arithmetic.
//! Must never know: tasks, Redis, or any clock (time is an argument).
//!
//! Its whole state is the time the next grant is due. Asking advances that time and answers "n grants, the first
//! then"; nothing is ever refilled, so idle time cannot be credited twice and a refusal cannot eat it. Up to
//! `burst` grants may be due in the past, after a quiet time. At most [`AHEAD`] is given out in advance, which
//! bounds what an asker that dies takes with it. `reserve.lua` is the same arithmetic for the whole fleet.

use std::time::Duration;

use tokio::time::Instant;

use super::pace::Pace;
use super::{FORFEIT_AFTER, GrantRun};

/// How far in advance grants are given out.
pub const AHEAD: Duration = Duration::from_millis(100);

/// How far in the past the first grant of a run may be due: it must not be given up as late before it can be used.
pub(super) const CREDIT: Duration = Duration::from_millis(FORFEIT_AFTER.as_millis() as u64 / 2);

/// What asking for grants comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reservation {
    /// At least one.
    Granted(GrantRun),
    /// None; the first can be had after this time.
    Wait(Duration),
}

/// A reservation bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    per_s: f64,
    burst: f64,
    origin: Instant,
    /// When the next grant is due: nanoseconds since the origin, a real number so that an odd rate stays exact.
    next: f64,
}

impl Bucket {
    /// `per_s` grants a second and up to `burst` (at least 1) at once after a quiet time. The first is due at
    /// `from`: what happened before is unknown, so nothing is credited for it.
    #[must_use]
    pub fn empty_until(from: Instant, per_s: f64, burst: f64) -> Self {
        Self { per_s, burst: burst.max(1.0), origin: from, next: 0.0 }
    }

    /// Changes the rate from now on; what is reserved stays reserved.
    pub fn set_rate(&mut self, per_s: f64, burst: f64) {
        self.per_s = per_s;
        self.burst = burst.max(1.0);
    }

    /// Asks for up to `want` grants (at least 1) at the pace in force, none before the pause is over.
    pub fn reserve(&mut self, want: u32, pace: &Pace, now: Instant) -> Reservation {
        self.reserve_within(AHEAD, want, pace, now)
    }

    /// The same, given out no further than `ahead` in advance.
    pub(super) fn reserve_within(&mut self, ahead: Duration, want: u32, pace: &Pace, now: Instant) -> Reservation {
        let every = 1e9 / (self.per_s * pace.share(now));
        let quiet = self.nanos(now) - (self.burst - 1.0) * every;
        let due = self.next.max(self.nanos(pace.paused_until())).max(quiet);
        let horizon = self.nanos(now + ahead);
        if due > horizon {
            return Reservation::Wait(Duration::from_nanos((due - horizon).ceil() as u64));
        }
        let fits = ((horizon - due) / every).floor() + 1.0;
        let n = f64::from(want.max(1)).min(fits);
        self.next = due + n * every;
        // In the past after a quiet time: the burst may leave at once.
        let first = self.origin + Duration::from_nanos(due.max(0.0).ceil() as u64);
        Reservation::Granted(GrantRun {
            n: n as u32,
            first: first.max(now.checked_sub(CREDIT).unwrap_or(now)),
            every: Duration::from_nanos(every.ceil() as u64),
        })
    }

    /// Nanoseconds from the origin to `at`, negative before it.
    fn nanos(&self, at: Instant) -> f64 {
        let after = at.saturating_duration_since(self.origin).as_nanos();
        let before = self.origin.saturating_duration_since(at).as_nanos();
        after as f64 - before as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn granted(answer: Reservation) -> GrantRun {
        match answer {
            Reservation::Granted(run) => run,
            Reservation::Wait(hint) => panic!("refused for {hint:?}"),
        }
    }

    /// When the grants of a run given at `now` can be used.
    fn times(run: GrantRun, now: Instant) -> impl Iterator<Item = Instant> {
        (0..run.n).map(move |i| now.max(run.first + run.every * i))
    }

    #[test]
    fn unknown_history_credits_nothing() {
        let start = Instant::now();
        let mut bucket = Bucket::empty_until(start + AHEAD, 1000.0, 10.0);
        let run = granted(bucket.reserve(50, &Pace::full(start), start));
        assert_eq!((run.n, run.first), (1, start + AHEAD));
        assert_eq!(bucket.reserve(50, &Pace::full(start), start), Reservation::Wait(MS));
    }

    #[test]
    fn after_a_quiet_time_exactly_the_burst_is_due_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket::empty_until(start, 1000.0, 10.0);
        let later = start + Duration::from_secs(3600);
        let run = granted(bucket.reserve(10, &Pace::full(start), later));
        assert_eq!((run.n, run.first, run.every), (10, later - 9 * MS, MS), "the last is due now");
        let next = granted(bucket.reserve(1, &Pace::full(start), later));
        assert_eq!(next.first, later + MS);
    }

    #[test]
    fn an_odd_rate_is_not_rounded() {
        let start = Instant::now();
        let mut bucket = Bucket::empty_until(start, 7_777.0, 1.0);
        let total: u32 = (0..10_000_u32)
            .map(|ms| match bucket.reserve(1_000, &Pace::full(start), start + MS * ms) {
                Reservation::Granted(run) => run.n,
                Reservation::Wait(_) => 0,
            })
            .sum();
        let due = 7_777 * 10 + 777;
        assert!(total.abs_diff(due) <= 8, "{total} of {due} in 10.1 s");
    }

    #[test]
    fn nothing_is_due_before_the_pause_is_over_and_the_first_right_then() {
        let start = Instant::now();
        let mut bucket = Bucket::empty_until(start, 1000.0, 10.0);
        let mut pace = Pace::full(start);
        let end = start + Duration::from_secs(60);
        pace.pause(end);
        assert_eq!(bucket.reserve(5, &pace, start), Reservation::Wait(end - start - AHEAD));
        assert_eq!(granted(bucket.reserve(5, &pace, end - AHEAD)).first, end);
    }

    #[test]
    fn a_lower_pace_stretches_the_distance() {
        let start = Instant::now();
        let mut bucket = Bucket::empty_until(start, 1000.0, 1.0);
        let mut pace = Pace::full(start);
        pace.lower(0.25, start);
        assert_eq!(granted(bucket.reserve(5, &pace, start)).every, 4 * MS);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Ask(u32),
        Pass(u64),
        Throttle(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (1..200_u32).prop_map(Step::Ask),
            20 => (0..200_000_u64).prop_map(Step::Pass),
            1 => (0..2_000_000_u64).prop_map(Step::Throttle),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// Most grants due in any window, over what the window allows.
    fn worst_excess(mut due: Vec<Instant>, rate: f64, burst: f64) -> f64 {
        due.sort();
        let mut worst = f64::MIN;
        for (i, from) in due.iter().enumerate() {
            for (j, to) in due.iter().enumerate().skip(i) {
                let allowed = burst + rate * (*to - *from + MS / 1000).as_secs_f64();
                worst = worst.max((j - i + 1) as f64 - allowed);
            }
        }
        worst
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_window_holds_more_than_burst_and_rate_whatever_the_callers_do(
            steps in steps(), rate in 1.0..3_000.0_f64, burst in 1.0..30.0_f64,
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut bucket = Bucket::empty_until(start, rate, burst);
            let mut pace = Pace::full(start);
            let mut due = Vec::new();
            for step in steps {
                match step {
                    Step::Pass(us) => now += Duration::from_micros(us),
                    Step::Throttle(us) => pace.throttle(now + Duration::from_micros(us), now),
                    Step::Ask(want) => {
                        if let Reservation::Granted(run) = bucket.reserve(want, &pace, now) {
                            prop_assert!(run.n >= 1 && run.n <= want);
                            prop_assert!(run.first >= pace.paused_until(), "inside the pause");
                            prop_assert!(run.first + CREDIT >= now && run.first <= now + AHEAD + MS / 1000);
                            due.extend(times(run, now));
                        }
                    }
                }
            }
            due.truncate(1_500);
            let excess = worst_excess(due, rate, burst);
            prop_assert!(excess <= 1e-6, "{excess} grants too many");
        }

        #[test]
        fn a_refusal_changes_nothing_and_its_hint_is_enough_and_not_too_long(
            asks in prop::collection::vec(1..300_u32, 1..20), rate in 0.5..20_000.0_f64,
        ) {
            let now = Instant::now();
            let pace = Pace::full(now);
            let mut bucket = Bucket::empty_until(now, rate, 1.0);
            for want in asks {
                bucket.reserve(want, &pace, now);
            }
            while let Reservation::Granted(_) = bucket.reserve(300, &pace, now) {}
            let before = bucket.clone();
            let Reservation::Wait(hint) = bucket.reserve(1, &pace, now) else { panic!("exhausted") };
            prop_assert_eq!(&bucket, &before);
            let early = bucket.reserve(1, &pace, now + hint - Duration::from_nanos(2));
            prop_assert!(matches!(early, Reservation::Wait(_)), "{hint:?} was too long");
            prop_assert!(matches!(bucket.reserve(1, &pace, now + hint), Reservation::Granted(_)));
        }
    }
}
