//! Owns the OpenAPI 3.1 document: made of what stands beside each route and of the wire types, completed with what all
//! routes share: the key, the refusals, the closed sets of words.
//! Must never know: what a call does.

use axum::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{Code, Scope};
use crate::domain::batch::{FanoutKind, FanoutState};
use crate::domain::derived::PauseReason;
use crate::domain::event::CorrectionMode;
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::{DeviceState, Platform};
use crate::door::Pass;
use crate::inspect;
use crate::wire;

#[derive(OpenApi)]
#[openapi(
    info(title = "Fanfare", license(name = "Apache-2.0", identifier = "Apache-2.0")),
    paths(
        super::events::accept,
        super::fanouts::list,
        super::fanouts::show,
        super::explain::show,
        super::cancel::run,
        super::replay::run,
        super::replay::resume,
        super::devices::register,
        super::devices::show,
        super::devices::delete,
        super::devices::follow,
        super::import::run,
        super::export::run,
        super::sweeps::begin,
        super::sweeps::show,
        super::ceiling::show,
        super::stats::show,
        show,
    ),
    components(schemas(wire::Problem)),
    tags(
        (name = "events", description = "What happened on the pitch."),
        (name = "fan-outs", description = "One event's delivery to all its recipients."),
        (name = "devices", description = "Who is reached, and for what."),
        (name = "operations", description = "The numbers in force, and this document."),
    )
)]
struct Described;

const ABOUT: &str = "\
Takes a match event and puts a push notification on every follower's phone, within seconds, never above the quota.

A key goes into `Authorization: Bearer KEY`; the scopes a call needs stand with it. Every answer has an `X-Request-Id`, \
the caller's own when one was sent. Every refusal is `application/problem+json` (RFC 9457) with a stable `code`; \
`retryable` says whether the same request may succeed later, `retry_after_s` and `Retry-After` when. Unknown fields and \
parameters are refused: they are misspellings.";

/// What any call may be refused with, before it is looked at.
const COMMON: [(&str, &str); 7] = [
    ("400", "`bad_request`: an id in the path is not UTF-8, or X-Request-Timeout-Ms is not one whole number."),
    ("401", "`unauthenticated`"),
    ("403", "`forbidden`: the key lacks the scope."),
    ("429", "`quota_exceeded`: more requests than the key's quota."),
    ("500", "`internal`: our fault; the log has more under the request's id."),
    ("503", "`overloaded`, `out_of_time`, `database_unavailable`"),
    ("default", "Any other refusal."),
];

/// Serve this document. No key is needed.
#[utoipa::path(get, path = "/openapi.json", operation_id = "getOpenApi", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object)))]
pub(super) async fn show(
    Extension(Made(document)): Extension<Made>,
    Extension(pass): Extension<Pass>,
) -> impl IntoResponse {
    // It is no work like that of the readings, so it says nothing of how long they take.
    pass.step_out();
    ([(CONTENT_TYPE, "application/json")], document)
}

/// The document, made once: anybody may ask for it, without a key, as often as they like.
#[derive(Clone)]
pub(super) struct Made(Bytes);

impl Made {
    pub(super) fn new() -> Self {
        Self(document().into())
    }
}

/// The document, as `docs/openapi.json` has it and `/openapi.json` answers it.
#[must_use]
pub fn document() -> String {
    let mut document = complete();
    for operation in operations(&mut document) {
        refusals(operation);
    }
    // Serialising a value without a key that is not text cannot fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn complete() -> Value {
    let mut document = serde_json::to_value(Described::openapi()).unwrap_or_default();
    document["info"]["description"] = ABOUT.into();
    document["components"]["securitySchemes"]["key"] = json!({
        "type": "http", "scheme": "bearer",
        "description": scopes(),
    });
    for (schema, property, words) in words() {
        document["components"]["schemas"][schema]["properties"][property]["enum"] = words.into();
    }
    let states: Vec<&str> = FanoutState::ALL.iter().map(|state| state.as_str()).collect();
    if let Some(parameters) = document["paths"]["/v1/fanouts"]["get"]["parameters"].as_array_mut() {
        for parameter in parameters.iter_mut().filter(|parameter| parameter["name"] == "state") {
            parameter["schema"] = json!({"type": "string", "enum": states});
        }
    }
    document
}

