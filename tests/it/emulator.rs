//! The emulator as a client sees it that knows nothing of it: every answer, OAuth, quota, latency, streams, TLS, and
//! that its log and counts say what was sent. Raw HTTP clients only; the sender has its own tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fanfare::emulator::{Control, Emulator, EmulatorError, LogEntry, Rule, Settings, answers};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

const SEND: &str = "/v1/projects/demo-project/messages:send";
/// Long enough for any answer of a loaded machine.
const LONG: Duration = Duration::from_secs(20);
/// How long silence has to last to be called silence.
const SILENCE: Duration = Duration::from_millis(150);

// ---- a raw client -------------------------------------------------------------------------------------------------

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    /// An error when the stream was reset after its header.
    body: Result<Vec<u8>, h2::Error>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap()
    }
}

async fn connect(emulator: &Emulator) -> SendRequest<Bytes> {
    let io = TcpStream::connect(emulator.addr()).await.unwrap();
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    // A raw client opens as many streams as it likes until it has the server's settings; with an answer they are in.
    assert_eq!(post(&client, "/emulator/healthz", "", Bytes::new()).await.unwrap().status, 404);
    client
}

async fn post(client: &SendRequest<Bytes>, path: &str, bearer: &str, body: Bytes) -> Result<Answer, h2::Error> {
    let mut client = client.clone().ready().await?;
    let request = Request::post(format!("http://emulator{path}")).header("authorization", format!("Bearer {bearer}"));
    let (response, mut stream) = client.send_request(request.body(()).unwrap(), false)?;
    stream.send_data(body, true)?;
    let (head, mut incoming) = response.await?.into_parts();
    let mut whole = Vec::new();
    let body = loop {
        match incoming.data().await {
            Some(Ok(piece)) => {
                incoming.flow_control().release_capacity(piece.len())?;
                whole.extend_from_slice(&piece);
            }
            Some(Err(fault)) => break Err(fault),
            None => break Ok(whole),
        }
    };
    Ok(Answer { status: head.status, headers: head.headers, body })
}

fn goal(token: &str) -> Bytes {
    let message = json!({"token": token, "notification": {"title": "Goal", "body": "2-1"},
        "android": {"ttl": "120s", "collapse_key": "match-4711", "priority": "HIGH"}});
    json!({ "message": message }).to_string().into()
}

async fn send(client: &SendRequest<Bytes>, token: &str) -> Result<Answer, h2::Error> {
    timeout(LONG, post(client, SEND, "", goal(token))).await.expect("an answer")
}

/// Plain HTTP, and no need of a bearer token.
fn open_to_all() -> Emulator {
    started(Settings::default(), Control::default())
}

fn started(settings: Settings, control: Control) -> Emulator {
    Emulator::start(Settings { control: Control { check_auth: Some(false), ..control }, ..settings }).unwrap()
}

fn names(log: &[LogEntry]) -> Vec<&str> {
    log.iter().map(|entry| entry.answer.as_str()).collect()
}

// ---- answers ------------------------------------------------------------------------------------------------------

/// An answer in one line: status, canonical status and details in their order, or type and body; then headers.
fn line(answer: &Result<Answer, h2::Error>) -> String {
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => return format!("reset {:?}", fault.reason().unwrap()),
    };
    let status = answer.status.as_u16();
    let body = match &answer.body {
        Ok(body) => String::from_utf8_lossy(body).into_owned(),
        Err(fault) => return format!("{status} then reset {:?}", fault.reason().unwrap()),
    };
    let mut line = match serde_json::from_str::<Value>(&body) {
        Ok(json) if json["error"].is_object() => {
            assert_eq!(json["error"]["code"], status, "{body}");
            let details = json["error"]["details"].as_array().cloned().unwrap_or_default();
            let details: Vec<String> = details.iter().map(detail).collect();
            format!("{status} {} {}", json["error"]["status"].as_str().unwrap(), details.join(" "))
        }
        _ => {
            let kind = if answer.headers["content-type"].to_str().unwrap().contains("html") { "html" } else { "json" };
            format!("{status} {kind} {}", body.chars().take(30).collect::<String>())
        }
    };
    for name in ["retry-after", "location"] {
        if let Some(value) = answer.headers.get(name) {
            line = format!("{} {name}={}", line.trim_end(), value.to_str().unwrap());
        }
    }
    line.trim_end().to_owned()
}

