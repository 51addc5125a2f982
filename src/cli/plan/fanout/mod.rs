//! Owns `fanfare plan fanout`: its options.
//! Must never know: how any of the figures is worked out.

mod goal;
mod text;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::against;
use super::unit::{self, given};
use crate::capacity::course::{Brake, Courses, enough_runs, run as simulate};
use crate::capacity::fanout::{Duration, Fanout};
use crate::capacity::latency::Latency;
use crate::capacity::quota::{Goal, Reach, Shape, shape};
use crate::cli::target::print_json;
use crate::cli::{Failure, print};

pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare plan fanout --recipients 1018 --latency 91ms --stall-probability 0.45% --stall-time 15.4s
  fanfare plan fanout --recipients 1000000 --latency 40ms --latency-p99 150ms --slots 400 --instances 2
  fanfare plan fanout --recipients 1900000 --latency 40ms --slots 400 --goal '90% of 1.9M within 2m'
  fanfare plan fanout --recipients 50000 --latency 40ms --json | jq .lent.simulation.mean_s
  fanfare plan fanout --slots 32 --against service.log      predicted and observed, for each fan-out of a log

Defaults are those of the configuration. Retries, throttles and outages are not in it: this is the best that can
happen. --json has every figure, without rounding.";

/// What is asked.
#[derive(Debug, Args)]
pub struct FanoutArgs {
    /// Recipients.
    #[arg(long, value_name = "N", required_unless_present = "against",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    recipients: Option<u64>,
    /// Attempts in flight at one instance (fcm.slots).
    #[arg(long, value_name = "S", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    slots: u64,
    /// Slots that stalled attempts may lend out; `--lent` alone or absent is half of --slots [default: slots / 2].
    #[arg(long, value_name = "N", num_args = 0..=1)]
    lent: Option<Option<u64>>,
    /// How long an answer takes, mean.
    #[arg(long, value_name = "TIME", required_unless_present = "against", value_parser = unit::some_seconds)]
    latency: Option<f64>,
    /// The time 99 % of the answers take at most [default: all take --latency].
    #[arg(long, value_name = "TIME", requires = "latency", value_parser = unit::some_seconds)]
    latency_p99: Option<f64>,
    /// Share of answers that stall, such as 0.45% or 0.0045.
    #[arg(long, value_name = "P", default_value = "0", value_parser = unit::share)]
    stall_probability: f64,
    /// How long a stalled answer takes, up to fcm.attempt_timeout_ms: 30 s.
    #[arg(long, value_name = "TIME", default_value = "15.4s", value_parser = unit::some_seconds)]
    stall_time: f64,
    /// Age at which an attempt counts as stalled (fcm.stall_after_ms).
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = unit::some_seconds)]
    stall_after: f64,
    /// HTTP/2 connections of one instance [default: as many as slots and lent slots take].
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    connections: Option<u64>,
    /// Streams of one connection (fcm.streams_per_connection).
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    streams: u64,
    /// Requests per second of all instances together (ceiling.rate_per_s).
    #[arg(long, value_name = "R", default_value = "9000", value_parser = unit::rate)]
    ceiling: f64,
    /// Requests per minute the project may make (ceiling.quota_per_minute).
    #[arg(long, value_name = "N", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    quota: u64,
    /// Instances that work on it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    instances: u64,
    /// From acceptance to the first request (the line's first_send_ms).
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = unit::seconds)]
    start_up: f64,
    /// What has to be reached, such as '90% of 1.9M within 2m' [default: none].
    #[arg(long, value_name = "GOAL", value_parser = goal::parse)]
    goal: Option<Goal>,
    /// A log of the service as JSON lines, `-` for stdin: predict each fan-out it tells of and show what happened beside
    /// it. How answers took, stalls, pace and instances are then the line's own; --latency goes before them
    /// [default: none].
    #[arg(long, value_name = "LOG.ndjson", conflicts_with_all = ["recipients", "goal", "stall_probability", "stall_time", "ceiling",
          "instances", "start_up"])]
    against: Option<PathBuf>,
    /// Fan-outs to simulate [default: as many as a million recipients take, 3 to 400].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: Option<u64>,
    /// Seed of the simulation; the same seed always gives the same figures.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// Longest stall there is: then the attempt is given up (fcm.attempt_timeout_ms).
const GIVEN_UP_AFTER_S: f64 = 30.0;

/// The whole answer.
#[derive(Debug, Serialize)]
struct Answer {
    question: Fanout,
    seed: u64,
    strict: Both,
    lent: Both,
    bottleneck: Brake,
    quota: Shape,
    goal: Option<Reach>,
}

/// A figure in two ways.
#[derive(Debug, Serialize)]
struct Both {
    formula: Duration,
    simulation: Courses,
}

pub(super) fn run(args: &FanoutArgs) -> Result<(), Failure> {
    let question = question(args)?;
    if let Some(file) = &args.against {
        let latency = args.latency.map(|_| question.latency);
        let compared = against::compare_all(file, &question, latency, (args.runs, args.seed))?;
        return if args.json { print_json(&compared) } else { print(&against::text(&compared)) };
    }
    let runs = args.runs.unwrap_or_else(|| enough_runs(question.recipients));
    let both = |fanout: Fanout| Both { formula: fanout.duration(), simulation: simulate(&fanout, runs, args.seed) };
    let lent = both(question);
    let quota = shape(args.ceiling, args.quota);
    let answer = Answer {
        question,
        seed: args.seed,
        strict: both(question.strict()),
        bottleneck: lent.simulation.bottleneck(),
        lent,
        quota,
        goal: args.goal.map(|goal| goal.reach(&quota)),
    };
    if args.json { print_json(&answer) } else { print(&text::text(&answer)) }
}

fn question(args: &FanoutArgs) -> Result<Fanout, Failure> {
    if args.stall_time > GIVEN_UP_AFTER_S {
        return Err(Failure::Usage(format!(
            "--stall-time {} s is longer than an attempt is waited for (fcm.attempt_timeout_ms, 30 s): write at most 30s",
            given(args.stall_time)
        )));
    }
    // Only --against goes without: each line has its own then.
    let mean = args.latency.unwrap_or(1.0);
    let latency = match args.latency_p99 {
        Some(p99) => Latency::with_p99(mean, p99)?,
        None => Latency::constant(mean),
    };
    let lent = args.lent.flatten().unwrap_or(args.slots / 2);
    let question = Fanout {
        recipients: args.recipients.unwrap_or(1),
        slots: args.slots,
        lent,
        stall_after_s: args.stall_after,
        latency,
        stall_probability: args.stall_probability,
        stall_s: args.stall_time,
        connections: args.connections.unwrap_or_else(|| (args.slots + lent).div_ceil(args.streams)),
        streams: args.streams,
        ceiling_per_s: args.ceiling,
        instances: args.instances,
        start_up_s: args.start_up,
    };
    question.check()?;
    Ok(question)
}
