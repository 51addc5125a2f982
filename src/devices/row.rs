//! Owns how a line of an import becomes a device, and how a file that cannot be one is recognised by its first line.
//! Must never know: the store, or where the lines come from.

use super::csv::Header;
use super::fault;
use super::follows::FollowsDraft;
use super::lines::{Line, MAX_LINE_BYTES};
use super::register::DeviceDraft;
use crate::domain::catalogue::Catalogue;
use crate::domain::event::FieldError;
use crate::domain::recipient::{Device, DeviceState, Follows};
use crate::store::ImportRow;
use crate::wire::{self, Format, ImportLine, ReadError};

/// What a line is.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// A device.
    Device(Box<ImportRow>),
    /// The end that an export writes.
    End,
    /// A header, or a record without a value.
    Nothing,
}

/// Why a line was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// Stable.
    pub(super) code: &'static str,
    /// What is wrong and how to mend it.
    pub(super) reason: String,
    /// It is the file that is wrong: no other line can be right.
    pub(super) whole_file: bool,
}

fn line_fault(code: &'static str, reason: impl Into<String>) -> Refused {
    Refused { code, reason: reason.into(), whole_file: false }
}

fn file_fault(code: &'static str, reason: impl Into<String>) -> Refused {
    Refused { code, reason: reason.into(), whole_file: true }
}

/// Reads the lines of one file in order.
#[derive(Debug)]
pub(super) struct Reader {
    format: Format,
    begun: bool,
    header: Option<Header>,
}

impl Reader {
    pub(super) fn new(format: Format) -> Self {
        Self { format, begun: false, header: None }
    }

    /// Columns that mean nothing here.
    pub(super) fn ignored_columns(&self) -> &[String] {
        self.header.as_ref().map_or(&[], |header| &header.ignored)
    }

    pub(super) fn read(&mut self, line: &Line, catalogue: &Catalogue) -> Result<Found, Refused> {
        let first = !std::mem::replace(&mut self.begun, true);
        if first {
            no_text(&line.text)?;
            other_format(&line.text, self.format)?;
        }
        if line.too_long {
            let reason = format!("a line has at most {MAX_LINE_BYTES} bytes: is a line end or a quote missing?");
            let header = first && self.format == Format::Csv;
            return Err(Refused { whole_file: header, ..line_fault("line_too_long", reason) });
        }
        let text = utf8(&line.text, first && self.format == Format::Csv)?;
        if self.format.read_end(text).is_some() {
            return Ok(Found::End);
        }
        let read = match self.format {
            Format::Ndjson => Some(json(text)?),
            Format::Csv => self.record(text)?,
        };
        let Some(read) = read else { return Ok(Found::Nothing) };
        let row = check(&read, catalogue).map_err(|faults| {
            let told: Vec<String> = faults.iter().map(told).collect();
            line_fault("invalid", told.join("; "))
        })?;
        let (device, follows, state) = row;
        Ok(Found::Device(Box::new(ImportRow { line: line.no, device, follows, state })))
    }

    fn record(&mut self, text: &str) -> Result<Option<ImportLine>, Refused> {
        match &self.header {
            Some(header) => header.read(text).map_err(|reason| line_fault("bad_csv", reason)),
            None => {
                self.header = Some(Header::parse(text).map_err(|reason| file_fault("bad_header", reason))?);
                Ok(None)
            }
        }
    }
}

/// Files that are no text, by how they begin.
fn no_text(begin: &[u8]) -> Result<(), Refused> {
    const PACKED: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "a gzip file: unpack it first, `gunzip -c FILE | fanfare devices import -`"),
        (b"PK\x03\x04", "a zip file or a spreadsheet: unpack it, or save the sheet as CSV (UTF-8)"),
        (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first, `zstd -dc FILE | fanfare devices import -`"),
        (b"BZh", "a bzip2 file: unpack it first, `bunzip2 -c FILE | fanfare devices import -`"),
        (b"\xd0\xcf\x11\xe0", "a spreadsheet: save it as CSV (UTF-8)"),
    ];
    if let Some((_, what)) = PACKED.iter().find(|(magic, _)| begin.starts_with(magic)) {
        return Err(file_fault("compressed", format!("this is {what}")));
    }
    let marked = begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff");
    // Without a mark: every second byte of plain text in UTF-16 is 0.
    if marked || matches!(begin, [a, b, ..] if (*a == 0) != (*b == 0)) {
        let reason = "this is UTF-16: save it as UTF-8, `iconv -f UTF-16 -t UTF-8 FILE`";
        return Err(file_fault("utf16", reason));
    }
    Ok(())
}