fn detail(detail: &Value) -> String {
    let text = |key: &str| detail[key].as_str().unwrap_or_default().to_owned();
    match text("@type").as_str() {
        "type.googleapis.com/google.firebase.fcm.v1.FcmError" => format!("Fcm={}", text("errorCode")),
        "type.googleapis.com/google.firebase.fcm.v1.ApnsError" => {
            format!("Apns={},{}", detail["statusCode"], text("reason"))
        }
        "type.googleapis.com/google.rpc.BadRequest" => {
            format!("Field={}", detail["fieldViolations"][0]["field"].as_str().unwrap())
        }
        "type.googleapis.com/google.rpc.ErrorInfo" => format!("Info={},{}", text("reason"), text("domain")),
        other => panic!("{other}"),
    }
}

/// Written by hand from what FCM has been seen to answer, not from the emulator's table.
#[rustfmt::skip]
const ON_THE_WIRE: &[(&str, &str)] = &[
    ("no-credentials-1", "401 UNAUTHENTICATED Info=CREDENTIALS_MISSING,googleapis.com"),
    ("unauthenticated-1", "401 UNAUTHENTICATED Info=ACCESS_TOKEN_EXPIRED,googleapis.com"),
    ("wrong-project-1", "404 NOT_FOUND"),
    ("bad-request-1", "400 INVALID_ARGUMENT Field=message"),
    ("over-quota-7-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=7"),
    ("dead-1", "404 NOT_FOUND Fcm=UNREGISTERED"),
    ("dead404apns-1", "404 NOT_FOUND Apns=410,Unregistered Fcm=UNREGISTERED"),
    ("apnsgone-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Apns=410,Unregistered"),
    ("invalid-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT"),
    ("invalid-field-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.token"),
    ("invalid-field-first-1", "400 INVALID_ARGUMENT Field=message.token Fcm=INVALID_ARGUMENT"),
    ("suspect-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT"),
    ("foreign-1", "403 PERMISSION_DENIED Fcm=SENDER_ID_MISMATCH"),
    ("payload-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.android.ttl"),
    ("badjson-1", "400 INVALID_ARGUMENT Field=message.data[0].value"),
    ("nodetails400-1", "400 INVALID_ARGUMENT"),
    ("iam-1", "403 PERMISSION_DENIED"),
    ("apidisabled-1", "403 PERMISSION_DENIED"),
    ("noproject-1", "404 NOT_FOUND"),
    ("thirdparty-1", "401 UNAUTHENTICATED Fcm=THIRD_PARTY_AUTH_ERROR Apns=403,InvalidProviderToken"),
    ("expired401-1", "401 UNAUTHENTICATED Info=ACCESS_TOKEN_EXPIRED,googleapis.com"),
    ("bare401-1", "401 UNAUTHENTICATED"),
    ("quota-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"),
    ("quota-3-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=3"),
    ("quotadate-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"),
    ("quotahuge-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=99999999999999999999"),
    ("quotanegative-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=-5"),
    ("quotafraction-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=1.5"),
    ("quotagarbage-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=soon"),
    ("quotahtml-2-1", "429 html <!DOCTYPE html>\n<html lang=en> retry-after=2"),
    ("quota503-1", "503 UNAVAILABLE Fcm=QUOTA_EXCEEDED"),
    ("ratelimit403-1", "403 PERMISSION_DENIED Info=RATE_LIMIT_EXCEEDED,googleapis.com"),
    ("unavailable-1", "503 UNAVAILABLE Fcm=UNAVAILABLE"),
    ("unavailable-2-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=2"),
    ("internal-1", "500 INTERNAL Fcm=INTERNAL"),
    ("unspecified-1", "500 UNKNOWN Fcm=UNSPECIFIED_ERROR"),
    ("unknowncode-1", "400 INVALID_ARGUMENT Fcm=FLUX_CAPACITOR_EMPTY"),
    ("barestring-1", "400 json {\"error\":\"InvalidRegistration\""),
    ("html200-1", "200 html <!DOCTYPE html>\n<html lang=en>"),
    ("html401-1", "401 html <!DOCTYPE html>\n<html lang=en>"),
    ("html403-1", "403 html <!DOCTYPE html>\n<html lang=en>"),
    ("html404-1", "404 html <!DOCTYPE html>\n<html lang=en>"),
    ("html502-1", "502 html <!DOCTYPE html>\n<html lang=en>"),
    ("html503-1", "503 html <!DOCTYPE html>\n<html lang=en>"),
    ("html504-1", "504 html <!DOCTYPE html>\n<html lang=en>"),
    ("huge502-1", "502 html <p>sorry</p><p>sorry</p><p>sor"),
    ("deep200-1", "200 json [[[[[[[[[[[[[[[[[[[[[[[[[[[[[["),
    ("empty200-1", "200 json"),
    ("empty401-1", "401 json"),
    ("empty404-1", "404 json"),
    ("empty500-1", "500 json"),
    ("empty503-1", "503 json"),
    ("noname200-1", "200 json {}"),
    ("nonstring200-1", "200 json {\"name\":7}"),
    ("truncated-1", "200 json {\"name\":\"projects/p/mess"),
    ("truncated404-1", "404 json {\"error\":{\"code\":404,\"status\":"),
    ("redirect302-1", "302 html <!DOCTYPE html>\n<html lang=en> location=/v1/elsewhere"),
    ("method405-1", "405 html <!DOCTYPE html>\n<html lang=en>"),
    ("oversize413-1", "413 html <!DOCTYPE html>\n<html lang=en>"),
    ("refused-1", "reset REFUSED_STREAM"),
    ("reset-1", "reset INTERNAL_ERROR"),
    ("cancelled-1", "reset CANCEL"),
    ("cut-1", "200 then reset INTERNAL_ERROR"),
];