fn scopes() -> String {
    let names: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
    format!("A key with scopes, of {}. `fanfare key` makes one.", names.join(", "))
}

/// The closed sets of words, by schema and property.
fn words() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let outcomes = || Outcome::ALL.iter().map(|outcome| outcome.as_str());
    let platforms = || Platform::ALL.iter().map(|platform| platform.as_str()).collect::<Vec<_>>();
    let device_states = || DeviceState::ALL.iter().map(|state| state.as_str());
    vec![
        ("Problem", "code", Code::ALL.iter().map(|code| code.as_str()).collect()),
        ("Fanout", "state", FanoutState::ALL.iter().map(|state| state.as_str()).collect()),
        ("Fanout", "kind", FanoutKind::ALL.iter().map(|kind| kind.as_str()).collect()),
        ("Sweep", "state", vec!["running", "done", "paused", "cancelled", "dry_run"]),
        ("Fanout", "paused", PauseReason::ALL.iter().map(|reason| reason.as_str()).collect()),
        ("SupersedesRequest", "mode", CorrectionMode::ALL.iter().map(|mode| mode.as_str()).collect()),
        ("Stats", "counts", vec!["exact", "lower_bound"]),
        ("Fanout", "ledger", vec!["exact", "lower_bound"]),
        ("DeviceRequest", "platform", platforms()),
        ("ImportLine", "platform", platforms()),
        ("DeviceAnswer", "platform", platforms()),
        ("DeviceAnswer", "addressed_by", vec!["token", "fid"]),
        ("DeviceAnswer", "state", device_states().collect()),
        ("ExplainedDevice", "state", device_states().chain(["deleted"]).collect()),
        ("Explanation", "answer", vec!["delivered", "failed", "pending", "not_a_recipient"]),
        ("Explanation", "because", outcomes().chain(inspect::REASONS.iter().copied()).collect()),
        // Absent when there is none, which utoipa writes as "or null".
        ("Explanation", "cause", Cause::ALL.iter().map(|cause| cause.as_str()).collect()),
    ]
}

fn operations(document: &mut Value) -> Vec<&mut Value> {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    paths.filter_map(Value::as_object_mut).flat_map(|path| path.values_mut()).collect()
}

/// Adds the refusals all calls share, and gives every refusal its shape and its headers.
fn refusals(operation: &mut Value) {
    let open = operation["security"].is_null();
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, says) in COMMON.iter().filter(|(status, _)| !open || matches!(*status, "500" | "503")) {
        responses.entry(*status).or_insert_with(|| json!({"description": says}));
    }
    for (status, response) in responses.iter_mut().filter(|(status, _)| !status.starts_with('2')) {
        response["content"]["application/problem+json"]["schema"]["$ref"] = "#/components/schemas/Problem".into();
        if let Some((name, says)) = header(status) {
            response["headers"][name] = json!({"description": says, "schema": {"type": "string"}});
        }
    }
}

fn header(status: &str) -> Option<(&'static str, &'static str)> {
    match status {
        "401" => Some(("WWW-Authenticate", "`Bearer`")),
        "429" | "503" => Some(("Retry-After", "Seconds after which to try again.")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::door::{DoorMetrics, Gate, Places, Pool};
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn the_document_is_made_once_and_says_nothing_of_the_readings() {
        let places = Places { interactive: 0, read: 1, bulk: 0, borrowed: 0 };
        let gate = Gate::new(places, DoorMetrics::register(&mut Metrics::new()));
        let made = Made::new();
        let mut bodies = Vec::new();
        for _ in 0..2 {
            let pass = gate.enter(Pool::Read).await.unwrap();
            let answer = show(Extension(made.clone()), Extension(pass.clone())).await.into_response();
            pass.served(Duration::from_secs(1));
            bodies.push(axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap());
        }
        assert_eq!(bodies[0].as_ptr(), bodies[1].as_ptr());
        assert_eq!(bodies[0], document());
        assert_eq!(gate.typical(Pool::Read), Duration::ZERO);
    }
}
