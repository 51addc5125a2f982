//! Owns the tests of the breaker.
//! Must never know: anything outside the room.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

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
        let settings = BreakerSettings { jitter: || 0.5, ..BreakerSettings::new(TIMEOUT) };
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
fn a_probe_without_an_answer_is_given_up_after_its_limit() {
    let mut bench = Bench::half_open();
    bench.pass(3600 * SECOND);
    assert_eq!(bench.allowance(0), 1, "waiting for a grant costs a probe nothing");
    let lost = bench.launch();
    let limit = BreakerSettings::new(TIMEOUT).probe_limit;
    assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + limit));
    bench.pass(limit - SECOND);
    assert_eq!(bench.allowance(1), 0);
    bench.pass(SECOND);
    assert_eq!(bench.allowance(1), 1);
    bench.finish(lost, Mark::Success);
    assert_eq!(bench.breaker.state(), BreakerState::HalfOpen, "its late answer does not settle the next probe");
    assert_eq!(bench.breaker.ignored(), 1);
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

/// One that was opened twice, and has just closed.
fn back() -> Bench {
    let mut bench = Bench::half_open();
    bench.marks(1, Mark::Failure);
    bench.pass(2 * SECOND);
    assert_eq!(bench.allowance(0), 1);
    bench.marks(1, Mark::Success);
    assert_eq!(bench.breaker.state(), BreakerState::Ramping);
    bench
}

#[test]
fn a_window_closed_starts_the_doubling_over_and_less_does_not() {
    let mut bench = back();
    bench.pass(10 * SECOND - Duration::from_millis(1));
    bench.marks(16, Mark::Failure);
    assert_eq!(bench.open_for(), 4 * SECOND);
    let mut bench = back();
    // Somebody fails every second, so that the ramp goes on; it has not opened again all the same.
    for _ in 0..10 {
        bench.pass(SECOND);
        bench.marks(1, Mark::Failure);
        bench.marks(1, Mark::Success);
    }
    assert_eq!(bench.breaker.state(), BreakerState::Ramping);
    bench.marks(16, Mark::Failure);
    assert_eq!(bench.open_for(), SECOND);
}

#[test]
fn the_end_of_a_ramp_is_health_at_once() {
    let mut bench = back();
    bench.marks(1022, Mark::Success);
    assert_eq!(bench.breaker.state(), BreakerState::Closed);
    bench.marks(1022, Mark::Failure);
    assert_eq!((bench.breaker.state(), bench.open_for()), (BreakerState::Open, SECOND));
}

#[test]
fn a_ramp_ends_by_time_however_little_there_is_to_send() {
    let mut bench = back();
    assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + 10 * SECOND));
    bench.pass(10 * SECOND - Duration::from_millis(1));
    assert_eq!(bench.allowance(0), 2);
    bench.pass(Duration::from_millis(1));
    assert_eq!((bench.allowance(0), bench.breaker.state()), (u32::MAX, BreakerState::Closed), "by the probe alone");
}

#[test]
fn a_ramp_does_not_end_by_time_while_nobody_was_served_since_the_last_failure() {
    let mut bench = back();
    bench.pass(5 * SECOND);
    bench.marks(1, Mark::Failure);
    bench.pass(10 * SECOND);
    assert_eq!((bench.allowance(0), bench.breaker.next_change(bench.now)), (2, None), "no proof");
    bench.marks(1, Mark::Success);
    assert_eq!(bench.allowance(0), u32::MAX);
}

#[test]
fn a_ramp_does_not_end_by_time_while_the_first_after_the_probe_hangs() {
    let mut bench = back();
    let hangs = [bench.launch(), bench.launch()];
    bench.pass(20 * SECOND);
    assert_eq!(bench.allowance(2), 0, "the provider may be gone again");
    drop(hangs);
    assert_eq!(bench.allowance(0), u32::MAX);
}