#[tokio::test]
async fn every_scripted_answer_is_on_the_wire_as_the_table_says() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for (token, want) in ON_THE_WIRE {
        assert_eq!(line(&send(&client, token).await), *want, "{token}");
    }
    // One connection for all of them: resets end a stream, not its connection.
    let stats = emulator.stats();
    assert_eq!((stats.connections_opened, stats.accepted), (1, 0));
    let elsewhere = ["ok", "slow", "hang", "stall"];
    for (name, _) in answers().filter(|(name, _)| !elsewhere.contains(name)) {
        assert!(stats.answers.contains_key(name), "no line for `{name}`");
    }
}

#[tokio::test]
async fn any_other_token_is_accepted_under_a_name_of_its_own() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let mut seen = std::collections::HashSet::new();
    for token in ["ok-1", "cXyzzy:APA91bPlugh", "dead", "ok-1"] {
        let answer = send(&client, token).await.unwrap();
        assert_eq!(answer.status, 200);
        let name = answer.json()["name"].as_str().unwrap().to_owned();
        assert!(name.starts_with("projects/demo-project/messages/"), "{name}");
        assert!(seen.insert(name));
    }
}

#[tokio::test]
async fn a_retry_after_date_lies_in_the_future_by_the_number_asked_for() {
    let emulator = open_to_all();
    let answer = send(&connect(&emulator).await, "quotadate-90-1").await.unwrap();
    let date = httpdate::parse_http_date(answer.headers["retry-after"].to_str().unwrap()).unwrap();
    let ahead = date.duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((60..=90).contains(&ahead), "{ahead}");
}

#[tokio::test]
async fn a_request_without_an_answer_is_in_the_log_all_the_same() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.expect("the log comes before the answer");
    let log = emulator.log();
    assert_eq!((log[0].answer.as_str(), log[0].status, log[0].accepted), ("hang", 0, false));
    assert_eq!(emulator.stats().streams_open, 1);
    assert!(timeout(SILENCE, hanging).await.is_err(), "hang- was answered");
}

