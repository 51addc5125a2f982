//! Owns the tests of the breaker.
//! Must never know: anything outside the room.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod property;
mod ramp;

const SECOND: Duration = Duration::from_secs(1);
/// Longest an attempt may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A breaker without jitter, and a clock that only the test moves. Every attempt is for somebody else, unless a test says
/// for whom.
struct Bench {
    breaker: Breaker,
    now: Instant,
    next: i64,
}

impl Bench {
    fn new() -> Self {
        let settings = BreakerSettings { jitter: || 0.5, ..BreakerSettings::default() };
        Self { breaker: Breaker::new(settings), now: Instant::now(), next: 1_000_000 }
    }

    fn opened() -> Self {
        let mut bench = Self::new();
        bench.marks(16, Mark::Failure);
        assert_eq!(bench.breaker.state(), BreakerState::Open);
        bench
    }

    fn half_open() -> Self {
        let mut bench = Self::opened();
        bench.pass(SECOND);
        assert_eq!(bench.allowance(0), 1);
        bench
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn allowance(&mut self, in_flight: u32) -> u32 {
        self.breaker.allowance(self.now, in_flight)
    }

    fn launch(&mut self) -> Ticket {
        self.breaker.launch(self.now)
    }

    fn finish(&mut self, ticket: Ticket, mark: Mark) {
        self.next += 1;
        self.finish_of(self.next, ticket, mark);
    }

    fn finish_of(&mut self, who: i64, ticket: Ticket, mark: Mark) {
        self.breaker.finish(ticket, who, mark, self.now);
    }

    fn mark_of(&mut self, who: i64, mark: Mark) {
        let ticket = self.launch();
        self.finish_of(who, ticket, mark);
    }

    fn marks(&mut self, n: u32, mark: Mark) {
        for _ in 0..n {
            let ticket = self.launch();
            self.finish(ticket, mark);
        }
    }

    fn open_for(&self) -> Duration {
        self.breaker.open_until().expect("open") - self.now
    }
}

#[test]
fn sixteen_failures_in_a_row_open_it_and_fifteen_do_not() {
    let mut bench = Bench::new();
    bench.marks(15, Mark::Failure);
    bench.marks(1, Mark::Success);
    bench.marks(4, Mark::Failure);
    assert_eq!(bench.breaker.state(), BreakerState::Open, "20 marks, 19 of them failures: the rate");
    let mut bench = Bench::new();
    bench.marks(15, Mark::Failure);
    assert_eq!(bench.allowance(0), u32::MAX);
    bench.marks(1, Mark::Failure);
    assert_eq!(bench.allowance(0), 0);
}

#[test]
fn half_of_twenty_marks_within_ten_seconds_open_it() {
    let mut bench = Bench::new();
    for _ in 0..9 {
        bench.marks(1, Mark::Success);
        bench.marks(1, Mark::Failure);
    }
    bench.marks(1, Mark::Success);
    assert_eq!(bench.allowance(0), u32::MAX, "19 marks say nothing about a rate");
    bench.marks(1, Mark::Failure);
    assert_eq!(bench.allowance(0), 0);
}

#[test]
fn less_than_half_never_opens_it() {
    let mut bench = Bench::new();
    for _ in 0..200 {
        bench.marks(11, Mark::Success);
        bench.marks(9, Mark::Failure);
        bench.pass(SECOND / 3);
    }
    assert_eq!(bench.breaker.state(), BreakerState::Closed);
}

#[test]
fn failures_older_than_ten_seconds_are_forgotten() {
    let mut bench = Bench::new();
    bench.marks(15, Mark::Failure);
    bench.marks(1, Mark::Success);
    bench.pass(10 * SECOND);
    bench.marks(6, Mark::Success);
    bench.marks(4, Mark::Failure);
    assert_eq!(bench.breaker.state(), BreakerState::Closed);
}

#[test]
fn throttles_and_cancels_say_nothing() {
    let mut bench = Bench::new();
    bench.marks(15, Mark::Failure);
    bench.marks(100, Mark::Neutral);
    assert_eq!(bench.breaker.state(), BreakerState::Closed, "they are no failures");
    bench.marks(1, Mark::Failure);
    assert_eq!(bench.breaker.state(), BreakerState::Open, "and they do not interrupt a row of them");
}

#[test]
fn it_lets_one_probe_through_after_a_second_and_opens_for_twice_as_long_when_that_fails() {
    let mut bench = Bench::opened();
    for expected in [1, 2, 4, 8, 10, 10, 10] {
        assert_eq!(bench.open_for(), expected * SECOND);
        assert_eq!(bench.breaker.next_change(bench.now), bench.breaker.open_until());
        bench.pass(expected * SECOND - Duration::from_millis(1));
        assert_eq!(bench.allowance(0), 0);
        bench.pass(Duration::from_millis(1));
        assert_eq!(bench.allowance(0), 1);
        let probe = bench.launch();
        assert!(probe.is_probe());
        assert_eq!(bench.allowance(1), 0, "one at a time");
        bench.finish(probe, Mark::Failure);
    }
}

#[test]
fn jitter_spreads_the_end_of_an_opening_by_a_fifth_either_way() {
    for (draw, expected) in [(|| 0.0) as fn() -> f64, || 1.0].into_iter().zip([0.8, 1.2]) {
        let mut bench = Bench::new();
        bench.breaker.settings.jitter = draw;
        bench.marks(16, Mark::Failure);
        assert_eq!(bench.open_for(), SECOND.mul_f64(expected));
    }
}

#[test]
fn a_probe_that_succeeds_starts_a_ramp_of_two_four_eight() {
    let mut bench = Bench::half_open();
    bench.marks(1, Mark::Success);
    for limit in [2, 4, 8, 16, 32, 64, 128, 256, 512] {
        assert_eq!((bench.allowance(0), bench.breaker.state()), (limit, BreakerState::Ramping));
        let running: Vec<Ticket> = (0..limit).map(|_| bench.launch()).collect();
        assert_eq!(bench.allowance(limit), 0);
        for ticket in running {
            bench.finish(ticket, Mark::Success);
        }
    }
    assert_eq!((bench.allowance(0), bench.breaker.state()), (u32::MAX, BreakerState::Closed));
}

#[test]
fn attempts_that_hang_since_the_outage_do_not_hold_up_the_ramp() {
    let mut bench = Bench::new();
    let hanging: Vec<Ticket> = (0..32).map(|_| bench.launch()).collect();
    bench.marks(16, Mark::Failure);
    bench.pass(SECOND);
    assert_eq!(bench.allowance(32), 1);
    bench.marks(1, Mark::Success);
    assert_eq!(bench.allowance(32), 2);
    drop(hanging);
    assert_eq!(bench.allowance(0), 2);
}

#[test]
fn a_cancelled_probe_gives_its_slot_back() {
    let mut bench = Bench::half_open();
    let probe = bench.launch();
    assert_eq!(bench.allowance(1), 0);
    drop(probe);
    assert_eq!((bench.allowance(0), bench.breaker.state()), (1, BreakerState::HalfOpen));
}

#[test]
fn a_throttled_probe_gives_its_slot_back_and_lengthens_nothing() {
    let mut bench = Bench::half_open();
    bench.marks(1, Mark::Neutral);
    assert_eq!(bench.allowance(0), 1);
    bench.marks(1, Mark::Failure);
    assert_eq!(bench.open_for(), 2 * SECOND);
}

#[test]
fn a_probe_without_an_answer_counts_as_failed_after_its_limit() {
    let mut bench = Bench::half_open();
    bench.pass(3600 * SECOND);
    assert_eq!(bench.allowance(0), 1, "waiting for a grant costs a probe nothing");
    let limit = BreakerSettings::default().probe_limit;
    let mut hanging = Vec::new();
    for wait in [2, 4, 8, 10, 10] {
        hanging.push(bench.launch());
        assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + limit));
        bench.pass(limit - SECOND);
        assert_eq!((bench.allowance(1), bench.breaker.state()), (0, BreakerState::HalfOpen));
        bench.pass(SECOND);
        assert_eq!((bench.allowance(1), bench.breaker.state()), (0, BreakerState::Open));
        assert_eq!(bench.open_for(), wait * SECOND, "the back-off goes on");
        bench.pass(wait * SECOND);
        assert_eq!(bench.allowance(1), 1, "and so does the probing, whatever hangs");
    }
    for ticket in hanging {
        bench.finish(ticket, Mark::Failure);
    }
    assert_eq!((bench.breaker.state(), bench.breaker.ignored()), (BreakerState::HalfOpen, 5), "each counted before");
    assert_eq!(bench.allowance(0), 1);
}

