//! Owns the shape of a types file, and where in it a fault lies: line, type, locale.
//! Must never know: which values are right.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub(super) default_locale: Spanned<String>,
    pub(super) types: BTreeMap<Spanned<String>, RawType>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawType {
    pub(super) bit: Spanned<i64>,
    pub(super) class: Spanned<String>,
    pub(super) useful_for_s: Spanned<i64>,
    pub(super) channel: Spanned<String>,
    pub(super) sound: Spanned<String>,
    pub(super) high_priority: bool,
    pub(super) collapse_key: Spanned<String>,
    pub(super) required: Vec<Spanned<String>>,
    pub(super) text: BTreeMap<Spanned<String>, RawText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawText {
    pub(super) title: Spanned<String>,
    pub(super) body: Spanned<String>,
}

/// One thing wrong, and where.
pub(super) struct Fault {
    at: usize,
    told: String,
}

/// All faults found so far.
#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn note<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.add(fault)).ok()
    }

    /// What they say, in the order of the file.
    pub(super) fn told(mut self) -> Vec<String> {
        self.0.sort_by_key(|fault| fault.at);
        self.0.into_iter().map(|fault| fault.told).collect()
    }
}

/// Where a text ends, both counted from 1, a column in characters.
pub(super) fn line_and_column(before: &str) -> String {
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}")
}

/// Where in the file the reader is; makes the faults.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    source: &'a str,
    kind: &'a str,
    locale: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn in_file(source: &'a str) -> Self {
        Self { source, kind: "", locale: "" }
    }

    pub(super) fn fault(&self, at: Range<usize>, problem: impl ToString) -> Fault {
        let mut place = line_and_column(self.source.get(..at.start).unwrap_or(self.source));
        for (word, name) in [("type", self.kind), ("locale", self.locale)] {
            if !name.is_empty() {
                place.push_str(&format!(", {word} {name}"));
            }
        }
        Fault { at: at.start, told: format!("{place}: {}", problem.to_string().replace('\n', "; ")) }
    }

    pub(super) fn of_type(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    pub(super) fn of_locale(self, locale: &'a str) -> Self {
        Self { locale, ..self }
    }
}
