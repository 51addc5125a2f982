//! Owns how often each event type happens and who wants it, as data: `config/season.toml`, or a file in its place.
//! Must never know: the catalogue of types; whoever asks brings class and usefulness of each.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The file compiled in.
pub const BUILT_IN: &str = include_str!("../../config/season.toml");

/// Furthest from kick-off anything happens, minutes.
const FURTHEST_MIN: i32 = 1_440;

/// One type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Habit {
    /// Events in one match, on average.
    pub per_match: f64,
    /// Whether it happens exactly that often.
    #[serde(default)]
    pub scheduled: bool,
    /// First minute after the planned kick-off in which it may happen.
    pub from: i32,
    /// Last one.
    pub to: i32,
    /// Share of the followers that want it.
    pub reach: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    types: BTreeMap<String, Habit>,
}

/// Reads such a file.
///
/// # Errors
/// What is wrong: line and column for the form, the type and its key for what cannot be.
pub fn parse(text: &str) -> Result<BTreeMap<String, Habit>, String> {
    let file: File = toml::from_str(text).map_err(|fault| fault.to_string().trim_end().to_owned())?;
    let faults: Vec<String> = file.types.iter().filter_map(|(name, habit)| fault(name, habit)).collect();
    if faults.is_empty() { Ok(file.types) } else { Err(faults.join("\n")) }
}

fn fault(name: &str, habit: &Habit) -> Option<String> {
    let Habit { per_match, scheduled, from, to, reach } = habit;
    let near = -FURTHEST_MIN..=FURTHEST_MIN;
    let (key, fix) = if !(0.0..=1_000.0).contains(per_match) {
        ("per_match", "write 0 to 1000")
    } else if *scheduled && per_match.fract() != 0.0 {
        ("per_match", "a scheduled type has a whole number")
    } else if !near.contains(from) || !near.contains(to) {
        ("from and to", "write minutes from -1440 to 1440")
    } else if from > to {
        ("from", "write the earlier minute first")
    } else if !(0.0..=1.0).contains(reach) {
        ("reach", "write a share from 0 to 1")
    } else {
        return None;
    };
    Some(format!("types.{name}: {key}: {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_file_can_be_read() {
        let habits = parse(BUILT_IN).unwrap();
        assert_eq!(habits.len(), 21);
        assert!(habits["full_time"].scheduled && !habits["goal"].scheduled);
    }

    #[test]
    fn what_cannot_be_is_told_by_type_and_key() {
        let with = |key: &str, value: &str| {
            let mut keys = [("per_match", "1"), ("from", "0"), ("to", "5"), ("reach", "0.5"), ("scheduled", "true")];
            for entry in &mut keys {
                if entry.0 == key {
                    entry.1 = value;
                }
            }
            let lines: Vec<String> = keys.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            parse(&format!("[types.goal]\n{}\n", lines.join("\n")))
        };
        assert!(with("", "").is_ok());
        for (key, value) in [
            ("per_match", "-1"),
            ("per_match", "1.5"),
            ("per_match", "nan"),
            ("from", "6"),
            ("to", "2000"),
            ("reach", "1.1"),
        ] {
            let fault = with(key, value).unwrap_err();
            assert!(fault.starts_with("types.goal: ") && fault.contains(key), "{key} = {value}: {fault}");
        }
        assert!(with("reach", "x").unwrap_err().contains("line 5"));
        assert!(parse("[types.goal]\nper_match = 1\n").unwrap_err().contains("missing field"));
        assert!(parse("[types.goal]\nper_macth = 1\n").unwrap_err().contains("per_macth"));
    }
}
