//! The OpenAPI document: committed as it is, complete both ways, and true of real answers.

use std::collections::BTreeSet;

use fanfare::api::{Code, openapi};
use fanfare::wire;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api::{Service, for_each_store, goal};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

fn document() -> Value {
    serde_json::from_str(&openapi::document()).unwrap()
}

/// Every call the document describes, as method and path.
fn described(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let calls = paths
        .iter()
        .flat_map(|(path, calls)| calls.as_object().unwrap().keys().map(move |method| (method.clone(), path.clone())));
    calls.collect()
}

/// Every call the router's source names.
fn routed() -> BTreeSet<(String, String)> {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/mod.rs")).unwrap();
    let mut found = BTreeSet::new();
    for route in source.split(".route(\"").skip(1) {
        let (path, rest) = route.split_once('"').unwrap();
        let methods = rest.split(".route").next().unwrap().split('\n').next().unwrap();
        for method in METHODS.iter().filter(|method| methods.contains(&format!("{method}("))) {
            found.insert(((*method).to_owned(), path.to_owned()));
        }
    }
    found
}

#[test]
fn the_committed_document_is_the_one_of_this_build() {
    let committed = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(committed == openapi::document(), "stale; run: cargo run -- openapi > docs/openapi.json");
    assert!(document()["openapi"].as_str().unwrap().starts_with("3.1"));
}

#[test]
fn every_route_is_described_and_every_description_routed() {
    let routed = routed();
    assert!(routed.len() >= 12, "{routed:?}");
    assert_eq!(described(&document()), routed);
}

/// The path with an id in every place of one.
fn filled(path: &str) -> String {
    path.replace("{id}", "1").replace("{device}", "phone-1")
}

#[tokio::test]
async fn what_is_described_is_served_and_nothing_else_on_its_paths() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let document = document();
        let described = described(&document);
        let paths: BTreeSet<&str> = described.iter().map(|(_, path)| path.as_str()).collect();
        for path in paths {
            for method in METHODS {
                let verb = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let status = service.call_as("all", verb, &filled(path), None).await.status();
                let known = described.contains(&(method.to_owned(), path.to_owned()));
                assert_eq!(status != StatusCode::METHOD_NOT_ALLOWED, known, "{method} {path}: {status}");
            }
        }
        let url = format!("http://{}/openapi.json", service.addr);
        let open = reqwest::get(url).await.unwrap();
        assert_eq!(
            (open.status(), &open.headers()["content-type"]),
            (StatusCode::OK, &"application/json".parse().unwrap())
        );
        assert_eq!(open.text().await.unwrap(), openapi::document());
    })
    .await;
}

fn parses<T: DeserializeOwned>(example: &Value) -> Result<(), String> {
    wire::read::<T>(example.to_string().as_bytes()).map(drop).map_err(|fault| fault.to_string())
}

#[test]
fn every_example_is_of_its_type_and_fits_its_schema() {
    let document = document();
    let mut examples = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let Some(example) = schema.get("example") else { continue };
        let parsed = match name.as_str() {
            "EventRequest" => parses::<wire::EventRequest>(example),
            "SupersedesRequest" => parses::<wire::SupersedesRequest>(example),
            "ReplayRequest" => parses::<wire::ReplayRequest>(example),
            "ReplayAnswer" => parses::<wire::ReplayAnswer>(example),
            "ResumeRequest" => parses::<wire::ResumeRequest>(example),
            "EventAccepted" => parses::<wire::EventAccepted>(example),
            "Fanout" => parses::<wire::Fanout>(example),
            "FanoutCeiling" => parses::<wire::FanoutCeiling>(example),
            "CeilingAnswer" => parses::<wire::CeilingAnswer>(example),
            "Explanation" => parses::<wire::Explanation>(example),
            "ExplainedDevice" => parses::<wire::ExplainedDevice>(example),
            "DeviceRequest" => parses::<wire::DeviceRequest>(example),
            "DeviceRegistered" => parses::<wire::DeviceRegistered>(example),
            "DeviceAnswer" => parses::<wire::DeviceAnswer>(example),
            "FollowsRequest" => parses::<wire::FollowsRequest>(example),
            "ImportLine" => parses::<wire::ImportLine>(example),
            "ImportAnswer" => parses::<wire::ImportAnswer>(example),
            "Reject" => parses::<wire::Reject>(example),
            "Problem" => parses::<wire::Problem>(example),
            "QuotaLimit" => parses::<wire::QuotaLimit>(example),
            "SweepRequest" => parses::<wire::SweepRequest>(example),
            "Sweep" => parses::<wire::Sweep>(example),
            "StatsGroup" => parses::<wire::StatsGroup>(example),
            "FieldProblem" => parses::<wire::FieldProblem>(example),
            other => panic!("{other} has an example that this test does not read"),
        };
        assert_eq!(parsed, Ok(()), "{name}");
        assert_eq!(fits(&document, schema, example), Ok(()), "{name}");
        examples += 1;
    }
    assert!(examples >= 16, "{examples}");
}

