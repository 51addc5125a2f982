//! Owns how a caller's JSON is read: strictly, with the place of every fault.
//! Must never know: HTTP, or which shape is read.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Number, Value};
use serde_path_to_error::{Path, Segment};

use super::FieldProblem;

/// Why JSON was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not JSON: broken syntax, invalid UTF-8, a lone surrogate, nested deeper than 128.
    #[error("{reason} at line {line} column {column}{}", within(.field))]
    Syntax {
        /// What is wrong.
        reason: String,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// JSON pointer of the value that was being read; empty = the whole text.
        field: String,
    },
    /// JSON, but not of the shape that is asked for.
    #[error("{}: {}", .0.field, .0.problem)]
    Field(FieldProblem),
}

fn within(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!(", in {field}") }
}

/// Reads one JSON object of the shape `T`.
///
/// A key given twice is refused: parsers disagree on which one counts, so the caller may have meant either. So is
/// anything but an object: serde would take an array for the fields in the order of our declaration.
///
/// # Errors
/// [`ReadError`] says where and what.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, ReadError> {
    let value = strict(text)?;
    if !value.is_object() {
        return Err(ReadError::Field(FieldProblem { field: String::new(), problem: "must be a JSON object".into() }));
    }
    serde_path_to_error::deserialize(value).map_err(|fault| {
        let around = pointer(fault.path());
        ReadError::Field(misfit(around, &fault.into_inner().to_string()))
    })
}

/// A missing field is told at its own place, where whoever fills a form looks for it; serde tells it at the object.
fn misfit(field: String, said: &str) -> FieldProblem {
    match said.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(name) => FieldProblem { field: format!("{field}/{name}"), problem: "is missing".to_owned() },
        None => FieldProblem { field, problem: short(said) },
    }
}

fn strict(text: &[u8]) -> Result<Value, ReadError> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let Strict(value) = serde_path_to_error::deserialize(&mut parser)
        .map_err(|fault| refusal(&pointer(fault.path()), fault.inner()))?;
    parser.end().map_err(|fault| refusal("", &fault))?;
    Ok(value)
}

fn refusal(field: &str, fault: &serde_json::Error) -> ReadError {
    let said = fault.to_string();
    let reason = said.split(" at line ").next().unwrap_or_default();
    let reason = short(reason);
    let field = field.to_owned();
    match fault.classify() {
        Category::Data => ReadError::Field(FieldProblem { field, problem: reason }),
        _ => ReadError::Syntax { reason, line: fault.line(), column: fault.column(), field },
    }
}

/// RFC 6901: `/fields/player`, `~` and `/` of keys escaped.
fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        pointer.push('/');
        match segment {
            Segment::Seq { index } => pointer.push_str(&index.to_string()),
            Segment::Map { key } => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
            Segment::Enum { variant } => pointer.push_str(variant),
            // The key itself could not be read: the object around it is as near as we get.
            Segment::Unknown => pointer.truncate(pointer.len() - 1),
        }
    }
    short(&pointer)
}

/// Answers quote the caller's own keys, and a key may be as long as a body. Long enough to be found, no longer.
fn short(text: &str) -> String {
    const MOST: usize = 200;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST).chain(['…']).collect() }
}

/// A JSON value in which no object has a key twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Once).map(Strict)
    }
}

struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        Number::from_f64(n).map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} is given twice")));
            }
            let Strict(value) = map.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::EventRequest;
    use proptest::prelude::*;

    fn event_with(fields: &str) -> Vec<u8> {
        format!(
            r#"{{"id":"e","type":"goal","match_id":"1","occurred_at":"2026-11-30T15:03:12Z","subjects":["match:1"],{fields}}}"#
        )
        .into_bytes()
    }

    fn field(text: &[u8]) -> (String, String) {
        match read::<EventRequest>(text) {
            Err(ReadError::Field(FieldProblem { field, problem })) => (field, problem),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(text)),
        }
    }

    fn syntax(text: &[u8]) -> (usize, String) {
        match read::<EventRequest>(text) {
            Err(ReadError::Syntax { line, field, .. }) => (line, field),
            other => panic!("{}: {other:?}", String::from_utf8_lossy(text)),
        }
    }

    #[test]
    fn a_wrong_type_is_named_by_pointer() {
        assert_eq!(field(&event_with(r#""useful_for_s":"soon""#)).0, "/useful_for_s");
        assert_eq!(field(&event_with(r#""useful_for_s":-1"#)).0, "/useful_for_s");
        assert_eq!(field(&event_with(r#""fields":[]"#)).0, "/fields");
        assert_eq!(field(&event_with(r#""minute":67"#)).0, "/minute");
        assert_eq!(field(br#"{"id":7}"#).0, "/id");
    }

    #[test]
    fn a_missing_field_is_named_by_its_own_pointer() {
        assert_eq!(field(b"{}"), ("/id".to_owned(), "is missing".to_owned()));
        assert_eq!(field(br#"{"id":"e"}"#).0, "/type");
    }

    #[test]
    fn only_an_object_is_read() {
        let by_position = br#"["e","goal","1","2026-11-30T15:03:12Z",["match:1"],{},{},null,60]"#;
        for text in [by_position.as_slice(), b"[]", b"null", b"7", br#""e""#] {
            assert_eq!(field(text), (String::new(), "must be a JSON object".to_owned()));
        }
    }

    #[test]
    fn a_key_given_twice_is_refused_by_name_at_any_depth() {
        let (at, problem) = field(&event_with(r#""fields":{"a":{"player":1,"player":2}}"#));
        assert!(at.starts_with("/fields/a") && problem.contains("\"player\""), "{at} {problem}");
        assert!(field(&event_with(r#""id":"again""#)).1.contains("\"id\""));
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        assert_eq!(syntax(b"{\n\n  nope"), (3, String::new()));
        assert_eq!(syntax(b"").0, 1);
        assert_eq!(syntax(&event_with(r#""data":{"x":NaN}"#)).1, "/data/x");
        assert_eq!(syntax(&event_with(r#""data":{"x":1e999}"#)).1, "/data/x");
        assert_eq!(syntax(&event_with(r#""data":{"x":"\ud800"}"#)).1, "/data/x");
        assert_eq!(syntax(&[event_with(r#""fields":{}"#), b"{}".to_vec()].concat()).0, 1);
        let mut latin1 = event_with(r#""data":{"x":"?"}"#);
        let at = latin1.iter().rposition(|b| *b == b'?').unwrap();
        latin1[at] = 0xE9;
        assert_eq!(syntax(&latin1).1, "/data/x");
        assert_eq!(syntax(&[0xFF, 0xFE, b'{', 0, b'}', 0]).0, 1);
    }

    #[test]
    fn deep_nesting_is_an_answer_and_not_a_crash() {
        let deep = format!(r#""data":{{"x":{}1{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
        assert!(syntax(&event_with(&deep)).1.starts_with("/data/x"));
    }

    #[test]
    fn an_answer_does_not_repeat_a_whole_body() {
        let (at, problem) = field(format!(r#"{{"{}":1}}"#, "k".repeat(60_000)).as_bytes());
        assert!(at.len() < 300 && problem.len() < 300, "{} {}", at.len(), problem.len());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e15..1e15).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let object = proptest::collection::btree_map(any::<String>(), inner.clone(), 0..6);
            prop_oneof![
                proptest::collection::vec(inner, 0..6).prop_map(Value::from),
                object.prop_map(|map| map.into_iter().collect())
            ]
        })
    }

    proptest! {
        #[test]
        fn strictness_changes_nothing_about_values(value in json()) {
            let text = serde_json::json!({ "v": value }).to_string();
            prop_assert_eq!(read::<Value>(text.as_bytes()), Ok(serde_json::from_str(&text).unwrap()));
        }

        #[test]
        fn no_bytes_are_a_crash(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..400) {
            let _ = read::<EventRequest>(&bytes);
            let whole = event_with(r#""fields":{"a":[1,{"b":"\u00e9"}]},"data":{}"#);
            let cut = &whole[..cut.min(whole.len())];
            prop_assert_eq!(read::<EventRequest>(cut).is_ok(), cut.len() == whole.len());
        }
    }

    #[test]
    fn pointers_escape_their_own_signs() {
        let (at, _) = field(br#"{"id":"e","a/b~c":1}"#);
        assert_eq!(at, "/a~1b~0c");
    }
}