#[tokio::test]
async fn an_answer_that_stalls_gives_its_header_and_nothing_else() {
    let emulator = open_to_all();
    let mut client = connect(&emulator).await.ready().await.unwrap();
    let request = Request::post(format!("http://emulator{SEND}")).body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(goal("stall-1"), true).unwrap();
    let response = timeout(LONG, response).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert!(timeout(SILENCE, response.into_body().data()).await.is_err());
}

#[tokio::test]
async fn a_flaky_token_fails_once_for_each_message() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for _ in 0..3 {
        let _ = send(&client, "flaky503-1").await.unwrap();
    }
    let corner = json!({"message": {"token": "flaky503-1", "notification": {"title": "Corner"}}});
    let _ = post(&client, SEND, "", corner.to_string().into()).await.unwrap();
    assert_eq!(names(&emulator.log()), ["unavailable", "ok", "ok", "unavailable"]);
    let attempts: Vec<u32> = emulator.log().iter().map(|entry| entry.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 1]);
    assert_eq!((emulator.stats().accepted, emulator.stats().duplicates_accepted), (2, 1));
}

// ---- bodies -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_body_that_fcm_would_refuse_is_refused_with_its_field() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let cases = [
        (json!({"message": {"token": "t", "tokn": "t"}}), "400 INVALID_ARGUMENT Field=message"),
        (json!({"message": {"token": "t"}, "priority": "high"}), "400 INVALID_ARGUMENT Field="),
        (
            json!({"message": {"token": "t", "data": {"minute": 67}}}),
            "400 INVALID_ARGUMENT Field=message.data[0].value",
        ),
        (json!({"message": {"token": "t", "topic": "u"}}), "400 INVALID_ARGUMENT Field=message"),
        (json!({"message": {"data": {"a": "b"}}}), "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message"),
        (
            json!({"message": {"token": "t", "data": {"a": "b".repeat(4096)}}}),
            "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.data",
        ),
    ];
    for (body, want) in &cases {
        assert_eq!(line(&post(&client, SEND, "", body.to_string().into()).await), *want, "{body}");
    }
    assert_eq!(line(&post(&client, SEND, "", "{\"message\":".into()).await), "400 INVALID_ARGUMENT Field=");
    assert_eq!(emulator.stats().answers["bad-request"], cases.len() as u64 + 1);
    assert_eq!(emulator.log()[0].token, "t", "what could be read is in the log");
}

#[tokio::test]
async fn a_dry_run_gets_a_name_and_is_not_accepted() {
    let emulator = open_to_all();
    let body = json!({"validate_only": true, "message": {"token": "ok-1"}}).to_string();
    let answer = post(&connect(&emulator).await, SEND, "", body.into()).await.unwrap();
    assert!(answer.json()["name"].is_string());
    assert_eq!((emulator.stats().requests, emulator.stats().accepted), (1, 0));
}

#[tokio::test]
async fn other_paths_and_methods_are_no_sends() {
    let emulator = open_to_all();
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for path in ["/", "/v1/projects//messages:send", "/v1/projects/a/b/messages:send", "/emulator/nothing"] {
        let url = format!("{}{path}", emulator.endpoint());
        assert_eq!(client.post(url).body(goal("t")).send().await.unwrap().status(), 404, "{path}");
    }
    assert_eq!(client.get(format!("{}{SEND}", emulator.endpoint())).send().await.unwrap().status(), 404);
    assert_eq!(emulator.stats().requests, 0);
}

// ---- OAuth --------------------------------------------------------------------------------------------------------

