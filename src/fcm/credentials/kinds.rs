//! Owns how Google's other files and keys look, so that whoever took the wrong one is told which it is.
//! Must never know: how a service-account key is read.

use serde_json::{Map, Value};

/// What a JSON object is, when it is not a service-account key.
pub(super) fn of_object(fields: &Map<String, Value>) -> Option<&'static str> {
    let has = |name| fields.contains_key(name);
    match fields.get("type").and_then(Value::as_str) {
        Some("service_account") => None,
        Some(kind) => Some(of_type(kind)),
        None if has("installed") || has("web") => {
            Some("an OAuth client (\"installed\" or \"web\"): it lets people sign in, not a server")
        }
        None if has("project_info") && has("client") => {
            Some("google-services.json, the configuration of an Android app: it holds no private key")
        }
        None if has("apiKey") || has("messagingSenderId") => {
            Some("the configuration of a web app (\"apiKey\"): it holds no private key")
        }
        None if has("access_token") => Some("an access token: it would be worthless within the hour"),
        None => None,
    }
}

/// What its `type` says it is.
fn of_type(kind: &str) -> &'static str {
    match kind {
        "authorized_user" => {
            "a user's credentials (\"type\" is \"authorized_user\", from gcloud auth application-default login): \
             they are a person's, and end with the person's session"
        }
        "external_account" | "external_account_authorized_user" => {
            "workload identity federation (\"type\" is \"external_account\"): exchanging another cloud's token is not \
             supported"
        }
        "impersonated_service_account" => {
            "an impersonation (\"type\" is \"impersonated_service_account\"): borrowing a service account is not \
             supported"
        }
        "gdch_service_account" => {
            "an account of a hosted cloud (\"type\" is \"gdch_service_account\"): FCM does not know it"
        }
        _ => "something whose \"type\" is not \"service_account\"",
    }
}

/// What a text is that holds no JSON object.
pub(super) fn of_text(text: &str) -> Option<&'static str> {
    if text.starts_with("-----BEGIN ") {
        return Some(
            "a private key or certificate alone (PEM): the JSON around it, with \"client_email\", is needed too",
        );
    }
    if text.starts_with("AIza") && text.len() < 64 {
        return Some("an API key (AIza...): it names a project and proves nothing");
    }
    if text.starts_with("AAAA") && text.contains(":APA91") {
        return Some("a server key of FCM's legacy API: Google switched that off in 2024");
    }
    if text.starts_with("ya29.") {
        return Some("an access token (ya29...): it would be worthless within the hour");
    }
    if text.starts_with("<?xml") || text.starts_with("<plist") || text.starts_with("<!DOCTYPE plist") {
        return Some("GoogleService-Info.plist or another XML file, the configuration of an iOS app");
    }
    (text.starts_with("MII") && text.len() > 200).then_some(
        "a private key or certificate alone (base64): the JSON around it, with \"client_email\", is needed too",
    )
}
