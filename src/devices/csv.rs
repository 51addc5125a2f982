//! Owns how one line of CSV becomes a device's fields: columns by name, lists in a cell.
//! Must never know: what makes a device valid.
//!
//! No field of ours can hold a line break, so each line is read alone: a stray quote costs its line, never the file.

use crate::wire::{FollowEntry, ImportLine};

/// The header an export writes; an import takes these in any order.
pub(super) const COLUMNS: [&str; 9] =
    ["id", "user_id", "token", "fid", "platform", "locale", "state", "follows", "muted"];

/// What may stand between two fields; the header tells which.
const DELIMITERS: [char; 3] = [',', ';', '\t'];

/// Where each of [`COLUMNS`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    delimiter: char,
    fields: usize,
    places: [Option<usize>; COLUMNS.len()],
    /// Names of the other columns.
    pub(super) ignored: Vec<String>,
}

impl Header {
    /// Reads a header line. Spaces around a name and its case do not matter.
    ///
    /// # Errors
    /// What is missing, given twice or absent altogether, with the fix.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let known = |delimiter: &char| names(line, *delimiter).iter().filter(|name| place(name).is_some()).count();
        // The first of those that fit equally well, which is the comma.
        let delimiter = DELIMITERS.into_iter().rev().max_by_key(known).unwrap_or(',');
        if known(&delimiter) == 0 {
            let wanted = COLUMNS.join(",");
            return Err(format!("there is no header: the first line must name the columns, such as {wanted}"));
        }
        let names = names(line, delimiter);
        let mut header = Self { delimiter, fields: names.len(), places: [None; COLUMNS.len()], ignored: Vec::new() };
        for (i, name) in names.into_iter().enumerate() {
            match place(&name) {
                Some(at) if header.places[at].is_some() => {
                    return Err(format!("the column `{}` is there twice: take one of them out", COLUMNS[at]));
                }
                Some(at) => header.places[at] = Some(i),
                None if name.is_empty() => {}
                None => header.ignored.push(name),
            }
        }
        header.complete()
    }

    fn complete(self) -> Result<Self, String> {
        let has = |name: &str| place(name).is_some_and(|at| self.places[at].is_some());
        let mut missing: Vec<&str> = ["id", "user_id", "platform"].into_iter().filter(|name| !has(name)).collect();
        if !has("token") && !has("fid") {
            missing.push("token");
        }
        if has("muted") && !has("follows") {
            return Err("`muted` is part of what a device follows: give a column `follows` beside it".to_owned());
        }
        match missing.as_slice() {
            [] => Ok(self),
            missing => Err(format!("the header lacks the column {}: add it to the first line", missing.join(", "))),
        }
    }

    /// Reads a line below the header; `None` when every field is empty, as spreadsheets leave them.
    ///
    /// # Errors
    /// What is wrong with its quotes or the number of its fields.
    pub(super) fn read(&self, line: &str) -> Result<Option<ImportLine>, String> {
        let mut fields = self::fields(line, self.delimiter)?;
        if fields.iter().all(String::is_empty) {
            return Ok(None);
        }
        let (given, wanted) = (fields.len(), self.fields);
        if given < wanted || fields.iter().skip(wanted).any(|extra| !extra.is_empty()) {
            let sign = if self.delimiter == '\t' { "a TAB".to_owned() } else { format!("`{}`", self.delimiter) };
            return Err(format!(
                "{given} fields, but the header has {wanted}: put fields that hold {sign} in quotes, leave none out"
            ));
        }
        let mut take = |name: &str| {
            let at = self.places[place(name)?]?;
            Some(std::mem::take(&mut fields[at]))
        };
        let filled = |cell: Option<String>| cell.filter(|text| !text.is_empty());
        Ok(Some(ImportLine {
            id: take("id").unwrap_or_default(),
            user_id: take("user_id").unwrap_or_default(),
            token: filled(take("token")),
            fid: filled(take("fid")),
            platform: take("platform").unwrap_or_default(),
            locale: filled(take("locale")),
            follows: take("follows").map(|cell| list(&cell).map(follow).collect()),
            muted: take("muted").map(|cell| list(&cell).map(str::to_owned).collect()),
            state: filled(take("state")),
        }))
    }
}

fn place(name: &str) -> Option<usize> {
    COLUMNS.iter().position(|column| column.eq_ignore_ascii_case(name))
}

