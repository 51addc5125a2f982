//! The emulator as a client sees it that knows nothing of it: every answer, every fault on the wire, and that its log and
//! counts say what was sent. Raw clients only, of HTTP, of HTTP/2 frames and of bytes; the sender has its own tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answers;
mod bodies;
mod control;
mod frames;
mod life;
mod limits;
mod log;
mod metadata;
mod network;
mod oauth;
mod slow;

use std::time::Duration;

use bytes::Bytes;
use fanfare::emulator::{Control, Emulator, LogEntry, Settings};
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

/// Tells the emulator over HTTP; status and answer.
async fn tell(emulator: &Emulator, change: Value) -> (u16, Value) {
    let url = format!("{}/emulator/control", emulator.endpoint());
    let answer = reqwest::Client::new().post(url).json(&change).send().await.unwrap();
    (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
}

fn names(log: &[LogEntry]) -> Vec<&str> {
    log.iter().map(|entry| entry.answer.as_str()).collect()
}

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
        Ok(json) if json["error"]["code"].is_u64() && !json["error"]["details"].is_object() => {
            assert_eq!(json["error"]["code"], status, "{body}");
            let details = json["error"]["details"].as_array().cloned().unwrap_or_default();
            let details: Vec<String> = details.iter().map(detail).collect();
            format!("{status} {} {}", json["error"]["status"].as_str().unwrap(), details.join(" "))
        }
        _ => {
            let kind = answer.headers["content-type"].to_str().unwrap();
            let kind = ["html", "json", "plain"].into_iter().find(|word| kind.contains(word)).unwrap();
            format!("{status} {kind} {}", body.chars().take(30).collect::<String>())
        }
    };
    for name in ["retry-after", "location", "content-encoding"] {
        for value in answer.headers.get_all(name) {
            line = format!("{} {name}={}", line.trim_end(), value.to_str().unwrap());
        }
    }
    line.trim_end().to_owned()
}

fn detail(detail: &Value) -> String {
    let text = |key: &str| detail[key].as_str().unwrap_or_default().to_owned();
    if detail.is_string() {
        return format!("Text={}", detail.as_str().unwrap());
    }
    match text("@type").as_str() {
        "type.googleapis.com/google.firebase.fcm.v1.FcmError" => format!("Fcm={}", text("errorCode")),
        "type.googleapis.com/google.firebase.fcm.v1.ApnsError" => {
            format!("Apns={},{}", detail["statusCode"], text("reason"))
        }
        "type.googleapis.com/google.rpc.BadRequest" => {
            format!("Field={}", detail["fieldViolations"][0]["field"].as_str().unwrap())
        }
        "type.googleapis.com/google.rpc.ErrorInfo" => format!("Info={},{}", text("reason"), text("domain")),
        "type.googleapis.com/google.rpc.QuotaFailure" => {
            format!("Quota={}", detail["violations"][0]["subject"].as_str().unwrap())
        }
        "type.googleapis.com/google.firebase.fcm.v1.FcmErrorCode" => format!("Old={}", text("errorCode")),
        "type.googleapis.com/google.example.v1.OtherError" => format!("Other={}", text("errorCode")),
        other => panic!("{other}"),
    }
}
