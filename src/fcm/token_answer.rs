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
use crate::domain::retry::{parse_retry_after, throttle_pause};

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
    /// Whoever gives them cannot be reached, or answers nothing that means anything. Not ours to mend.
    #[error("{0}")]
    Unavailable(String),
    /// It throttles us, or is down and says for how long. Never zero.
    #[error("access tokens are throttled: asked to wait {} s", .0.as_secs())]
    Throttled(Duration),
    /// It refuses us.
    #[error("{0}")]
    Refused(String),
}

/// Who was asked for an access token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// The token endpoint of a service account.
    Endpoint,
    /// Google Cloud's metadata server.
    Metadata,
}

impl Giver {
    /// As messages name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "the token endpoint",
            Self::Metadata => "the metadata server",
        }
    }

    fn unavailable(self, what: &str) -> TokenError {
        TokenError::Unavailable(format!("{} gave no access token: {what}", self.name()))
    }

    /// Nothing came back.
    pub(super) fn unreachable(self, broken: Broken) -> TokenError {
        self.unavailable(match (self, broken) {
            (Self::Metadata, Broken::Connect) => "no connection; it exists on Google Cloud only",
            _ => broken.as_str(),
        })
    }

    /// It refuses us, with an answer that says nothing of why, or says it in `json`.
    fn refused(self, answer: &Answer, json: Option<&Value>, now: SystemTime) -> TokenError {
        let (status, skew) = (answer.status, skew(answer, now).map(|s| format!("; {s}")).unwrap_or_default());
        TokenError::Refused(match (self, json) {
            (Self::Endpoint, json) => {
                let words = json.map(in_words).unwrap_or_default();
                format!("the token endpoint refused the service-account key: {status} {words}{skew}")
            }
            (Self::Metadata, _) if status == 404 => "the metadata server knows of no service account here (404); give \
                this machine one that may send (roles/firebasecloudmessaging.admin)"
                .to_owned(),
            (Self::Metadata, _) => {
                format!("the metadata server refused us: {status} {}", fingerprint(&answer.body))
            }
        })
    }
}

/// Says what came of a token request. `now` is our wall clock.
///
/// # Errors
/// [`TokenError`].
pub fn read(wire: &Wire, now: SystemTime) -> Result<Granted, TokenError> {
    match wire {
        Wire::Broken(broken) => Err(Giver::Endpoint.unreachable(*broken)),
        Wire::Answer(answer) => read_answer(Giver::Endpoint, answer, now),
    }
}

/// The same for a metadata server; `genuine` = the answer carries its mark.
///
/// # Errors
/// [`TokenError`].
pub fn read_metadata(wire: &Wire, genuine: bool, now: SystemTime) -> Result<Granted, TokenError> {
    let giver = Giver::Metadata;
    match wire {
        Wire::Broken(broken) => Err(giver.unreachable(*broken)),
        // Somebody between us and it may well answer 503 in its own name.
        Wire::Answer(answer) if genuine || answer.status == 429 || answer.status >= 500 => {
            read_answer(giver, answer, now)
        }
        Wire::Answer(answer) => Err(not_genuine(answer.status)),
    }
}

/// A captive portal, a proxy, or another cloud's server.
pub(super) fn not_genuine(status: u16) -> TokenError {
    Giver::Metadata.unavailable(&format!("{status} without Metadata-Flavor: Google, so it is not Google's server"))
}