/// Names of a header; one that does not split holds no name of ours.
fn names(line: &str, delimiter: char) -> Vec<String> {
    fields(line, delimiter).unwrap_or_default()
}

/// The fields of one line, spaces around them taken off.
///
/// # Errors
/// What is wrong with its quotes, and where.
pub fn fields(line: &str, delimiter: char) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = Some(line);
    while let Some(begun) = rest {
        let text = begun.trim_start_matches(|c: char| c != delimiter && c.is_whitespace());
        let at = line.len() - text.len();
        let (field, after) = if text.starts_with('"') { quoted(text, at)? } else { plain(text, at, delimiter)? };
        let after = after.trim_start_matches(|c: char| c != delimiter && c.is_whitespace());
        fields.push(field);
        rest = after.strip_prefix(delimiter);
        if rest.is_none() && !after.is_empty() {
            return Err(stray(line.len() - after.len(), "text follows the quote that ends the field"));
        }
    }
    Ok(fields)
}

fn plain(text: &str, at: usize, delimiter: char) -> Result<(String, &str), String> {
    let (field, after) = text.split_at(text.find(delimiter).unwrap_or(text.len()));
    match field.find('"') {
        Some(quote) => Err(stray(at + quote, "a quote stands inside a field that does not begin with one")),
        None => Ok((field.trim_end().to_owned(), after)),
    }
}

fn quoted(text: &str, at: usize) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = &text[1..];
    loop {
        let Some(end) = rest.find('"') else { return Err(stray(at, "a quote is opened and not closed")) };
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(doubled) => {
                field.push('"');
                rest = doubled;
            }
            None => return Ok((field.trim().to_owned(), rest)),
        }
    }
}

fn stray(at: usize, what: &str) -> String {
    format!("{what} (byte {}): put the whole field in quotes, and double those inside it", at + 1)
}

/// One record, its line end with it.
pub(super) fn write(line: &ImportLine) -> String {
    let follows = line.follows.as_deref().unwrap_or_default().iter().map(written).collect::<Vec<_>>().join("|");
    let muted = line.muted.as_deref().unwrap_or_default().join("|");
    let or_empty = |cell: &Option<String>| cell.clone().unwrap_or_default();
    let cells = [
        line.id.clone(),
        line.user_id.clone(),
        or_empty(&line.token),
        or_empty(&line.fid),
        line.platform.clone(),
        or_empty(&line.locale),
        or_empty(&line.state),
        follows,
        muted,
    ];
    let quoted = cells.map(|cell| match cell.contains([',', '"']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    });
    format!("{}\n", quoted.join(","))
}

fn list(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('|').map(str::trim).filter(|item| !item.is_empty())
}

/// `team:ars` for every type, `team:ars=goal+full_time` for some. `|`, `=` and `%` of a subject are written `%7C`, `%3D`,
/// `%25`; nothing else is escaped.
fn follow(item: &str) -> FollowEntry {
    let (subject, types) = item.split_once('=').map_or((item, None), |(subject, types)| (subject, Some(types)));
    let types = types.map(|list| list.split('+').map(|name| name.trim().to_owned()).collect());
    let subject = ["%7C", "%7c"].iter().fold(subject.trim().to_owned(), |text, sign| text.replace(sign, "|"));
    let subject = ["%3D", "%3d"].iter().fold(subject, |text, sign| text.replace(sign, "="));
    FollowEntry { subject: subject.replace("%25", "%"), types }
}

