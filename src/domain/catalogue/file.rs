//! Owns the shape of a types file, and where in it a fault lies: line, type, locale.
//! Must never know: which values are right.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::CatalogueError;

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

/// Where in the file the reader is; makes the errors.
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

    pub(super) fn fault(&self, at: Range<usize>, problem: impl Display) -> CatalogueError {
        let before = self.source.get(..at.start).unwrap_or(self.source);
        let mut place = format!("line {}", before.matches('\n').count() + 1);
        for (word, name) in [("type", self.kind), ("locale", self.locale)] {
            if !name.is_empty() {
                place.push_str(&format!(", {word} {name}"));
            }
        }
        CatalogueError(format!("{place}: {problem}"))
    }

    pub(super) fn of_type(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    pub(super) fn of_locale(self, locale: &'a str) -> Self {
        Self { locale, ..self }
    }
}
