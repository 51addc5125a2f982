//! Owns `fanfare fanout replay` and `fanfare fanout resume`.
//! Must never know: who failed, or how anybody is sent to.

use clap::Args;

use super::super::target::{Target, print_json};
use super::super::{Failure, ids, print};
use super::show;
use crate::wire::{ReplayAnswer, ReplayRequest, ResumeRequest};

const REPLAY: &str = "\
Examples:
  fanfare fanout replay 17 --dry-run
  fanfare fanout replay 17 --useful-for 600
  fanfare fanout replay 17 --request-id ticket-77 --json | jq -r .fanout_id

It is for those that ended as credential, transient, protocol, expired or internal, whose device is live. It stops as
`paused` when it has made as many requests as it may, failures included, or when FCM throttles the project. The key needs
the scope ops.";

const RESUME: &str = "\
Example:
  fanfare fanout resume 18 && fanfare fanout show 18 --wait

The key needs the scope ops.";

/// Arguments of `fanfare fanout replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY)]
pub struct ReplayArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// The fan-out's id.
    #[arg(value_parser = ids::fanout)]
    id: String,
    /// Only say how many it would be, how long it would take, and whether the deadline allows it.
    #[arg(long)]
    dry_run: bool,
    /// Those too that were sent to without an answer; they may get it twice.
    #[arg(long)]
    include_unconfirmed: bool,
    /// Seconds it is useful, from now on [default: until the deadline of what it repeats].
    #[arg(long, value_name = "SECONDS")]
    useful_for: Option<u32>,
    /// A name of your own: the same name again is the same replay [default: none].
    #[arg(long, value_name = "X")]
    request_id: Option<String>,
    /// Most HTTP requests it may make, failures included [default: twice its recipients].
    #[arg(long, value_name = "N")]
    max_attempts: Option<u64>,
}

/// Arguments of `fanfare fanout resume`.
#[derive(Debug, Args)]
#[command(after_help = RESUME)]
pub struct ResumeArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// The fan-out's id.
    #[arg(value_parser = ids::fanout)]
    id: String,
    /// HTTP requests it may make beside those it made [default: twice those that have no outcome].
    #[arg(long, value_name = "N")]
    max_attempts: Option<u64>,
}

/// Runs `fanfare fanout replay`.
pub(super) async fn run(args: ReplayArgs) -> Result<(), Failure> {
    let ReplayArgs { target, id, dry_run, include_unconfirmed, useful_for, request_id, max_attempts } = args;
    let asked = ReplayRequest { request_id, include_unconfirmed, useful_for_s: useful_for, max_attempts, dry_run };
    let answer = target.client()?.replay(&id, &asked).await.map_err(|fault| target.failure(fault))?;
    if target.json { print_json(&answer) } else { print(&account(&answer)) }
}

/// Runs `fanfare fanout resume`.
pub(super) async fn resume(args: ResumeArgs) -> Result<(), Failure> {
    let asked = ResumeRequest { max_attempts: args.max_attempts };
    let target = &args.target;
    let fanout = target.client()?.resume(&args.id, &asked).await.map_err(|fault| target.failure(fault))?;
    show(target, &fanout)
}

fn account(answer: &ReplayAnswer) -> String {
    let (n, seconds) = (answer.recipients, answer.expected_ms as f64 / 1000.0);
    let time = if answer.in_time { "in time" } else { "NOT in time" };
    let what = format!(
        "{n} recipients, {seconds:.1} s at the pace in force, {time} for {}; at most {} requests\n",
        answer.deadline_at, answer.max_attempts
    );
    match &answer.fanout_id {
        Some(id) => {
            format!("replay of {}: fan-out {id}\n{what}follow it: fanfare fanout show {id} --wait\n", answer.parent)
        }
        None => format!("a replay of {} would be for {what}", answer.parent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_says_how_many_how_long_and_whether_in_time() {
        let mut answer = ReplayAnswer {
            fanout_id: None,
            status_url: None,
            parent: "17".into(),
            recipients: 212,
            expected_ms: 1_530,
            deadline_at: "2026-11-30T15:13:12Z".into(),
            in_time: false,
            max_attempts: 424,
        };
        let text = account(&answer);
        assert!(text.contains("would be for 212 recipients, 1.5 s") && text.contains("NOT in time"), "{text}");
        answer.fanout_id = Some("18".into());
        answer.in_time = true;
        let text = account(&answer);
        assert!(text.contains("fan-out 18\n") && text.contains(", in time for 2026"), "{text}");
    }
}
