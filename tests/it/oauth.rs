//! Access tokens from a token endpoint that checks the assertion's signature.
#![allow(clippy::unwrap_used, reason = "test servers fail loudly")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::post;
use fanfare::domain::charge::Charge;
use fanfare::fcm::credentials::ServiceAccount;
use fanfare::fcm::http::TokenHttp;
use fanfare::fcm::oauth::{TokenState, Tokens};
use futures_util::future::join_all;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

/// Longest wait of any test for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing must happen.
const QUIET: Duration = Duration::from_millis(700);

#[derive(Default)]
struct Counter(AtomicUsize);

#[async_trait]
impl Charge for Counter {
    async fn charge(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Claims {
    iss: String,
    scope: String,
    iat: u64,
    exp: u64,
}

#[derive(Deserialize)]
struct Form {
    grant_type: String,
    assertion: String,
}

/// What the endpoint answers to its n-th request, from 0.
type Script = fn(usize) -> (u16, Vec<(&'static str, String)>, String);

struct Endpoint {
    requests: AtomicUsize,
    verified: AtomicUsize,
    key: DecodingKey,
    uri: String,
    script: Script,
}

impl Endpoint {
    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn verify(&self, form: &Form) -> Claims {
        assert_eq!(form.grant_type, "urn:ietf:params:oauth:grant-type:jwt-bearer");
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&[&self.uri]);
        let token = jsonwebtoken::decode::<Claims>(&form.assertion, &self.key, &validation).expect("a valid assertion");
        assert_eq!(token.header.kid.as_deref(), Some("k1"));
        token.claims
    }
}

async fn answer(State(endpoint): State<Arc<Endpoint>>, body: String) -> impl IntoResponse {
    let number = endpoint.requests.fetch_add(1, Ordering::SeqCst);
    let uri: Uri = format!("/?{body}").parse().unwrap();
    let Query(form) = Query::<Form>::try_from_uri(&uri).unwrap();
    let claims = endpoint.verify(&form);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(claims.iss, "a@p.iam.gserviceaccount.com");
    assert_eq!(claims.scope, "https://www.googleapis.com/auth/firebase.messaging");
    assert!(claims.exp - claims.iat <= 3600 && claims.exp > now && (now - 60..now).contains(&claims.iat), "{claims:?}");
    endpoint.verified.fetch_add(1, Ordering::SeqCst);
    let (status, headers, body) = (endpoint.script)(number);
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// A token endpoint and the handle under test.
struct Bench {
    endpoint: Arc<Endpoint>,
    tokens: Tokens,
    charged: Arc<Counter>,
}

impl Bench {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/token", listener.local_addr().unwrap());
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let key = json!({"type": "service_account", "project_id": "p", "private_key_id": "k1",
            "private_key": pair.serialize_pem(), "client_email": "a@p.iam.gserviceaccount.com", "token_uri": uri});
        let account = ServiceAccount::parse(&key.to_string()).unwrap();
        let key = DecodingKey::from_rsa_pem(pair.public_key_pem().as_bytes()).unwrap();
        let (requests, verified) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let endpoint = Arc::new(Endpoint { requests, verified, key, uri, script });
        let router = Router::new().route("/token", post(answer)).with_state(Arc::clone(&endpoint));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await
                });
            }
        });
        let charged = Arc::new(Counter::default());
        let http = TokenHttp::new(None, Duration::from_secs(5)).unwrap();
        let tokens = Tokens::start(account, http, Arc::clone(&charged) as Arc<dyn Charge>, SystemTime::now);
        Self { endpoint, tokens, charged }
    }

    /// Waits for a state; fails when it does not come.
    async fn until(&self, wanted: impl FnMut(&TokenState) -> bool) -> TokenState {
        let mut states = self.tokens.subscribe();
        let found = timeout(PATIENCE, states.wait_for(wanted)).await.expect("the state never came").unwrap();
        found.clone()
    }

    async fn ready(&self, wanted: u64) -> Instant {
        match self.until(|s| matches!(s, TokenState::Ready { generation, .. } if *generation == wanted)).await {
            TokenState::Ready { expires, .. } => expires,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is published and nothing asked for a while.
    async fn stays_quiet(&self) {
        let (mut states, before) = (self.tokens.subscribe(), self.endpoint.requests());
        states.mark_unchanged();
        assert!(timeout(QUIET, states.changed()).await.is_err(), "{:?}", *states.borrow());
        assert_eq!(self.endpoint.requests(), before);
    }
}

fn grant(number: usize, life: f64) -> (u16, Vec<(&'static str, String)>, String) {
    let body = json!({"access_token": format!("ya29.secret{number}"), "expires_in": life, "token_type": "Bearer"});
    (200, Vec::new(), body.to_string())
}

fn error(status: u16, body: &str) -> (u16, Vec<(&'static str, String)>, String) {
    (status, Vec::new(), body.to_owned())
}

#[tokio::test]
async fn a_hundred_who_need_a_token_cause_one_signed_and_charged_request() {
    let bench = Bench::start(|n| grant(n, 3600.0)).await;
    join_all((0..100).map(|_| bench.ready(1))).await;
    bench.stays_quiet().await;
    assert_eq!((bench.endpoint.requests(), bench.endpoint.verified.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(bench.charged.0.load(Ordering::SeqCst), 1);
    let shown = format!("{:?} {:?}", bench.tokens, bench.until(|_| true).await);
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_token_is_refreshed_ahead_of_its_end() {
    let bench = Bench::start(|n| grant(n, if n == 0 { 5.0 } else { 3600.0 })).await;
    let first_ends = bench.ready(1).await;
    bench.ready(2).await;
    assert!(Instant::now() < first_ends, "the first was still good");
    assert_eq!(bench.charged.0.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_old_token_is_served_to_its_end_while_a_refresh_fails() {
    let bench = Bench::start(|n| if n == 0 { grant(n, 4.0) } else { error(503, "<html>down</html>") }).await;
    let ends = bench.ready(1).await;
    let after = bench.until(|s| !matches!(s, TokenState::Ready { .. })).await;
    assert!(Instant::now() >= ends, "not withdrawn before its end");
    assert!(bench.endpoint.requests() >= 2, "the refresh was tried before that");
    let TokenState::Unavailable { reason } = after else { panic!("{after:?}") };
    assert!(reason.contains("503") && !reason.contains("down"), "{reason}");
}

#[tokio::test]
async fn a_failing_endpoint_is_asked_again_until_it_answers() {
    let bench = Bench::start(|n| if n < 2 { error(500, "") } else { grant(n, 3600.0) }).await;
    bench.until(|s| matches!(s, TokenState::Unavailable { .. })).await;
    bench.ready(1).await;
    assert_eq!(bench.endpoint.requests(), 3);
}

#[tokio::test]
async fn a_rejected_token_is_refreshed_once_however_many_say_so() {
    let bench = Bench::start(|n| grant(n, 3600.0)).await;
    bench.ready(1).await;
    for _ in 0..100 {
        bench.tokens.reject(1);
    }
    bench.ready(2).await;
    for _ in 0..100 {
        bench.tokens.reject(1);
    }
    bench.stays_quiet().await;
    assert_eq!(bench.endpoint.requests(), 2, "a rejection of the old one is no news");
    bench.tokens.reject(2);
    bench.stays_quiet().await;
    assert_eq!(bench.endpoint.requests(), 2, "a fresh token that is rejected too is not replaced at once");
}

#[tokio::test]
async fn a_refused_key_is_not_hammered_and_the_clock_is_named() {
    let bench = Bench::start(|_| {
        let an_hour_on = SystemTime::now() + Duration::from_secs(3600);
        let body = r#"{"error":"invalid_grant","error_description":"Invalid JWT: must be a short-lived token"}"#;
        (400, vec![("date", httpdate::fmt_http_date(an_hour_on))], body.to_owned())
    })
    .await;
    let refused = bench.until(|s| !matches!(s, TokenState::Waiting)).await;
    let TokenState::Refused { reason } = refused else { panic!("{refused:?}") };
    assert!(reason.contains("invalid_grant") && reason.contains("behind the token endpoint's"), "{reason}");
    bench.tokens.reject(1);
    bench.stays_quiet().await;
    assert_eq!(bench.endpoint.requests(), 1);
}

#[tokio::test]
async fn a_throttled_endpoint_is_left_alone_even_when_the_token_is_rejected() {
    let bench = Bench::start(|n| if n == 0 { grant(n, 3.0) } else { error(429, "slow down") }).await;
    bench.ready(1).await;
    let after = bench.until(|s| matches!(s, TokenState::Unavailable { .. })).await;
    let TokenState::Unavailable { reason } = after else { panic!("{after:?}") };
    assert!(reason.contains("60 s"), "{reason}");
    bench.tokens.reject(1);
    bench.stays_quiet().await;
    assert_eq!(bench.endpoint.requests(), 2);
}

#[tokio::test]
async fn the_task_ends_with_its_last_handle() {
    let Bench { endpoint, tokens, charged } = Bench::start(|n| grant(n, 3600.0)).await;
    let mut states = tokens.subscribe();
    states.wait_for(|s| matches!(s, TokenState::Ready { .. })).await.unwrap();
    drop(tokens);
    let closed = async { while states.changed().await.is_ok() {} };
    timeout(PATIENCE, closed).await.expect("the task goes on");
    assert_eq!(endpoint.requests(), charged.0.load(Ordering::SeqCst));
}
