//! Owns what an answer of the token endpoint means: a positive allow-list, like that for FCM's own answers.
//! Must never know: when the next request is due.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::bearer::Bearer;
use super::broken::Broken;
use super::classify::fingerprint;
use super::envelope::Envelope;
use super::http::{Answer, Ending, Wire};
use super::sanitise::clean;
use crate::domain::retry::{DEFAULT_THROTTLE_PAUSE, parse_retry_after};

/// Google's access tokens live an hour. One that claims more is asked for again after a day all the same.
const MAX_LIFE: Duration = Duration::from_secs(86_400);

/// A difference between two clocks that is worth naming, seconds. An assertion is refused from about 5 minutes on.
const SKEW_WORTH_NAMING_S: i64 = 30;

/// An access token as granted.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Ready to send.
    pub bearer: Bearer,
    /// Counted from before the request.
    pub life: Duration,
}

/// Why there is no access token. Three kinds, since only the last needs a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token endpoint cannot be reached, or answers nothing that means anything. Not ours to mend.
    #[error("the token endpoint gave no access token: {0}")]
    Unavailable(String),
    /// It throttles us, or is down and says for how long.
    #[error("the token endpoint asks us to wait {} s", .0.as_secs())]
    Throttled(Duration),
    /// It refuses this key.
    #[error("the token endpoint refused the service-account key: {0}")]
    Refused(String),
}

/// Says what came of a token request. `now` is our wall clock.
///
/// # Errors
/// [`TokenError`].
pub fn read(wire: &Wire, now: SystemTime) -> Result<Granted, TokenError> {
    match wire {
        Wire::Broken(broken) => Err(unreachable_endpoint(*broken)),
        Wire::Answer(answer) => read_answer(answer, now),
    }
}

fn unreachable_endpoint(broken: Broken) -> TokenError {
    TokenError::Unavailable(broken.as_str().to_owned())
}

fn read_answer(answer: &Answer, now: SystemTime) -> Result<Granted, TokenError> {
    let json = match answer.ending {
        Ending::Whole => serde_json::from_slice::<Value>(&answer.body).ok(),
        _ => None,
    };
    let code = json.as_ref().and_then(|j| j.get("error")).and_then(Value::as_str);
    let asked = answer.retry_after.as_deref().and_then(|raw| parse_retry_after(raw, now));
    if throttled(answer.status, json.as_ref(), code) {
        return Err(TokenError::Throttled(asked.unwrap_or(DEFAULT_THROTTLE_PAUSE)));
    }
    if let (500..=599, Some(pause)) = (answer.status, asked) {
        return Err(TokenError::Throttled(pause));
    }
    match (answer.status, &json) {
        (200, Some(json)) => granted(json).map_err(|what| TokenError::Unavailable(format!("200, but {what}"))),
        (400 | 401 | 403, Some(json)) if code.is_some_and(|c| !passing(c)) => Err(TokenError::Refused(format!(
            "{} {}{}",
            answer.status,
            in_words(json),
            skew(answer, now).map(|s| format!("; {s}")).unwrap_or_default()
        ))),
        (status, _) => Err(TokenError::Unavailable(format!("{status} {}", fingerprint(&answer.body)))),
    }
}

/// By status and by type, never by text.
fn throttled(status: u16, json: Option<&Value>, code: Option<&str>) -> bool {
    let by_code = matches!(code, Some("rate_limit_exceeded" | "quota_exceeded" | "slow_down"));
    status == 429 || by_code || json.and_then(Envelope::read).is_some_and(|e| e.throttled())
}

/// Codes that pass by themselves (google-auth's list of retryable ones).
fn passing(code: &str) -> bool {
    matches!(code, "internal_failure" | "server_error" | "temporarily_unavailable")
}

fn granted(json: &Value) -> Result<Granted, &'static str> {
    let bearer = json.get("access_token").and_then(Value::as_str).and_then(Bearer::new);
    let bearer = bearer.ok_or("access_token is not a string that fits a header")?;
    let kind = json.get("token_type").and_then(Value::as_str);
    if !kind.is_some_and(|k| k.eq_ignore_ascii_case("Bearer")) {
        return Err("token_type is not Bearer");
    }
    let seconds = json.get("expires_in").and_then(Value::as_f64).filter(|s| *s > 0.0);
    let seconds = seconds.ok_or("expires_in is not a number above 0")?;
    Ok(Granted { bearer, life: Duration::try_from_secs_f64(seconds).unwrap_or(MAX_LIFE).min(MAX_LIFE) })
}

fn in_words(json: &Value) -> String {
    let text = |key| json.get(key).and_then(Value::as_str).unwrap_or_default();
    clean(&format!("{}: {}", text("error"), text("error_description")))
}

/// How far our clock is from the peer's, when that is worth saying: a skewed clock is the usual cause of `invalid_grant`.
#[must_use]
pub fn skew(answer: &Answer, now: SystemTime) -> Option<String> {
    let theirs = httpdate::parse_http_date(answer.date.as_deref()?).ok()?;
    let (apart, word) = match now.duration_since(theirs) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let seconds = i64::try_from(apart.as_secs()).unwrap_or(i64::MAX);
    (seconds >= SKEW_WORTH_NAMING_S).then(|| format!("this machine's clock is {seconds} s {word} the token endpoint's"))
}
