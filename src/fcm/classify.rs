//! Owns the meaning of one answer: a positive allow-list, everything else is `protocol`.
//! Must never know: connections, recipients, or what follows from a verdict.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::envelope::{Envelope, FcmCode};
use super::sanitise::clean;
use crate::domain::outcome::{CredentialFault, Failure, Verdict};
use crate::domain::retry::parse_retry_after;
use crate::mutant;

/// What an answer means, and a text for people that is safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    /// What follows from it.
    pub verdict: Verdict,
    /// Built from typed parts, sanitised, at most 256 bytes. Of a body that was not understood: class, length, hash.
    pub text: String,
}

/// Says what an answer means. `now` is the clock an HTTP-date in `retry_after` is compared with.
#[must_use]
pub fn classify(status: u16, retry_after: Option<&str>, body: &[u8], now: SystemTime) -> Classified {
    let json = serde_json::from_slice::<Value>(body).ok();
    let envelope = json.as_ref().and_then(Envelope::read);
    let wait = retry_after.and_then(|raw| parse_retry_after(raw, now));
    let verdict = if status == 200 && json.as_ref().is_some_and(has_name) {
        Verdict::Accepted
    } else if status == 429 || envelope.as_ref().is_some_and(Envelope::throttled) {
        Verdict::Throttled(wait)
    } else {
        refused(status, envelope.as_ref()).unwrap_or_else(|| Verdict::Failed(failure(status), wait))
    };
    Classified { verdict, text: describe(status, envelope.as_ref(), body, verdict) }
}

fn has_name(json: &Value) -> bool {
    json.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty())
}

/// Anything but a 5xx is an answer that means nothing.
const fn failure(status: u16) -> Failure {
    if matches!(status, 500..=599) { Failure::Transient } else { Failure::Protocol }
}

/// What FCM refused, if it is certain that FCM refused it and what.
fn refused(status: u16, envelope: Option<&Envelope>) -> Option<Verdict> {
    match (status, envelope) {
        // A 401 counts without any body: FCM's front end has answered so, and one refresh does no harm.
        (401, None) => Some(Verdict::Credential(CredentialFault::AccessToken)),
        (400, Some(e)) => bad_request(e),
        (401, Some(e)) => Some(unauthenticated(e)),
        (403, Some(e)) => forbidden(e),
        (404, Some(e)) => not_found(e),
        _ => None,
    }
}

/// Order matters: proof about the device first, then named fields, and only then what is left.
fn bad_request(e: &Envelope) -> Option<Verdict> {
    if dead(e) {
        return Some(Verdict::TokenDead);
    }
    match (e.fcm, e.fields.as_slice()) {
        (Some(FcmCode::InvalidArgument) | None, [_, ..]) if e.fields.iter().all(|f| about_device(f)) => {
            Some(Verdict::TokenInvalid)
        }
        (Some(FcmCode::InvalidArgument) | None, [_, ..]) => Some(Verdict::Payload),
        (Some(FcmCode::InvalidArgument), []) => Some(Verdict::TokenSuspect),
        (None, []) => Some(Verdict::Payload),
        _ => None,
    }
}

fn unauthenticated(e: &Envelope) -> Verdict {
    // The message under this code may speak of OAuth all the same; only the code counts.
    let platform = e.fcm == Some(FcmCode::ThirdPartyAuth);
    Verdict::Credential(if platform { CredentialFault::Platform } else { CredentialFault::AccessToken })
}

const fn forbidden(e: &Envelope) -> Option<Verdict> {
    match e.fcm {
        Some(FcmCode::SenderIdMismatch) => Some(Verdict::TokenForeign),
        Some(FcmCode::ThirdPartyAuth) => Some(Verdict::Credential(CredentialFault::Platform)),
        None => Some(Verdict::Credential(CredentialFault::Project)),
        Some(_) => None,
    }
}

