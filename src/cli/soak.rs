//! Owns `fanfare soak`: its arguments, the files it writes, and which exit code a verdict becomes.
//! Must never know: how a day is played or judged.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, print};
use crate::soak::{self, Invariant, Mix, Options, Report, SoakError};

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare soak --minutes 3 --faults all --seed 7 --html soak.html
  fanfare soak --minutes 3 --faults all --database postgres://postgres@127.0.0.1/soak --instances 2 --json new.json
  fanfare soak --minutes 60 --faults calm --compare old.json

It starts instances of `serve` of its own, to kill them, sends to a built-in emulator, and judges by the emulator's log. It
needs nothing on SQLite; on PostgreSQL it starts a redis-server of its own unless --redis names one. Every other setting
comes from the environment, as for serve. Exit codes: 0 every invariant held, 1 one was violated, 2 usage, 69 the database
or redis-server is not there, 78 bad configuration.";

/// What `fanfare soak` takes.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// Length of the day, 0.1 to 10080.
    #[arg(long, value_name = "M", default_value_t = 3.0, value_parser = minutes)]
    minutes: f64,
    /// The same seed is the same day and the same faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// calm, stalls, throttled, flaky, redis-away, restarts or all.
    #[arg(long, value_name = "MIX", default_value_t = Mix::All)]
    faults: Mix,
    /// PostgreSQL of yours, postgres://..., which is migrated and keeps the soak's devices [default: SQLite in the soak's directory].
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// A Redis of yours, redis://HOST:PORT [default: with PostgreSQL, one of its own].
    #[arg(long, value_name = "URL", requires = "database")]
    redis: Option<String>,
    /// Instances of serve, more than one with PostgreSQL only.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    instances: u8,
    /// Ceiling of all instances, requests/s.
    #[arg(long, value_name = "PER_S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(20..=20_000))]
    rate: u32,
    /// What the day takes of the ceiling on average, per cent; in the afternoon it is several times that.
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    load: u32,
    /// Directory that keeps database, event types and the instances' log [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the summary for the page of a CI job.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Say what moved since the soak this JSON is of.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    if (0.1..=10_080.0).contains(&minutes) { Ok(minutes) } else { Err("is not within 0.1 to 10080".to_owned()) }
}

/// Runs `fanfare soak`.
///
/// # Errors
/// [`Failure::Runtime`] when an invariant was violated, after everything is written; [`Failure`] when there is no verdict.
pub async fn run(args: SoakArgs) -> Result<(), Failure> {
    // Before minutes of work, not after.
    let old = args.compare.as_deref().map(read).transpose()?;
    for file in [&args.json, &args.html, &args.markdown].into_iter().flatten() {
        write(file, "")?;
    }
    let options = Options {
        minutes: args.minutes,
        seed: args.seed,
        faults: args.faults,
        database_url: args.database,
        redis_url: args.redis,
        instances: usize::from(args.instances),
        rate: f64::from(args.rate),
        load: f64::from(args.load) / 100.0,
        out: args.out,
    };
    let report = soak::run(&options).await?;
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|fault| Failure::Runtime(fault.to_string()))?;
        write(file, &format!("{text}\n"))?;
    }
    if let Some(file) = &args.html {
        write(file, &soak::page(&report))?;
    }
    if let Some(file) = &args.markdown {
        write(file, &soak::summary(&report))?;
    }
    print(&told(&report))?;
    if let Some(old) = old {
        print(&format!("\nsince {}:\n{}", old.0.display(), soak::moved(&old.1, &report)))?;
    }
    if report.passed { Ok(()) } else { Err(Failure::Runtime(report.headline())) }
}

impl From<SoakError> for Failure {
    fn from(error: SoakError) -> Self {
        let text = error.to_string();
        match error {
            SoakError::Usage(_) => Self::Usage(text),
            SoakError::Config(_) => Self::Config(text),
            SoakError::Unavailable(_) => Self::Unavailable(text),
            SoakError::Part(_) | SoakError::Interrupted => Self::Runtime(text),
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|fault| Failure::Runtime(format!("{}: {fault}", file.display())))
}

fn read(file: &Path) -> Result<(PathBuf, Report), Failure> {
    let text = std::fs::read_to_string(file).map_err(|fault| Failure::Usage(format!("{}: {fault}", file.display())))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|fault| Failure::Usage(format!("{} is not the JSON of a soak: {fault}", file.display())))?;
    Ok((file.to_owned(), report))
}

/// The verdict for a terminal.
fn told(r: &Report) -> String {
    let mut text = String::new();
    for Invariant { name, state, says, .. } in &r.invariants {
        text.push_str(&format!("{name:<13} {:<10}  {says}\n", state.as_str()));
    }
    for absent in &r.absent {
        text.push_str(&format!("{:<13} not done    {}\n", absent.fault, absent.why));
    }
    let t = &r.totals;
    text.push_str(&format!(
        "\nretried {}, throttled {}, stalled {}, slowest_send_ms {}, stall episodes {}; {} posts too late on arrival\n",
        t.retried, t.throttled, t.stalled, t.slowest_send_ms, r.stalls.episodes, t.too_late
    ));
    text.push_str(&format!("\n{:<20} messages     p50     p95     p99  ms behind the pitch\n", "type"));
    for (kind, f) in &r.freshness {
        text.push_str(&format!("{kind:<20} {:>8} {:>7} {:>7} {:>7}\n", f.messages, f.p50_ms, f.p95_ms, f.p99_ms));
    }
    text.push_str(&format!("\n{}\n", r.headline()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_makes_no_sense_is_refused() {
        assert_eq!((minutes("0.25"), minutes("3")), (Ok(0.25), Ok(3.0)));
        for wrong in ["0", "-1", "NaN", "inf", "soon", "10081"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn why_there_is_no_verdict_decides_the_exit_code() {
        let code = |error: SoakError| Failure::from(error).exit_code();
        assert_eq!(code(SoakError::Usage(String::new())), 2);
        assert_eq!(code(SoakError::Unavailable(String::new())), 69);
        assert_eq!(code(SoakError::Config(String::new())), 78);
        assert_eq!(code(SoakError::Interrupted), 1);
    }
}