/// Files of the other format, or of a third, by how they begin.
fn other_format(begin: &[u8], format: Format) -> Result<(), Refused> {
    let begin = begin.trim_ascii();
    match format {
        Format::Ndjson if begin.starts_with(b"[") => {
            let reason = "this is one JSON array, not one object per line: `jq -c '.[]' FILE` writes it so";
            Err(file_fault("not_ndjson", reason))
        }
        Format::Ndjson if begin == b"{" => {
            let reason = "the objects go over several lines, there must be one on each: `jq -c . FILE` writes it so";
            Err(file_fault("not_ndjson", reason))
        }
        Format::Ndjson if std::str::from_utf8(begin).is_ok_and(|text| Header::parse(text).is_ok()) => {
            let reason = "this looks like CSV: send it as `Content-Type: text/csv`, or with `--format csv`";
            Err(file_fault("not_ndjson", reason))
        }
        Format::Csv if begin.starts_with(b"{") || begin.starts_with(b"[") => {
            let reason =
                "this looks like JSON: send it as `Content-Type: application/x-ndjson`, or with `--format ndjson`";
            Err(file_fault("bad_header", reason))
        }
        _ => Ok(()),
    }
}

fn utf8(text: &[u8], whole_file: bool) -> Result<&str, Refused> {
    std::str::from_utf8(text).map_err(|fault| {
        let at = fault.valid_up_to();
        let reason = format!("byte {} (0x{:02X}) is not UTF-8: save the file as UTF-8", at + 1, text[at]);
        Refused { whole_file, ..line_fault("bad_utf8", reason) }
    })
}

fn json(text: &str) -> Result<ImportLine, Refused> {
    wire::read(text.as_bytes()).map_err(|fault| match fault {
        ReadError::Syntax { reason, column, field, .. } => {
            let within = if field.is_empty() { String::new() } else { format!(", in {field}") };
            let half = reason.contains("hex escape") || reason.contains("surrogate");
            let fix = if half { "half a surrogate pair stands alone there" } else { "a line is one whole JSON object" };
            line_fault("bad_json", format!("{reason} at column {column}{within}: {fix}"))
        }
        ReadError::Field(found) => {
            line_fault("invalid", told(&FieldError { field: found.field, problem: found.problem }))
        }
    })
}

/// An empty pointer (RFC 6901) is the whole line, which reads as nothing.
fn told(fault: &FieldError) -> String {
    let field = if fault.field.is_empty() { "the line" } else { &fault.field };
    format!("{field}: {}", fault.problem)
}

type Row = (Device, Option<Follows>, Option<DeviceState>);

fn check(read: &ImportLine, catalogue: &Catalogue) -> Result<Row, Vec<FieldError>> {
    let draft = DeviceDraft {
        id: &read.id,
        user_id: &read.user_id,
        token: read.token.as_deref(),
        fid: read.fid.as_deref(),
        platform: &read.platform,
        locale: read.locale.as_deref(),
    };
    let mut faults = Vec::new();
    let device = draft.parse(&catalogue.default_locale).map_err(|found| faults.extend(found)).ok();
    let follows = follows(read, catalogue).map_err(|found| faults.extend(found)).ok();
    let state = state(read).map_err(|found| faults.push(found)).ok();
    match (device, follows, state) {
        (Some(device), Some(follows), Some(state)) => Ok((device, follows, state)),
        _ => Err(faults),
    }
}