fn not_found(e: &Envelope) -> Option<Verdict> {
    match e.fcm {
        _ if dead(e) => Some(Verdict::TokenDead),
        None if mutant::on("prune_on_bare_404") => Some(Verdict::TokenDead),
        None => Some(Verdict::Credential(CredentialFault::Project)),
        Some(_) => None,
    }
}

/// FCM's own word, or APNs' through FCM, that the device token is dead.
fn dead(e: &Envelope) -> bool {
    e.fcm == Some(FcmCode::Unregistered) || e.apns_status == Some(410)
}

fn about_device(field: &str) -> bool {
    matches!(field, "message.token" | "message.fid")
}

fn describe(status: u16, envelope: Option<&Envelope>, body: &[u8], verdict: Verdict) -> String {
    match envelope {
        _ if verdict == Verdict::Accepted => status.to_string(),
        Some(e) => clean(&in_words(status, e)),
        None => format!("{status} {}", fingerprint(body)),
    }
}

fn in_words(status: u16, e: &Envelope) -> String {
    let mut parts = vec![status.to_string(), e.status.clone()];
    parts.extend(e.fcm.filter(|code| code.as_str() != e.status).map(|code| code.as_str().to_owned()));
    if e.apns_status.is_some() || e.apns_reason.is_some() {
        let (code, reason) = (e.apns_status.unwrap_or(0), e.apns_reason.as_deref().unwrap_or("no reason"));
        parts.push(format!("APNs {code} {reason}"));
    }
    parts.extend(e.reason.clone());
    parts.extend((!e.fields.is_empty()).then(|| format!("field {}", e.fields.join(", "))));
    let message = if e.message.is_empty() { String::new() } else { format!(": {}", e.message) };
    parts.join(" ") + &message
}

/// Class, length and the first 8 digits of the SHA-256 of a body that was not understood; never the body.
#[must_use]
pub fn fingerprint(body: &[u8]) -> String {
    let class = class_of(body);
    let hash = Sha256::digest(body);
    let short = hash.iter().take(4).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    if body.is_empty() { class.to_owned() } else { format!("{class}, {} bytes, sha256 {short}", body.len()) }
}

fn class_of(body: &[u8]) -> &'static str {
    let Ok(text) = std::str::from_utf8(body) else { return "binary body" };
    match text.trim_start().as_bytes().first() {
        None => "empty body",
        Some(b'<') => "HTML or XML body",
        Some(b'{' | b'[') if serde_json::from_slice::<Value>(body).is_ok() => "JSON of another shape",
        Some(b'{' | b'[') => "broken JSON",
        Some(_) => "text body",
    }
}

