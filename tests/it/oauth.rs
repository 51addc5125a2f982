//! Access tokens from a token endpoint that checks the assertion's signature.
#![allow(clippy::unwrap_used, reason = "test servers fail loudly")]

use std::net::SocketAddr;
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
use fanfare::emulator::Control;
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

use super::harness::logs::logs;
use super::harness::service::{Database, World};

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
type Script = Box<dyn Fn(usize) -> (u16, Vec<(&'static str, String)>, String) + Send + Sync>;

struct Endpoint {
    requests: AtomicUsize,
    verified: AtomicUsize,
    key: DecodingKey,
    uri: String,
    script: Script,
    /// Before every answer.
    latency: Duration,
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
    tokio::time::sleep(endpoint.latency).await;
    let (status, headers, body) = (endpoint.script)(number);
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

async fn serve(listener: TcpListener, router: Router) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await
        });
    }
}

/// A token endpoint and the handle under test.
struct Bench {
    endpoint: Arc<Endpoint>,
    tokens: Tokens,
    charged: Arc<Counter>,
}

impl Bench {
    async fn start(
        script: impl Fn(usize) -> (u16, Vec<(&'static str, String)>, String) + Send + Sync + 'static,
    ) -> Self {
        Self::slow(Duration::ZERO, script).await
    }

    async fn slow(
        latency: Duration,
        script: impl Fn(usize) -> (u16, Vec<(&'static str, String)>, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (bench, router) = Self::at(listener.local_addr().unwrap(), latency, Box::new(script));
        tokio::spawn(serve(listener, router));
        bench
    }

    /// The handle for an endpoint that is not served yet, and what is to be served.
    fn at(addr: SocketAddr, latency: Duration, script: Script) -> (Self, Router) {
        let uri = format!("http://{addr}/token");
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let key = json!({"type": "service_account", "project_id": "p", "private_key_id": "k1",
            "private_key": pair.serialize_pem(), "client_email": "a@p.iam.gserviceaccount.com", "token_uri": uri});
        let account = ServiceAccount::parse(&key.to_string()).unwrap();
        let key = DecodingKey::from_rsa_pem(pair.public_key_pem().as_bytes()).unwrap();
        let (requests, verified) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let endpoint = Arc::new(Endpoint { requests, verified, key, uri, script, latency });
        let router = Router::new().route("/token", post(answer)).with_state(Arc::clone(&endpoint));
        let charged = Arc::new(Counter::default());
        let http = TokenHttp::new(None, Duration::from_secs(5)).unwrap();
        let tokens = Tokens::start(account, http, Arc::clone(&charged) as Arc<dyn Charge>, SystemTime::now);
        (Self { endpoint, tokens, charged }, router)
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
    bench.ready(3).await;
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
async fn a_refused_key_is_tried_again_within_seconds_and_serves_once_it_is_accepted() {
    let refusal = r#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#;
    let bench = Bench::start(move |n| if n == 0 { error(400, refusal) } else { grant(n, 3600.0) }).await;
    bench.until(|s| matches!(s, TokenState::Refused { .. })).await;
    bench.ready(1).await;
    assert_eq!((bench.endpoint.requests(), bench.charged.0.load(Ordering::SeqCst)), (2, 2));
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

#[tokio::test]
async fn every_expires_in_is_read_or_refused_and_none_makes_a_storm() {
    let cases = [
        (Some("30"), Some(30.0)),
        (Some("3599"), Some(3599.0)),
        (Some("3599.4"), Some(3599.4)),
        (Some("1e300"), Some(86_400.0)),
        (Some("0"), None),
        (Some("-3600"), None),
        (Some("\"3599\""), None),
        (Some("null"), None),
        (None, None),
    ];
    join_all(cases.map(async |(raw, life)| {
        let field = raw.map(|raw| format!(r#","expires_in":{raw}"#)).unwrap_or_default();
        let bench = Bench::start(move |_| {
            (200, Vec::new(), format!(r#"{{"access_token":"ya29.x","token_type":"Bearer"{field}}}"#))
        })
        .await;
        let begun = Instant::now();
        match (bench.until(|s| !matches!(s, TokenState::Waiting)).await, life) {
            (TokenState::Ready { expires, .. }, Some(life)) => {
                let most = (expires - begun).as_secs_f64();
                assert!(most <= life + 20.0 && most > life - 20.0, "{raw:?}: {most} s");
            }
            (TokenState::Unavailable { reason }, None) => assert!(reason.contains("expires_in"), "{raw:?}: {reason}"),
            (state, _) => panic!("{raw:?}: {state:?}"),
        }
        // Whether it was read or refused: the next request is at least a second away.
        assert_eq!(bench.endpoint.requests(), 1, "{raw:?}");
        bench.stays_quiet().await;
    }))
    .await;
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_asked_again_until_it_is() {
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (bench, router) = Bench::at(addr, Duration::ZERO, Box::new(|n| grant(n, 3600.0)));
    let state = bench.until(|s| !matches!(s, TokenState::Waiting)).await;
    let TokenState::Unavailable { reason } = state else { panic!("{state:?}") };
    assert!(reason.contains("no connection"), "{reason}");
    tokio::spawn(serve(TcpListener::bind(addr).await.unwrap(), router));
    bench.ready(1).await;
    assert!(bench.charged.0.load(Ordering::SeqCst) >= 2, "every try is charged");
}

#[tokio::test]
async fn a_slow_endpoint_is_asked_once_by_five_hundred_who_wait() {
    let bench = Bench::slow(Duration::from_secs(2), |n| grant(n, 3600.0)).await;
    join_all((0..500).map(|_| bench.ready(1))).await;
    assert_eq!((bench.endpoint.requests(), bench.charged.0.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn the_same_token_again_is_taken_as_the_next_and_not_asked_for_in_a_loop() {
    let bench = Bench::start(|n| grant(7, if n == 0 { 1.5 } else { 3600.0 })).await;
    bench.ready(1).await;
    bench.ready(2).await;
    bench.tokens.reject(1);
    bench.stays_quiet().await;
    bench.tokens.reject(2);
    bench.ready(3).await;
    assert_eq!(bench.endpoint.requests(), 3);
}

#[tokio::test]
async fn a_throttle_that_asks_for_no_pause_is_not_a_loop() {
    for none in ["0", "-20", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        let bench = Bench::start(move |_| (429, vec![("retry-after", none.to_owned())], String::new())).await;
        bench.until(|s| matches!(s, TokenState::Unavailable { .. })).await;
        bench.stays_quiet().await;
        assert_eq!(bench.endpoint.requests(), 1, "{none}");
    }
}

#[tokio::test]
async fn a_skewed_clock_is_named_in_the_log_while_tokens_still_come() {
    let logs = logs();
    // A difference no other test has.
    let apart = Duration::from_secs(12_345);
    let bench = Bench::start(move |n| {
        let (status, _, body) = grant(n, 3600.0);
        (status, vec![("date", httpdate::fmt_http_date(SystemTime::now() + apart))], body)
    })
    .await;
    bench.ready(1).await;
    let named = |event: &super::harness::logs::Event| {
        let skew = event.fields.get("skew").and_then(|skew| skew.as_str()).unwrap_or_default();
        event.message == "clock skew" && skew.contains("this machine's clock is 1234") && skew.contains(" s behind")
    };
    let event = logs.wait_for(1, named).await.remove(0);
    assert_eq!((event.level, event.target.as_str()), (tracing::Level::WARN, "fanfare::fcm"));
}

/// A service with 500 slots, and `n` followers of `run`.
async fn five_hundred_slots(
    run: &str,
    n: usize,
    token_lifetime_s: Option<u64>,
) -> (World, super::harness::service::Service) {
    let mut world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { latency_ms: Some(800), token_lifetime_s, ..Control::default() });
    world.set("FCM__SLOTS", 500);
    world.set("FCM__LENT_SLOTS", 0);
    let service = world.serve().await;
    service.follow(run, &(0..n).map(|i| format!("ok-{run}-{i}")).collect::<Vec<_>>()).await;
    (world, service)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_under_five_hundred_sends_costs_one_call_and_nobody() {
    let (world, service) = five_hundred_slots("revoked", 2000, None).await;
    let id = service.goal("revoked", "revoked", 120).await;
    let under_way = async {
        while world.emulator.stats().streams_open < 400 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, under_way).await.expect("500 sends at once");
    world.emulate(Control { revoke: true, ..Control::default() });
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed), (2000, 0), "{fanout:#?}");
    assert!(fanout.reauthed >= 1, "{fanout:#?}");
    assert_eq!(world.emulator.stats().oauth_calls, 2, "the first, and one for all who were refused");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_end_under_five_hundred_sends_cost_one_call_each_and_nobody() {
    let (world, service) = five_hundred_slots("ending", 2000, Some(3)).await;
    let begun = Instant::now();
    let fanout = service.settled(&service.goal("ending", "ending", 120).await).await;
    assert_eq!((fanout.delivered, fanout.failed), (2000, 0), "{fanout:#?}");
    let (calls, elapsed) = (world.emulator.stats().oauth_calls, begun.elapsed().as_secs_f64());
    // Each is replaced after four fifths of its three seconds; one more for the start, and one for each that was refused.
    println!("{calls} calls in {elapsed:.1} s, {} reauthed", fanout.reauthed);
    assert!(calls >= 2 && (calls as f64) <= 3.0 + elapsed, "{calls} calls in {elapsed} s");
    service.stop().await.unwrap();
}