fn written(entry: &FollowEntry) -> String {
    let subject = entry.subject.replace('%', "%25").replace('|', "%7C").replace('=', "%3D");
    match &entry.types {
        None => subject,
        Some(types) => format!("{subject}={}", types.join("+")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "id,user_id,token,platform,locale,follows,muted";

    fn read(header: &str, line: &str) -> ImportLine {
        Header::parse(header).unwrap().read(line).unwrap().unwrap()
    }

    fn entry(subject: &str, types: Option<&[&str]>) -> FollowEntry {
        FollowEntry { subject: subject.into(), types: types.map(|t| t.iter().map(|n| (*n).to_owned()).collect()) }
    }

    #[test]
    fn a_line_is_read_by_the_names_of_its_header() {
        let line = read(HEADER, r#"d1,u1,tok,ios,pt-BR,"team:ars=goal+full_time | match:1",corner"#);
        assert_eq!(
            (line.id.as_str(), line.token.as_deref(), line.locale.as_deref()),
            ("d1", Some("tok"), Some("pt-BR"))
        );
        let follows = [entry("team:ars", Some(&["goal", "full_time"])), entry("match:1", None)];
        assert_eq!((line.follows.as_deref(), line.muted), (Some(&follows[..]), Some(vec!["corner".to_owned()])));
        let other = read(" Platform ;ID;user_id;\"FID\"", "web;d2;u2;f");
        assert_eq!(
            (other.id.as_str(), other.fid.as_deref(), other.token, other.follows),
            ("d2", Some("f"), None, None)
        );
        assert_eq!(read(HEADER, "d1,u1,tok,ios,,,").follows, Some(vec![]), "a column that is there is the whole set");
        let tabs = read("id\tuser_id\ttoken\tplatform\tlocale", "d1\tu1\ttok\tios\t");
        assert_eq!((tabs.platform.as_str(), tabs.locale), ("ios", None));
    }

    #[test]
    fn a_header_that_cannot_be_used_is_refused_by_name() {
        for (line, says) in [
            ("d1,u1,tok,ios", "no header"),
            ("", "no header"),
            ("id,user_id,platform", "lacks the column token"),
            ("id,token", "lacks the column user_id, platform"),
            ("id,user_id,token,platform,ID", "`id` is there twice"),
            ("id,user_id,token,platform,muted", "`follows` beside"),
        ] {
            let refused = Header::parse(line).unwrap_err();
            assert!(refused.contains(says), "{line}: {refused}");
        }
        let header = Header::parse("id,user_id,fid,platform,Team,,team").unwrap();
        assert_eq!(header.ignored, ["Team", "team"]);
    }

    #[test]
    fn a_stray_quote_or_a_lost_field_costs_its_line() {
        let header = Header::parse(HEADER).unwrap();
        for (line, says) in [
            (r#"d1,"u1,tok,ios,,,"#, "opened and not closed (byte 4)"),
            (r#"d1,u"1,tok,ios,,,"#, "inside a field that does not begin with one (byte 5)"),
            (r#"d1,"u"1,tok,ios,,,"#, "follows the quote that ends the field (byte 7)"),
            ("d1,u1,tok,ios", "4 fields, but the header has 7"),
            ("d1,u1,tok,ios,,,,x", "8 fields, but the header has 7"),
        ] {
            let refused = header.read(line).unwrap_err();
            assert!(refused.contains(says), "{line}: {refused}");
        }
        assert_eq!(header.read(",, ,,,,"), Ok(None));
        assert_eq!(read(HEADER, r#" "d1" , u1 ,"to""k", ios ,,,,,"#).token.as_deref(), Some("to\"k"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id in "[!-~\u{e0}-\u{ff}]{1,20}", token in "[!-~]{1,20}",
            subjects in proptest::collection::vec("team:[!-~]{1,12}", 0..4), some in any::<bool>(),
        ) {
            let types = some.then(|| vec!["goal".to_owned(), "corner".to_owned()]);
            let follows = subjects.into_iter().map(|subject| FollowEntry { subject, types: types.clone() }).collect();
            let line = ImportLine {
                id, user_id: "u,\"1\"".into(), token: Some(token), platform: "ios".into(), follows: Some(follows),
                muted: Some(types.unwrap_or_default()), state: Some("live".into()), ..ImportLine::default()
            };
            prop_assert_eq!(Header::parse(&COLUMNS.join(",")).unwrap().read(&write(&line)), Ok(Some(line)));
        }

        /// csv-core takes more than we do; what we take it reads alike.
        #[test]
        fn what_is_taken_is_what_others_read(line in "[ab\",]{1,24}") {
            let Ok(fields) = fields(&line, ',') else { return Ok(()) };
            let (mut out, mut ends) = ([0; 64], [0; 64]);
            let (_, _, _, n) = csv_core::Reader::new().read_record(format!("{line}\n").as_bytes(), &mut out, &mut ends);
            let begins = std::iter::once(0).chain(ends.iter().copied());
            let theirs: Vec<&[u8]> = begins.zip(ends).take(n).map(|(begin, end)| &out[begin..end]).collect();
            prop_assert_eq!(theirs, fields.iter().map(String::as_bytes).collect::<Vec<_>>());
        }
    }
}
