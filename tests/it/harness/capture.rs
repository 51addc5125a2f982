//! Owns a stand-in for FCM that keeps every message as it arrived and accepts it. The emulator keeps no message texts.
//! Must never know: what a message should say.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest wait for a message. Generous: it only decides how long a broken test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// HTTP/2 with prior knowledge on a free port.
pub struct Capture {
    /// For `fcm.endpoint`.
    pub endpoint: String,
    messages: watch::Receiver<Vec<Value>>,
}

impl Capture {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, messages) = watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                let service = service_fn(move |request| answer(request, sender.clone()));
                tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { endpoint, messages }
    }

    /// Waits for the message of an event to a device token.
    pub async fn message(&self, event_id: &str, token: &str) -> Value {
        let mut messages = self.messages.clone();
        let is_it = |m: &&Value| m["data"]["event_id"] == event_id && m["token"] == token;
        match timeout(PATIENCE, messages.wait_for(|all| all.iter().any(|m| is_it(&m)))).await {
            Ok(all) => all.unwrap().iter().find(is_it).unwrap().clone(),
            Err(_) => panic!("no message of {event_id} to {token}: {:#?}", self.messages.borrow()),
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    sender: watch::Sender<Vec<Value>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if let Ok(mut sent) = serde_json::from_slice::<Value>(&body) {
        sender.send_modify(|all| all.push(sent["message"].take()));
    }
    let name = Full::new(Bytes::from_static(br#"{"name":"projects/p/messages/1"}"#));
    Ok(Response::builder().header("content-type", "application/json").body(name).unwrap())
}
