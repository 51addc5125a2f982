//! Owns `fanfare sweep`: asking a running service to find dead devices, and waiting for it.
//! Must never know: how FCM is asked.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::target::{Target, print_json};
use super::{Failure, ids, print};
use crate::client::{Client, ClientError};
use crate::wire::{Sweep, SweepRequest};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare sweep --dry-run                       how many devices it would ask about
  fanfare sweep --max-attempts 50000
  fanfare sweep --max-attempts 50000 --resume 24
  fanfare sweep --accept-dead-share 60          when a leap was withheld and you know that it is true

FCM is asked with validate_only: nothing reaches a phone, and APNs is not asked, so of iOS it finds what FCM itself
knows. It goes behind everything else, under the same ceiling. Exit codes: 0 every device was asked about, 75 paused by
its budget or by a throttle (go on with --resume), 1 cancelled or failed. The key needs the scope ops.";

/// What `fanfare sweep` takes.
#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// HTTP requests it may make, failed ones too.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    max_attempts: u64,
    /// Go on from where the sweep with this id got to [default: from the first device].
    #[arg(long, value_name = "ID", value_parser = ids::fanout)]
    resume: Option<String>,
    /// Only say what it would do.
    #[arg(long)]
    dry_run: bool,
    /// Share of dead devices, in per cent, to be taken for true [default: 30, above which none of a platform is judged].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=95))]
    accept_dead_share: Option<u8>,
}

/// Runs `fanfare sweep`.
///
/// # Errors
/// [`Failure::Paused`] when devices are left; [`Failure`] when the service does not answer or refuses.
pub async fn run(args: SweepArgs) -> Result<(), Failure> {
    let SweepArgs { target, max_attempts, resume, dry_run, accept_dead_share } = args;
    let client = target.client()?;
    let request = SweepRequest { max_attempts: Some(max_attempts), resume, dry_run, accept_dead_share };
    let begun = client.begin_sweep(&request).await.map_err(|fault| target.failure(fault))?;
    let sweep = match &begun.id {
        Some(id) => wait(&client, id).await.map_err(|fault| target.failure(fault))?,
        None => begun,
    };
    if target.json {
        print_json(&sweep)?
    } else {
        print(&format!("{}\n", account(&sweep)))?
    }
    ended(&sweep)
}

fn ended(sweep: &Sweep) -> Result<(), Failure> {
    let id = sweep.id.as_deref().unwrap_or_default();
    match sweep.state.as_str() {
        "paused" => {
            let reason = sweep.reason.as_deref().unwrap_or("budget");
            let left = sweep.left.unwrap_or_default();
            Err(Failure::Paused(format!(
                "paused ({reason}), {left} devices left: `fanfare sweep --resume {id}` goes on"
            )))
        }
        "done" | "dry_run" => Ok(()),
        other => Err(Failure::Runtime(format!("sweep {id} is {other}"))),
    }
}

/// Shows progress to whoever watches, until it has ended.
async fn wait(client: &Client, id: &str) -> Result<Sweep, ClientError> {
    let live = std::io::stderr().is_terminal();
    // It may take hours, or wait for credentials: whoever does not see it must know what goes on.
    let _ = writeln!(
        std::io::stderr(),
        "sweep {id} has begun; it goes on when this command ends, until `fanfare fanout cancel {id}`"
    );
    loop {
        let sweep = match client.sweep(id).await {
            Ok(sweep) => sweep,
            // The service is busy: that is no answer to what we wait for.
            Err(ClientError::Refused(problem)) if problem.retryable => {
                tokio::time::sleep(Duration::from_secs(problem.retry_after_s.unwrap_or(1).max(1))).await;
                continue;
            }
            Err(fault) => return Err(fault),
        };
        let ended = sweep.state != "running";
        if live {
            let end = if ended { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r\x1b[K{}{end}", account(&sweep));
        }
        if ended {
            return Ok(sweep);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn account(sweep: &Sweep) -> String {
    let Sweep { devices, asked, valid, dead, suspended, unknown, attempts, left, .. } = sweep;
    let left = left.map(|n| n.to_string());
    let Some(id) = &sweep.id else {
        let live = left.unwrap_or_default();
        return format!("would ask about {devices} of {live} live devices, one attempt each");
    };
    let left = left.map(|n| format!("; {n} left")).unwrap_or_default();
    let withheld = sweep.withheld.iter().map(|(platform, n)| format!("{n} {platform}")).collect::<Vec<_>>().join(", ");
    let withheld = if withheld.is_empty() {
        withheld
    } else {
        format!(
            "; NOT judged, as too many seem dead: {withheld} (if it is true: --resume {id} --accept-dead-share PERCENT)"
        )
    };
    format!(
        "sweep {id} {}: {asked} of {devices} devices asked in {attempts} attempts: {valid} valid, {dead} dead, \
         {suspended} to suspend, {unknown} unknown{left}{withheld}",
        sweep.state
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sweep(state: &str) -> Sweep {
        Sweep {
            id: Some("24".into()),
            state: state.into(),
            reason: None,
            devices: 10,
            asked: 9,
            valid: 6,
            dead: 2,
            suspended: 1,
            unknown: 0,
            attempts: 10,
            withheld: BTreeMap::new(),
            left: Some(5),
        }
    }

    #[test]
    fn a_pause_is_neither_success_nor_failure() {
        assert_eq!(ended(&sweep("done")), Ok(()));
        let paused = ended(&sweep("paused")).unwrap_err();
        assert_eq!(paused.exit_code(), 75);
        assert!(paused.to_string().contains("fanfare sweep --resume 24"), "{paused}");
        assert_eq!(ended(&sweep("cancelled")).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn an_account_says_what_was_asked_and_what_is_left() {
        let said = account(&sweep("paused"));
        assert_eq!(
            said,
            "sweep 24 paused: 9 of 10 devices asked in 10 attempts: 6 valid, 2 dead, 1 to suspend, 0 unknown; 5 left"
        );
        let withheld = [("ios".to_owned(), 7), ("web".to_owned(), 2)].into();
        let said = account(&Sweep { withheld, ..sweep("done") });
        assert!(said.ends_with("5 left; NOT judged, as too many seem dead: 7 ios, 2 web (if it is true: --resume 24 --accept-dead-share PERCENT)"), "{said}");
        let said = account(&Sweep { left: None, ..sweep("running") });
        assert!(said.ends_with("0 unknown"), "{said}");
        let dry = account(&Sweep { id: None, ..sweep("dry_run") });
        assert_eq!(dry, "would ask about 10 of 5 live devices, one attempt each");
    }
}
