//! Owns the tests of what holds whatever came before.
//! Must never know: anything outside the room.

use super::*;

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