/// Codes are named in the descriptions of refusals, with the status they come with.
#[test]
fn every_code_is_told_where_it_is_met() {
    let document = document();
    let mut told = BTreeSet::new();
    for (method, path) in described(&document) {
        for (status, response) in document["paths"][&path][&method]["responses"].as_object().unwrap() {
            if status.starts_with('2') || status == "default" {
                continue;
            }
            let says = response["description"].as_str().unwrap();
            let names: Vec<&str> = says.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{method} {path} {status}: {says}");
            for name in names {
                let code = Code::ALL.iter().find(|code| code.as_str() == name);
                assert_eq!(code.map(|code| code.status().to_string()).as_ref(), Some(status), "{name} {method} {path}");
                told.insert(name.to_owned());
            }
            let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path} {status}");
        }
    }
    // Those of no call at all.
    let nowhere = ["not_found", "method_not_allowed"];
    let all: BTreeSet<String> = Code::ALL
        .iter()
        .map(|code| code.as_str().to_owned())
        .filter(|code| !nowhere.contains(&code.as_str()))
        .collect();
    assert_eq!(told, all);
}

#[test]
fn scopes_are_told_where_a_key_is_needed() {
    let document = document();
    for (method, path) in described(&document) {
        let security = &document["paths"][&path][&method]["security"];
        let open = path == "/openapi.json";
        assert_eq!(security.is_null(), open, "{method} {path}");
        for alternative in security.as_array().into_iter().flatten() {
            let scopes = alternative["key"].as_array().unwrap();
            assert!(scopes.iter().all(|scope| ["events", "devices", "ops"].contains(&scope.as_str().unwrap())));
        }
    }
}

/// Whether a value is what a schema says, as far as this document uses JSON Schema; and has no key it does not name.
fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#')).ok_or(format!("nothing at {reference}"))?;
        return fits(document, target, value);
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let faults: Vec<String> = options.iter().filter_map(|option| fits(document, option, value).err()).collect();
        return if faults.len() + 1 == options.len() { Ok(()) } else { Err(format!("not one of: {faults:?}")) };
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{value} is none of {words:?}"));
    }
    is_of(&schema["type"], value)?;
    if let Some(object) = value.as_object() {
        let properties = schema["properties"].as_object();
        for name in schema["required"].as_array().into_iter().flatten() {
            object.get(name.as_str().unwrap()).ok_or(format!("{name} is missing in {value}"))?;
        }
        for (name, inner) in object {
            let within = properties.and_then(|known| known.get(name)).or(schema.get("additionalProperties"));
            let within = within.filter(|within| !within.is_boolean()).ok_or(format!("{name} is not described"))?;
            fits(document, within, inner).map_err(|fault| format!("{name}: {fault}"))?;
        }
    }
    for item in value.as_array().into_iter().flatten() {
        fits(document, &schema["items"], item)?;
    }
    Ok(())
}

fn is_of(kind: &Value, value: &Value) -> Result<(), String> {
    let one = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no such type: {other}"),
    };
    let fits = match kind {
        Value::Null => true,
        Value::String(name) => one(name),
        names => names.as_array().unwrap().iter().any(|name| one(name.as_str().unwrap())),
    };
    if fits { Ok(()) } else { Err(format!("{value} is no {kind}")) }
}

