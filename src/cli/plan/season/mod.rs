//! Owns `fanfare plan season`: its files and options, and the settings it comes to.
//! Must never know: how any of the figures is worked out.

mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::unit::{self, given};
use crate::capacity::fixtures::{self, Fixture};
use crate::capacity::habits;
use crate::capacity::quota::shape;
use crate::capacity::rush::{Fate, Rush};
use crate::capacity::sample::Draw;
use crate::capacity::season::{Hour, Kind, course, hours};
use crate::cli::target::print_json;
use crate::cli::{Failure, print};
use crate::domain::batch::Class;
use crate::domain::catalogue::{self, Catalogue};

pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare plan season docs/examples/fixtures.csv
  fanfare plan season fixtures.csv --missed 1% --ceiling 4000
  fanfare plan season fixtures.csv --rates my-rates.toml --types my-types.toml
  fanfare plan season fixtures.csv --json | jq -r .config_patch > fanfare.toml

FIXTURES.csv:
  kick_off,home,away,followers
  2026-12-05T15:00:00Z,Arsenal,Chelsea,250000

followers = devices that follow the match, one of its teams or a player. How often each type happens and who wants it is
config/season.toml; a file like it, given with --rates, takes its place. One request for each recipient: retries,
throttles and outages come on top.";

/// What is asked.
#[derive(Debug, Args)]
pub struct SeasonArgs {
    /// The fixtures: CSV with kick_off (RFC 3339), home, away, followers; `-` for stdin.
    #[arg(value_name = "FIXTURES.csv")]
    fixtures: PathBuf,
    /// How often each type happens, in TOML [default: built in, config/season.toml].
    #[arg(long, value_name = "FILE.toml")]
    rates: Option<PathBuf>,
    /// The event types, as types.file has them [default: built in, config/types.toml].
    #[arg(long, value_name = "FILE.toml")]
    types: Option<PathBuf>,
    /// Requests per second of all instances together, to see what is missed with it (ceiling.rate_per_s).
    #[arg(long, value_name = "R", default_value = "9000", value_parser = unit::rate)]
    ceiling: f64,
    /// Share of recipients of any type that may be missed.
    #[arg(long, value_name = "P", default_value = "0.1%", value_parser = unit::share)]
    missed: f64,
    /// Requests per minute the project may make now (ceiling.quota_per_minute).
    #[arg(long, value_name = "N", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    quota: u64,
    /// How long an answer takes, mean: for the slots.
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = unit::some_seconds)]
    latency: f64,
    /// Requests per second one instance can send: what a core does (README, Figures).
    #[arg(long, value_name = "R", default_value = "5000", value_parser = unit::rate)]
    instance_rate: f64,
    /// Seed of the simulation; the same seed always gives the same figures.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct Answer {
    matches: usize,
    followers: u64,
    requests: f64,
    hours: Vec<Hour>,
    ceiling_per_s: f64,
    /// What becomes of each type at that ceiling.
    at_ceiling: Vec<Fate>,
    missed_at_most: f64,
    needed: Option<Needed>,
    config_patch: Option<String>,
    seed: u64,
}

/// What it takes.
#[derive(Debug, Serialize)]
struct Needed {
    rate_per_s: f64,
    quota_per_minute: u64,
    /// Whether the quota there is now is enough.
    quota_is_enough: bool,
    instances: u64,
    slots_each: u64,
    /// The type that would be missed first at a lower rate.
    decided_by: String,
    /// What becomes of each type at that rate.
    at_rate: Vec<Fate>,
}

pub(super) fn run(args: &SeasonArgs) -> Result<(), Failure> {
    let file = super::read("FIXTURES.csv", &args.fixtures)?;
    let fixtures = fixtures::parse(&file).map_err(|fault| {
        Failure::Usage(format!("{}: wrong in {} place(s)\n{fault}", args.fixtures.display(), fault.0.len()))
    })?;
    let kinds = kinds(args)?;
    let mut draw = Draw::seeded(args.seed);
    let rush = Rush::new(&kinds, || course(&fixtures, &kinds, &mut draw));
    let hours = hours(&fixtures, &kinds);
    let needed = rush.needed(args.missed).map(|rate| needed(args, &rush, rate));
    let answer = Answer {
        matches: fixtures.len(),
        followers: fixtures.iter().map(|fixture: &Fixture| fixture.followers).sum(),
        requests: hours.iter().map(|hour| hour.requests).sum(),
        hours,
        ceiling_per_s: args.ceiling,
        at_ceiling: rush.at(args.ceiling),
        missed_at_most: args.missed,
        config_patch: needed.as_ref().map(|needed| patch(args, needed)),
        needed,
        seed: args.seed,
    };
    if args.json { print_json(&answer) } else { print(&text::text(&answer)) }
}

