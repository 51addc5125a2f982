//! Owns `fanfare shadow`: reading the two files, and showing what the comparison found.
//! Must never know: why a device is on one list alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{Failure, configuration, print};
use crate::app::shadow::{Asked, Theirs, compare, events};
use crate::inspect::shadow::{Comparison, Counts, Side};

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  fanfare shadow --events posted.ndjson --theirs sent.csv
  fanfare shadow --events posted.ndjson --theirs sent.ndjson --json | jq .absent
  psql -c \"\\copy (select event_id, token, sent_at from pushes) to 'sent.csv' csv header\" theirs

Both systems are given the same events (Fanfare's FCM may be `fanfare emulator`), then the lists are compared. --events has
one JSON object with an `id` on each line: what was posted. --theirs names event_id, and device_id or token, and may name
time (RFC 3339 or ms): CSV with a header, or NDJSON. The database of the settings is read, beside a running service too, and
nothing is written. Exit codes: 0 every difference is explained, 1 some are not, or nothing could be compared.";

/// What `fanfare shadow` takes.
#[derive(Debug, Clone, Args)]
pub struct ShadowArgs {
    /// The events, NDJSON.
    #[arg(long, value_name = "FILE")]
    events: PathBuf,
    /// The other system's list, CSV or NDJSON.
    #[arg(long, value_name = "FILE")]
    theirs: PathBuf,
    /// Most unexplained differences that are named.
    #[arg(long, value_name = "N", default_value_t = 50)]
    list: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Compares and shows.
///
/// # Errors
/// [`Failure::Runtime`] when a difference is unexplained or nothing could be compared; [`Failure`] when a file or the
/// database cannot be read.
pub async fn run(args: ShadowArgs, file: Option<&Path>) -> Result<(), Failure> {
    let config = configuration(file)?.config;
    let events = events(&text(&args.events)?).map_err(|fault| bad(&args.events, &fault))?;
    let theirs = Theirs::parse(&text(&args.theirs)?).map_err(|fault| bad(&args.theirs, &fault))?;
    let found = compare(&config, Asked { events, theirs, list: args.list }).await?;
    if args.json {
        let mut document = json!(found);
        document["cannot_say"] = found.cannot_say().into();
        print(&format!("{document}\n"))?;
    } else {
        print(&account(&found))?;
    }
    verdict(&found)
}

fn text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| bad(path, &error.to_string()))
}

fn bad(path: &Path, fault: &str) -> Failure {
    Failure::Usage(format!("{}: {fault}", path.display()))
}

fn verdict(found: &Comparison) -> Result<(), Failure> {
    if found.coverage.events == 0 {
        return Err(Failure::Runtime("nothing was compared: none of the events has a list here".to_owned()));
    }
    match found.unexplained {
        0 => Ok(()),
        1 => Err(Failure::Runtime("1 difference is unexplained".to_owned())),
        n => Err(Failure::Runtime(format!("{n} differences are unexplained"))),
    }
}

fn account(found: &Comparison) -> String {
    let Comparison { ours, theirs, both, .. } = found;
    let mut out = format!(
        "events    {} compared, of {} types\nlists     {ours} recipients of ours, {theirs} of theirs, {both} on both\n",
        found.coverage.events,
        found.coverage.types.len()
    );
    table(&mut out, "on theirs alone", theirs - both, &found.absent);
    table(&mut out, "on ours alone", ours - both, &found.extra);
    for one in &found.listed {
        let side = if one.side == Side::Absent { "theirs alone" } else { "ours alone" };
        out.push_str(&format!(
            "unexplained  event {}, {} on {side}: {}. {}\n",
            one.event_id, one.device, one.because, one.text
        ));
    }
    let more = found.unexplained.saturating_sub(found.listed.len() as u64);
    if more > 0 {
        out.push_str(&format!("             and {more} more (--list)\n"));
    }
    for words in found.cannot_say() {
        out.push_str(&format!("not said  {words}\n"));
    }
    out
}

fn table(out: &mut String, title: &str, total: u64, reasons: &BTreeMap<String, BTreeMap<String, Counts>>) {
    out.push_str(&format!("{title}: {total}\n"));
    for (group, reasons) in reasons {
        for (because, counts) in reasons {
            let likely =
                if counts.likely > 0 { format!(" (of which {} not proved)", counts.likely) } else { String::new() };
            out.push_str(&format!("  {:>8}  {group:<17} {because}{likely}\n", counts.certain + counts.likely));
        }
    }
}