#[test]
fn a_slow_provider_is_heard_however_long_its_answer_to_a_probe_takes() {
    for taken in [1, 4, 6, 29, 600] {
        let mut bench = Bench::half_open();
        let slow = bench.launch();
        bench.pass(taken * SECOND);
        bench.allowance(1);
        bench.finish(slow, Mark::Success);
        assert_eq!((bench.breaker.state(), bench.breaker.ignored()), (BreakerState::Ramping, 0), "{taken} s");
    }
    // Once it is there it is no news, and the ramp goes at its own pace.
    let mut bench = Bench::half_open();
    let slow = bench.launch();
    bench.pass(5 * SECOND);
    assert_eq!(bench.allowance(1), 0);
    bench.pass(2 * SECOND);
    assert_eq!(bench.allowance(1), 1);
    bench.marks(3, Mark::Success);
    assert_eq!(bench.allowance(0), 4);
    bench.finish(slow, Mark::Success);
    assert_eq!((bench.allowance(0), bench.breaker.ignored()), (4, 1));
}

#[test]
fn it_doubts_from_four_failures_in_a_row_until_somebody_is_served() {
    let mut bench = Bench::new();
    bench.marks(3, Mark::Failure);
    bench.mark_of(7, Mark::Success);
    for _ in 0..9 {
        bench.mark_of(8, Mark::Failure);
    }
    bench.marks(2, Mark::Failure);
    assert!(!bench.breaker.doubts(), "one of three fails again and again");
    bench.marks(1, Mark::Failure);
    assert!(bench.breaker.doubts());
    bench.marks(1, Mark::Success);
    assert!(!bench.breaker.doubts());
    assert!(Bench::opened().breaker.doubts() && Bench::half_open().breaker.doubts());
    let mut bench = Bench::half_open();
    bench.marks(1, Mark::Success);
    assert!(!bench.breaker.doubts(), "the probe was served");
}

#[test]
fn answers_from_before_the_opening_do_not_close_it() {
    let mut bench = Bench::new();
    let early = [bench.launch(), bench.launch()];
    bench.marks(16, Mark::Failure);
    bench.pass(SECOND);
    for ticket in early {
        bench.finish(ticket, Mark::Success);
    }
    assert_eq!((bench.breaker.state(), bench.breaker.ignored()), (BreakerState::HalfOpen, 2));
}
