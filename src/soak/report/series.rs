//! Owns everything over time: requests, outcomes, memory, modes, and the shape of send latencies.
//! Must never know: how it is drawn.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::observed::Observed;
use super::super::verdict::f;
use super::freshness::unix_ms;

/// Most points a series has: what is longer is told in longer steps.
const MOST: u64 = 600;

/// In steps of the same length from the beginning of the day on, until the last thing happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a step, s.
    pub step_s: f64,
    /// Requests per second, the fullest second of each step.
    pub requests: Vec<f64>,
    /// By outcome: how many ended in each step, by the time their fan-out was settled.
    pub outcomes: BTreeMap<String, Vec<u64>>,
    /// Lowest pace of the fleet that any instance told in each step; absent where none did.
    pub pace: Vec<Option<f64>>,
    /// Resident memory of each process.
    pub memory: Vec<Memory>,
    /// Mode of the ceiling of each place in the fleet.
    pub modes: Vec<Band>,
    /// Send latencies.
    pub latency: Latency,
}

/// Resident memory of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Its place in the fleet.
    pub seat: usize,
    /// Process id.
    pub pid: u32,
    /// Seconds into the day, and MB.
    pub points: Vec<(f64, f64)>,
}

/// A time in which one instance told one mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Band {
    /// Its place in the fleet.
    pub seat: usize,
    /// `single`, `shared`, `split`; empty when it did not answer.
    pub mode: String,
    /// Seconds into the day.
    pub from_s: f64,
    /// The same.
    pub to_s: f64,
}

/// Fan-outs by how long their sends took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Upper bounds, ms; the last class has none.
    pub bounds_ms: Vec<u64>,
    /// Fan-outs by their median send.
    pub p50: Vec<u64>,
    /// By their 99th percentile.
    pub p99: Vec<u64>,
    /// By their slowest.
    pub slowest: Vec<u64>,
}

impl Series {
    pub(super) fn of(o: &Observed) -> Self {
        let per_second = o.seen.per_second(o.began_ns);
        let step = (o.length_ms / 1000).max(per_second.len() as u64).div_ceil(MOST).max(1);
        let whole = usize::try_from(step).unwrap_or(1);
        let requests: Vec<f64> = per_second.chunks(whole).map(|c| f(c.iter().copied().max().unwrap_or(0))).collect();
        let steps = requests.len().max(usize::try_from(o.length_ms / 1000 / step).unwrap_or(0)) + 1;
        Self {
            step_s: f(step),
            requests,
            outcomes: outcomes(o, step, steps),
            pace: pace(o, step, steps),
            memory: memory(o),
            modes: modes(o),
            latency: latency(o),
        }
    }
}

fn outcomes(o: &Observed, step: u64, steps: usize) -> BTreeMap<String, Vec<u64>> {
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for fanout in o.fanouts.values() {
        let Some(settled) = unix_ms(fanout.settled_at.as_deref()) else { continue };
        let second = u64::try_from(settled - o.began_unix_ms).unwrap_or(0) / 1000;
        let at = usize::try_from(second / step).unwrap_or(usize::MAX).min(steps.saturating_sub(1));
        for (name, n) in fanout.outcomes.iter().filter(|(_, n)| **n > 0) {
            all.entry(name.clone()).or_insert_with(|| vec![0; steps])[at] += n;
        }
    }
    all
}

fn pace(o: &Observed, step: u64, steps: usize) -> Vec<Option<f64>> {
    let mut pace: Vec<Option<f64>> = vec![None; steps];
    for sample in o.samples.iter().filter(|s| !s.mode.is_empty()) {
        let at = usize::try_from(sample.at_ms / 1000 / step).unwrap_or(usize::MAX).min(steps.saturating_sub(1));
        pace[at] = Some(pace[at].map_or(sample.pace, |least| least.min(sample.pace)));
    }
    pace
}

