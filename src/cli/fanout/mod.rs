//! Owns `fanfare fanout`: reading fan-outs, waiting for one, cancelling, replaying or resuming one, explaining one device of
//! one.
//! Must never know: how a fan-out gets there.

mod explain;
mod replay;
mod text;
mod wait;

use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;

use super::target::{Target, print_json};
use super::{Failure, ids, print};
use crate::client::ListQuery;
use crate::domain::batch::FanoutState;
use crate::wire::Fanout;

pub(super) use wait::wait;

const LIST: &str = "\
Examples:
  fanfare fanout list
  fanfare fanout list --state set_aside
  fanfare fanout list --json --limit 100 | jq -r '.fanouts[] | select(.failed > 0) | .id'";

const SHOW: &str = "\
Examples:
  fanfare fanout show 17
  fanfare fanout show 17 --wait          follow it until it is settled, at most 120 s
  fanfare fanout show 17 --json | jq .outcomes";

const EXPLAIN: &str = "\
Examples:
  fanfare fanout explain 17 phone-1
  fanfare fanout explain 17 phone-1 --json | jq -r .because

It says what became of the device, or why it was no recipient: it followed nothing of the event, had muted the type,
was registered later, was dead. `certain: no` says that something has changed since, and what.";

const CANCEL: &str = "\
Example:
  fanfare fanout cancel 17 && fanfare fanout show 17 --wait

Nothing more is launched: at once by the instance that is asked, by others with their next flush (half a second while
they send) or heartbeat (3 s). What is in flight keeps its true outcome; everybody else ends as `cancelled`. Of two
callers the second gets `fanout_cancelled` and exit code 1. The key needs the scope ops.";

/// What `fanfare fanout` can do.
#[derive(Debug, Subcommand)]
pub enum FanoutCommand {
    /// List fan-outs, newest first.
    #[command(after_help = LIST)]
    List {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// Only of this state [default: all].
        #[arg(long, value_parser = PossibleValuesParser::new(FanoutState::ALL.iter().map(|state| state.as_str())))]
        state: Option<String>,
        /// Most rows, up to 100.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
        /// Go on after the page that ended with this cursor [default: from the newest].
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show one fan-out.
    #[command(after_help = SHOW)]
    Show {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The fan-out's id.
        #[arg(value_parser = ids::fanout)]
        id: String,
        /// Wait until it is settled, at most this many seconds [default: no wait; without a number: 120].
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "120")]
        wait: Option<u64>,
    },
    /// Say what became of one device in a fan-out, or why it was no recipient.
    #[command(after_help = EXPLAIN)]
    Explain {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The fan-out's id.
        #[arg(value_parser = ids::fanout)]
        id: String,
        /// The device's id; one that was deleted since, too.
        #[arg(value_parser = ids::device)]
        device: String,
    },
    /// Stop a fan-out: whoever has not been sent to ends as `cancelled`.
    #[command(after_help = CANCEL)]
    Cancel {
        /// The service.
        #[command(flatten)]
        target: Target,
        /// The fan-out's id.
        #[arg(value_parser = ids::fanout)]
        id: String,
    },
    /// Send again to those a fan-out failed to reach, as a new fan-out.
    Replay(replay::ReplayArgs),
    /// Let a paused fan-out go on.
    Resume(replay::ResumeArgs),
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
            print(&format!("{}{more}", text::table(&page.fanouts)))
        }
        FanoutCommand::Show { target, id, wait: None } => {
            let fanout = target.client()?.fanout(&id, Duration::ZERO).await.map_err(|fault| target.failure(fault))?;
            show(&target, &fanout)
        }
        FanoutCommand::Show { target, id, wait: Some(seconds) } => wait(&target, &id, seconds).await,
        FanoutCommand::Explain { target, id, device } => {
            let told = target.client()?.explain(&id, &device).await.map_err(|fault| target.failure(fault))?;
            if target.json { print_json(&told) } else { print(&explain::account(&told)) }
        }
        FanoutCommand::Replay(args) => replay::run(args).await,
        FanoutCommand::Resume(args) => replay::resume(args).await,
        FanoutCommand::Cancel { target, id } => {
            let fanout = target.client()?.cancel(&id).await.map_err(|fault| target.failure(fault))?;
            show(&target, &fanout)?;
            if fanout.pending > 0 {
                let pending = fanout.pending;
                eprintln!(
                    "{pending} are not over yet: what is in flight keeps its outcome, nothing more is launched. `fanfare fanout show {id} --wait` shows the end"
                );
            }
            Ok(())
        }
    }
}

fn show(target: &Target, fanout: &Fanout) -> Result<(), Failure> {
    if target.json {
        return print_json(fanout);
    }
    print(&text::account(fanout))
}

#[cfg(test)]
mod tests {
    use clap::Subcommand as _;

    use super::*;

    #[test]
    fn help_tells_of_the_command_and_not_of_its_parts() {
        let mut command = FanoutCommand::augment_subcommands(clap::Command::new("fanout"));
        for (name, says) in [
            ("show", "Show one"),
            ("list", "List"),
            ("explain", "Say what"),
            ("cancel", "Stop"),
            ("replay", "Send again"),
            ("resume", "Let a"),
        ] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.starts_with(says) && help.contains("Example"), "{help}");
            assert!(help.contains("FANFARE_URL") && help.contains("http://127.0.0.1:8080"), "{help}");
        }
    }

    #[test]
    fn a_state_that_is_none_is_a_usage_error_that_names_them() {
        let parse = |state| {
            let command = FanoutCommand::augment_subcommands(clap::Command::new("fanout"));
            command.try_get_matches_from(["fanout", "list", "--state", state])
        };
        assert!(parse("set_aside").is_ok());
        let error = parse("nope").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(FanoutState::ALL.iter().all(|state| error.to_string().contains(state.as_str())), "{error}");
    }
}
