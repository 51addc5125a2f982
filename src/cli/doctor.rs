//! Owns `fanfare doctor`: asking for every check and showing what they found.
//! Must never know: any single check.

use std::path::Path;

use clap::Args;
use serde_json::json;

use super::{Failure, environment, print};
use crate::app;
use crate::inspect::doctor::{Conclusion, Finding, Trouble, conclude};

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare doctor                           before the first start, and whenever something is odd
  fanfare doctor --config fanfare.toml --no-send
  fanfare doctor --json | jq -r '.checks[] | select(.result != \"ok\") | .check, .fix'

It asks with the settings `serve` would use, and changes nothing. One access token is asked for and one message is given to
FCM to look at (validate_only, for a made-up device token): it reaches no phone. Both are charged to the ceiling. Exit codes:
0 no check failed (warnings allowed), 78 the configuration is bad, 69 something it depends on is unavailable, 1 otherwise.";

/// What `fanfare doctor` takes.
#[derive(Debug, Clone, Copy, Args)]
pub struct DoctorArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Let FCM look at one message, with validate_only [default: it does].
    #[arg(long, overrides_with = "no_send")]
    send_check: bool,
    /// Give FCM no message to look at.
    #[arg(long)]
    no_send: bool,
}

/// Runs every check.
///
/// # Errors
/// [`Failure`] of the trouble to mend first, when a check failed.
pub async fn run(args: DoctorArgs, file: Option<&Path>) -> Result<(), Failure> {
    let findings = app::doctor::diagnose(file, &environment(), args.send_check || !args.no_send).await;
    let conclusion = conclude(&findings);
    let ended = ended(&conclusion, findings.len());
    if args.json {
        let code = ended.as_ref().map_or_else(Failure::exit_code, |()| 0);
        print(&format!("{}\n", document(&findings, &conclusion, code)))?;
    } else {
        let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
        print(&lines)?;
    }
    ended
}

fn ended(conclusion: &Conclusion, checks: usize) -> Result<(), Failure> {
    let text = format!("{} of {checks} checks failed: {}", conclusion.failed.len(), conclusion.failed.join(", "));
    match conclusion.trouble {
        None => Ok(()),
        Some(Trouble::Config) => Err(Failure::Config(text)),
        Some(Trouble::Unavailable) => Err(Failure::Unavailable(text)),
        Some(Trouble::Other) => Err(Failure::Runtime(text)),
    }
}

fn document(findings: &[Finding], conclusion: &Conclusion, exit_code: u8) -> serde_json::Value {
    let check = |finding: &Finding| {
        let Finding { check, grade, found, fix } = finding;
        json!({"check": check, "result": grade.as_str(), "found": found, "fix": fix})
    };
    let checks: Vec<serde_json::Value> = findings.iter().map(check).collect();
    let (failed, warned) = (&conclusion.failed, conclusion.warned);
    json!({"exit_code": exit_code, "failed": failed, "warned": warned, "checks": checks})
}