#[test]
fn a_ramp_does_not_end_by_time_while_all_that_are_out_hang_however_many_were_served_before() {
    let mut bench = back();
    bench.marks(2, Mark::Success);
    assert_eq!(bench.allowance(0), 4);
    let mut hang: Vec<Ticket> = (0..4).map(|_| bench.launch()).collect();
    for second in 1..30 {
        bench.pass(SECOND);
        assert_eq!((bench.allowance(4), bench.breaker.state()), (0, BreakerState::Ramping), "after {second} s");
    }
    bench.finish(hang.pop().unwrap(), Mark::Success);
    assert_eq!(bench.allowance(3), u32::MAX, "it is there: the others hang for themselves");
}

#[test]
fn a_ramp_ends_by_time_while_somebody_hangs_beside_those_who_are_served() {
    let mut bench = back();
    let _hangs = bench.launch();
    for _ in 0..10 {
        assert_eq!(bench.breaker.state(), BreakerState::Ramping);
        bench.marks(1, Mark::Success);
        bench.pass(SECOND);
    }
    assert_eq!(bench.allowance(1), u32::MAX);
}

#[test]
fn a_second_outage_is_not_punished_for_the_first() {
    let mut bench = Bench::new();
    for incident in 0..5 {
        bench.marks(16, Mark::Failure);
        let begun = bench.now;
        assert_eq!(bench.open_for(), SECOND, "incident {incident}");
        // Away for 5 s: probes after 1, 3 and 7 s.
        while bench.breaker.state() != BreakerState::Ramping {
            bench.pass(SECOND);
            if bench.allowance(0) > 0 {
                let away = bench.now - begun < 5 * SECOND;
                bench.marks(1, if away { Mark::Failure } else { Mark::Success });
            }
        }
        assert_eq!(bench.now - begun, 7 * SECOND);
        bench.pass(15 * SECOND);
        assert_eq!(bench.allowance(0), u32::MAX);
    }
}

#[test]
fn a_few_sick_devices_that_are_tried_again_and_again_are_no_outage() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        for sick in 0..15 {
            bench.mark_of(sick, Mark::Failure);
        }
        bench.pass(SECOND);
    }
    assert_eq!(bench.breaker.state(), BreakerState::Closed, "1,500 failures of 15");
    bench.mark_of(15, Mark::Failure);
    assert_eq!(bench.breaker.state(), BreakerState::Open, "of 16");
    assert_eq!(bench.breaker.opening().map(|o| (o.failures, o.of, o.wait)), Some((16, 16, SECOND)));
}

#[test]
fn those_who_failed_count_once_in_a_rate_and_again_once_they_were_well() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        bench.marks(11, Mark::Success);
        for sick in 0..10 {
            bench.mark_of(sick, Mark::Failure);
        }
    }
    assert_eq!(bench.breaker.state(), BreakerState::Closed, "100 failures of 10 beside 110 that succeeded");
    for recovered in 0..10 {
        bench.mark_of(recovered, Mark::Success);
    }
    for round in 0..16 {
        assert_eq!(bench.breaker.state(), BreakerState::Closed);
        bench.mark_of(round, Mark::Failure);
    }
    assert_eq!(bench.breaker.state(), BreakerState::Open, "a real outage, a moment later");
}

#[test]
fn a_small_outage_opens_it_by_the_share_of_twenty() {
    let mut bench = Bench::new();
    bench.marks(10, Mark::Success);
    for who in 0..10 {
        assert_eq!(bench.breaker.state(), BreakerState::Closed);
        bench.mark_of(who, Mark::Failure);
        bench.mark_of(who, Mark::Failure);
    }
    assert_eq!(bench.breaker.state(), BreakerState::Open);
    assert_eq!(bench.breaker.opening().map(|o| (o.failures, o.of)), Some((10, 20)));
}

