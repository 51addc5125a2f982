//! What callers send, in the log of a real process: in either format a line is a line, and moves no terminal's cursor.

use std::process::Stdio;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::{SOON, goal_with, until_closed};
use crate::harness::service::{Database, World};

/// Colours, ends of lines, a second line in our own words, and characters that turn a line's direction round.
const HOSTILE: &str =
    "\u{1b}[31mGOAL\u{1b}]0;owned\u{7}\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}\n\u{9b}31m\u{202e}\u{7f}\u{0}";

/// Everything a service says while `ask` asks it: from its start to its end.
async fn said(format: &str, ask: impl AsyncFn(&str, &str)) -> Vec<u8> {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("LOG__FILTER", "info,fanfare=trace");
    let mut child = world.command("serve").env("LOG_FORMAT", format).stderr(Stdio::inherit()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut all = Vec::new();
    let api = loop {
        let begun = all.len();
        assert_ne!(timeout(SOON, out.read_until(b'\n', &mut all)).await.unwrap().unwrap(), 0, "it does not serve");
        let line = String::from_utf8_lossy(&all[begun..]).into_owned();
        if line.contains("serving") && line.contains("127.0.0.1:") {
            let (_, address) = line.split_once(if format == "json" { "\"api\":\"" } else { "api=" }).unwrap();
            break address.split(['"', ' ', '\n']).find(|part| !part.is_empty()).unwrap().to_owned();
        }
    };
    let rest = tokio::spawn(async move {
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).await.unwrap();
        rest
    });
    ask(&api, &world.caller(&format!("http://{api}")).key).await;
    child.kill().await.unwrap();
    all.extend(timeout(SOON, rest).await.unwrap().unwrap());
    all
}

/// Sends [`HOSTILE`] wherever a caller may write something.
async fn ask(api: &str, key: &str) {
    let http = reqwest::Client::new();
    let send = async |method: Method, path: &str, kind: &str, body: String| {
        let request = http.request(method, format!("http://{api}{path}")).bearer_auth(key).header("content-type", kind);
        let status = request.body(body).send().await.unwrap().status();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
    };
    let texts = ["/id", "/type", "/match_id", "/occurred_at", "/fields/home", "/fields/player", "/data/deeplink"];
    for (n, pointer) in texts.into_iter().enumerate() {
        let mut event = goal_with(pointer, json!(HOSTILE));
        if pointer != "/id" {
            event["id"] = json!(format!("evt-{n}"));
        }
        send(Method::POST, "/v1/events", "application/json", event.to_string()).await;
    }
    let device = json!({"user_id": HOSTILE, "token": HOSTILE, "platform": HOSTILE, "locale": HOSTILE});
    send(Method::PUT, "/v1/devices/d1", "application/json", device.to_string()).await;
    let rows = format!("{}\n{HOSTILE}\n", json!({"id": HOSTILE, "follows": [HOSTILE], "token": HOSTILE}));
    send(Method::POST, "/v1/devices/import", "application/x-ndjson", rows).await;
    send(Method::POST, "/v1/devices/import", "text/csv", format!("id,token\n\"{HOSTILE}\",{HOSTILE}")).await;
    let raw: [&[u8]; 6] = [
        b"GET /v1/fanouts/%1b%5b31m%0d%0aforged%e2%80%ae HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v1/\u{9b}31m\u{202e} HTTP/1.1\r\nHost: x\r\n\r\n".as_bytes(),
        b"GET /v1/\x1b[31m HTTP/1.1\r\nHost: x\r\n\r\n",
        b"G\x1bT / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/ceiling HTTP/1.1\r\nHost: \x1b[31m\xff\r\nX-Request-Id: \xff\xfe\r\nAuthorization: Bearer \xff\r\n\r\n",
        b"POST /v1/events?\xff HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: \xc2\x9b1\r\nContent-Length: 0\r\n\r\n",
    ];
    for bytes in raw {
        let mut stream = TcpStream::connect(api).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let _ = stream.shutdown().await;
        let answer = timeout(SOON, until_closed(stream)).await.unwrap();
        assert!(!answer.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{answer:?}");
    }
    // What comes later is in the log too: nothing before it is still to be written.
    send(Method::GET, "/v1/the-end", "", String::new()).await;
}

#[tokio::test]
async fn no_caller_can_write_a_line_of_the_log_or_colour_it() {
    for format in ["json", "text"] {
        let all = said(format, ask).await;
        let text = String::from_utf8(all).expect("it is text");
        assert!(text.contains("the-end") && text.contains("request served"), "{text}");
        for line in text.lines() {
            let odd = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            assert!(!line.contains(odd), "{format}: {line:?}");
            // Each line is one of ours from its first byte.
            match format {
                "json" => {
                    assert!(serde_json::from_str::<Value>(line).is_ok_and(|l| l["timestamp"].is_string()), "{line:?}")
                }
                _ => assert!(line.starts_with("20") && line.contains(" fanfare::"), "{line:?}"),
            }
        }
    }
}
