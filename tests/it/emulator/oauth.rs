//! The token endpoint: what it checks, what it gives, and every way it can be told to fail.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

pub(super) const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// A good assertion with some claims changed; null takes a claim away.
pub(super) fn assertion(key: &Value, changes: &Value) -> String {
    let mut claims = json!({"iss": key["client_email"], "aud": key["token_uri"], "scope": SCOPE,
        "iat": now(), "exp": now() + 3600});
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let pem = key["private_key"].as_str().unwrap();
    let signer = jsonwebtoken::EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap();
    let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::RS256);
    header.kid = key["private_key_id"].as_str().map(str::to_owned);
    jsonwebtoken::encode(&header, &claims, &signer).unwrap()
}

pub(super) fn key(emulator: &Emulator) -> Value {
    serde_json::from_str(&emulator.key_json()).unwrap()
}

async fn ask(key: &Value, grant_type: &str, assertion: &str) -> (u16, Value) {
    let form = [("grant_type", grant_type), ("assertion", assertion)];
    let url = key["token_uri"].as_str().unwrap();
    let answer = reqwest::Client::new().post(url).form(&form).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn access_token(key: &Value) -> String {
    let (status, body) = ask(key, GRANT, &assertion(key, &json!({}))).await;
    assert_eq!(status, 200, "{body}");
    body["access_token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_signed_assertion_buys_a_token_that_sends() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    assert_eq!((key["type"].as_str(), key["project_id"].as_str()), (Some("service_account"), Some("demo-project")));
    let (status, body) = ask(&key, GRANT, &assertion(&key, &json!({}))).await;
    assert_eq!((status, &body["expires_in"], body["token_type"].as_str()), (200, &json!(3600), Some("Bearer")));
    let client = connect(&emulator).await;
    let bearer = body["access_token"].as_str().unwrap();
    assert_eq!(post(&client, SEND, bearer, goal("ok-1")).await.unwrap().status, 200);
    let stats = emulator.stats();
    assert_eq!((stats.oauth_calls, stats.oauth_issued, stats.accepted), (1, 1, 1));
}

#[tokio::test]
async fn every_wrong_assertion_is_refused_in_googles_words() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let stranger = Emulator::start(Settings::default()).unwrap();
    let mine = key(&emulator);
    let good = assertion(&mine, &json!({}));
    let mut forged = mine.clone();
    forged["private_key"] = key(&stranger)["private_key"].clone();
    let mut other_kid = mine.clone();
    other_kid["private_key_id"] = json!("another");
    let with = |changes: Value| assertion(&mine, &changes);
    let late = "Invalid JWT: Token must be a short-lived token (60 minutes)";
    let cases = [
        ("password", good.clone(), "unsupported_grant_type", "Invalid grant_type: password"),
        (GRANT, String::new(), "invalid_grant", "Bad Request"),
        (GRANT, "a.b.c".into(), "invalid_grant", "Bad Request"),
        (GRANT, assertion(&forged, &json!({})), "invalid_grant", "Invalid JWT Signature."),
        (GRANT, assertion(&other_kid, &json!({})), "invalid_grant", "Invalid JWT Signature."),
        (GRANT, with(json!({"iss": "someone@else"})), "invalid_grant", "Invalid grant: account not found"),
        (GRANT, with(json!({"iss": null})), "invalid_grant", "Invalid JWT: a required claim is missing"),
        (
            GRANT,
            with(json!({"aud": "https://example.org/token"})),
            "invalid_grant",
            "Invalid JWT: Failed audience check",
        ),
        (GRANT, with(json!({"exp": now() + 4000})), "invalid_grant", late),
        (GRANT, with(json!({"iat": now() - 9000, "exp": now() - 5400})), "invalid_grant", late),
        (GRANT, with(json!({"iat": now() + 900, "exp": now() + 1800})), "invalid_grant", late),
        (GRANT, with(json!({"exp": now() - 1})), "invalid_grant", late),
        (GRANT, with(json!({"exp": "soon"})), "invalid_grant", "Invalid JWT: a required claim is missing"),
        (
            GRANT,
            with(json!({"scope": "https://www.googleapis.com/auth/drive"})),
            "invalid_scope",
            "Invalid OAuth scope",
        ),
        (GRANT, with(json!({"scope": null})), "invalid_scope", "Invalid OAuth scope"),
    ];
    for (grant_type, assertion, error, words) in &cases {
        let (status, body) = ask(&mine, grant_type, assertion).await;
        assert_eq!((status, body["error"].as_str()), (400, Some(*error)), "{words}: {body}");
        assert!(body["error_description"].as_str().unwrap().starts_with(words), "{body}");
    }
    let stats = emulator.stats();
    assert_eq!((stats.oauth_calls, stats.oauth_issued), (cases.len() as u64, 0));
}

#[tokio::test]
async fn an_unsigned_assertion_is_refused() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    let signed = assertion(&key, &json!({}));
    let claims = signed.split('.').nth(1).unwrap();
    // {"alg":"none","typ":"JWT"} and {"alg":"HS256","typ":"JWT"}
    for header in ["eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"] {
        let (status, body) = ask(&key, GRANT, &format!("{header}.{claims}.AAAA")).await;
        assert_eq!((status, body["error"].as_str()), (400, Some("invalid_grant")), "{body}");
    }
}

