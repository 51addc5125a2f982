//! Owns a real metadata server as Google Cloud has it: over HTTP/1, with the header it demands and the one it sends.
//! Must never know: what a test expects of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::TcpListener;

/// What it answers to a request for an access token.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    /// `Metadata-Flavor` of the answer.
    pub flavor: Option<&'static str>,
    pub retry_after: Option<&'static str>,
    pub body: String,
    pub after: Duration,
}

impl Reply {
    /// An access token with this life in seconds.
    pub fn token(token: &str, life_s: f64) -> Self {
        let body = json!({"access_token": token, "expires_in": life_s, "token_type": "Bearer"});
        Self { body: body.to_string(), ..Self::error(200, "") }
    }

    /// Another answer.
    pub fn error(status: u16, body: &str) -> Self {
        Self { status, flavor: Some("Google"), retry_after: None, body: body.to_owned(), after: Duration::ZERO }
    }
}

type Script = dyn Fn(usize) -> Reply + Send + Sync;

struct Shared {
    project: Mutex<Option<String>>,
    script: Box<Script>,
    asked: Mutex<Vec<String>>,
}

/// A running one. It ends with the runtime of the test.
pub struct MetadataServer {
    /// `HOST:PORT`.
    pub host: String,
    shared: Arc<Shared>,
}

impl MetadataServer {
    /// Starts one for a project (`None` = it knows of none). `script` says what the n-th request for a token gets,
    /// from 0.
    pub async fn start(project: Option<&str>, script: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            project: Mutex::new(project.map(str::to_owned)),
            script: Box::new(script),
            asked: Mutex::default(),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await
                });
            }
        });
        Self { host, shared }
    }

    /// Paths and queries asked for so far.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Requests for access tokens so far.
    pub fn tokens_asked(&self) -> usize {
        self.asked().iter().filter(|path| path.contains("/token")).count()
    }

    /// From now on it knows of this project.
    pub fn name_project(&self, project: &str) {
        *self.shared.project.lock().unwrap() = Some(project.to_owned());
    }
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response {
    // As the real one: without the header whatever made the request may have been tricked into it.
    if headers.get("metadata-flavor").is_none_or(|value| value != "Google") {
        return respond(&Reply::error(403, "<html>Missing Metadata-Flavor:Google header.</html>"));
    }
    let number = {
        let mut asked = shared.asked.lock().unwrap();
        asked.push(uri.to_string());
        asked.iter().filter(|path| path.contains("/token")).count()
    };
    match uri.path() {
        "/computeMetadata/v1/project/project-id" => match shared.project.lock().unwrap().as_deref() {
            Some(project) => respond(&Reply::error(200, project)),
            None => respond(&Reply::error(404, "<html>not found</html>")),
        },
        "/computeMetadata/v1/instance/service-accounts/default/token" => {
            let reply = (shared.script)(number - 1);
            tokio::time::sleep(reply.after).await;
            respond(&reply)
        }
        _ => respond(&Reply::error(404, "<html>not found</html>")),
    }
}

fn respond(reply: &Reply) -> Response {
    let mut response = (StatusCode::from_u16(reply.status).unwrap(), reply.body.clone()).into_response();
    for (name, value) in [("metadata-flavor", reply.flavor), ("retry-after", reply.retry_after)] {
        if let Some(value) = value {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
    }
    response
}
