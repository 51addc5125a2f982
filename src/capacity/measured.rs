//! Owns a prediction beside what happened: fan-outs as their own lines tell them, and what the model says of each.
//! Must never know: where the lines come from. A prediction is never corrected; its error is part of the answer.

use serde::{Deserialize, Serialize};

use super::course::run;
use super::fanout::Fanout;
use super::latency::Latency;

/// What is read of a line `fan-out finished`; the other fields do not matter here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Line {
    /// Number of the fan-out.
    pub fanout_id: String,
    /// Recipients.
    pub recipients: u64,
    /// Requests.
    pub attempts: u64,
    /// Requests that took longer than a stall.
    pub stalled: u64,
    /// From acceptance to the settled tally, ms.
    pub duration_ms: f64,
    /// Of that, launches were held by a gate, ms.
    pub held_ms: f64,
    /// From acceptance to the first request, ms.
    pub first_send_ms: f64,
    /// Time of an answer, median, ms.
    pub p50_send_ms: f64,
    /// The same, 99th percentile, ms.
    pub p99_send_ms: f64,
    /// The slowest answer, ms.
    pub slowest_send_ms: f64,
    /// The lowest rate applied, requests per second.
    pub ceiling_pace: f64,
    /// Instances that worked on it.
    pub instances: u64,
}

/// Predicted and observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Number of the fan-out.
    pub fanout_id: String,
    /// Recipients.
    pub recipients: u64,
    /// What the formula says, s.
    pub formula_s: f64,
    /// What the simulation says, mean of the courses with as many stalls, s.
    pub simulated_s: f64,
    /// What happened, s.
    pub observed_s: f64,
    /// The simulation's error: predicted / observed - 1.
    pub error: f64,
    /// Time held by a gate, s: the model knows of no pause, breaker or lease, so that this is in the error.
    pub held_s: f64,
}

/// Predicts this fan-out. `base` has what a line does not say (slots, lending, connections); how long answers took, how many
/// stalled, the pace and the instances are the line's own, unless `latency` was said in advance.
#[must_use]
pub fn compare(line: &Line, base: &Fanout, latency: Option<Latency>, (runs, seed): (u64, u64)) -> Compared {
    let mean = |of: f64| of / line.attempts.max(1) as f64;
    let fanout = Fanout {
        recipients: line.attempts.max(1),
        latency: latency.unwrap_or_else(|| answers(line)),
        stall_probability: mean(line.stalled as f64).min(1.0),
        stall_s: (line.slowest_send_ms / 1_000.0).max(base.stall_after_s),
        ceiling_per_s: if line.ceiling_pace > 0.0 { line.ceiling_pace } else { base.ceiling_per_s },
        instances: line.instances.max(1),
        start_up_s: line.first_send_ms / 1_000.0,
        ..*base
    };
    // How many stalled is known: only courses with as many count.
    let (formula, simulated) = (fanout.duration(), run(&fanout, runs, seed));
    let simulated_s = simulated.typical_s.unwrap_or(simulated.mean_s.value);
    let observed_s = line.duration_ms / 1_000.0;
    Compared {
        fanout_id: line.fanout_id.clone(),
        recipients: line.recipients,
        formula_s: formula.typical_s.unwrap_or(formula.mean_s),
        simulated_s,
        observed_s,
        error: if observed_s > 0.0 { simulated_s / observed_s - 1.0 } else { 0.0 },
        held_s: line.held_ms / 1_000.0,
    }
}

/// A curve with the line's median and 99th percentile; where stalls are the percentile, only the median.
fn answers(line: &Line) -> Latency {
    let median = (line.p50_send_ms / 1_000.0).max(0.001);
    let stalls = line.stalled as f64 >= 0.01 * line.attempts as f64;
    if stalls || line.p99_send_ms <= line.p50_send_ms {
        Latency::constant(median)
    } else {
        Latency::with_median(median, line.p99_send_ms / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Fanout {
        Fanout {
            recipients: 1,
            slots: 32,
            lent: 16,
            stall_after_s: 1.0,
            latency: Latency::constant(0.1),
            stall_probability: 0.0,
            stall_s: 1.0,
            connections: 1,
            streams: 100,
            ceiling_per_s: 9_000.0,
            instances: 1,
            start_up_s: 0.0,
        }
    }

    /// The line of the README.
    fn line() -> Line {
        Line {
            fanout_id: "1".into(),
            recipients: 1_000,
            attempts: 1_010,
            stalled: 1,
            duration_ms: 3_621.0,
            held_ms: 0.0,
            first_send_ms: 11.0,
            p50_send_ms: 38.0,
            p99_send_ms: 60.0,
            slowest_send_ms: 3_050.0,
            ceiling_pace: 9_000.0,
            instances: 1,
        }
    }

    #[test]
    fn the_demo_is_predicted_and_the_error_is_that_of_the_prediction() {
        let compared = compare(&line(), &base(), None, (100, 1));
        assert_eq!((compared.recipients, compared.observed_s), (1_000, 3.621));
        assert!((compared.error - (compared.simulated_s / 3.621 - 1.0)).abs() < 1e-12);
        // One stall of 3.05 s, somewhere in 1.2 s.
        assert!((3.3..3.9).contains(&compared.simulated_s), "{compared:?}");
        assert!((compared.formula_s / compared.simulated_s - 1.0).abs() < 0.08, "{compared:?}");
    }

    #[test]
    fn what_was_said_in_advance_goes_before_what_the_line_says() {
        let slow = compare(&line(), &base(), Some(Latency::constant(0.2)), (3, 1));
        assert!(slow.simulated_s > 6.0, "{slow:?}");
    }

    #[test]
    fn a_pause_is_left_in_the_error() {
        let paused = Line { duration_ms: 63_621.0, held_ms: 60_000.0, ..line() };
        let compared = compare(&paused, &base(), None, (3, 1));
        assert!(compared.error < -0.9 && compared.held_s == 60.0, "{compared:?}");
    }

    #[test]
    fn a_line_without_any_answer_can_be_looked_at() {
        let nothing = Line { attempts: 0, recipients: 0, stalled: 0, duration_ms: 0.0, ceiling_pace: 0.0, ..line() };
        assert!(compare(&nothing, &base(), None, (1, 1)).error.is_finite());
    }
}