#[tokio::test]
async fn a_send_without_a_token_that_holds_is_401_and_another_project_is_404() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let client = connect(&emulator).await;
    let bearer = access_token(&key(&emulator)).await;
    let other = "/v1/projects/other/messages:send";
    let lines = [
        line(&post(&client, SEND, "ya29.made-up", goal("ok-1")).await),
        line(&post(&client, other, &bearer, goal("ok-1")).await),
        line(&post(&client, SEND, &bearer, goal("dead-1")).await),
    ];
    emulator.control(&Control { revoke: true, ..Control::default() }).unwrap();
    let revoked = line(&post(&client, SEND, &bearer, goal("ok-1")).await);
    let url = format!("{}{SEND}", emulator.endpoint());
    let bare = reqwest::Client::new().post(url).body(goal("ok-1")).send().await.unwrap();
    assert_eq!(bare.status(), 401);
    let expired = "401 UNAUTHENTICATED Info=ACCESS_TOKEN_EXPIRED,googleapis.com";
    assert_eq!(lines, [expired, "404 NOT_FOUND", "404 NOT_FOUND Fcm=UNREGISTERED"]);
    assert_eq!(revoked, expired);
    let want = ["unauthenticated", "wrong-project", "dead", "unauthenticated", "no-credentials"];
    assert_eq!(names(&emulator.log()), want);
    assert_eq!(emulator.log()[1].project, "other");
}

#[tokio::test]
async fn a_token_with_no_lifetime_is_expired_at_once() {
    let control = Control { token_lifetime_s: Some(0), ..Control::default() };
    let emulator = Emulator::start(Settings { control, ..Settings::default() }).unwrap();
    let bearer = access_token(&key(&emulator)).await;
    let answer = post(&connect(&emulator).await, SEND, &bearer, goal("ok-1")).await.unwrap();
    assert_eq!(answer.status, 401);
}

#[tokio::test]
async fn the_token_endpoint_can_be_told_to_fail() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    let tell = |name: &str| Control { oauth_answer: Some(name.into()), ..Control::default() };
    emulator.control(&tell("unavailable")).unwrap();
    assert_eq!(ask(&key, GRANT, &assertion(&key, &json!({}))).await.0, 503);
    emulator.control(&tell("ok")).unwrap();
    assert_eq!(ask(&key, GRANT, &assertion(&key, &json!({}))).await.0, 200);
    assert_eq!(emulator.stats().oauth_calls, 2);
}

// ---- told to fail -------------------------------------------------------------------------------------------------

/// One answer of the token endpoint: status, Retry-After, body.
async fn raw(key: &Value) -> (u16, Option<String>, String) {
    let form = [("grant_type", GRANT), ("assertion", &assertion(key, &json!({})))];
    let url = key["token_uri"].as_str().unwrap();
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let answer = client.post(url).form(&form).send().await.unwrap();
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    (answer.status().as_u16(), retry_after, answer.text().await.unwrap())
}

