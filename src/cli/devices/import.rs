//! Owns `fanfare devices import`: a file in parts, how far it came, what was rejected, and how to go on.
//! Must never know: what makes a device valid.

use std::path::{Path, PathBuf};

use clap::Args;
use tokio::io::AsyncRead;

use super::format_of;
use super::parts::Parts;
use super::progress::Progress;
use crate::cli::target::{Target, print_json};
use crate::cli::{Failure, print};
use crate::client::ClientError;
use crate::wire::ImportAnswer;

pub(super) const EXAMPLE: &str = r#"NDJSON, one object per line (`follows` replaces what the device followed; absent leaves it):
  {"id":"d1","user_id":"u1","token":"...","platform":"ios","locale":"pt-BR","follows":["team:ars","match:4711"],"muted":["corner"]}
CSV, columns in any order; `=` names the event types wanted of a subject, others are not sent:
  id,user_id,token,platform,locale,follows,muted
  d1,u1,...,ios,pt-BR,team:ars=goal+full_time|match:4711,corner"#;

/// Rejected lines shown to people.
const SHOWN: usize = 20;

/// What to import, and how.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The service.
    #[command(flatten)]
    target: Target,
    /// ndjson or csv [default: csv for a file called .csv, else ndjson]
    #[arg(long)]
    format: Option<String>,
    /// Also wake devices that are tombstoned or suspended, whatever `state` the file says; without it their lines are
    /// rejected.
    #[arg(long)]
    revive: bool,
    /// Leave out the lines before this one; the header of CSV is read all the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// The file, - for standard input.
    file: PathBuf,
}

/// Imports a file.
pub(super) async fn run(args: ImportArgs) -> Result<(), Failure> {
    let format = format_of(args.format.as_ref(), Some(&args.file))?;
    let client = args.target.client()?;
    let unreadable = |fault: std::io::Error| Failure::Runtime(format!("{}: {fault}", args.file.display()));
    let (input, size) = open(&args.file).await.map_err(unreadable)?;
    let mut parts = Parts::new(input, format, args.from_line);
    let mut progress = Progress::new(size);
    let mut run = Run { args: &args, answer: ImportAnswer::default(), empty: true };
    while let Some(mut part) = parts.next().await.map_err(unreadable)? {
        let lines = std::mem::take(&mut part.bytes);
        let place = |answer| part.place(answer);
        if let Err(fault) = run.take(client.import_part(format, args.revive, lines).await, place) {
            drop(progress);
            return Err(run.stopped(fault));
        }
        progress.at(parts.bytes(), run.answer.imported + run.answer.updated);
    }
    drop(progress);
    run.ended(parts.lines())
}

async fn open(file: &Path) -> std::io::Result<(Box<dyn AsyncRead + Send + Unpin>, Option<u64>)> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(tokio::io::stdin()), None));
    }
    let opened = tokio::fs::File::open(file).await?;
    let about = opened.metadata().await?;
    if about.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    Ok((Box::new(opened), about.is_file().then_some(about.len())))
}

/// What became of the parts so far.
struct Run<'a> {
    args: &'a ImportArgs,
    answer: ImportAnswer,
    /// No part had anything in it.
    empty: bool,
}

