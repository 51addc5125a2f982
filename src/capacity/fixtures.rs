//! Owns a list of fixtures as a file: CSV with the columns kick-off, home, away, followers.
//! Must never know: where the file lies, or what is done with the list.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A match to come.
#[derive(Debug, Clone, PartialEq)]
pub struct Fixture {
    /// When it begins.
    pub kick_off: OffsetDateTime,
    /// Name of the team at home.
    pub home: String,
    /// Name of the other team.
    pub away: String,
    /// Devices that follow the match, one of its teams or players.
    pub followers: u64,
}

/// Everything that is wrong with a file, each with line and column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct FixturesError(pub Vec<String>);

/// The columns.
const COLUMNS: [&str; 4] = ["kick_off", "home", "away", "followers"];

/// Matches in one file: five seasons of a league.
const MOST: usize = 2_000;

/// Faults one answer names.
const MOST_FAULTS: usize = 20;

/// Followers of one match.
const MOST_FOLLOWERS: u64 = 1_000_000_000;

/// A cell and the column of its first character, counted from 1.
#[derive(Debug, PartialEq, Eq)]
struct Cell {
    text: String,
    column: usize,
}

/// Reads a file. The first line names the columns, in any order; others are ignored. Empty lines, and those that begin
/// with `#`, are no matches.
///
/// # Errors
/// [`FixturesError`] with up to twenty faults.
pub fn parse(text: &str) -> Result<Vec<Fixture>, FixturesError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let header = lines.next().ok_or_else(|| no_header(1))?;
    let places = places(header.0 + 1, header.1)?;
    let (mut fixtures, mut faults) = (Vec::new(), Vec::new());
    for (i, line) in lines {
        match cells(line).and_then(|cells| fixture(&cells, &places, line)) {
            Ok(fixture) => fixtures.push(fixture),
            Err((column, fault)) => faults.push(format!("line {}, column {column}: {fault}", i + 1)),
        }
        if faults.len() == MOST_FAULTS {
            break;
        }
    }
    if faults.is_empty() && fixtures.is_empty() {
        faults.push("there is no match below the header".to_owned());
    }
    if fixtures.len() > MOST {
        faults.push(format!("{} matches are more than the {MOST} one plan can hold: split the file", fixtures.len()));
    }
    if faults.is_empty() { Ok(fixtures) } else { Err(FixturesError(faults)) }
}

fn no_header(line: usize) -> FixturesError {
    FixturesError(vec![format!(
        "line {line}, column 1: there is no header; the first line must be {}",
        COLUMNS.join(",")
    )])
}

/// Where each of [`COLUMNS`] stands.
fn places(line: usize, text: &str) -> Result<[usize; 4], FixturesError> {
    let name = |cell: &Cell| cell.text.to_lowercase().replace(['-', ' '], "_").replace("kickoff", "kick_off");
    let at = |(column, fault): (usize, String)| FixturesError(vec![format!("line {line}, column {column}: {fault}")]);
    let names: Vec<(String, usize)> = cells(text).map_err(at)?.iter().map(|cell| (name(cell), cell.column)).collect();
    if !names.iter().any(|(name, _)| COLUMNS.contains(&name.as_str())) {
        return Err(no_header(line));
    }
    let mut places = [0; 4];
    for (place, wanted) in places.iter_mut().zip(COLUMNS) {
        let mut found = names.iter().enumerate().filter(|(_, (name, _))| name == wanted);
        let (first, second) = (found.next(), found.next());
        if let Some((_, (_, column))) = second {
            return Err(at((*column, format!("the column {wanted} is there twice: take one of them out"))));
        }
        let missing = || at((text.chars().count() + 1, format!("the column {wanted} is missing")));
        *place = first.ok_or_else(missing)?.0;
    }
    Ok(places)
}

/// A fault of a line: its column, what it is and how to mend it.
type Fault = (usize, String);

fn fixture(cells: &[Cell], places: &[usize; 4], line: &str) -> Result<Fixture, Fault> {
    let cell = |i: usize| {
        let missing = || (line.chars().count() + 1, format!("{} is missing: the line ends before it", COLUMNS[i]));
        cells.get(places[i]).ok_or_else(missing)
    };
    let named = |i: usize| match cell(i)? {
        cell if cell.text.is_empty() => Err((cell.column, format!("{} is empty: write the team's name", COLUMNS[i]))),
        cell => Ok(cell.text.clone()),
    };
    let at = cell(0)?;
    let kick_off = OffsetDateTime::parse(&at.text, &Rfc3339).map_err(|_| {
        (at.column, "kick_off is no time: write it like 2026-12-05T15:00:00Z or 2026-12-05T16:00:00+01:00".to_owned())
    })?;
    let (home, away, count) = (named(1)?, named(2)?, cell(3)?);
    let digits = count.text.replace('_', "");
    let followers = digits.parse::<u64>().ok().filter(|n| *n <= MOST_FOLLOWERS).ok_or_else(|| {
        (count.column, format!("followers is no number from 0 to {MOST_FOLLOWERS}: write only digits, such as 250000"))
    })?;
    Ok(Fixture { kick_off, home, away, followers })
}

