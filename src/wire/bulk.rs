//! Owns the shapes of moving many devices at once: the two formats, a line, how an export ends, the answer to an import.
//! Must never know: what makes a device valid.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::FollowEntry;

/// How many devices are written down, one per line either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Ndjson,
    /// A header and one record per line.
    Csv,
}

/// What JSON lines are called: there is no registered name, and each tool has its own.
const NDJSON_KINDS: [&str; 5] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
    "application/json-lines",
];

impl Format {
    /// The name, as in `?format=`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }

    /// Reads [`as_str`](Self::as_str).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Ndjson, Self::Csv].into_iter().find(|format| format.as_str() == name)
    }

    /// The `Content-Type` it is sent as.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8",
        }
    }

    /// The format a `Content-Type` means; lower case, without parameters.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<Self> {
        match kind {
            "text/csv" | "application/csv" => Some(Self::Csv),
            _ => NDJSON_KINDS.contains(&kind).then_some(Self::Ndjson),
        }
    }

    /// The last line of an export of `devices`. A file without it was cut off.
    #[must_use]
    pub fn end(self, devices: u64) -> String {
        match self {
            Self::Ndjson => format!("{{\"end\":{devices}}}\n"),
            Self::Csv => format!("#end,{devices}\n"),
        }
    }

    /// Reads [`end`](Self::end), also when a spreadsheet has filled the line up with empty fields.
    #[must_use]
    pub fn read_end(self, line: &str) -> Option<u64> {
        let line = line.trim();
        let number = match self {
            Self::Ndjson => line.strip_prefix("{\"end\":")?.strip_suffix('}')?,
            Self::Csv => line.strip_prefix("#end")?.strip_prefix([',', ';', '\t'])?.trim_end_matches([',', ';', '\t']),
        };
        number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok())?
    }
}

/// One device and what it follows: a line of an import, and of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "id": "d1", "user_id": "u1", "token": "THE-REGISTRATION-TOKEN-OF-THE-APP", "platform": "ios", "locale": "pt-BR",
    "follows": ["team:ars", "match:4711"], "muted": ["corner"]
}))]
pub struct ImportLine {
    /// The caller's name for the device.
    pub id: String,
    /// Owner.
    pub user_id: String,
    /// Registration token; exactly one of `token` and `fid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Firebase installation id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fid: Option<String>,
    /// `android`, `ios`, `web`.
    pub platform: String,
    /// `pt-BR`; the default is the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// The whole set of what it follows; absent leaves that as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Vec<FollowEntry>>,
    /// Event types never wanted; part of the set, so it needs `follows` beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muted: Option<Vec<String>>,
    /// `live` (the default), `tombstoned`, `suspended`: of a device that is not there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Answer to an import.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "imported": 2, "updated": 1, "moved": 0, "revived": 0, "rejected_total": 1, "rejected_by_code": {"invalid": 1},
    "rejected": [{"line": 4, "code": "invalid", "reason": "/platform: \"ios9\" is no platform: write android, ios or web"}],
    "ignored_columns": [], "kept_through": 4
}))]
pub struct ImportAnswer {
    /// Lines that made a new device.
    pub imported: u64,
    /// Lines about a device that was there.
    pub updated: u64,
    /// Of these two, lines whose token was another device's before: it has one owner, the line's device.
    pub moved: u64,
    /// Of the updated, devices that were dead and are live again, because `revive` was asked for.
    pub revived: u64,
    /// The first rejected lines, at most 1,000.
    pub rejected: Vec<Reject>,
    /// All rejected lines.
    pub rejected_total: u64,
    /// All rejected lines by code.
    pub rejected_by_code: BTreeMap<String, u64>,
    /// Columns of a CSV header that mean nothing here, as they were written.
    pub ignored_columns: Vec<String>,
    /// Lines up to and with this one are dealt with: kept or rejected. Sending them again changes nothing.
    pub kept_through: u64,
}

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"line": 4, "code": "invalid", "reason": "/platform: \"ios9\" is no platform: write android, ios or web"}))]
pub struct Reject {
    /// From 1.
    pub line: u64,
    /// Stable.
    pub code: String,
    /// What is wrong and how to mend it.
    pub reason: String,
}

/// Rejected lines that are told one by one; more are only counted.
pub const MAX_REJECTS_SHOWN: usize = 1000;

impl ImportAnswer {
    /// Counts a rejected line, and keeps it if it is among the first.
    pub fn reject(&mut self, line: u64, code: &str, reason: String) {
        self.rejected_total += 1;
        match self.rejected_by_code.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(self.rejected_by_code.insert(code.to_owned(), 1)),
        }
        if self.rejected.len() < MAX_REJECTS_SHOWN {
            self.rejected.push(Reject { line, code: code.to_owned(), reason });
        }
    }

    /// Adds the answer about a later part of the same file.
    pub fn add(&mut self, part: Self) {
        self.imported += part.imported;
        self.updated += part.updated;
        self.moved += part.moved;
        self.revived += part.revived;
        self.rejected_total += part.rejected_total;
        for (code, count) in part.rejected_by_code {
            *self.rejected_by_code.entry(code).or_default() += count;
        }
        let room = MAX_REJECTS_SHOWN.saturating_sub(self.rejected.len());
        self.rejected.extend(part.rejected.into_iter().take(room));
        self.ignored_columns = part.ignored_columns;
        self.kept_through = self.kept_through.max(part.kept_through);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_export_is_read_back() {
        for format in [Format::Ndjson, Format::Csv] {
            assert_eq!(format.read_end(&format.end(1234)), Some(1234));
            for line in ["", "{}", "{\"end\":}", "{\"end\":-1}", "#end", "#end,", "#end,1,u", "end,1", "{\"end\":1"] {
                assert_eq!(format.read_end(line), None, "{line}");
            }
        }
        assert_eq!(Format::Csv.read_end("#end;7;;;;\r"), Some(7));
    }

    #[test]
    fn a_format_is_known_by_its_names_and_kinds() {
        for format in [Format::Ndjson, Format::Csv] {
            assert_eq!(Format::parse(format.as_str()), Some(format));
            let kind = format.content_type().split(';').next().unwrap();
            assert_eq!(Format::of_kind(kind), Some(format));
        }
        assert_eq!(Format::of_kind("application/json"), None);
    }

    #[test]
    fn answers_of_parts_add_up_and_the_first_rejects_stay() {
        let mut whole = ImportAnswer::default();
        for part in 0..2_u64 {
            let mut answer =
                ImportAnswer { imported: 2, moved: 1, kept_through: 700 * (part + 1), ..Default::default() };
            for line in 0..700 {
                answer.reject(part * 700 + line, if line == 0 { "bad_csv" } else { "invalid" }, "x".into());
            }
            whole.add(answer);
        }
        assert_eq!((whole.imported, whole.moved, whole.rejected_total, whole.kept_through), (4, 2, 1400, 1400));
        assert_eq!((whole.rejected.len(), whole.rejected[999].line), (MAX_REJECTS_SHOWN, 999));
        assert_eq!(whole.rejected_by_code, BTreeMap::from([("bad_csv".into(), 2), ("invalid".into(), 1398)]));
    }
}
