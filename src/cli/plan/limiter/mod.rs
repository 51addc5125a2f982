//! Owns `fanfare plan limiter`: its options.
//! Must never know: how any of the figures is worked out.

mod text;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::unit;
use crate::capacity::limiter::{Kind, Limiter, Refusals, rate_before_retries};
use crate::capacity::sample::Verdict;
use crate::capacity::split::{Cost, costs};
use crate::capacity::trial::{Again, Counted, enough_windows, run as simulate};
use crate::cli::target::print_json;
use crate::cli::{Failure, print};

pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare plan limiter --rate 136.28 --limit 150
  fanfare plan limiter --served 129.01 --refused 7.27 --limit 150 --limiters 6 --retries 1
  fanfare plan limiter --rate 136.28 --limit 150 --kind bucket --burst 15
  fanfare plan limiter --rate 120 --limit 150 --limiters 6 --plot split.svg --json | jq .split

Refusals per second are (1 + retries) x limiters x E[(N - L)+] / window. Requests come independently of each other; if
they come in bursts, more is refused. --json has every figure, without rounding.";

/// What is asked.
#[derive(Debug, Args)]
pub struct LimiterArgs {
    /// Requests per second before retries.
    #[arg(long, value_name = "R", value_parser = unit::rate, required_unless_present = "served")]
    rate: Option<f64>,
    /// Instead of --rate: requests per second that were served [default: none].
    #[arg(long, value_name = "R", value_parser = unit::rate, conflicts_with = "rate", requires = "refused")]
    served: Option<f64>,
    /// With --served: refusals per second that were counted, retries too [default: none].
    #[arg(long, value_name = "R", value_parser = unit::rate, requires = "served")]
    refused: Option<f64>,
    /// Requests that pass per window, all limiters together.
    #[arg(long, value_name = "L", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    limit: u64,
    /// Length of a window.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = unit::some_seconds)]
    window: f64,
    /// Limiters that share the limit and know nothing of each other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    limiters: u64,
    /// How often who is refused asks again, at once.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10))]
    retries: u32,
    /// How a limiter counts: a counter per window, or a bucket refilled steadily.
    #[arg(long, value_enum, default_value_t = KindName::Window)]
    kind: KindName,
    /// Requests the buckets hold, all together [default: --limit].
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    burst: Option<u64>,
    /// Windows to simulate [default: as many as about three million requests take].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(40..=1_000_000))]
    windows: Option<u64>,
    /// Seed of the simulation; the same seed always gives the same figures.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Draw what splitting costs into this file, as SVG [default: none].
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// How a limiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindName {
    Window,
    Bucket,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct Answer {
    question: Limiter,
    seed: u64,
    limit_each: u64,
    formula: Refusals,
    simulation: Vec<Counted>,
    /// Of the simulation with retries to the same limiter, which is what the formula is for.
    verdict: Verdict,
    observed: Option<Observed>,
    split: Vec<Cost>,
}

/// What was measured elsewhere, beside what the formula says.
#[derive(Debug, Serialize)]
struct Observed {
    served_per_s: f64,
    refused_per_s: f64,
    /// Observed by predicted refusals; `None` when none are predicted.
    times_predicted: Option<f64>,
}

pub(super) fn run(args: &LimiterArgs) -> Result<(), Failure> {
    let question = question(args)?;
    let windows = args.windows.unwrap_or_else(|| enough_windows(&question));
    let simulation = [Again::Same, Again::Random].map(|again| simulate(&question, again, windows, args.seed));
    let formula = question.refusals();
    let same = &simulation[0];
    let answer = Answer {
        question,
        seed: args.seed,
        limit_each: question.limit_each(),
        formula,
        verdict: same.refused_per_s.says_of(formula.refused_per_s, same.seen),
        simulation: simulation.into(),
        observed: observed(args, &formula),
        split: costs(&question, args.seed),
    };
    if let Some(path) = &args.plot {
        super::save(path, &text::plot(&answer))?;
    }
    if args.json { print_json(&answer) } else { print(&text::text(&answer)) }
}

fn question(args: &LimiterArgs) -> Result<Limiter, Failure> {
    let kind = match args.kind {
        KindName::Window if args.burst.is_some() => {
            return Err(Failure::Usage("--burst belongs to a bucket: add --kind bucket, or leave it out".to_owned()));
        }
        KindName::Window => Kind::Window,
        KindName::Bucket => Kind::Bucket { burst: args.burst.unwrap_or(args.limit) },
    };
    let counted = || Some(rate_before_retries(args.served?, args.refused?, args.retries));
    let rate_per_s = args.rate.or_else(counted).unwrap_or_default();
    let question = Limiter {
        rate_per_s,
        limit: args.limit,
        window_s: args.window,
        limiters: args.limiters,
        retries: args.retries,
        kind,
    };
    question.check()?;
    Ok(question)
}

fn observed(args: &LimiterArgs, formula: &Refusals) -> Option<Observed> {
    let (served_per_s, refused_per_s) = (args.served?, args.refused?);
    let times_predicted = (formula.refused_per_s > 0.0).then(|| refused_per_s / formula.refused_per_s);
    Some(Observed { served_per_s, refused_per_s, times_predicted })
}