/// The types of the catalogue that have a rate; a rate without a type is a mistake.
fn kinds(args: &SeasonArgs) -> Result<Vec<Kind>, Failure> {
    let wrong = |option: &str, path: &Option<PathBuf>, fault: String| {
        let name = path.as_deref().map_or("the built-in file".to_owned(), |path: &Path| path.display().to_string());
        Failure::Usage(format!("{option} {name}: {fault}"))
    };
    let text = |option, path: &Option<PathBuf>, built_in: &str| match path {
        Some(path) => super::read(option, path),
        None => Ok(built_in.to_owned()),
    };
    let types = Catalogue::parse(&text("--types", &args.types, catalogue::BUILT_IN)?)
        .map_err(|fault| wrong("--types", &args.types, fault.to_string()))?;
    let rates = habits::parse(&text("--rates", &args.rates, habits::BUILT_IN)?)
        .map_err(|fault| wrong("--rates", &args.rates, fault))?;
    // The built-in rates name types that a catalogue of one's own may not have; one's own rates must not.
    let kept = rates.into_iter().filter(|(name, _)| args.rates.is_some() || types.get(name).is_some());
    let kind = |(name, habit): (String, _)| {
        let known = types.known(&name).map_err(|fault| wrong("--rates", &args.rates, fault.to_string()))?;
        let urgency = match known.class {
            Class::Urgent => 0,
            Class::Normal => 1,
            Class::Bulk => 2,
        };
        Ok(Kind { name, urgency, useful_for_s: f64::from(known.useful_for_s), habit })
    };
    kept.map(kind).collect()
}

/// Share of the slots kept free, so that a slower minute does not become the limit.
const SLACK: f64 = 1.5;

fn needed(args: &SeasonArgs, rush: &Rush<'_>, rate: f64) -> Needed {
    let rate_per_s = round_up(rate);
    let least = shape(rate_per_s, args.quota);
    let instances = (rate_per_s / args.instance_rate).ceil().max(1.0);
    let slots = (SLACK * rate_per_s / instances * args.latency).ceil();
    let worst = rush.at(0.95 * rate).into_iter().max_by(|a, b| a.missed.value.total_cmp(&b.missed.value));
    Needed {
        rate_per_s,
        decided_by: worst.map(|fate| fate.name).unwrap_or_default(),
        quota_per_minute: args.quota.max(least.most_per_min.ceil() as u64),
        quota_is_enough: least.fits,
        instances: instances as u64,
        slots_each: slots.clamp(1.0, 4_096.0) as u64,
        at_rate: rush.at(rate_per_s),
    }
}

/// Two digits that count, upwards.
fn round_up(rate: f64) -> f64 {
    let unit = 10.0_f64.powf(rate.log10().floor() - 1.0).max(1.0);
    (rate / unit).ceil() * unit
}

fn patch(args: &SeasonArgs, needed: &Needed) -> String {
    let Needed { rate_per_s, quota_per_minute, instances, slots_each, .. } = needed;
    let ask = if needed.quota_is_enough { "" } else { " Ask Google for it first." };
    format!(
        "# From `fanfare plan season {}`, seed {}: at most {} % of any type missed, {instances} instance(s).\n[ceiling]\n\
         rate_per_s = {rate_per_s}\n# The project's quota.{ask}\nquota_per_minute = {quota_per_minute}\n\n[fcm]\n# {} ms per \
         answer, and half as many again.\nslots = {slots_each}\n",
        args.fixtures.display().to_string().replace(char::is_control, " "),
        args.seed,
        given(100.0 * args.missed),
        given(1_000.0 * args.latency),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_to_two_digits_and_never_down() {
        assert_eq!([1.2, 99.0, 101.0, 6_091.0, 9_000.0].map(round_up), [2.0, 99.0, 110.0, 6_100.0, 9_000.0]);
    }
}