const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// A good assertion with some claims changed; null takes a claim away.
fn assertion(key: &Value, changes: &Value) -> String {
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

fn key(emulator: &Emulator) -> Value {
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

// ---- quota, latency, streams --------------------------------------------------------------------------------------

#[tokio::test]
async fn over_the_quota_it_answers_429_and_says_when() {
    let emulator = started(Settings::default(), Control { quota_per_minute: Some(5), ..Control::default() });
    let client = connect(&emulator).await;
    // A 4xx uses quota, a scripted 429 and a refused stream do not.
    for token in ["ok-1", "ok-2", "ok-3", "dead-1", "quota-1", "refused-1", "ok-4"] {
        let _ = send(&client, token).await;
    }
    let over = send(&client, "ok-5").await.unwrap();
    let wait: u32 = over.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert!(line(&Ok(over)).starts_with("429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"));
    emulator.control(&Control { quota_per_minute: Some(0), ..Control::default() }).unwrap();
    assert_eq!(send(&client, "ok-6").await.unwrap().status, 200);
    let want = ["ok", "ok", "ok", "dead", "quota", "refused", "ok", "over-quota", "ok"];
    assert_eq!(names(&emulator.log()), want);
}

#[tokio::test]
async fn no_answer_comes_before_its_latency() {
    let emulator = started(Settings::default(), Control { latency_ms: Some(60), ..Control::default() });
    let client = connect(&emulator).await;
    let timed = async |token: &str| {
        let begun = Instant::now();
        let _ = send(&client, token).await.unwrap();
        begun.elapsed()
    };
    assert!(timed("ok-1").await >= Duration::from_millis(60));
    assert!(timed("dead-1").await >= Duration::from_millis(60));
    assert!(timed("slow-90-1").await >= Duration::from_millis(150));
    let rule = Rule { prefix: "x-".into(), answer: "internal".into(), latency_ms: 30, ..Rule::default() };
    emulator.control(&Control { rules: vec![rule], ..Control::default() }).unwrap();
    assert!(timed("x-1").await >= Duration::from_millis(90));
}

#[tokio::test]
async fn a_client_that_goes_away_during_the_latency_was_accepted() {
    let emulator = started(Settings::default(), Control { latency_ms: Some(60_000), ..Control::default() });
    let client = connect(&emulator).await;
    let waiting = tokio::spawn(async move { post(&client, SEND, "", goal("ok-1")).await });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    waiting.abort();
    assert_eq!((emulator.stats().accepted, emulator.log()[0].accepted), (1, true));
}

#[tokio::test]
async fn the_stream_limit_is_announced_and_excess_requests_wait() {
    let settings = Settings { max_streams: 4, ..Settings::default() };
    let emulator = started(settings, Control { latency_ms: Some(20), ..Control::default() });
    let client = connect(&emulator).await;
    assert_eq!(client.current_max_send_streams(), 4);
    let tokens: Vec<String> = (0..20).map(|n| format!("ok-{n}")).collect();
    let answers = futures_util::future::join_all(tokens.iter().map(|token| send(&client, token))).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().status == 200));
    let stats = emulator.stats();
    assert_eq!((stats.peak_streams_per_connection, stats.accepted), (4, 20));
}

#[tokio::test]
async fn unless_told_otherwise_it_announces_a_hundred_streams() {
    let emulator = open_to_all();
    assert_eq!(connect(&emulator).await.current_max_send_streams(), 100);
}

#[tokio::test]
async fn a_hanging_stream_gives_its_place_back_when_the_client_resets_it() {
    let emulator = started(Settings { max_streams: 1, ..Settings::default() }, Control::default());
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    let next = tokio::spawn(async move { send(&client, "ok-1").await.unwrap().status });
    hanging.abort();
    assert_eq!(timeout(LONG, next).await.unwrap().unwrap(), 200);
}

// ---- log, stats, control ------------------------------------------------------------------------------------------

#[tokio::test]
async fn log_and_counts_say_exactly_what_was_sent() {
    let emulator = open_to_all();
    let (one, two) = (connect(&emulator).await, connect(&emulator).await);
    let tokens: Vec<String> =
        (0..300).map(|n| format!("{}-{n}", ["ok", "dead", "quota-3", "refused", "reset"][n % 5])).collect();
    let sends = tokens.iter().enumerate().map(|(n, token)| send(if n % 2 == 0 { &one } else { &two }, token));
    futures_util::future::join_all(sends).await;
    let stats = emulator.stats();
    assert_eq!((stats.requests, stats.refused, stats.accepted), (240, 60, 60));
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (60, 0));
    let want = [("dead", 60), ("ok", 60), ("quota", 60), ("refused", 60), ("reset", 60)];
    assert_eq!(stats.answers.iter().map(|(name, n)| (name.as_str(), *n)).collect::<Vec<_>>(), want);
    assert_eq!(stats.per_second.iter().sum::<u32>(), 240);
    assert!(stats.max_in_1s >= *stats.per_second.iter().max().unwrap() && stats.max_in_1s <= 240);
    assert_eq!((stats.connections_opened, stats.connections_open), (2, 2));

    let log = emulator.log();
    let mut logged: Vec<&str> = log.iter().map(|entry| entry.token.as_str()).collect();
    logged.sort_unstable();
    let mut sent: Vec<&str> = tokens.iter().map(String::as_str).collect();
    sent.sort_unstable();
    assert_eq!(logged, sent);
    assert!(log.iter().enumerate().all(|(at, entry)| entry.seq == at as u64 + 1));
    assert!(log.windows(2).all(|pair| pair[0].t_ns <= pair[1].t_ns));
    assert!(log.iter().all(|entry| entry.ttl_s == Some(120) && entry.collapse_key.as_deref() == Some("match-4711")));
    assert!(log.iter().all(|entry| entry.content == log[0].content));
    assert_eq!(log.iter().map(|entry| entry.connection).max(), Some(2));
}