#[test]
fn the_answer_of_a_probe_counts_whoever_it_was() {
    let mut bench = Bench::new();
    (0..16).for_each(|who| bench.mark_of(who, Mark::Failure));
    bench.pass(SECOND);
    assert_eq!(bench.allowance(0), 1);
    bench.mark_of(3, Mark::Failure);
    assert_eq!((bench.breaker.state(), bench.open_for()), (BreakerState::Open, 2 * SECOND));
    assert_eq!(bench.breaker.opening().map(|o| (o.failures, o.of)), Some((1, 1)));
    bench.pass(2 * SECOND);
    assert_eq!(bench.allowance(0), 1);
    bench.mark_of(3, Mark::Success);
    assert_eq!(bench.breaker.state(), BreakerState::Ramping);
    (0..16).for_each(|who| bench.mark_of(who, Mark::Failure));
    assert_eq!(bench.breaker.state(), BreakerState::Open, "the second outage of the same sixteen");
}

#[derive(Debug, Clone)]
enum Step {
    Launch,
    Finish(usize, i64, Mark),
    Drop(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mark = prop_oneof![4 => Just(Mark::Failure), 1 => Just(Mark::Success), 1 => Just(Mark::Neutral)];
    let step = prop_oneof![
        8 => Just(Step::Launch),
        8 => (any::<usize>(), 0..40_i64, mark).prop_map(|(i, who, mark)| Step::Finish(i, who, mark)),
        1 => any::<usize>().prop_map(Step::Drop),
        2 => (0..20_000_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..300)
}

/// Longest opening: ten seconds and a fifth.
const LONGEST: Duration = Duration::from_secs(12);

/// Any past: the attempts still in flight, each with the time at which it ends at the latest.
fn any_past(bench: &mut Bench, steps: Vec<Step>) -> Result<Vec<(Instant, Ticket)>, TestCaseError> {
    let mut flying: Vec<(Instant, Ticket)> = Vec::new();
    for step in steps {
        match step {
            Step::Launch if bench.allowance(flying.len() as u32) > 0 => {
                flying.push((bench.now + TIMEOUT, bench.launch()));
            }
            Step::Finish(i, who, mark) if !flying.is_empty() => {
                let (_, ticket) = flying.swap_remove(i % flying.len());
                bench.finish_of(who, ticket, mark);
            }
            Step::Drop(i) if !flying.is_empty() => drop(flying.swap_remove(i % flying.len())),
            Step::Pass(ms) => {
                bench.pass(Duration::from_millis(ms));
                time_out(bench, &mut flying);
            }
            _ => {}
        }
        if bench.breaker.state() == BreakerState::HalfOpen {
            prop_assert!(bench.breaker.book.current() <= 1, "never two probes");
        }
    }
    Ok(flying)
}

/// Ends those whose time is up as what they are: failures.
fn time_out(bench: &mut Bench, flying: &mut Vec<(Instant, Ticket)>) {
    while let Some(i) = flying.iter().position(|(end, _)| *end <= bench.now) {
        let (_, ticket) = flying.swap_remove(i);
        bench.finish(ticket, Mark::Failure);
    }
}

proptest! {
    /// Once calls succeed: what hangs since before ends within 30 s, and may open it for another 12 s at most. With
    /// nothing in flight it is the 12 s alone.
    #[test]
    fn once_calls_succeed_it_admits_one_in_bounded_time_whatever_came_before(steps in steps(), idle in any::<bool>()) {
        let mut bench = Bench::new();
        bench.breaker.settings.jitter = || 1.0;
        let mut flying = any_past(&mut bench, steps)?;
        if idle {
            flying.clear();
        }
        let bound = if idle { LONGEST } else { TIMEOUT + LONGEST };
        let healed = bench.now;
        while bench.allowance(flying.len() as u32) == 0 {
            prop_assert!(bench.now - healed < bound, "stuck in {:?}", bench.breaker.state);
            bench.pass(SECOND / 10);
            time_out(&mut bench, &mut flying);
        }
        // From there it is closed within a window after the last of those in flight, with one call a second.
        let admitted = bench.now;
        while bench.breaker.state() != BreakerState::Closed {
            prop_assert!(bench.now - admitted <= TIMEOUT + LONGEST + 11 * SECOND, "ramps for ever");
            if bench.allowance(flying.len() as u32) > 0 {
                bench.marks(1, Mark::Success);
            }
            bench.pass(SECOND);
            time_out(&mut bench, &mut flying);
        }
    }
}
