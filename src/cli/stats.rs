//! Owns `fanfare stats`.
//! Must never know: how the totals are counted.

use super::target::{Target, print_json};
use super::{Failure, print};
use crate::wire::{Stats, StatsGroup};

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare stats
  fanfare stats --window 15m
  fanfare stats --window 3h --to 2026-11-30T17:00:00Z     a Saturday afternoon
  fanfare stats --json | jq '.types | map_values(.delivered)'

A fan-out belongs to the window it was accepted in. `exact` says that the window ended before complete_through, so no
number of it can change any more; a `lower_bound` may still grow. The key needs the scope ops.";

/// What `fanfare stats` takes.
#[derive(Debug, clap::Args)]
pub struct StatsArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// Length of the window: a whole number and s, m, h or d, up to 31d.
    #[arg(long, value_name = "LENGTH", default_value = "1h")]
    window: String,
    /// First time after the window, RFC 3339 [default: now].
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// Runs `fanfare stats`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses.
pub async fn run(args: StatsArgs) -> Result<(), Failure> {
    let StatsArgs { target, window, to } = args;
    let stats = target.client()?.stats(&window, to.as_ref()).await.map_err(|fault| target.failure(fault))?;
    if target.json { print_json(&stats) } else { print(&account(&stats)) }
}

/// Totals for people.
fn account(stats: &Stats) -> String {
    let total = &stats.total;
    let failed: Vec<String> = total
        .outcomes
        .iter()
        .filter(|(name, _)| name.as_str() != "delivered")
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let failed = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join(", ")) };
    let mean = total
        .mean_duration_ms
        .map_or("none settled".to_owned(), |ms| format!("{ms} ms from acceptance to settling on average"));
    let mut text = format!(
        "window      {} to {}: {}, nothing before {} can change\n\
         fan-outs    {}, {} not settled, {} interrupted; {mean}\n\
         recipients  {}: {} delivered, {} failed{failed}, {} pending; {}/s delivered\n\
         attempts    {}, {}/s, of which {} retries; {} throttled, {} stalled, {} unprocessed, {} unsent, {} reauthed\n\
         sends       p50 {} ms, p99 {} ms, slowest {} ms; behind the pitch p50 {} ms, p99 {} ms\n",
        stats.from,
        stats.to,
        stats.counts.replace('_', " "),
        stats.complete_through,
        total.fanouts,
        total.open,
        total.interrupted,
        total.recipients,
        total.delivered,
        total.failed,
        total.pending,
        total.delivered_per_s,
        total.attempts,
        total.attempts_per_s,
        total.retried,
        total.throttled,
        total.stalled,
        total.unprocessed,
        total.unsent,
        total.reauthed,
        total.p50_send_ms,
        total.p99_send_ms,
        total.slowest_send_ms,
        total.behind_pitch_p50_ms,
        total.behind_pitch_p99_ms,
    );
    if stats.sweeps.fanouts > 0 {
        let sweeps = &stats.sweeps;
        text.push_str(&format!("sweeps      {}, {} attempts, in none of the above\n", sweeps.fanouts, sweeps.attempts));
    }
    if total.fanouts > 0 {
        text.push_str(&format!(
            "\n{:<20} {:>8} {:>11} {:>11} {:>8} {:>8} {:>8} {:>14} {:>14}\n",
            "", "fan-outs", "recipients", "delivered", "failed", "pending", "mean ms", "slowest ms", "pitch p99 ms"
        ));
        stats.classes.iter().chain(&stats.types).for_each(|(name, group)| text.push_str(&row(name, group)));
    }
    text
}

fn row(name: &str, g: &StatsGroup) -> String {
    let mean = g.mean_duration_ms.map_or("-".to_owned(), |ms| ms.to_string());
    format!(
        "{name:<20} {:>8} {:>11} {:>11} {:>8} {:>8} {mean:>8} {:>14} {:>14}\n",
        g.fanouts, g.recipients, g.delivered, g.failed, g.pending, g.slowest_send_ms, g.behind_pitch_p99_ms
    )
}