fn follows(read: &ImportLine, catalogue: &Catalogue) -> Result<Option<Follows>, Vec<FieldError>> {
    let muted = read.muted.as_deref().unwrap_or_default();
    match &read.follows {
        Some(follows) => FollowsDraft { follows, muted }.parse(catalogue).map(Some),
        None if read.muted.is_some() => {
            Err(vec![fault("/muted", "is part of the set of follows: give `follows` beside it")])
        }
        None => Ok(None),
    }
}

fn state(read: &ImportLine) -> Result<Option<DeviceState>, FieldError> {
    let Some(name) = &read.state else { return Ok(None) };
    let state = DeviceState::ALL.iter().find(|state| state.as_str() == name);
    state.copied().map(Some).ok_or_else(|| fault("/state", "must be one of live, tombstoned, suspended"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue::BUILT_IN;

    fn read(format: Format, lines: &[&[u8]]) -> Result<Found, Refused> {
        let catalogue = Catalogue::parse(BUILT_IN).unwrap();
        let mut reader = Reader::new(format);
        let line = |text: &&[u8]| Line { no: 1, text: text.to_vec(), too_long: false };
        let (last, before) = lines.split_last().unwrap();
        for text in before {
            reader.read(&line(text), &catalogue).unwrap();
        }
        reader.read(&line(last), &catalogue)
    }

    #[test]
    fn a_file_of_another_kind_is_refused_as_a_whole_with_the_fix() {
        for (format, begin, code, fix) in [
            (Format::Ndjson, b"\x1f\x8b\x08".as_slice(), "compressed", "gunzip"),
            (Format::Csv, b"PK\x03\x04", "compressed", "CSV"),
            (Format::Csv, b"\xff\xfei\0d\0", "utf16", "iconv"),
            (Format::Ndjson, b"{\0\"\0", "utf16", "iconv"),
            (Format::Ndjson, b"\0{\0\"", "utf16", "iconv"),
            (Format::Ndjson, b" [{", "not_ndjson", "jq -c '.[]'"),
            (Format::Ndjson, b"{ ", "not_ndjson", "jq -c ."),
            (Format::Ndjson, b"id;user_id;token;platform", "not_ndjson", "text/csv"),
            (Format::Csv, b"{\"id\":1}", "bad_header", "application/x-ndjson"),
            (Format::Csv, b"d1,u1,tok,ios", "bad_header", "the first line must name the columns"),
            (Format::Csv, b"id,user_id,token,plat\xe9form", "bad_utf8", "save the file as UTF-8"),
        ] {
            let refused = read(format, &[begin]).unwrap_err();
            assert!(refused.whole_file && refused.code == code && refused.reason.contains(fix), "{refused:?}");
        }
    }

    #[test]
    fn no_reason_begins_with_nothing() {
        for line in [b"7".as_slice(), b"null", b"\"x\"", b"{}", b"{\"id\":7}", b"{\"id\":\"d\",\"x\":1}"] {
            let refused = read(Format::Ndjson, &[line]).unwrap_err();
            assert!(refused.code == "invalid" && !refused.reason.starts_with([':', ' ']), "{refused:?}");
        }
        assert!(read(Format::Ndjson, &[b"7"]).unwrap_err().reason.starts_with("the line: must be a JSON object"));
    }

    #[test]
    fn every_fault_of_a_line_is_told() {
        let header = b"id,user_id,token,platform,state,follows".as_slice();
        let refused = read(Format::Csv, &[header, b"d1,u 1,t t,ps5,gone,club:x"]).unwrap_err();
        for field in ["/user_id", "/token", "/platform", "/state", "/follows/0/subject"] {
            assert!(refused.reason.contains(field), "{field}: {}", refused.reason);
        }
        let latin1 = read(Format::Csv, &[header, b"d1,M\xfcller,t,ios,,"]).unwrap_err();
        assert_eq!((latin1.code, latin1.whole_file), ("bad_utf8", false));
        assert!(latin1.reason.contains("byte 5 (0xFC)"), "{}", latin1.reason);
    }

    #[test]
    fn the_end_of_an_export_is_no_device() {
        assert_eq!(read(Format::Ndjson, &[b"{\"end\":3}"]), Ok(Found::End));
        assert_eq!(read(Format::Csv, &[b"id,user_id,token,platform", b"#end,3"]), Ok(Found::End));
    }
}