#[test]
fn the_check_of_answers_sees_what_is_wrong() {
    let document = document();
    let schema = json!({"$ref": "#/components/schemas/Fanout"});
    let right = document["components"]["schemas"]["Fanout"]["example"].clone();
    assert_eq!(fits(&document, &schema, &right), Ok(()));
    for (pointer, wrong) in [("/state", json!("finished")), ("/recipients", json!("many")), ("/novelty", json!(1))] {
        let mut value = right.clone();
        value[pointer.trim_start_matches('/')] = wrong;
        assert!(fits(&document, &schema, &value).is_err(), "{pointer}");
    }
    let mut less = right.clone();
    less.as_object_mut().unwrap().remove("pending");
    assert!(fits(&document, &schema, &less).is_err());
}

#[tokio::test]
async fn real_answers_are_what_the_document_says() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let document = document();
        let device = json!({"user_id": "u1", "token": "t-1", "platform": "ios"});
        let follows =
            json!({"follows": ["match:4711", {"subject": "team:ars", "types": ["goal"]}], "muted": ["corner"]});
        let mut incomplete = goal("evt-2");
        incomplete["fields"].as_object_mut().unwrap().remove("player");
        let calls = [
            ("put", "/v1/devices/{id}", "/v1/devices/phone-1", device.clone(), 201),
            ("put", "/v1/devices/{id}", "/v1/devices/phone-1", device, 200),
            ("put", "/v1/devices/{id}", "/v1/devices/phone-1", json!({}), 422),
            ("put", "/v1/devices/{id}/follows", "/v1/devices/phone-1/follows", follows.clone(), 204),
            ("put", "/v1/devices/{id}/follows", "/v1/devices/nobody/follows", follows, 404),
            ("get", "/v1/devices/{id}", "/v1/devices/phone-1", Value::Null, 200),
            ("get", "/v1/devices/{id}", "/v1/devices/nobody", Value::Null, 404),
            ("post", "/v1/events", "/v1/events", goal("evt-1"), 202),
            ("post", "/v1/events", "/v1/events", incomplete, 422),
            ("get", "/v1/fanouts", "/v1/fanouts?state=freezing", Value::Null, 200),
            ("get", "/v1/fanouts", "/v1/fanouts?state=nope", Value::Null, 422),
            ("get", "/v1/fanouts/{id}", "/v1/fanouts/1", Value::Null, 200),
            ("get", "/v1/fanouts/{id}", "/v1/fanouts/99", Value::Null, 404),
            ("get", "/v1/fanouts/{id}/recipients/{device}", "/v1/fanouts/1/recipients/phone-1", Value::Null, 200),
            ("get", "/v1/fanouts/{id}/recipients/{device}", "/v1/fanouts/1/recipients/nobody", Value::Null, 200),
            ("get", "/v1/fanouts/{id}/recipients/{device}", "/v1/fanouts/99/recipients/nobody", Value::Null, 404),
            ("post", "/v1/fanouts/{id}/cancel", "/v1/fanouts/1/cancel", Value::Null, 200),
            ("post", "/v1/fanouts/{id}/cancel", "/v1/fanouts/1/cancel", Value::Null, 409),
            ("get", "/v1/ceiling", "/v1/ceiling", Value::Null, 200),
            ("get", "/v1/stats", "/v1/stats?window=1h", Value::Null, 200),
            ("delete", "/v1/devices/{id}", "/v1/devices/phone-1", Value::Null, 204),
            ("get", "/v1/fanouts/{id}/recipients/{device}", "/v1/fanouts/1/recipients/phone-1", Value::Null, 200),
        ];
        for (method, template, path, body, status) in calls {
            let verb = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = service.call(verb, path, body).await;
            assert_eq!(answer.status(), status, "{method} {path}");
            let said = &document["paths"][template][method]["responses"][status.to_string()];
            for name in said["headers"].as_object().into_iter().flatten().map(|(name, _)| name) {
                assert!(answer.headers().contains_key(name.as_str()), "{method} {path}: {name}");
            }
            let Some((kind, content)) = said["content"].as_object().and_then(|content| content.iter().next()) else {
                assert_eq!(answer.text().await.unwrap(), "", "{method} {path} has a body that is not described");
                continue;
            };
            assert_eq!(answer.headers()["content-type"], kind.as_str(), "{method} {path}");
            let value: Value = answer.json().await.unwrap();
            assert_eq!(fits(&document, &content["schema"], &value), Ok(()), "{method} {path}: {value}");
        }
    })
    .await;
}
