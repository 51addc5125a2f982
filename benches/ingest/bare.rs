//! Owns what the figures of a refusal are compared with: a server that knows nothing but how to say no.
//!
//! The same HTTP library, the same runtime, the same bytes of an answer, in a process on the core of the service: what is left
//! when everything of ours is taken away. No service on this machine, asked by this generator, can be faster.

use std::convert::Infallible;
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;

use crate::service::{Target, pinned};

/// The argument that makes this program the server.
pub const ARGUMENT: &str = "--bare";

const ANSWER: &[u8] = br#"{"type":"about:blank","title":"The instance is at its limit","status":503,"code":"overloaded","retryable":true,"retry_after_s":2,"detail":"as many requests of this kind in flight as this instance serves at once"}"#;

async fn refuse(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
    Ok(response)
}

/// Serves until it is killed, in a runtime as the service has.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("{}", listener.local_addr().expect("its address"));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        let builder = Arc::new(builder);
        while let Ok((stream, _)) = listener.accept().await {
            let builder = Arc::clone(&builder);
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let _ = builder.serve_connection(TokioIo::new(stream), service_fn(refuse)).await;
            });
        }
    });
}

/// That server in a process of its own; killed when dropped.
pub async fn start() -> (Child, Target) {
    let program = std::env::current_exe().expect("this program");
    let mut command = pinned(0);
    command.arg(program).arg(ARGUMENT).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let api = lines.next_line().await.ok().flatten().expect("it says where it is");
    let pid = child.id().expect("it runs");
    (child, Target { api, ops: None, key: String::new(), pid })
}
