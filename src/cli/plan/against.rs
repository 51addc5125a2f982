//! Owns predictions beside a log: finding the lines of fan-outs in it, and the table of both.
//! Must never know: how a fan-out is predicted.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::table::{row, table};
use super::unit::{figure, time};
use crate::capacity::course::enough_runs;
use crate::capacity::fanout::Fanout;
use crate::capacity::latency::Latency;
use crate::capacity::measured::{Compared, Line, compare};
use crate::cli::Failure;

/// Predictions beside what happened.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Against {
    /// In the order of the log.
    fanouts: Vec<Compared>,
    /// The middle one of the errors, without their signs.
    median_error: f64,
    /// Lines that tell of something else.
    other_lines: usize,
    /// Lines that are no JSON.
    no_json: usize,
}

/// What tells the lines apart.
#[derive(Deserialize)]
struct Message {
    message: String,
}

/// Predicts every fan-out of a log.
pub(super) fn compare_all(
    file: &Path,
    base: &Fanout,
    latency: Option<Latency>,
    (runs, seed): (Option<u64>, u64),
) -> Result<Against, Failure> {
    let text = super::read("--against", file)?;
    let (lines, other_lines, no_json) = lines(&text).map_err(|fault| {
        Failure::Usage(format!("--against {}: {fault}. Fix: give the log as the service wrote it", file.display()))
    })?;
    if lines.is_empty() {
        return Err(Failure::Usage(format!(
            "--against {}: no line `fan-out finished` as JSON in it. Fix: run the service with LOG_FORMAT=json",
            file.display()
        )));
    }
    let one =
        |line: &Line| compare(line, base, latency, (runs.unwrap_or_else(|| enough_runs(line.attempts).min(100)), seed));
    let fanouts: Vec<Compared> = lines.iter().map(one).collect();
    let mut errors: Vec<f64> = fanouts.iter().map(|one| one.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    Ok(Against { median_error: errors[errors.len() / 2], fanouts, other_lines, no_json })
}

/// The fan-outs of a log; how many lines are something else, and no JSON.
fn lines(text: &str) -> Result<(Vec<Line>, usize, usize), String> {
    let (mut lines, mut others, mut no_json) = (Vec::new(), 0, 0);
    for (i, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match serde_json::from_str::<Message>(text) {
            Ok(Message { message }) if message == "fan-out finished" => {
                let line = serde_json::from_str(text).map_err(|fault| format!("line {}: {fault}", i + 1))?;
                lines.push(line);
            }
            Err(fault) if fault.is_syntax() || fault.is_eof() => no_json += 1,
            Ok(_) | Err(_) => others += 1,
        }
    }
    Ok((lines, others, no_json))
}

/// Most lines a person is shown.
const SHOWN: usize = 50;

pub(super) fn text(against: &Against) -> String {
    let mut rows = vec![row(&["fan-out", "recipients", "formula", "simulated", "observed", "error", "held"])];
    rows.extend(against.fanouts.iter().take(SHOWN).map(|one| {
        row(&[
            &one.fanout_id,
            &one.recipients.to_string(),
            &time(one.formula_s),
            &time(one.simulated_s),
            &time(one.observed_s),
            &percent(one.error),
            &time(one.held_s),
        ])
    }));
    let more = match against.fanouts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("and {more} more: --json has them all\n"),
    };
    format!(
        "{}{more}\n{} fan-outs; half of the predictions are within {} %. {} other lines, {} that are no JSON.\nThe error is that \
         of the simulation: predicted / observed - 1, never corrected. Predicted is sending from what\neach line says of \
         its answers (right to 25 %); pauses (`held`), the database and other fan-outs at the same time are not in it.\n",
        table(&rows),
        against.fanouts.len(),
        figure(100.0 * against.median_error),
        against.other_lines,
        against.no_json
    )
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_fan_outs_are_taken_and_the_others_counted() {
        let other = r#"{"message":"ceiling in force","mode":"single"}"#;
        let found = lines(&format!("{other}\n\nplain text\n{{\"level\":\"INFO\"}}\n[1]\n")).unwrap();
        assert_eq!(found, (vec![], 3, 1));
    }

    #[test]
    fn a_line_of_a_fan_out_that_lacks_a_field_is_told_by_number_and_field() {
        let fault = lines("\n{\"message\":\"fan-out finished\",\"fanout_id\":\"1\"}\n").unwrap_err();
        assert!(fault.starts_with("line 2: missing field `recipients`"), "{fault}");
    }
}