impl Run<'_> {
    /// Counts a part. One of which nothing was kept is no reason to stop; the sum is judged at the end.
    fn take(
        &mut self,
        outcome: Result<ImportAnswer, ClientError>,
        place: impl Fn(ImportAnswer) -> ImportAnswer,
    ) -> Result<(), ClientError> {
        let fault = match outcome {
            Ok(answer) => {
                self.empty = false;
                self.answer.add(place(answer));
                return Ok(());
            }
            Err(fault) => fault,
        };
        let ClientError::Refused(mut problem) = fault else { return Err(fault) };
        if let Some(answer) = problem.import.take() {
            self.answer.add(place(*answer));
            // What the service says of lines counts from the beginning of the part.
            problem.detail = match self.answer.rejected.last() {
                Some(last) if problem.code == "unreadable_file" => format!("line {}: {}", last.line, last.reason),
                _ => problem.title.clone(),
            };
        }
        match problem.code.as_str() {
            "empty_import" => Ok(()),
            "nothing_imported" => {
                self.empty = false;
                Ok(())
            }
            _ => Err(ClientError::Refused(problem)),
        }
    }

    fn show(&self) -> Result<(), Failure> {
        if self.args.target.json { print_json(&self.answer) } else { print(&summary(&self.answer)) }
    }

    /// It came to the end of a file of so many lines.
    fn ended(self, lines: u64) -> Result<(), Failure> {
        self.show()?;
        let kept = self.answer.imported + self.answer.updated;
        let fail = |text: String| Err(Failure::Runtime(text));
        let (file, from_line) = (self.args.file.display(), self.args.from_line);
        match self.answer.rejected_total {
            0 if kept == 0 && self.empty && from_line > 1 && from_line > lines => {
                fail(format!("--from-line {from_line}: {file} has {lines} line{}", if lines == 1 { "" } else { "s" }))
            }
            0 if kept == 0 && self.empty => fail(format!("{file}: there is no device in it")),
            0 => Ok(()),
            1 if kept == 0 => fail("nothing was imported: 1 line was rejected, and no other was there".to_owned()),
            n if kept == 0 => fail(format!("nothing was imported: {n} lines were rejected, and no other was there")),
            1 => fail("1 line was rejected; the others are kept".to_owned()),
            n => fail(format!("{n} lines were rejected; the others are kept")),
        }
    }

    /// It ended early. A file that is none of its format need not be tried again; anything else may go on.
    fn stopped(&self, fault: ClientError) -> Failure {
        let unreadable = matches!(&fault, ClientError::Refused(problem) if problem.code == "unreadable_file");
        let passes = match &fault {
            ClientError::Unreachable(_) => true,
            ClientError::Refused(problem) => problem.retryable,
            ClientError::Strange { status } => *status >= 500,
            ClientError::Setup(_) => false,
        };
        let failure = self.args.target.failure(fault);
        let (from_line, kept) = (self.args.from_line, self.answer.kept_through);
        if kept < from_line {
            let again = self.again(from_line);
            let more =
                format!("\n  how many lines were kept is not known; it is safe to run the same command again: {again}");
            return if passes { failure.and(&more) } else { failure };
        }
        if unreadable {
            return failure;
        }
        if let Err(failed) = self.show() {
            return failed;
        }
        let again = self.again(kept + 1);
        failure.and(&format!("\n  lines up to {kept} are kept; go on with: {again}"))
    }

    /// The command that goes on from this line.
    fn again(&self, from_line: u64) -> String {
        let from = if from_line > 1 { format!(" --from-line {from_line}") } else { String::new() };
        let revive = if self.args.revive { " --revive" } else { "" };
        let format = self.args.format.as_ref().map_or_else(String::new, |name| format!(" --format {name}"));
        format!("fanfare devices import{from}{format}{revive} {}", self.args.file.display())
    }
}

fn summary(answer: &ImportAnswer) -> String {
    let ImportAnswer { imported, updated, rejected_total, .. } = answer;
    let mut text = format!("{imported} imported, {updated} updated, {rejected_total} rejected\n");
    if answer.moved > 0 {
        text.push_str(&format!("  {} took a token over from another device, which is gone\n", answer.moved));
    }
    if answer.revived > 0 {
        text.push_str(&format!("  {} were dead and are live again\n", answer.revived));
    }
    if !answer.ignored_columns.is_empty() {
        text.push_str(&format!("  columns that mean nothing here: {}\n", answer.ignored_columns.join(", ")));
    }
    for (code, count) in &answer.rejected_by_code {
        text.push_str(&format!("  {count} x {code}\n"));
    }
    for reject in answer.rejected.iter().take(SHOWN) {
        text.push_str(&format!("  line {}: {}: {}\n", reject.line, reject.code, reject.reason));
    }
    if answer.rejected_total > SHOWN as u64 {
        text.push_str("  … `--json` lists up to 1,000\n");
    }
    // It goes to a terminal, which would obey what a file says in control characters.
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rejects_are_told_by_line_after_the_count_of_each_code() {
        let mut answer = ImportAnswer { imported: 2, updated: 1, moved: 1, ..Default::default() };
        answer.ignored_columns = vec!["team".into()];
        for line in 1..=30 {
            answer.reject(line, "invalid", "/token: must not be \u{1b}[31mempty".into());
        }
        let text = summary(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2 imported, 1 updated, 30 rejected");
        assert!(lines[1].contains("took a token over") && lines[2].contains("team"), "{text}");
        assert_eq!(lines[3..5], ["  30 x invalid", "  line 1: invalid: /token: must not be [31mempty"]);
        assert_eq!(lines.len(), 3 + 1 + SHOWN + 1);
    }
}
