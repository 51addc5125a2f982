//! Owns the meaning of one answer: a positive allow-list, everything else is `protocol`.
//! Must never know: connections, recipients, or what follows from a verdict.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::envelope::{Envelope, FcmCode};
use super::sanitise::clean;
use crate::domain::outcome::{CredentialFault, Failure, Verdict};
use crate::domain::retry::parse_retry_after;

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