fn memory(o: &Observed) -> Vec<Memory> {
    let every = (o.samples.len() as u64).div_ceil(MOST).max(1);
    let mut by_pid: BTreeMap<u32, Memory> = BTreeMap::new();
    for (i, sample) in o.samples.iter().enumerate().filter(|(_, s)| s.usage.rss_kb > 0) {
        let memory = by_pid.entry(sample.pid).or_insert_with(|| Memory {
            seat: sample.seat,
            pid: sample.pid,
            points: Vec::new(),
        });
        if (i as u64).is_multiple_of(every) || memory.points.is_empty() {
            memory.points.push((f(sample.at_ms) / 1000.0, f(sample.usage.rss_kb) / 1024.0));
        }
    }
    by_pid.into_values().collect()
}

fn modes(o: &Observed) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for sample in &o.samples {
        let at = f(sample.at_ms) / 1000.0;
        let last = bands.iter_mut().rev().find(|band| band.seat == sample.seat);
        if let Some(band) = last {
            band.to_s = at;
            if band.mode == sample.mode {
                continue;
            }
        }
        bands.push(Band { seat: sample.seat, mode: sample.mode.clone(), from_s: at, to_s: at });
    }
    bands
}

fn latency(o: &Observed) -> Latency {
    let bounds: Vec<u64> = (0..16).map(|i| 1_u64 << i).collect();
    let classes = |of: fn(&super::super::observed::Line) -> u64| {
        let mut counts = vec![0; bounds.len() + 1];
        for line in o.lines.values().filter(|line| line.slowest_send_ms > 0) {
            counts[bounds.partition_point(|bound| *bound < of(line))] += 1;
        }
        counts
    };
    let (p50, p99, slowest) = (classes(|l| l.p50_send_ms), classes(|l| l.p99_send_ms), classes(|l| l.slowest_send_ms));
    Latency { bounds_ms: bounds, p50, p99, slowest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::observed::{Line, Sample, Usage};
    use crate::soak::verdict::tests::observed;

    #[test]
    fn a_long_day_is_told_in_longer_steps_and_keeps_its_fullest_second() {
        let mut o = observed();
        o.length_ms = 3_600_000;
        o.seen.times_ns = vec![5_000_000_000; 40];
        let series = Series::of(&o);
        assert_eq!((series.step_s, series.requests.as_slice()), (6.0, &[40.0][..]));
        assert!(series.outcomes.values().all(|counts| counts.len() == 601));
    }

    #[test]
    fn a_mode_lasts_until_another_one_is_told_of_the_same_instance() {
        let sample = |at_ms, seat, mode: &str| Sample { at_ms, seat, mode: mode.into(), ..Sample::default() };
        let mut o = observed();
        o.samples =
            vec![sample(0, 0, "shared"), sample(0, 1, "split"), sample(500, 0, "shared"), sample(1_000, 0, "split")];
        let bands = Series::of(&o).modes;
        assert_eq!(bands.len(), 3);
        assert_eq!((bands[0].mode.as_str(), bands[0].to_s, bands[2].from_s), ("shared", 1.0, 1.0));
    }

    #[test]
    fn every_fan_out_is_in_one_class_and_memory_is_told_by_process() {
        let mut o = observed();
        o.lines =
            [("1".into(), Line { p50_send_ms: 30, p99_send_ms: 64, slowest_send_ms: 70_000, interrupted: 0 })].into();
        o.samples = vec![
            Sample { pid: 1, usage: Usage { rss_kb: 2048, ..Usage::default() }, ..Sample::default() },
            Sample { pid: 2, usage: Usage { rss_kb: 1024, ..Usage::default() }, ..Sample::default() },
        ];
        let series = Series::of(&o);
        assert_eq!((series.latency.p50[5], series.latency.p99[6], series.latency.slowest[16]), (1, 1, 1));
        assert_eq!(series.memory.iter().map(|m| m.points[0].1).collect::<Vec<_>>(), [2.0, 1.0]);
    }
}
