//! Owns `fanfare fanout`: reading fan-outs, and waiting for one with progress.
//! Must never know: how a fan-out gets there.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Subcommand;

use super::target::{Target, print_json};
use super::{Failure, print};
use crate::client::{ClientError, ListQuery};
use crate::wire::Fanout;

/// What `fanfare fanout` can do.
#[derive(Debug, Subcommand)]
pub enum FanoutCommand {
    /// List fan-outs, newest first.
    List {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// Only of this state: freezing, sending, done, cancelled, set_aside [default: all].
        #[arg(long)]
        state: Option<String>,
        /// Most rows, up to 100.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
        /// Go on after the page that ended with this cursor [default: from the newest].
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show one fan-out.
    Show {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The fan-out's id.
        id: String,
        /// Wait until it is settled, at most this many seconds [default: no wait; without a number: 120].
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "120")]
        wait: Option<u64>,
    },
}

/// Runs `fanfare fanout`.
///
/// # Errors
/// [`Failure`] when the service does not answer or refuses, or when waiting was in vain.
pub async fn run(command: FanoutCommand) -> Result<(), Failure> {
    match command {
        FanoutCommand::List { target, state, limit, cursor } => {
            let query = ListQuery { state, cursor, limit: Some(limit) };
            let page = target.client()?.fanouts(&query).await.map_err(|fault| target.failure(fault))?;
            if target.json {
                return print_json(&page);
            }
            let more = page.next_cursor.map(|cursor| format!("more: --cursor {cursor}\n")).unwrap_or_default();
            print(&format!("{}{more}", table(&page.fanouts)))
        }
        FanoutCommand::Show { target, id, wait: None } => {
            let fanout = target.client()?.fanout(&id, Duration::ZERO).await.map_err(|fault| target.failure(fault))?;
            show(&target, &fanout)
        }
        FanoutCommand::Show { target, id, wait: Some(seconds) } => wait(&target, &id, seconds).await,
    }
}

/// Shows progress until the fan-out is settled, then the fan-out.
pub(super) async fn wait(target: &Target, id: &str, seconds: u64) -> Result<(), Failure> {
    let client = target.client()?;
    let until = Instant::now() + Duration::from_secs(seconds.min(86_400));
    let live = std::io::stderr().is_terminal();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Short polls while somebody watches, long ones otherwise.
        let step = left.min(Duration::from_secs(if live { 1 } else { 30 }));
        let fanout = match client.fanout(id, step).await {
            Ok(fanout) => fanout,
            // The service is busy: that is no answer to what we wait for.
            Err(ClientError::Refused(problem)) if problem.retryable && !left.is_zero() => {
                let pause = Duration::from_secs(problem.retry_after_s.unwrap_or(1).max(1));
                tokio::time::sleep(pause.min(left)).await;
                continue;
            }
            Err(fault) => return Err(target.failure(fault)),
        };
        let settled = fanout.settled_at.is_some() || fanout.state == "set_aside";
        if live {
            let end = if settled { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r\x1b[K{}{end}", progress(&fanout));
        }
        if settled {
            return show(target, &fanout);
        }
        if left.is_zero() {
            show(target, &fanout)?;
            let again = format!("not settled after {seconds} s; `fanfare fanout show {id} --wait` goes on waiting");
            return Err(Failure::Runtime(again));
        }
    }
}

fn show(target: &Target, fanout: &Fanout) -> Result<(), Failure> {
    if target.json {
        return print_json(fanout);
    }
    print(&account(fanout))
}

fn progress(f: &Fanout) -> String {
    format!("{}: {} of {} done, {} failed", f.state, f.delivered + f.failed, f.recipients, f.failed)
}

fn table(fanouts: &[Fanout]) -> String {
    let mut text = format!(
        "{:>8}  {:<10} {:<18} {:<12} {:>10} {:>10} {:>8} {:>8}  accepted\n",
        "id", "state", "type", "match", "recipients", "delivered", "failed", "pending"
    );
    for f in fanouts {
        text.push_str(&format!(
            "{:>8}  {:<10} {:<18} {:<12} {:>10} {:>10} {:>8} {:>8}  {}\n",
            f.id, f.state, f.event_type, f.match_id, f.recipients, f.delivered, f.failed, f.pending, f.accepted_at
        ));
    }
    text
}

/// A fan-out for people.
pub(super) fn account(f: &Fanout) -> String {
    let failed: Vec<String> = f
        .outcomes
        .iter()
        .filter(|(name, n)| **n > 0 && name.as_str() != "delivered")
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let why = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join(", ")) };
    let seconds = f.duration_ms as f64 / 1000.0;
    let ceiling = match &f.ceiling {
        c if c.mode.is_empty() => "nothing was sent under it yet".to_owned(),
        c => format!("{} {}/s, lowest pace {}/s", c.mode, c.rate, c.pace),
    };
    [
        format!("fan-out     {}  {} of match {}, event {}, {}", f.id, f.event_type, f.match_id, f.event_id, f.kind),
        format!(
            "state       {} after {seconds:.1} s; accepted {}, useful until {}",
            f.state, f.accepted_at, f.deadline_at
        ),
        format!(
            "recipients  {}: {} delivered, {} failed{why}, {} pending",
            f.recipients, f.delivered, f.failed, f.pending
        ),
        format!(
            "attempts    {}, of which {} retries; {} throttled, slowest {} ms",
            f.attempts, f.retried, f.throttled, f.slowest_send_ms
        ),
        format!("ceiling     {ceiling}"),
        format!("ledger      {}\n", f.ledger),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fanout() -> Fanout {
        serde_json::from_value(json!({
            "id": "17", "event_id": "evt-1", "type": "goal", "match_id": "4711", "kind": "original", "state": "done",
            "recipients": 10, "delivered": 8, "failed": 2, "pending": 0,
            "outcomes": {"delivered": 8, "token_dead": 2, "expired": 0},
            "attempts": 11, "retried": 1, "throttled": 0, "unprocessed": 0, "unsent": 0, "reauthed": 0, "stalled": 0,
            "accepted_at": "2026-11-30T15:03:12Z", "deadline_at": "2026-11-30T15:05:12Z", "duration_ms": 1900,
            "slowest_send_ms": 80, "ledger": "exact", "ceiling": {"mode": "single", "rate": 9000.0, "pace": 9000.0}
        }))
        .unwrap()
    }

    #[test]
    fn only_outcomes_that_happened_are_told() {
        let text = account(&fanout());
        assert!(text.contains("10: 8 delivered, 2 failed (token_dead 2), 0 pending"), "{text}");
        assert!(text.contains("done after 1.9 s"), "{text}");
    }

    #[test]
    fn help_tells_of_the_command_and_not_of_its_parts() {
        use clap::Subcommand as _;
        let mut command = FanoutCommand::augment_subcommands(clap::Command::new("fanout"));
        let show = command.find_subcommand_mut("show").unwrap().render_long_help().to_string();
        assert!(show.starts_with("Show one fan-out"), "{show}");
        assert!(show.contains("FANFARE_URL") && show.contains("http://127.0.0.1:8080"), "{show}");
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        assert_eq!(table(&[fanout(), fanout()]).lines().count(), 3);
    }
}