/// A verdict for what came without a usable body: the status alone decides, and it never decides for success.
#[must_use]
pub fn classify_cut(status: u16, wait: Option<Duration>) -> Verdict {
    match status {
        429 => Verdict::Throttled(wait),
        401 => Verdict::Credential(CredentialFault::AccessToken),
        _ => Verdict::Failed(failure(status), wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const FCM: &str = "type.googleapis.com/google.firebase.fcm.v1.FcmError";
    const APNS: &str = "type.googleapis.com/google.firebase.fcm.v1.ApnsError";
    const BAD: &str = "type.googleapis.com/google.rpc.BadRequest";
    const INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

    const PROTOCOL: Verdict = Verdict::Failed(Failure::Protocol, None);
    const TRANSIENT: Verdict = Verdict::Failed(Failure::Transient, None);
    const ACCESS: Verdict = Verdict::Credential(CredentialFault::AccessToken);
    const PROJECT: Verdict = Verdict::Credential(CredentialFault::Project);
    const PLATFORM: Verdict = Verdict::Credential(CredentialFault::Platform);

    fn fcm(code: &str) -> Value {
        json!({"@type": FCM, "errorCode": code})
    }

    fn apns(status: u16, reason: &str) -> Value {
        json!({"@type": APNS, "statusCode": status, "reason": reason})
    }

    fn fields(names: &[&str]) -> Value {
        let violations: Vec<_> = names.iter().map(|n| json!({"field": n, "description": "d"})).collect();
        json!({"@type": BAD, "fieldViolations": violations})
    }

    fn info(reason: &str) -> Value {
        let metadata = json!({"service": "fcm.googleapis.com"});
        json!({"@type": INFO, "reason": reason, "domain": "googleapis.com", "metadata": metadata})
    }

    fn error(status: &str, details: &[Value]) -> Value {
        json!({"error": {"code": 0, "status": status, "message": "m", "details": details}})
    }

    fn verdict(status: u16, body: &[u8]) -> Verdict {
        classify(status, None, body, SystemTime::UNIX_EPOCH).verdict
    }

    /// Every order of the details must mean the same, and so must strangers among them.
    #[track_caller]
    fn means(status: u16, name: &str, details: &[Value], want: Verdict) {
        let mut forward = details.to_vec();
        let mut backward: Vec<_> = details.iter().rev().cloned().collect();
        assert_eq!(verdict(status, error(name, &forward).to_string().as_bytes()), want, "{status} {details:?}");
        assert_eq!(
            verdict(status, error(name, &backward).to_string().as_bytes()),
            want,
            "{status} backwards {details:?}"
        );
        let stranger = json!({"@type": "type.googleapis.com/google.rpc.Help", "links": []});
        forward.insert(0, stranger);
        backward.extend([json!(null), json!(7), json!([]), json!({"@type": 1}), json!({"errorCode": "UNREGISTERED"})]);
        assert_eq!(
            verdict(status, error(name, &forward).to_string().as_bytes()),
            want,
            "{status} after a stranger {details:?}"
        );
        assert_eq!(
            verdict(status, error(name, &backward).to_string().as_bytes()),
            want,
            "{status} before junk {details:?}"
        );
    }

    #[test]
    fn only_a_200_with_a_named_message_is_accepted() {
        assert_eq!(verdict(200, br#"{"name":"projects/p/messages/1717673451795380"}"#), Verdict::Accepted);
        for body in [
            "",
            "{}",
            "[]",
            "null",
            "1",
            "\"name\"",
            r#"{"name":1}"#,
            r#"{"name":null}"#,
            r#"{"name":""}"#,
            r#"{"name":{"name":"x"}}"#,
            r#"{"message":{"name":"x"}}"#,
            r#"[{"name":"x"}]"#,
            r#"{"name":"proj"#,
            r#"{"name":"a"}{"name":"b"}"#,
            "<html>ok</html>",
            "\u{feff}{\"name\":\"x\"}",
        ] {
            assert_eq!(verdict(200, body.as_bytes()), PROTOCOL, "{body:?}");
        }
        for status in [100, 201, 202, 204, 206, 301, 302, 304, 307] {
            assert_eq!(verdict(status, br#"{"name":"projects/p/messages/1"}"#), PROTOCOL, "{status}");
        }
    }

    #[test]
    fn a_dead_device_token_is_dead_by_fcms_own_detail_alone() {
        let dead = Verdict::TokenDead;
        means(404, "NOT_FOUND", &[fcm("UNREGISTERED")], dead);
        means(404, "NOT_FOUND", &[fcm("UNREGISTERED"), apns(410, "Unregistered")], dead);
        means(404, "NOT_FOUND", &[apns(410, "ExpiredToken")], dead);
        means(400, "INVALID_ARGUMENT", &[fcm("INVALID_ARGUMENT"), apns(410, "Unregistered")], dead);
        means(400, "INVALID_ARGUMENT", &[fcm("INVALID_ARGUMENT"), apns(410, "x"), fields(&["message.token"])], dead);
        // Not FCM's own detail, or not as FCM writes it.
        let odd = json!({"error": {"code": "404", "status": "NOT_FOUND", "details": [fcm("UNREGISTERED")]}});
        assert_eq!(verdict(404, odd.to_string().as_bytes()), PROTOCOL);
        means(404, "UNREGISTERED", &[], PROJECT);
        means(404, "NOT_FOUND", &[info("UNREGISTERED")], PROJECT);
        means(
            404,
            "NOT_FOUND",
            &[json!({"@type": "google.firebase.fcm.v2.FcmError", "errorCode": "UNREGISTERED"})],
            PROJECT,
        );
        means(404, "NOT_FOUND", &[fcm("unregistered")], PROTOCOL);
        means(404, "NOT_FOUND", &[json!({"@type": FCM, "errorCode": ["UNREGISTERED"]})], PROTOCOL);
        means(404, "NOT_FOUND", &[json!({"@type": APNS, "statusCode": "410"})], PROJECT);
        means(404, "NOT_FOUND", &[fcm("UNREGISTERED"), fcm("INTERNAL")], PROTOCOL);
        for status in [401, 403, 405, 410, 413, 500, 503] {
            assert_ne!(verdict(status, error("X", &[fcm("UNREGISTERED")]).to_string().as_bytes()), dead, "{status}");
        }
    }

    #[test]
    fn a_bad_request_is_about_what_it_names() {
        let invalid = fcm("INVALID_ARGUMENT");
        let all = |more: &[Value]| [std::slice::from_ref(&invalid), more].concat();
        let means = |details: &[Value], want| means(400, "INVALID_ARGUMENT", details, want);
        means(&all(&[]), Verdict::TokenSuspect);
        means(&all(&[fields(&["message.token"])]), Verdict::TokenInvalid);
        means(&all(&[fields(&["message.fid"])]), Verdict::TokenInvalid);
        means(&[fields(&["message.token"])], Verdict::TokenInvalid);
        means(&all(&[fields(&["message.token", "message.data[0].value"])]), Verdict::Payload);
        means(&all(&[json!({"@type": BAD, "fieldViolations": [{"field": "message.token"}, {}]})]), Verdict::Payload);
        means(&[fields(&["message.data[0].value"])], Verdict::Payload);
        means(&all(&[fields(&["message"])]), Verdict::Payload);
        means(&all(&[fields(&["message.token.x"])]), Verdict::Payload);
        means(&[], Verdict::Payload);
        means(&[info("API_KEY_INVALID")], Verdict::Payload);
        // APNs found fault with the device token, but perhaps with all of the app's.
        means(&all(&[apns(400, "BadDeviceToken")]), Verdict::TokenSuspect);
        means(&all(&[fields(&[])]), Verdict::TokenSuspect);
        means(&[fcm("UNSPECIFIED_ERROR")], PROTOCOL);
        means(&[fcm("SOMETHING_NEW")], PROTOCOL);
        means(&[fcm("SENDER_ID_MISMATCH")], PROTOCOL);
        means(&[invalid.clone(), fcm("INTERNAL")], PROTOCOL);
    }

    #[test]
    fn a_refused_credential_says_whose() {
        means(401, "UNAUTHENTICATED", &[fcm("THIRD_PARTY_AUTH_ERROR")], PLATFORM);
        means(401, "UNAUTHENTICATED", &[fcm("THIRD_PARTY_AUTH_ERROR"), apns(403, "InvalidProviderToken")], PLATFORM);
        means(
            401,
            "UNAUTHENTICATED",
            &[fcm("THIRD_PARTY_AUTH_ERROR"), apns(403, "BadEnvironmentKeyInToken")],
            PLATFORM,
        );
        means(401, "UNAUTHENTICATED", &[info("ACCESS_TOKEN_EXPIRED")], ACCESS);
        means(401, "UNAUTHENTICATED", &[info("CREDENTIALS_MISSING")], ACCESS);
        means(401, "UNAUTHENTICATED", &[], ACCESS);
        // The message speaks of OAuth although the code names the platform's key (firebase-admin-node issue 3215).
        let misleading = json!({"error": {"status": "UNAUTHENTICATED", "details": [fcm("THIRD_PARTY_AUTH_ERROR")],
            "message": "Request is missing required authentication credential. Expected OAuth 2 access token"}});
        assert_eq!(verdict(401, misleading.to_string().as_bytes()), PLATFORM);
        means(403, "PERMISSION_DENIED", &[fcm("SENDER_ID_MISMATCH")], Verdict::TokenForeign);
        means(403, "PERMISSION_DENIED", &[], PROJECT);
        means(403, "PERMISSION_DENIED", &[info("SERVICE_DISABLED")], PROJECT);
        means(403, "PERMISSION_DENIED", &[fcm("SOMETHING_NEW")], PROTOCOL);
        means(404, "NOT_FOUND", &[], PROJECT);
    }

    #[test]
    fn a_throttle_is_known_by_type_under_any_status() {
        let throttled = Verdict::Throttled(None);
        means(429, "RESOURCE_EXHAUSTED", &[fcm("QUOTA_EXCEEDED")], throttled);
        for status in [200, 400, 401, 403, 404, 418, 429, 500, 503] {
            means(status, "RESOURCE_EXHAUSTED", &[], throttled);
            means(status, "X", &[fcm("QUOTA_EXCEEDED")], throttled);
            means(status, "X", &[info("RATE_LIMIT_EXCEEDED")], throttled);
        }
        for body in ["", "<html>slow down</html>", "{", r#"{"name":"x"}"#] {
            assert_eq!(verdict(429, body.as_bytes()), throttled, "{body:?}");
        }
        let worded = json!({"error": {"status": "PERMISSION_DENIED", "message": "Quota exceeded, RESOURCE_EXHAUSTED"}});
        assert_eq!(verdict(403, worded.to_string().as_bytes()), PROJECT, "never by text");
    }

    #[test]
    fn retry_after_goes_with_throttles_and_failures() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let read = |status, raw: &str| classify(status, Some(raw), b"", now).verdict;
        let s = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(read(429, "20"), Verdict::Throttled(s(20)));
        assert_eq!(read(429, &httpdate::fmt_http_date(now + Duration::from_secs(30))), Verdict::Throttled(s(30)));
        assert_eq!(read(429, "99999999999"), Verdict::Throttled(s(3600)));
        assert_eq!(read(429, "-5"), Verdict::Throttled(s(0)));
        assert_eq!(read(429, "soon"), Verdict::Throttled(None));
        assert_eq!(read(503, "7"), Verdict::Failed(Failure::Transient, s(7)));
    }

    #[test]
    fn server_errors_are_transient_whatever_they_carry() {
        means(503, "UNAVAILABLE", &[fcm("UNAVAILABLE")], TRANSIENT);
        means(500, "INTERNAL", &[fcm("INTERNAL")], TRANSIENT);
        means(500, "UNKNOWN", &[fcm("UNSPECIFIED_ERROR")], TRANSIENT);
        for status in [500, 502, 503, 504, 599] {
            for body in ["", "<html>502</html>", "{", r#"{"error":"x"}"#] {
                assert_eq!(verdict(status, body.as_bytes()), TRANSIENT, "{status} {body:?}");
            }
        }
    }

    #[test]
    fn what_is_not_fcms_is_protocol() {
        let odd = [
            "",
            "<html>not found</html>",
            "plain",
            "{}",
            "[]",
            r#"{"error":"not found"}"#,
            r#"{"error":null}"#,
            r#"{"error":{}}"#,
            r#"{"error":{"code":404}}"#,
            r#"{"error":{"status":404}}"#,
            r#"{"error":{"status":"NOT_FOUND","#,
            "\u{0}\u{1}",
        ];
        for status in [400, 403, 404, 405, 410, 413, 418, 302, 0, 999] {
            for body in odd {
                assert_eq!(verdict(status, body.as_bytes()), PROTOCOL, "{status} {body:?}");
            }
        }
        for body in odd {
            assert_eq!(verdict(401, body.as_bytes()), ACCESS, "{body:?}");
        }
        let deep = "[".repeat(20_000);
        assert_eq!(verdict(404, deep.as_bytes()), PROTOCOL);
        assert_eq!(verdict(404, format!(r#"{{"error":{deep}"#).as_bytes()), PROTOCOL);
        means(405, "NOT_FOUND", &[], PROTOCOL);
        means(413, "INVALID_ARGUMENT", &[fcm("INVALID_ARGUMENT")], PROTOCOL);
    }

    #[test]
    fn the_text_is_made_of_typed_parts_and_never_of_an_unread_body() {
        let text = |status, body: &[u8]| classify(status, None, body, SystemTime::UNIX_EPOCH).text;
        let known = error("NOT_FOUND", &[fcm("UNREGISTERED"), apns(410, "Unregistered")]).to_string();
        assert_eq!(text(404, known.as_bytes()), "404 NOT_FOUND UNREGISTERED APNs 410 Unregistered: m");
        let named = error("INVALID_ARGUMENT", &[fcm("INVALID_ARGUMENT"), fields(&["message.token"])]).to_string();
        assert_eq!(text(400, named.as_bytes()), "400 INVALID_ARGUMENT field message.token: m");
        assert_eq!(text(502, b"<html>secret</html>"), "502 HTML or XML body, 19 bytes, sha256 85d12d6e");
        assert_eq!(text(500, b""), "500 empty body");
        assert_eq!(text(200, br#"{"name":"projects/p/messages/1"}"#), "200");
        let hostile = error("NOT_FOUND", &[json!({"@type": INFO, "reason": "x\u{202e}\n/etc/passwd"})]).to_string();
        assert_eq!(text(404, hostile.as_bytes()), "404 NOT_FOUND x *path* m");
        for body in ["{\"secret\":1}", "secret", "{secret", "\u{1}secret"] {
            assert!(!text(400, body.as_bytes()).contains("secret"), "{body:?}");
        }
        assert!(text(400, b"\xff\xfe\x00").starts_with("400 binary body, 3 bytes"), "{}", text(400, b"\xff\xfe\x00"));
    }

    fn any_detail() -> impl Strategy<Value = Value> {
        let codes =
            prop::sample::select(vec!["UNREGISTERED", "INVALID_ARGUMENT", "QUOTA_EXCEEDED", "INTERNAL", "NEW", ""]);
        let types = prop::sample::select(vec![FCM, APNS, BAD, INFO, "x/y", ""]);
        (types, codes, 395_u64..415, "[a-z.]{0,12}").prop_map(|(t, code, status, field)| {
            json!({"@type": t, "errorCode": code, "statusCode": status, "reason": code, "fieldViolations": [{"field": field}]})
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_and_never_for_or_against_anybody(status in 0_u16..700, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let judged = classify(status, None, &body, SystemTime::UNIX_EPOCH);
            let harmless = matches!(judged.verdict, Verdict::Failed(..) | Verdict::Throttled(_) | Verdict::Credential(CredentialFault::AccessToken));
            prop_assert!(harmless, "{judged:?}");
            prop_assert!(judged.text.len() <= 256);
        }

        #[test]
        fn dead_needs_proof_and_accepted_needs_a_name(
            status in prop::sample::select(vec![200_u16, 201, 400, 401, 403, 404, 410, 429, 500, 503]),
            details in prop::collection::vec(any_detail(), 0..4),
            name in prop::option::of("[a-z]{0,3}"),
            grpc in prop::sample::select(vec!["NOT_FOUND", "UNREGISTERED", "RESOURCE_EXHAUSTED", ""]),
        ) {
            let mut body = error(grpc, &details);
            if let Some(name) = &name {
                body["name"] = json!(name);
            }
            let judged = classify(status, Some("5"), body.to_string().as_bytes(), SystemTime::UNIX_EPOCH);
            let proof = |d: &Value| (d["@type"] == FCM && d["errorCode"] == "UNREGISTERED") || (d["@type"] == APNS && d["statusCode"] == 410);
            if judged.verdict == Verdict::TokenDead {
                prop_assert!(matches!(status, 400 | 404) && details.iter().any(proof), "{body}");
            }
            let named = status == 200 && name.is_some_and(|n| !n.is_empty());
            prop_assert_eq!(judged.verdict == Verdict::Accepted, named, "{}", body);
            prop_assert!(judged.text.len() <= 256);
        }
    }
}
