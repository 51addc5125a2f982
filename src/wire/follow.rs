//! Owns how one followed subject is written: as an object, or as plain text when every event type is wanted.
//! Must never know: which subjects and event types there are.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};
use utoipa::{PartialSchema, ToSchema};

/// One followed subject: `"team:ars"` or `{"subject":"team:ars","types":["goal"]}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FollowEntry {
    /// `team:ars`.
    pub subject: String,
    /// Event types; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
}

impl PartialSchema for FollowEntry {
    /// By hand, for the two forms are told apart by hand too.
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let plain = text().description(Some("Every event type of it.")).examples([json!("team:ars")]);
        let types = ArrayBuilder::new()
            .schema_type(SchemaType::from_iter([Type::Array, Type::Null]))
            .items(text())
            .description(Some("Event types; absent = all."));
        let chosen = ObjectBuilder::new()
            .property("subject", text().description(Some("`team:ars`.")))
            .property("types", types)
            .required("subject")
            .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
            .examples([json!({"subject": "team:ars", "types": ["goal"]})]);
        let either = OneOfBuilder::new().item(plain).item(chosen);
        either.description(Some("A followed subject; answers write it as an object.")).into()
    }
}

impl ToSchema for FollowEntry {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spelled {
    subject: String,
    #[serde(default)]
    types: Option<Vec<String>>,
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = FollowEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a subject such as \"team:ars\", or an object with `subject` and `types`")
    }

    fn visit_str<E: Error>(self, subject: &str) -> Result<FollowEntry, E> {
        Ok(FollowEntry { subject: subject.to_owned(), types: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FollowEntry, A::Error> {
        let Spelled { subject, types } = Spelled::deserialize(MapAccessDeserializer::new(map))?;
        Ok(FollowEntry { subject, types })
    }
}

impl<'de> Deserialize<'de> for FollowEntry {
    // Not `#[serde(untagged)]`: that forgets which part of which form was wrong.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EitherForm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FollowsRequest, ReadError, read};

    #[test]
    fn both_forms_are_read() {
        let body = br#"{"follows":["team:ars",{"subject":"match:1","types":["goal"]}]}"#;
        let follows = read::<FollowsRequest>(body).unwrap().follows;
        assert_eq!(follows[0], FollowEntry { subject: "team:ars".into(), types: None });
        assert_eq!(follows[1].types.as_deref(), Some(&["goal".to_owned()][..]));
    }

    #[test]
    fn the_faulty_part_of_an_entry_is_named() {
        for (body, field) in [
            (r#"{"follows":["team:ars",7]}"#, "/follows/1"),
            (r#"{"follows":[{"subject":"team:ars","types":["goal",3]}]}"#, "/follows/0/types/1"),
            (r#"{"follows":[{"types":[]}]}"#, "/follows/0/subject"),
            (r#"{"follows":[{"subject":"team:ars","typ":[]}]}"#, "/follows/0/typ"),
        ] {
            let Err(ReadError::Field(fault)) = read::<FollowsRequest>(body.as_bytes()) else { panic!("{body}") };
            assert_eq!(fault.field, field, "{body}: {}", fault.problem);
        }
    }
}
