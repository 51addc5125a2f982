//! Owns the text with `{placeholders}`: reading it once, filling it for one event.
//! Must never know: which placeholders a type allows, locales, or files.

use std::borrow::Cow;

use crate::domain::event::Event;
use crate::domain::text::{is_right_to_left, isolated};

/// Placeholders every template may use, whatever fields its type requires.
pub const BUILT_IN_PLACEHOLDERS: [&str; 3] = ["event_id", "type", "match_id"];

/// A text with placeholders, read already. `{{` and `}}` stand for the braces themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Field(String),
}

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` that no `}` follows.
    #[error("a {{ is not closed; close it with }}, or write {{{{ to show a brace")]
    NotClosed,
    /// `}` that no `{` precedes.
    #[error("a }} closes nothing; write }}}} to show a brace")]
    NotOpened,
    /// What stands between the braces is no name of a field.
    #[error("{{{0}}} is no placeholder; names are letters, digits and _")]
    BadName(String),
}

/// Whether a text can be the name of a field: 1 to 64 letters, digits and `_`.
#[must_use]
pub fn is_field_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    /// [`TemplateError`] when its braces do not pair or hold no name.
    pub fn parse(raw: &str) -> Result<Self, TemplateError> {
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), raw);
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(unescaped) = after.strip_prefix(brace) {
                literal.push_str(brace);
                rest = unescaped;
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::NotOpened);
            }
            let (name, behind) = after.split_once('}').ok_or(TemplateError::NotClosed)?;
            if !is_field_name(name) {
                return Err(TemplateError::BadName(crate::domain::text::shorten(name, 48).into_owned()));
            }
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            pieces.push(Piece::Field(name.to_owned()));
            rest = behind;
        }
        literal.push_str(rest);
        pieces.push(Piece::Literal(literal));
        pieces.retain(|p| !matches!(p, Piece::Literal(text) if text.is_empty()));
        Ok(Self(pieces))
    }

    /// The names between its braces, in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|p| match p {
            Piece::Field(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// The text for one event. Values go in as they are: a brace in a value is not read again. A field the event does not
    /// have leaves nothing in its place; that happens only when a reload makes a type require more while events
    /// accepted before it are still being sent.
    #[must_use]
    pub fn fill(&self, event: &Event) -> String {
        self.fill_with(event, Cow::Borrowed)
    }

    /// The same for people who read `locale`: values that run against its direction are isolated where that is needed.
    ///
    /// A text written from right to left needs none. It starts with a word of its own, so that its direction is
    /// settled, and `Arsenal 2-1 Chelsea` inside it stays one stretch, read as it is written. A mark around each name
    /// would tear that apart and show the goals the other way round.
    #[must_use]
    pub fn fill_for(&self, event: &Event, locale: &str) -> String {
        if is_right_to_left(locale) { self.fill(event) } else { self.fill_with(event, isolated) }
    }

    fn fill_with<'a>(&'a self, event: &'a Event, shown: impl Fn(&'a str) -> Cow<'a, str>) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Literal(text) => Cow::Borrowed(text.as_str()),
                Piece::Field(name) => shown(value(event, name)),
            })
            .collect()
    }
}

fn value<'a>(event: &'a Event, name: &str) -> &'a str {
    match name {
        "event_id" => event.id.as_str(),
        "type" => &event.kind,
        "match_id" => event.match_id.as_str(),
        field => event.fields.get(field).map_or("", String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::tests::goal;
    use proptest::prelude::*;

    fn filled(raw: &str) -> String {
        Template::parse(raw).unwrap().fill(&goal())
    }

    #[test]
    fn placeholders_are_filled_and_doubled_braces_are_shown() {
        assert_eq!(filled("GOAL! {home} {score} {away}"), "GOAL! Arsenal 2-1 Chelsea");
        assert_eq!(filled("{{home}} {{{home}}} }}{{"), "{home} {Arsenal} }{");
        assert_eq!(filled("{type} {match_id} {event_id}"), "goal 4711 evt-8841");
        assert_eq!(filled("{nothing}"), "");
    }

    #[test]
    fn a_brace_inside_a_value_is_not_read_again() {
        let mut event = goal();
        event.fields.insert("player".into(), "{home}{{".into());
        assert_eq!(Template::parse("{player}!").unwrap().fill(&event), "{home}{{!");
    }

    #[test]
    fn braces_that_do_not_pair_are_refused() {
        for (raw, why) in [
            ("{home", TemplateError::NotClosed),
            ("a } b", TemplateError::NotOpened),
            ("{}", TemplateError::BadName(String::new())),
            ("{ho me}", TemplateError::BadName("ho me".into())),
            ("{a{b}", TemplateError::BadName("a{b".into())),
        ] {
            assert_eq!(Template::parse(raw), Err(why), "{raw}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_or_refused_and_filling_never_panics(raw in "[{}a-z_ ]{0,20}|\\PC{0,20}") {
            if let Ok(template) = Template::parse(&raw) {
                let _ = template.fill(&goal());
            }
        }

        #[test]
        fn an_escaped_text_comes_back_as_it_was(raw in "[{}a-z é]{0,20}") {
            let escaped = raw.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(filled(&escaped), raw);
        }
    }
}