async fn fetch(emulator: &Emulator, path: &str) -> String {
    let url = format!("{}{path}", emulator.endpoint());
    reqwest::get(url).await.unwrap().error_for_status().unwrap().text().await.unwrap()
}

fn parsed(ndjson: &str) -> Vec<LogEntry> {
    ndjson.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn over_http_and_in_the_file_the_log_is_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = Settings { log_file: Some(file.path().to_owned()), ..Settings::default() };
    let emulator = started(settings, Control::default());
    let client = connect(&emulator).await;
    // More than one page of the log.
    for n in 0..1200 {
        send(&client, &format!("ok-{n}")).await.unwrap();
    }
    let log = emulator.log();
    assert_eq!(log.len(), 1200);
    assert_eq!(parsed(&fetch(&emulator, "/emulator/log").await), log);
    assert_eq!(parsed(&fetch(&emulator, "/emulator/log?since=1190").await), log[1190..]);
    assert_eq!(fetch(&emulator, "/emulator/log?since=1200").await, "");
    assert_eq!(parsed(&std::fs::read_to_string(file.path()).unwrap()), log);
    let stats: fanfare::emulator::Stats = serde_json::from_str(&fetch(&emulator, "/emulator/stats").await).unwrap();
    assert_eq!((stats.requests, stats.accepted), (1200, 1200));
    let url = format!("{}/emulator/log?since=last", emulator.endpoint());
    assert_eq!(reqwest::get(url).await.unwrap().status(), 400);
}

#[tokio::test]
async fn rules_given_at_run_time_over_http_apply_at_once_and_go_away() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let tell = async |change: Value| {
        let url = format!("{}/emulator/control", emulator.endpoint());
        let answer = reqwest::Client::new().post(url).json(&change).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let outage = json!({"rules": [{"prefix": "", "answer": "unavailable", "times": 1, "retry_after": 7}]});
    let (status, in_force) = tell(outage).await;
    assert_eq!((status, &in_force["rules"][0]["answer"]), (200, &json!("unavailable")));
    let first = line(&send(&client, "ok-1").await);
    assert_eq!(first, "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=7");
    assert_eq!(send(&client, "ok-1").await.unwrap().status, 200, "times: 1");

    let (status, fault) = tell(json!({"reset": true, "rules": [{"prefix": "", "answer": "sunshine"}]})).await;
    assert_eq!(status, 400);
    assert!(fault["error"].as_str().unwrap().contains("`sunshine`"), "{fault}");
    assert_eq!(emulator.stats().requests, 2, "what is refused changes nothing");
    assert_eq!(tell(json!({"latncy_ms": 5})).await.0, 400);

    assert_eq!(tell(json!({"clear_rules": true, "reset": true})).await.0, 200);
    assert_eq!((emulator.stats().requests, emulator.log().len()), (0, 0));
    assert_eq!(send(&client, "ok-2").await.unwrap().status, 200);
    assert_eq!((emulator.log()[0].seq, emulator.stats().connections_open), (1, 1));
}

// ---- TLS, HTTP/1.1, life ------------------------------------------------------------------------------------------