/// Splits a line at commas; a cell in double quotes may hold one, and `""` is a quote in it. Blanks around are no part.
fn cells(line: &str) -> Result<Vec<Cell>, Fault> {
    let (mut cells, mut chars) = (Vec::new(), line.chars().enumerate().peekable());
    loop {
        while chars.next_if(|(_, c)| matches!(c, ' ' | '\t')).is_some() {}
        let start = chars.peek().map_or(line.chars().count(), |(at, _)| *at) + 1;
        let mut text = String::new();
        if chars.next_if(|(_, c)| *c == '"').is_some() {
            loop {
                match chars.next() {
                    Some((_, '"')) if chars.next_if(|(_, c)| *c == '"').is_none() => break,
                    Some((_, c)) => text.push(c),
                    None => return Err((start, "the quote that opens here is never closed".to_owned())),
                }
            }
            while chars.next_if(|(_, c)| matches!(c, ' ' | '\t' | '\r')).is_some() {}
            if let Some((at, _)) = chars.next_if(|(_, c)| *c != ',') {
                return Err((at + 1, "something follows the closing quote; write \"\" for a quote inside".to_owned()));
            }
        } else {
            while let Some((_, c)) = chars.next_if(|(_, c)| *c != ',') {
                text.push(c);
            }
        }
        cells.push(Cell { text: text.trim_end().to_owned(), column: start });
        if chars.next().is_none() {
            return Ok(cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "kick_off,home,away,followers\n";

    fn fault(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_plain_file_is_read() {
        let fixtures =
            parse(&format!("{HEADER}2026-12-05T15:00:00Z,Arsenal,Chelsea,250000\n# later\n\n2026-12-05T16:00:00+01:00, Bayern ,\"A, \"\"B\"\"\" , 1_000\r\n"))
                .unwrap();
        assert_eq!(fixtures.len(), 2);
        assert_eq!((fixtures[0].home.as_str(), fixtures[0].followers), ("Arsenal", 250_000));
        assert_eq!((fixtures[1].home.as_str(), fixtures[1].away.as_str()), ("Bayern", "A, \"B\""));
        assert_eq!(fixtures[1].followers, 1_000);
        assert_eq!(fixtures[0].kick_off.unix_timestamp(), fixtures[1].kick_off.unix_timestamp());
    }

    #[test]
    fn columns_come_in_any_order_and_others_are_ignored() {
        let text = "\u{feff}Venue;x, Followers ,AWAY,Kick-off,Home\nold,7,b,2026-12-05T15:00:00Z,a\n";
        let fixtures = parse(text).unwrap();
        assert_eq!((fixtures[0].home.as_str(), fixtures[0].away.as_str(), fixtures[0].followers), ("a", "b", 7));
    }

    #[test]
    fn every_fault_has_its_line_and_column() {
        let corpus = [
            ("", "line 1, column 1: there is no header"),
            ("2026-12-05T15:00:00Z,a,b,1\n", "line 1, column 1: there is no header"),
            ("kick_off,home,away\n", "line 1, column 19: the column followers is missing"),
            ("home,kick_off,home,away,followers\n", "line 1, column 15: the column home is there twice"),
            (HEADER, "there is no match below the header"),
            ("kick_off,home,away,followers\nsoon,a,b,1\n", "line 2, column 1: kick_off is no time"),
            ("kick_off,home,away,followers\n2026-12-05 15:00,a,b,1\n", "line 2, column 1: kick_off is no time"),
            ("kick_off,home,away,followers\n2026-12-05T15:00:00Z,,b,1\n", "line 2, column 22: home is empty"),
            ("kick_off,home,away,followers\n2026-12-05T15:00:00Z,a,b\n", "line 2, column 25: followers is missing"),
            (
                "kick_off,home,away,followers\n\n2026-12-05T15:00:00Z,a,b,many\n",
                "line 3, column 26: followers is no number",
            ),
            (
                "kick_off,home,away,followers\n2026-12-05T15:00:00Z,a,b,-1\n",
                "line 2, column 26: followers is no number",
            ),
            ("kick_off,home,away,followers\n2026-12-05T15:00:00Z,\"a,b,1\n", "line 2, column 22: the quote that opens"),
            ("kick_off,home,away,followers\n2026-12-05T15:00:00Z,\"a\"x,b,1\n", "line 2, column 25: something follows"),
        ];
        for (text, says) in corpus {
            assert!(fault(text).starts_with(says), "{text:?}: {}", fault(text));
        }
    }

    #[test]
    fn all_faults_are_told_at_once_up_to_twenty() {
        let two = format!("{HEADER}x,a,b,1\n2026-12-05T15:00:00Z,a,b,1\ny,a,b,1\n");
        assert_eq!(fault(&two).lines().count(), 2);
        assert_eq!(fault(&format!("{HEADER}{}", "x\n".repeat(50))).lines().count(), 20);
        let many = format!("{HEADER}{}", "2026-12-05T15:00:00Z,a,b,1\n".repeat(2_001));
        assert!(fault(&many).contains("2001 matches"), "{}", fault(&many));
    }

    proptest! {
        #[test]
        fn no_text_at_all_makes_it_panic(text in "\\PC{0,80}", line in "[\",a \r]{0,20}") {
            let _ = parse(&text);
            let _ = parse(&format!("{HEADER}{line}\n{text}"));
        }

        #[test]
        fn what_is_quoted_comes_back(names in prop::collection::vec("[a-z\",]{1,8}", 2)) {
            let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
            let line = format!("2026-12-05T15:00:00Z,{},{},3", quoted(&names[0]), quoted(&names[1]));
            let fixtures = parse(&format!("{HEADER}{line}\n")).unwrap();
            prop_assert_eq!((&fixtures[0].home, &fixtures[0].away), (&names[0], &names[1]));
        }
    }
}