/// Written by hand: status and body, with the token as TOKEN and its lifetime as 3600.
#[rustfmt::skip]
const TOLD: &[(&str, u16, &str)] = &[
    ("grant-signature", 400, r#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#),
    ("grant-clock", 400, r#"{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."}"#),
    ("grant-account", 400, r#"{"error":"invalid_grant","error_description":"Invalid grant: account not found"}"#),
    ("grant-bare", 400, r#"{"error":"invalid_grant"}"#),
    ("client-disabled", 401, r#"{"error":"disabled_client","error_description":"The OAuth client was disabled."}"#),
    ("client-unauthorized", 401, r#"{"error":"unauthorized_client","error_description":"Client is unauthorized to retrieve access tokens using this method, or client not authorized for any of the scopes requested."}"#),
    ("scope-invalid", 400, r#"{"error":"invalid_scope","error_description":"Invalid OAuth scope or ID token audience provided."}"#),
    ("failure-internal", 500, r#"{"error":"internal_failure"}"#),
    ("failure-temporary", 503, r#"{"error":"temporarily_unavailable"}"#),
    ("throttled", 429, r#"{"error":"rate_limit_exceeded","error_description":"Too many requests."}"#),
    ("throttled403", 403, r#"{"error":"rate_limit_exceeded","error_description":"Rate Limit Exceeded"}"#),
    ("same-token", 200, r#"{"access_token":"TOKEN","expires_in":3600,"token_type":"Bearer"}"#),
    ("expires-zero", 200, r#"{"access_token":"TOKEN","expires_in":0,"token_type":"Bearer"}"#),
    ("expires-negative", 200, r#"{"access_token":"TOKEN","expires_in":-1,"token_type":"Bearer"}"#),
    ("expires-huge", 200, r#"{"access_token":"TOKEN","expires_in":99999999999999999999,"token_type":"Bearer"}"#),
    ("expires-fraction", 200, r#"{"access_token":"TOKEN","expires_in":3599.5,"token_type":"Bearer"}"#),
    ("expires-string", 200, r#"{"access_token":"TOKEN","expires_in":"3600","token_type":"Bearer"}"#),
    ("expires-words", 200, r#"{"access_token":"TOKEN","expires_in":"soon","token_type":"Bearer"}"#),
    ("expires-null", 200, r#"{"access_token":"TOKEN","expires_in":null,"token_type":"Bearer"}"#),
    ("expires-absent", 200, r#"{"access_token":"TOKEN","token_type":"Bearer"}"#),
    ("type-mac", 200, r#"{"access_token":"TOKEN","expires_in":3600,"token_type":"MAC"}"#),
    ("type-lower", 200, r#"{"access_token":"TOKEN","expires_in":3600,"token_type":"bearer"}"#),
    ("type-absent", 200, r#"{"access_token":"TOKEN","expires_in":3600}"#),
    ("token-absent", 200, r#"{"expires_in":3600,"token_type":"Bearer"}"#),
    ("token-empty", 200, r#"{"access_token":"","expires_in":3600,"token_type":"Bearer"}"#),
    ("token-number", 200, r#"{"access_token":7,"expires_in":3600,"token_type":"Bearer"}"#),
    ("token-newline", 200, r#"{"access_token":"TOKEN\r\nx-evil: 1","expires_in":3600,"token_type":"Bearer"}"#),
    ("token-id", 200, r#"{"id_token":"TOKEN"}"#),
    ("token-plain", 200, "TOKEN"),
    ("html502", 502, "<!DOCTYPE html>\n<html lang=en><title>Error</title><p><b>That is an error.</b></p></html>\n"),
    ("html200", 200, "<!DOCTYPE html>\n<html lang=en><title>Error</title><p><b>That is an error.</b></p></html>\n"),
    ("empty200", 200, ""),
    ("redirect307", 307, "<!DOCTYPE html>\n<html lang=en><title>Error</title><p><b>That is an error.</b></p></html>\n"),
];

/// The body with what differs each time put aside.
fn plain(body: &str) -> String {
    let Some((before, rest)) = body.split_once("ya29.emulator-") else { return body.to_owned() };
    format!("{before}TOKEN{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
}

#[tokio::test]
async fn everything_it_can_be_told_is_on_the_wire_as_the_table_says() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    for (name, status, body) in TOLD {
        emulator.control(&Control { oauth_answer: Some((*name).into()), ..Control::default() }).unwrap();
        let answer = raw(&key).await;
        assert_eq!((answer.0, answer.1, plain(&answer.2)), (*status, None, (*body).to_owned()), "{name}");
    }
    emulator.control(&Control { oauth_answer: Some("grant-hostile".into()), ..Control::default() }).unwrap();
    let hostile = raw(&key).await;
    let body: Value = serde_json::from_str(&hostile.2).unwrap();
    let text = body["error_description"].as_str().unwrap();
    assert!((hostile.0, &body["error"]) == (400, &json!("invalid_grant")), "{body}");
    assert!(
        ["\u{1b}[31m", "\u{202e}", "APA91b", "https://", "/srv/", "\r\n", "\0"].iter().all(|s| text.contains(s)),
        "{text:?}"
    );
    for (name, _) in fanfare::emulator::token_answers().filter(|(name, _)| *name != "grant-hostile") {
        assert!(TOLD.iter().any(|(told, ..)| *told == name), "no line for `{name}`");
    }
}

#[tokio::test]
async fn what_it_is_told_can_last_for_some_calls_and_say_when_to_come_again() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    let told = |name: &str| Control {
        oauth_answer: Some(name.into()),
        oauth_times: Some(2),
        oauth_retry_after: Some(9),
        ..Control::default()
    };
    for name in ["throttled", "quota"] {
        emulator.control(&told(name)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let (status, retry_after, _) = raw(&key).await;
            seen.push((status, retry_after));
        }
        assert_eq!(seen, [(429, Some("9".into())), (429, Some("9".into())), (200, None)], "{name}");
    }
}

#[tokio::test]
async fn the_same_token_comes_twice_with_what_is_left_of_it() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    let first = access_token(&key).await;
    emulator.control(&Control { oauth_answer: Some("same-token".into()), ..Control::default() }).unwrap();
    assert_eq!(access_token(&key).await, first);
    emulator.control(&Control { revoke: true, ..Control::default() }).unwrap();
    assert_ne!(access_token(&key).await, first, "one that is worthless is not given again");
}

#[tokio::test]
async fn a_slow_token_endpoint_is_slow_and_nothing_else_is() {
    let emulator = started(Settings::default(), Control { oauth_latency_ms: Some(120), ..Control::default() });
    let key = key(&emulator);
    let begun = std::time::Instant::now();
    access_token(&key).await;
    assert!(begun.elapsed() >= Duration::from_millis(120));
    assert_eq!(send(&connect(&emulator).await, "ok-1").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_clock_that_is_ahead_shows_in_every_date_and_in_what_is_timely() {
    let emulator = Emulator::start(Settings::default()).unwrap();
    let key = key(&emulator);
    for ahead_s in [7200, -7200] {
        emulator.control(&Control { clock_skew_s: Some(ahead_s), ..Control::default() }).unwrap();
        let (status, body) = ask(&key, GRANT, &assertion(&key, &json!({}))).await;
        assert_eq!((status, &body["error"]), (400, &json!("invalid_grant")), "{ahead_s}");
        let right = assertion(&key, &json!({"iat": now() + ahead_s, "exp": now() + ahead_s + 3600}));
        assert_eq!(ask(&key, GRANT, &right).await.0, 200, "{ahead_s}");
        let answer = send(&connect(&emulator).await, "ok-1").await.unwrap();
        let date = httpdate::parse_http_date(answer.headers["date"].to_str().unwrap()).unwrap();
        let ahead = i64::try_from(date.duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap() - now();
        assert!((ahead - ahead_s).abs() <= 30, "{ahead}");
    }
}