fn trusting(emulator: &Emulator) -> reqwest::ClientBuilder {
    let authority = reqwest::Certificate::from_pem(emulator.ca_pem().unwrap().as_bytes()).unwrap();
    reqwest::Client::builder().tls_certs_only([authority])
}

#[tokio::test]
async fn over_tls_its_authority_is_needed_and_enough() {
    let emulator = started(Settings { tls: true, ..Settings::default() }, Control::default());
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{}{SEND}", emulator.addr().port());
        let h2 = trusting(&emulator).build().unwrap().post(&url).body(goal("ok-1")).send().await.unwrap();
        assert_eq!((h2.status(), h2.version()), (StatusCode::OK, http::Version::HTTP_2));
        let h1 = trusting(&emulator).http1_only().build().unwrap().post(&url).body(goal("ok-1")).send().await.unwrap();
        assert_eq!((h1.status(), h1.version()), (StatusCode::OK, http::Version::HTTP_11));
    }
    assert_eq!(emulator.stats().tls_failures, 0);
    let url = format!("{}{SEND}", emulator.endpoint());
    let stranger = reqwest::Client::new().post(url).body(goal("ok-1")).send().await.unwrap_err();
    assert!(stranger.is_connect(), "{stranger:?}");
    assert_eq!(emulator.stats().requests, 4);
    let pem = trusting(&emulator).build().unwrap().get(format!("{}/emulator/ca.pem", emulator.endpoint()));
    assert_eq!(pem.send().await.unwrap().text().await.unwrap(), emulator.ca_pem().unwrap());
}

#[tokio::test]
async fn the_key_of_a_tls_emulator_points_at_its_own_token_endpoint() {
    let emulator = Emulator::start(Settings { tls: true, ..Settings::default() }).unwrap();
    let key = key(&emulator);
    let form = [("grant_type", GRANT), ("assertion", &assertion(&key, &json!({})))];
    let url = key["token_uri"].as_str().unwrap();
    let answer = trusting(&emulator).build().unwrap().post(url).form(&form).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn http_1_works_and_a_reset_closes_its_connection() {
    let emulator = open_to_all();
    let client = reqwest::Client::builder().http1_only().retry(reqwest::retry::never()).build().unwrap();
    let url = format!("{}{SEND}", emulator.endpoint());
    let answer = client.post(&url).body(goal("dead-1")).send().await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::NOT_FOUND, http::Version::HTTP_11));
    let closed = client.post(&url).body(goal("reset-1")).send().await.unwrap_err();
    assert!(closed.is_request(), "{closed:?}");
    assert_eq!(names(&emulator.log()), ["dead", "reset"]);
}

#[tokio::test]
async fn stopping_ends_connections_and_keeps_the_log() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.unwrap();
    timeout(LONG, emulator.stop()).await.expect("an end");
    assert!(timeout(LONG, hanging).await.unwrap().unwrap().is_err(), "the stream ends with its connection");
    assert!(TcpStream::connect(emulator.addr()).await.is_err(), "nobody listens any more");
    assert_eq!((emulator.log().len(), emulator.stats().connections_open), (1, 0));
    let streams_end = async {
        while emulator.stats().streams_open > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, streams_end).await.expect("no stream outlives its connection");
}

#[tokio::test]
async fn dropping_it_frees_the_port() {
    let emulator = open_to_all();
    let addr = emulator.addr();
    drop(emulator);
    let freed = async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, freed).await.expect("the port is free");
}

#[tokio::test]
async fn what_it_cannot_start_with_it_names() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let fault = |settings: Settings| Emulator::start(settings).err().unwrap();
    let cannot = fault(Settings { listen, ..Settings::default() });
    assert!(matches!(cannot, EmulatorError::Listen { addr, .. } if addr == listen), "{cannot}");
    let log_file = Some("/nowhere/at/all.ndjson".into());
    let cannot = fault(Settings { log_file, ..Settings::default() });
    assert!(cannot.to_string().contains("/nowhere/at/all.ndjson"), "{cannot}");
    let control = Control { oauth_answer: Some("sunshine".into()), ..Control::default() };
    assert!(matches!(fault(Settings { control, ..Settings::default() }), EmulatorError::UnknownAnswer(_)));
}
