//! Owns the tests of what comes after an outage: the ramp, health, and evidence by device.
//! Must never know: anything outside the room.

use super::*;

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