fn read_answer(giver: Giver, answer: &Answer, now: SystemTime) -> Result<Granted, TokenError> {
    let json = match answer.ending {
        Ending::Whole => serde_json::from_slice::<Value>(&answer.body).ok(),
        _ => None,
    };
    let code = json.as_ref().and_then(|j| j.get("error")).and_then(Value::as_str);
    let asked = answer.retry_after.as_deref().and_then(|raw| parse_retry_after(raw, now));
    if throttled(answer.status, json.as_ref(), code) {
        return Err(TokenError::Throttled(throttle_pause(asked)));
    }
    if let (500..=599, Some(_)) = (answer.status, asked) {
        return Err(TokenError::Throttled(throttle_pause(asked)));
    }
    match (giver, answer.status, &json) {
        (_, 200, Some(json)) => granted(json).map_err(|what| giver.unavailable(&format!("200, but {what}"))),
        (Giver::Endpoint, 400 | 401 | 403, Some(json)) if code.is_some_and(|c| !passing(c)) => {
            Err(giver.refused(answer, Some(json), now))
        }
        (Giver::Metadata, 400 | 401 | 403 | 404, _) => Err(giver.refused(answer, None, now)),
        (_, status, _) => Err(giver.unavailable(&format!("{status} {}", fingerprint(&answer.body)))),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, retry_after: Option<&str>, body: &str) -> Result<Granted, TokenError> {
        let (retry_after, body) = (retry_after.map(str::to_owned), body.as_bytes().to_vec());
        let answer = Answer { status, retry_after, date: None, body, ending: Ending::Whole };
        read(&Wire::Answer(answer), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn only_a_whole_grant_is_a_grant() {
        let good = |life: &str| format!(r#"{{"access_token":"a.b","expires_in":{life},"token_type":"Bearer"}}"#);
        assert_eq!(answered(200, None, &good("3599")).unwrap().life, Duration::from_secs(3599));
        assert_eq!(answered(200, None, &good("1.5")).unwrap().life, Duration::from_millis(1500));
        assert_eq!(answered(200, None, &good("1e300")).unwrap().life, MAX_LIFE);
        for life in ["0", "-1", "\"3600\"", "null", "[]", "true"] {
            let refused = answered(200, None, &good(life));
            assert!(matches!(refused, Err(TokenError::Unavailable(_))), "{life}: {refused:?}");
        }
        for body in [
            "",
            "{}",
            "[]",
            "<html>",
            r#"{"access_token":"a","expires_in":1}"#,
            r#"{"access_token":1,"expires_in":1,"token_type":"Bearer"}"#,
            r#"{"access_token":"","expires_in":1,"token_type":"Bearer"}"#,
            r#"{"access_token":"a\nb","expires_in":1,"token_type":"Bearer"}"#,
            r#"{"access_token":"a","expires_in":1,"token_type":"mac"}"#,
        ] {
            let refused = answered(200, None, body);
            assert!(matches!(refused, Err(TokenError::Unavailable(_))), "{body}: {refused:?}");
        }
        assert!(answered(201, None, &good("3599")).is_err());
    }

    #[test]
    fn refusal_throttle_and_trouble_are_told_apart_by_type() {
        let refused = |e: &TokenError| matches!(e, TokenError::Refused(_));
        let trouble = |e: &TokenError| matches!(e, TokenError::Unavailable(_));
        let error = |status, body: &str| answered(status, None, body).unwrap_err();
        assert!(refused(&error(400, r#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#)));
        assert!(refused(&error(401, r#"{"error":"invalid_client"}"#)));
        assert!(refused(&error(403, r#"{"error":"access_denied"}"#)));
        assert!(trouble(&error(400, r#"{"error":"temporarily_unavailable"}"#)));
        assert!(trouble(&error(400, "<html>")));
        assert!(trouble(&error(400, r#"{"error":{"status":"INVALID_ARGUMENT"}}"#)));
        assert!(trouble(&error(404, r#"{"error":"invalid_grant"}"#)));
        assert!(trouble(&error(503, r#"{"error":"invalid_grant"}"#)));
        let wait = |s| TokenError::Throttled(Duration::from_secs(s));
        assert_eq!(error(429, ""), wait(60));
        assert_eq!(error(403, r#"{"error":"rate_limit_exceeded"}"#), wait(60));
        assert_eq!(error(403, r#"{"error":{"status":"RESOURCE_EXHAUSTED"}}"#), wait(60));
        assert_eq!(answered(429, Some("7"), "x").unwrap_err(), wait(7));
        assert_eq!(answered(503, Some("9"), "x").unwrap_err(), wait(9));
    }

    #[test]
    fn a_refusal_names_a_skewed_clock_and_shows_no_secret() {
        let theirs = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let body =
            br#"{"error":"invalid_grant","error_description":"bad eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJh at /srv/x"}"#;
        let date = Some(httpdate::fmt_http_date(theirs));
        let answer = Answer { status: 400, retry_after: None, date, body: body.to_vec(), ending: Ending::Whole };
        let said = |ours| read(&Wire::Answer(answer.clone()), ours).unwrap_err().to_string();
        let behind = said(theirs - Duration::from_secs(600));
        assert!(behind.contains("clock is 600 s behind the token endpoint's"), "{behind}");
        assert!(said(theirs + Duration::from_secs(40)).contains("40 s ahead of"));
        let fine = said(theirs + Duration::from_secs(2));
        assert!(fine.ends_with("400 invalid_grant: bad *redacted* at *path*"), "{fine}");
    }
}
