//! Owns how another system's list is read: CSV with a header, or NDJSON; and the ids of a file of events.
//! Must never know: what it is compared with.

use std::collections::BTreeMap;

use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::devices::fields;

/// Whom a row names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// A device by the caller's name for it.
    Device(String),
    /// A registration token (or FID).
    Token(String),
}

/// One recipient of theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) who: Who,
    /// When it was put on the list, ms.
    pub(super) at_ms: Option<i64>,
}

/// Another system's recipients by event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Theirs(pub(super) BTreeMap<String, Vec<Row>>);

/// The columns, by any of these names.
const EVENT: &[&str] = &["event_id", "event"];
const DEVICE: &[&str] = &["device_id", "device", "id"];
const TOKEN: &[&str] = &["token", "fid"];
const TIME: &[&str] = &["time", "sent_at"];

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "event")]
    event_id: String,
    #[serde(default, alias = "device", alias = "id")]
    device_id: Option<String>,
    #[serde(default, alias = "fid")]
    token: Option<String>,
    #[serde(default, alias = "sent_at")]
    time: Option<serde_json::Value>,
}

impl Theirs {
    /// Reads a list; text that begins with `{` is NDJSON.
    ///
    /// # Errors
    /// The first line that cannot be read, and how to write it. No value of it is repeated.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines =
            text.trim_start_matches('\u{feff}').lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let mut theirs = Self::default();
        if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
            for (line, no) in lines {
                let line: Line = serde_json::from_str(line)
                    .map_err(|e| format!("line {no}: no such object: column {}", e.column()))?;
                let time = line.time.map(|time| time.as_str().map_or_else(|| time.to_string(), str::to_owned));
                theirs.add(no, line.event_id, [line.device_id, line.token, time])?;
            }
            return Ok(theirs);
        }
        let columns = Columns::parse(lines.next().map_or("", |(line, _)| line))?;
        for (line, no) in lines {
            let cells = fields(line, columns.delimiter).map_err(|fault| format!("line {no}: {fault}"))?;
            let cell = |at: Option<usize>| at.and_then(|at| cells.get(at).cloned());
            let event = cell(Some(columns.event)).unwrap_or_default();
            theirs.add(no, event, [cell(columns.device), cell(columns.token), cell(columns.time)])?;
        }
        Ok(theirs)
    }

    /// One row: device, token and time, each where it was given.
    fn add(&mut self, no: i32, event: String, [device, token, time]: [Option<String>; 3]) -> Result<(), String> {
        let filled = |cell: Option<String>| cell.filter(|text| !text.trim().is_empty());
        let who = match (filled(device), filled(token)) {
            (Some(device), _) => Who::Device(device),
            (None, Some(token)) => Who::Token(token),
            (None, None) => return Err(format!("line {no}: neither device_id nor token")),
        };
        if event.is_empty() {
            return Err(format!("line {no}: no event_id"));
        }
        let at_ms = filled(time).map(|time| {
            instant(&time).ok_or_else(|| {
                format!("line {no}: time must be RFC 3339, such as 2026-11-30T15:03:12Z, or ms since 1970")
            })
        });
        self.0.entry(event).or_default().push(Row { who, at_ms: at_ms.transpose()? });
        Ok(())
    }
}

/// Where the columns are.
struct Columns {
    delimiter: char,
    event: usize,
    device: Option<usize>,
    token: Option<usize>,
    time: Option<usize>,
}

impl Columns {
    fn parse(header: &str) -> Result<Self, String> {
        let delimiter = [',', ';', '\t'].into_iter().find(|d| header.contains(*d)).unwrap_or(',');
        let names = fields(header, delimiter).map_err(|fault| format!("line 1: {fault}"))?;
        let place = |wanted: &[&str]| names.iter().position(|name| wanted.iter().any(|w| w.eq_ignore_ascii_case(name)));
        let (device, token, time) = (place(DEVICE), place(TOKEN), place(TIME));
        match place(EVENT) {
            Some(event) if device.is_some() || token.is_some() => Ok(Self { delimiter, event, device, token, time }),
            _ => Err("line 1: the header must name event_id, and device_id or token, and may name time".to_owned()),
        }
    }
}

/// RFC 3339, or ms since the epoch.
fn instant(text: &str) -> Option<i64> {
    if let Ok(ms) = text.trim().parse() {
        return Some(ms);
    }
    let at = OffsetDateTime::parse(text.trim(), &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

/// The ids of events, one JSON object with an `id` on each line: what was posted can be given as it is.
///
/// # Errors
/// The first line that has none.
pub fn events(text: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Posted {
        id: String,
    }
    let lines = text.trim_start_matches('\u{feff}').lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let read = |(line, no)| {
        let posted: Posted =
            serde_json::from_str(line).map_err(|_| format!("line {no}: no object with a text `id`"))?;
        Ok(posted.id)
    };
    let mut ids: Vec<String> = lines.map(read).collect::<Result<_, String>>()?;
    ids.sort();
    ids.dedup();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: Who, at_ms: Option<i64>) -> Row {
        Row { who, at_ms }
    }

    #[test]
    fn both_forms_are_read_to_the_same_list() {
        let csv = "event_id;token;device_id;time\ne1;t1;;1970-01-01T00:00:01Z\ne1;;d2;\n\ne2;t3;;1500\n";
        let json = "{\"event_id\":\"e1\",\"token\":\"t1\",\"time\":\"1970-01-01T00:00:01Z\"}\n\
                    {\"event\":\"e1\",\"device\":\"d2\"}\n{\"event_id\":\"e2\",\"token\":\"t3\",\"time\":1500}";
        let theirs = Theirs::parse(csv).unwrap();
        assert_eq!(theirs, Theirs::parse(json).unwrap());
        let e1 = vec![row(Who::Token("t1".into()), Some(1000)), row(Who::Device("d2".into()), None)];
        assert_eq!(theirs.0["e1"], e1);
        assert_eq!(theirs.0["e2"], [row(Who::Token("t3".into()), Some(1500))]);
    }

    #[test]
    fn what_cannot_be_read_is_named_by_line_and_not_repeated() {
        for (text, says) in [
            ("a,b\n1,2", "the header must name event_id"),
            ("event_id,time\ne,1", "device_id or token"),
            ("event_id,token\ne1,", "line 2: neither"),
            ("event_id,token\n,secret", "line 2: no event_id"),
            ("event_id,token,time\ne1,secret,soon", "line 2: time must be"),
            ("event_id,token\ne1,\"secret", "line 2: "),
            ("{\"event_id\":\"e\",\"token\":\"t\"}\n{secret}", "line 2: no such object"),
            ("", "the header must name"),
        ] {
            let fault = Theirs::parse(text).unwrap_err();
            assert!(fault.contains(says) && !fault.contains("secret"), "{text:?}: {fault}");
        }
    }

    #[test]
    fn events_are_told_by_id_whatever_else_a_line_holds() {
        let text = "{\"id\":\"e2\",\"type\":\"goal\"}\n\n{\"id\":\"e1\"}\n{\"id\":\"e2\"}\n";
        assert_eq!(events(text).unwrap(), ["e1", "e2"]);
        assert!(events("{\"id\":1}").unwrap_err().contains("line 1"));
    }
}
