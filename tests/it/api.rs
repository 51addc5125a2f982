//! The API over real sockets, on every store.

#![allow(clippy::unwrap_used)] // the switch for tests does not reach what tests share

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use fanfare::api::{self, Keys, Part, Scope, State};
use fanfare::cli::devices::DevicesCommand;
use fanfare::cli::fanout::FanoutCommand;
use fanfare::cli::send::SendArgs;
use fanfare::cli::{self, Failure};
use fanfare::clock::{Boot, DbClock};
use fanfare::domain::catalogue::{BUILT_IN, Catalogue, LiveCatalogue};
use fanfare::domain::event::FieldError;
use fanfare::domain::ids::{BootId, DeviceKey, FanoutId};
use fanfare::door::{self, Places};
use fanfare::metrics::Metrics;
use fanfare::store::postgres::PostgresStore;
use fanfare::store::sqlite::SqliteStore;
use fanfare::store::{FreezeJob, FreezeReply, FreezeStep, SettleReply, Store};
use fanfare::wire::{CeilingAnswer, EventAccepted, Fanout, FanoutList, Problem};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::postgres::TestDatabase;

/// Far longer than anything here takes, far shorter than a forgotten test.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Runs a test on each store, in a database of its own.
pub(crate) async fn for_each_store(test: impl AsyncFn(Arc<dyn Store>)) {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(&dir.path().join("fanfare.db")).await.unwrap();
    let database = TestDatabase::create().await;
    let postgres = PostgresStore::connect(&database.url.clone().into(), 8).unwrap();
    for store in [Arc::new(sqlite) as Arc<dyn Store>, Arc::new(postgres)] {
        // Shown when the test fails.
        println!("on {}", store.engine());
        store.migrate().await.unwrap();
        test(Arc::clone(&store)).await;
        store.close().await;
    }
}

/// The API served on a free port.
pub(crate) struct Service {
    pub addr: SocketAddr,
    pub state: State,
    pub freezes: mpsc::Receiver<FreezeJob>,
    secrets: Vec<(&'static str, String)>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), door::Cut>>,
    http: reqwest::Client,
}

impl Service {
    pub(crate) async fn start(store: &Arc<dyn Store>) -> Self {
        Self::start_with(store, |_| (), door::Limits::default()).await
    }

    pub(crate) async fn start_with(
        store: &Arc<dyn Store>,
        adjust: impl FnOnce(&mut State),
        limits: door::Limits,
    ) -> Self {
        let all =
            [("all", Scope::ALL), ("events", &[Scope::Events]), ("devices", &[Scope::Devices]), ("ops", &[Scope::Ops])];
        let made = all.map(|(name, scopes)| (name, api::keys::generate(name, scopes).unwrap()));
        let entries = made.iter().map(|(_, (_, entry))| entry.as_str()).collect::<Vec<_>>().join(",");
        let (handover, freezes) = mpsc::channel(100);
        let mut state = state(store, Keys::parse(&entries).unwrap(), handover).await;
        adjust(&mut state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(door::serve(listener, api::router(state.clone()), limits, stop.clone()));
        let secrets = made.into_iter().map(|(name, (secret, _))| (name, secret)).collect();
        Self { addr, state, freezes, secrets, stop, task, http: reqwest::Client::new() }
    }

    pub(crate) fn key(&self, name: &str) -> &str {
        &self.secrets.iter().find(|(n, _)| *n == name).unwrap().1
    }

    pub(crate) async fn call_as(&self, key: &str, method: Method, path: &str, body: Option<String>) -> Response {
        let url = format!("http://{}{path}", self.addr);
        let mut request = self.http.request(method, url).bearer_auth(self.key(key)).timeout(SOON);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Value) -> Response {
        self.call_as("all", method, path, (!body.is_null()).then(|| body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.call(Method::GET, path, Value::Null).await
    }

    pub(crate) async fn post_event(&self, event: &Value) -> Response {
        self.call(Method::POST, "/v1/events", event.clone()).await
    }

    /// Posts again while it is asked to: on a busy machine a write may not begin within 250 ms, and that is told.
    pub(crate) async fn posted(&self, event: &Value) -> Response {
        let posting = async {
            loop {
                let answer = self.post_event(event).await;
                if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
                    return answer;
                }
            }
        };
        timeout(SOON, posting).await.expect("it must be taken in the end")
    }

    pub(crate) async fn accept(&self, id: &str) -> FanoutId {
        let response = self.posted(&goal(id)).await;
        // One that was told that it may not have been kept may have been.
        assert!(matches!(response.status(), StatusCode::ACCEPTED | StatusCode::OK), "{response:?}");
        response.json::<EventAccepted>().await.unwrap().fanout_id.parse().unwrap()
    }

    /// Freezes a fan-out without followers and settles it.
    pub(crate) async fn settle(&self, fanout: FanoutId) {
        let step = FreezeStep {
            boot: self.state.boot,
            fanout,
            epoch: 1,
            from: DeviceKey(0),
            chunks: Vec::new(),
            first_chunk: 0,
            ranks: Vec::new(),
            claim_first: 0,
            never_saw: None,
            last: true,
        };
        assert!(matches!(self.state.store.freeze_step(step).await.unwrap(), FreezeReply::Written(_)));
        assert!(matches!(self.state.store.settle(fanout).await.unwrap(), SettleReply::Settled(_)));
    }

    /// A connection of its own, to write bytes to.
    pub(crate) async fn raw(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    pub(crate) fn post_head(&self, rest: &str) -> String {
        let key = self.key("all");
        format!("POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{rest}\r\n\r\n")
    }

    /// A connection of its own on which somebody waits for a fan-out, and has been heard.
    pub(crate) async fn poll(&self, id: FanoutId) -> TcpStream {
        let mut stream = self.raw().await;
        let (before, key) = (self.state.settled.receiver_count(), self.key("all"));
        let request =
            format!("GET /v1/fanouts/{id}?wait_ms=60000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        until(async || self.state.settled.receiver_count() > before).await;
        stream
    }

    pub(crate) async fn stop(self) -> Result<(), door::Cut> {
        self.stop.cancel();
        timeout(SOON, self.task).await.expect("the listener must end").unwrap()
    }
}

async fn state(store: &Arc<dyn Store>, keys: Keys, handover: mpsc::Sender<FreezeJob>) -> State {
    let boot = BootId::fresh();
    let clock = Arc::new(DbClock::from_wall());
    let asked = Boot::now();
    let beat = store.heartbeat(boot, 60_000).await.unwrap();
    clock.observe(beat.now_ms, asked, Boot::now());
    State {
        store: Arc::clone(store),
        catalogue: LiveCatalogue::new(Catalogue::parse(BUILT_IN).unwrap()),
        fits: Arc::new(|_, event| match event.data.get("blob") {
            Some(_) => Err(FieldError { field: "/data/blob".into(), problem: "too much for one message".into() }),
            None => Ok(()),
        }),
        ceiling: Arc::new(ceiling),
        handover,
        settled: broadcast::Sender::new(16),
        cancelled: Arc::new(|_| ()),
        complete: Arc::new(|_| ()),
        clock,
        boot,
        keys: Arc::new(keys),
        load: Arc::new(AtomicU64::new(0)),
        draining: CancellationToken::new(),
        quotas: None,
        live: watch::channel(1).1,
        measured: api::Measured::register(&mut Metrics::new()),
        limits: api::Limits {
            places: Places { interactive: 100, read: 100, bulk: 4, borrowed: 0 },
            requests_per_s_per_key: 0,
            max_backlog: api::MaxBacklog { fanouts: 1000, recipients: 1_000_000, seconds: 1000 },
        },
        keep_ms: 14 * 86_400_000,
    }
}

fn ceiling() -> CeilingAnswer {
    CeilingAnswer {
        mode: "single".into(),
        rate: 9000.0,
        pace: 4500.0,
        share: 4500.0,
        used_per_s: 0.0,
        waiting: 0,
        used: 31,
        forfeited: 0,
        held_ms: 120,
        throttled_ms: 60_000,
        paused_for_ms: 0,
        reason: String::new(),
    }
}

fn ago(seconds: i64) -> String {
    (OffsetDateTime::now_utc() - time::Duration::seconds(seconds)).format(&Rfc3339).unwrap()
}

pub(crate) fn goal(id: &str) -> Value {
    json!({
        "id": id, "type": "goal", "match_id": "4711", "occurred_at": ago(1), "subjects": ["match:4711", "team:ars"],
        "fields": {"home": "Arsenal", "away": "Chelsea", "score": "2-1", "minute": 67, "player": format!("Saka {id}")},
        "data": {"deeplink": "app://match/4711"},
    })
}

pub(crate) fn goal_with(pointer: &str, value: Value) -> Value {
    let mut event = goal("evt-1");
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    event.pointer_mut(parent).unwrap()[key] = value;
    event
}

pub(crate) async fn problem(response: Response) -> Problem {
    let status = response.status();
    assert_eq!(response.headers()["content-type"], "application/problem+json", "{status}");
    let problem: Problem = response.json().await.unwrap();
    assert_eq!(problem.status, status.as_u16());
    problem
}

pub(crate) async fn refused(response: Response, status: u16, code: &str) -> Problem {
    let problem = problem(response).await;
    assert_eq!((problem.status, problem.code.as_str()), (status, code), "{problem:?}");
    problem
}

/// For what nobody tells us of: looks again and again.
pub(crate) async fn until(mut seen: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !seen().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, looking).await.expect("it must come to that");
}

pub(crate) async fn until_closed(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is a way of closing too.
    let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the connection must be closed");
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(end) {
        let byte = timeout(SOON, stream.read_u8()).await.expect("an answer must come");
        answer.push(byte.unwrap_or_else(|_| panic!("closed after {:?}", String::from_utf8_lossy(&answer))));
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn an_accepted_event_is_kept_handed_over_and_shown() {
    for_each_store(async |store| {
        let mut service = Service::start(&store).await;
        service.state.load.store(9000, Ordering::Relaxed);
        let response = service.post_event(&goal("evt-1")).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        let accepted: EventAccepted = response.json().await.unwrap();
        assert_eq!((location.as_str(), accepted.expected_start_ms), (accepted.status_url.as_str(), 2000));
        let freeze = service.freezes.recv().await.unwrap();
        assert_eq!(freeze.job.id.to_string(), accepted.fanout_id);
        assert_eq!(freeze.job.event.subjects, ["match:4711", "team:ars"]);

        let shown: Fanout = service.get(&location).await.json().await.unwrap();
        assert_eq!(
            (shown.event_id.as_str(), shown.state.as_str(), shown.kind.as_str()),
            ("evt-1", "freezing", "original")
        );
        assert_eq!((shown.recipients, shown.pending, shown.outcomes.len()), (0, 0, 13));
        assert_eq!((shown.ledger.as_str(), shown.settled_at), ("exact", None));
    })
    .await;
}

#[tokio::test]
async fn twenty_identical_posts_at_once_are_one_fanout() {
    for_each_store(async |store| {
        let mut service = Service::start(&store).await;
        let event = goal("evt-1");
        // Twenty at once are more than have connections: whoever gets none in time is asked to come again, and does.
        let post = async || loop {
            let answer = service.post_event(&event).await;
            if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
                return answer;
            }
        };
        let posts = (0..20).map(|_| post());
        let answers = futures_util::future::join_all(posts).await;
        let mut statuses: Vec<u16> = answers.iter().map(|r| r.status().as_u16()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [vec![200; 19], vec![202]].concat());
        let mut fanouts = Vec::new();
        for answer in answers {
            fanouts.push(answer.json::<EventAccepted>().await.unwrap().fanout_id);
        }
        fanouts.dedup();
        assert_eq!(fanouts.len(), 1, "{fanouts:?}");
        assert_eq!(service.freezes.recv().await.unwrap().job.id.to_string(), fanouts[0]);
        assert!(service.freezes.try_recv().is_err(), "one freeze only");
    })
    .await;
}

#[tokio::test]
async fn the_meaning_decides_what_is_a_repeat() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let event = goal("evt-1");
        let fanout = service.post_event(&event).await.json::<EventAccepted>().await.unwrap().fanout_id;
        let mut respelled = event.clone();
        respelled["subjects"] = json!(["team:ars", "match:4711"]);
        respelled["fields"]["minute"] = json!("67");
        let repeat = service.post_event(&respelled).await;
        assert_eq!(repeat.status(), StatusCode::OK);
        assert_eq!(repeat.json::<EventAccepted>().await.unwrap().fanout_id, fanout);
        let mut other = event.clone();
        other["fields"]["score"] = json!("3-1");
        let conflict = refused(service.post_event(&other).await, 409, "event_conflict").await;
        assert!(conflict.detail.contains(&fanout) && !conflict.retryable, "{conflict:?}");
    })
    .await;
}

/// The answer to the first post may have been lost: the second must not say that what was sent was refused.
#[tokio::test]
async fn an_accepted_event_is_a_repeat_even_after_its_deadline() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let mut event = goal("evt-late");
        event["occurred_at"] = json!(ago(4));
        event["useful_for_s"] = json!(5);
        let first = service.post_event(&event).await;
        assert_eq!(first.status(), StatusCode::ACCEPTED);
        let fanout = first.json::<EventAccepted>().await.unwrap().fanout_id;
        let mut unknown = event.clone();
        unknown["id"] = json!("evt-unknown");
        while service.post_event(&unknown).await.status() != StatusCode::UNPROCESSABLE_ENTITY {
            unknown["id"] = json!(format!("evt-{}", uuid::Uuid::new_v4()));
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let repeat = service.post_event(&event).await;
        assert_eq!(repeat.status(), StatusCode::OK);
        assert_eq!(repeat.json::<EventAccepted>().await.unwrap().fanout_id, fanout);
        event["fields"]["score"] = json!("3-1");
        refused(service.post_event(&event).await, 409, "event_conflict").await;
    })
    .await;
}

#[tokio::test]
async fn every_fault_of_an_event_is_named() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        for (pointer, value) in [
            ("/id", json!("")),
            ("/id", json!(7)),
            ("/type", json!("gaol")),
            ("/match_id", json!("a b")),
            ("/occurred_at", json!("yesterday")),
            ("/occurred_at", json!(ago(-3600))),
            ("/subjects", json!([])),
            ("/fields/player", json!("Sa\u{0}ka")),
            ("/fields/player", json!({"name": "Saka"})),
            ("/data/from", json!("x")),
            ("/data/blob", json!("x")),
            ("/useful_for_s", json!(-1)),
            ("/supersedes", json!("evt-0")),
            ("/minute", json!(67)),
        ] {
            let found = refused(service.post_event(&goal_with(pointer, value.clone())).await, 422, "invalid").await;
            assert!(found.errors.iter().any(|e| e.field == pointer), "{pointer} {value}: {found:?}");
        }
        let late =
            refused(service.post_event(&goal_with("/occurred_at", json!(ago(600)))).await, 422, "event_too_late").await;
        assert!(!late.retryable);
        assert_eq!(store.backlog().await.unwrap().fanouts(), 0, "nothing refused was kept");
    })
    .await;
}

#[tokio::test]
async fn what_is_not_json_is_refused_with_its_place() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let post = async |body: &str| service.call_as("all", Method::POST, "/v1/events", Some(body.to_owned())).await;
        let bad = refused(post("{\"id\": \"e\",\n  nope").await, 400, "bad_json").await;
        assert!(bad.detail.contains("line 2 column"), "{bad:?}");
        let surrogate = goal("e").to_string().replace("Saka", "\\ud800");
        assert!(refused(post(&surrogate).await, 400, "bad_json").await.detail.contains("/fields/player"));
        refused(post(&format!("{}1{}", "[".repeat(30_000), "]".repeat(30_000))).await, 400, "bad_json").await;
        let twice = goal("e").to_string().replacen("\"score\"", "\"score\":\"0-0\",\"score\"", 1);
        assert!(refused(post(&twice).await, 422, "invalid").await.errors[0].problem.contains("\"score\""));

        let url = format!("http://{}/v1/events", service.addr);
        let typed = |name: &str, value: &str| {
            let request = service.http.post(&url).bearer_auth(service.key("all")).header(name, value);
            request.body(goal("e").to_string()).send()
        };
        refused(typed("content-type", "text/plain").await.unwrap(), 415, "unsupported_media_type").await;
        refused(typed("content-encoding", "gzip").await.unwrap(), 415, "unsupported_media_type").await;
    })
    .await;
}

#[tokio::test]
async fn a_key_does_what_its_scopes_say() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let url = format!("http://{}/v1/ceiling", service.addr);
        let none = service.http.get(&url).send().await.unwrap();
        assert_eq!(none.headers()["www-authenticate"], "Bearer");
        refused(none, 401, "unauthenticated").await;
        for header in ["Bearer nonsense", "Bearer ", "Basic YTpi", &format!("Bearer{}", service.key("all"))] {
            refused(
                service.http.get(&url).header("authorization", header).send().await.unwrap(),
                401,
                "unauthenticated",
            )
            .await;
        }
        let lower = format!("bearer {}", service.key("ops"));
        assert_eq!(service.http.get(&url).header("authorization", lower).send().await.unwrap().status(), 200);

        let calls = [
            ("events", "POST", "/v1/events"),
            ("events or ops", "GET", "/v1/fanouts"),
            ("events or ops", "GET", "/v1/fanouts/1"),
            ("events or ops", "GET", "/v1/fanouts/1/recipients/d"),
            ("ops", "POST", "/v1/fanouts/1/cancel"),
            ("devices", "PUT", "/v1/devices/d"),
            ("devices", "GET", "/v1/devices/d"),
            ("devices", "DELETE", "/v1/devices/d"),
            ("devices", "PUT", "/v1/devices/d/follows"),
            ("devices", "POST", "/v1/devices/import"),
            ("devices", "GET", "/v1/devices/export"),
            ("ops", "GET", "/v1/ceiling"),
            ("ops", "GET", "/v1/stats"),
        ];
        for (scopes, method, path) in calls {
            for key in ["events", "devices", "ops"] {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                let response = service.call_as(key, method, path, None).await;
                let may = scopes.split(" or ").any(|s| s == key);
                assert_eq!(response.status() == 403, !may, "{key} {path}: {}", response.status());
                if !may {
                    assert!(refused(response, 403, "forbidden").await.detail.contains(scopes));
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn one_keys_quota_is_not_anothers() {
    for_each_store(async |store| {
        let service =
            Service::start_with(&store, |s| s.limits.requests_per_s_per_key = 1, door::Limits::default()).await;
        assert_eq!(service.call_as("ops", Method::GET, "/v1/ceiling", None).await.status(), 200);
        let over = service.call_as("ops", Method::GET, "/v1/ceiling", None).await;
        assert_eq!(over.headers()["retry-after"], "1");
        let over = refused(over, 429, "quota_exceeded").await;
        assert!(over.retryable && over.retry_after_s == Some(1), "{over:?}");
        assert_eq!(service.call_as("all", Method::GET, "/v1/ceiling", None).await.status(), 200);
    })
    .await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        for path in ["/", "/v1", "/v2/events", "/v1/devices", "/v1/events/", "/v1/devices/a/b"] {
            refused(service.get(path).await, 404, "not_found").await;
        }
        let response = service.call(Method::DELETE, "/v1/fanouts/1", Value::Null).await;
        assert_eq!(response.headers()["allow"], "GET,HEAD");
        refused(response, 405, "method_not_allowed").await;
        for id in ["1", "abc", "-1", "99999999999999999999", "%00", "%ff"] {
            let response = service.get(&format!("/v1/fanouts/{id}")).await;
            assert!(problem(response).await.status < 500, "{id}");
        }
        for (query, field) in [
            ("?state=finished", "state"),
            ("?limit=0", "limit"),
            ("?limit=101", "limit"),
            ("?cursor=abc", "cursor"),
            ("?stat=done", "stat"),
            ("?limit=1&limit=2", "limit"),
            ("?%ff=%ff", "\u{fffd}"),
        ] {
            let found = refused(service.get(&format!("/v1/fanouts{query}")).await, 422, "invalid").await;
            assert_eq!(found.errors[0].field, field);
        }
        let found = refused(service.get("/v1/fanouts/1?wait_ms=60001").await, 422, "invalid").await;
        assert_eq!(found.errors[0].field, "wait_ms");
    })
    .await;
}

#[tokio::test]
async fn a_request_is_known_by_its_id() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let ask = |id: &'static str| {
            service.http.get(format!("http://{}/nowhere", service.addr)).header("x-request-id", id).send()
        };
        assert_eq!(ask("req-7").await.unwrap().headers()["x-request-id"], "req-7");
        let own = ask("a b\"").await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned();
        assert!(uuid::Uuid::parse_str(&own).is_ok(), "{own}");
    })
    .await;
}

#[tokio::test]
async fn fanouts_are_listed_newest_first_in_pages() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let mut ids = Vec::new();
        for n in 0..5 {
            ids.push(service.accept(&format!("evt-{n}")).await);
        }
        service.settle(ids[1]).await;
        ids.reverse();
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: FanoutList = service.get(&format!("/v1/fanouts?limit=2{cursor}")).await.json().await.unwrap();
            seen.extend(page.fanouts.iter().map(|f| f.id.parse::<FanoutId>().unwrap()));
            let Some(next) = page.next_cursor else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen, ids);
        let done: FanoutList = service.get("/v1/fanouts?state=done").await.json().await.unwrap();
        assert_eq!(done.fanouts.iter().map(|f| f.event_id.as_str()).collect::<Vec<_>>(), ["evt-1"]);
        assert_eq!(done.next_cursor, None);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_poll_holds_no_place_and_ends_with_the_fanout() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, |s| s.limits.places.read = 1, door::Limits::default()).await;
        for nudged in [true, false] {
            let id = service.accept(&format!("evt-{nudged}")).await;
            let path = format!("/v1/fanouts/{id}?wait_ms=60000");
            let poll = service.get(&path);
            let rest = async {
                // Sleeping, it has given its one place away, so these are served; 503 until it sleeps.
                while service.get("/v1/ceiling").await.status() != 200 {}
                service.settle(id).await;
                if nudged {
                    service.state.settled.send(id).unwrap();
                }
            };
            let (answer, ()) = tokio::join!(poll, rest);
            let shown: Fanout = answer.json().await.unwrap();
            assert_eq!(shown.state, "done");
            assert!(shown.settled_at.is_some());
        }
    })
    .await;
}

#[tokio::test]
async fn a_poll_is_answered_when_its_time_is_up_or_draining_begins() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let id = service.accept("evt-1").await;
        let shown: Fanout = service.get(&format!("/v1/fanouts/{id}?wait_ms=50")).await.json().await.unwrap();
        assert_eq!(shown.state, "freezing");
        let path = format!("/v1/fanouts/{id}?wait_ms=60000");
        let drain = async {
            while service.state.settled.receiver_count() == 0 {
                tokio::task::yield_now().await;
            }
            service.state.draining.cancel();
        };
        let (answer, ()) = tokio::join!(service.get(&path), drain);
        assert_eq!(answer.json::<Fanout>().await.unwrap().state, "freezing");
    })
    .await;
}

#[tokio::test]
async fn over_the_limit_requests_are_shed_before_key_body_and_database() {
    for_each_store(async |store| {
        let full = |s: &mut State| s.limits.places.interactive = 0;
        let service = Service::start_with(&store, full, door::Limits::default()).await;
        store.close().await;
        let shed = service.post_event(&goal("evt-1")).await;
        let seconds: u64 = shed.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=3).contains(&seconds));
        refused(shed, 503, "overloaded").await;
        let mut waiting = service.raw().await;
        waiting.write_all(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n").await.unwrap();
        assert!(read_until(&mut waiting, "\r\n").await.contains("503"), "shed without a key or a byte of its body");
        assert_eq!(service.get("/v1/ceiling").await.status(), 200, "readings have a room of their own");
    })
    .await;
}

#[tokio::test]
async fn a_full_backlog_takes_no_more() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, |s| s.limits.max_backlog.fanouts = 2, door::Limits::default()).await;
        let mut open = vec![service.accept("evt-1").await, service.accept("evt-2").await];
        // What waits is read while others are accepted: on a busy machine one more may get in.
        let full = loop {
            let answer = service.post_event(&goal(&format!("evt-{}", open.len() + 1))).await;
            if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
                break refused(answer, 503, "backlog_full").await;
            }
            open.push(answer.json::<EventAccepted>().await.unwrap().fanout_id.parse().unwrap());
            assert!(open.len() < 10, "it is never full");
        };
        assert!(full.retryable && full.retry_after_s.is_some());
        for id in open {
            service.settle(id).await;
        }
        until(async || service.post_event(&goal("evt-last")).await.status() == StatusCode::ACCEPTED).await;
    })
    .await;
}

#[tokio::test]
async fn an_event_is_accepted_even_when_nobody_takes_its_freeze_over() {
    for_each_store(async |store| {
        let (handover, freezes) = mpsc::channel(1);
        let service = Service::start_with(&store, |s| s.handover = handover, door::Limits::default()).await;
        service.accept("evt-1").await;
        service.accept("evt-with-a-full-queue").await;
        drop(freezes);
        service.accept("evt-with-a-closed-queue").await;
        assert_eq!(store.backlog().await.unwrap().fanouts(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_caller_who_hangs_up_leaves_no_fanout_behind_unknown() {
    for_each_store(async |store| {
        let mut service = Service::start(&store).await;
        for n in 0..20 {
            let body = goal(&format!("evt-{n}")).to_string();
            let mut stream = service.raw().await;
            stream.write_all(service.post_head(&format!("Content-Length: {}", body.len())).as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
            drop(stream);
        }
        // One posted in the ordinary way comes last; whatever was committed before it must have been handed over too.
        service.accept("evt-last").await;
        let committed = |shown: FanoutList| shown.fanouts.len();
        let mut kept = 0;
        while kept < committed(service.get("/v1/fanouts?limit=100").await.json().await.unwrap()) {
            timeout(SOON, service.freezes.recv()).await.expect("a committed freeze is handed over").unwrap();
            kept += 1;
        }
    })
    .await;
}

#[tokio::test]
async fn oversize_bodies_are_refused_without_being_read() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let mut announced = service.raw().await;
        announced.write_all(service.post_head("Content-Length: 1000000000000").as_bytes()).await.unwrap();
        let answer = read_until(&mut announced, "body_too_large").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");

        let mut endless = service.raw().await;
        endless.write_all(service.post_head("Transfer-Encoding: chunked").as_bytes()).await.unwrap();
        let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
        let (mut reader, mut writer) = endless.into_split();
        let feed = async {
            // The server stops reading; then writing fails or blocks.
            while writer.write_all(chunk.as_bytes()).await.is_ok() {}
        };
        let mut start = [0; 12];
        tokio::select! {
            () = feed => { reader.read_exact(&mut start).await.unwrap(); }
            read = reader.read_exact(&mut start) => { read.unwrap(); }
        }
        assert_eq!(&start, b"HTTP/1.1 413");
        assert_eq!(service.get("/v1/ceiling").await.status(), 200);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_reaches_a_caller_who_goes_on_writing() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let huge = " ".repeat(20_000_000);
        for _ in 0..10 {
            let response = service.call_as("all", Method::POST, "/v1/events", Some(huge.clone())).await;
            refused(response, 413, "body_too_large").await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_no_event() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let body = goal("evt-1").to_string();
        let mut liar = service.raw().await;
        let head = service.post_head(&format!("Content-Length: {}", body.len() + 10));
        liar.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        liar.shutdown().await.unwrap();
        let answer = until_closed(liar).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        let both = "Content-Length: 5\r\nContent-Length: 6";
        let smuggled = "Content-Length: abc";
        for lie in [both, smuggled] {
            let mut liar = service.raw().await;
            liar.write_all(service.post_head(lie).as_bytes()).await.unwrap();
            assert!(until_closed(liar).await.starts_with("HTTP/1.1 400"), "{lie}");
        }
        assert_eq!(store.backlog().await.unwrap().fanouts(), 0);
    })
    .await;
}

#[tokio::test]
async fn clients_that_dawdle_are_dropped_while_others_are_served() {
    for_each_store(async |store| {
        let quick = door::Limits { header: Duration::from_millis(300), max_connections: 8, ..Default::default() };
        let service = Service::start_with(&store, |_| (), quick).await;
        let mut dawdlers = Vec::new();
        for opening in ["", "P", "PRI * HTTP/2.0\r\n", "POST /v1/events HTTP/1.1\r\nHost: x\r\nX-A: "] {
            let mut stream = service.raw().await;
            stream.write_all(opening.as_bytes()).await.unwrap();
            dawdlers.push(stream);
        }
        assert_eq!(service.get("/v1/ceiling").await.status(), 200);
        for dawdler in dawdlers {
            until_closed(dawdler).await;
        }
        let mut long = service.raw().await;
        long.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ").await.unwrap();
        let _ = long.write_all(&vec![b'a'; 100_000]).await;
        let answer = until_closed(long).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn a_connection_over_the_cap_takes_the_place_of_the_one_that_was_idle_longest() {
    for_each_store(async |store| {
        let three = door::Limits { max_connections: 3, ..Default::default() };
        let service = Service::start_with(&store, |_| (), three).await;
        let request = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n";
        let id = service.accept("evt-1").await;
        let mut busy = service.poll(id).await;
        // Without a key, and asking for nothing that is there: ten times as many as there may be, and none hangs up.
        let mut all = Vec::new();
        for _ in 0..30 {
            let mut stream = service.raw().await;
            stream.write_all(request).await.unwrap();
            read_until(&mut stream, "}").await;
            all.push(stream);
        }
        let youngest = all.split_off(all.len() - 2);
        for stream in all {
            until_closed(stream).await;
        }
        for mut stream in youngest {
            stream.write_all(request).await.unwrap();
            read_until(&mut stream, "}").await;
        }
        service.settle(id).await;
        assert!(read_until(&mut busy, "recipients").await.starts_with("HTTP/1.1 200"), "it was in use all the while");
    })
    .await;
}

#[tokio::test]
async fn connections_over_the_cap_wait_while_all_are_in_use_and_are_served_in_turn() {
    for_each_store(async |store| {
        let one = door::Limits { max_connections: 1, ..Default::default() };
        let service = Service::start_with(&store, |_| (), one).await;
        let id = service.accept("evt-1").await;
        let mut first = service.poll(id).await;
        let mut second = service.raw().await;
        second.write_all(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut byte = [0];
        assert!(timeout(Duration::from_millis(100), second.peek(&mut byte)).await.is_err(), "no place yet");
        service.settle(id).await;
        assert!(read_until(&mut first, "recipients").await.starts_with("HTTP/1.1 200"));
        read_until(&mut second, "not_found").await;
    })
    .await;
}

/// A header has five seconds each time, not only the first one of its connection.
#[tokio::test]
async fn half_a_second_header_is_dropped_like_half_a_first_one() {
    for_each_store(async |store| {
        let quick = door::Limits { header: Duration::from_millis(300), ..Default::default() };
        let service = Service::start_with(&store, |_| (), quick).await;
        let request = "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut dawdler = service.raw().await;
        let mut idle = service.raw().await;
        for stream in [&mut dawdler, &mut idle] {
            stream.write_all(request.as_bytes()).await.unwrap();
            read_until(stream, "}").await;
        }
        dawdler.write_all(&request.as_bytes()[..9]).await.unwrap();
        until_closed(dawdler).await;
        idle.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut idle, "}").await;
    })
    .await;
}

#[tokio::test]
async fn http_2_with_prior_knowledge_is_spoken() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
        let url = format!("http://{}/v1/ceiling", service.addr);
        let response = http2.get(url).bearer_auth(service.key("ops")).send().await.unwrap();
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        assert_eq!(response.json::<CeilingAnswer>().await.unwrap(), ceiling());
    })
    .await;
}

#[tokio::test]
async fn a_stop_waits_for_requests_in_progress_and_not_for_ever() {
    for_each_store(async |store| {
        for (grace, finishes) in [(SOON, true), (Duration::from_millis(200), false)] {
            let limits = door::Limits { grace, ..Default::default() };
            let service = Service::start_with(&store, |_| (), limits).await;
            let idle = service.raw().await;
            let body = goal("evt-1").to_string();
            let mut busy = service.raw().await;
            let head = service.post_head(&format!("Content-Length: {}\r\nExpect: 100-continue", body.len()));
            busy.write_all(head.as_bytes()).await.unwrap();
            read_until(&mut busy, "100 Continue\r\n\r\n").await;
            service.stop.cancel();
            until_closed(idle).await;
            if finishes {
                busy.write_all(body.as_bytes()).await.unwrap();
                assert!(read_until(&mut busy, "fanout_id").await.contains("202"));
                assert_eq!(service.stop().await, Ok(()));
            } else {
                assert_eq!(service.stop().await.unwrap_err().connections, 1);
            }
        }
    })
    .await;
}

#[derive(clap::Parser)]
enum Line {
    Send(SendArgs),
    #[command(subcommand)]
    Fanout(FanoutCommand),
    #[command(subcommand)]
    Devices(DevicesCommand),
}

impl Service {
    /// Runs a command of the command line against this service.
    async fn cli(&self, args: &[&str]) -> Result<(), Failure> {
        let (url, key) = (format!("http://{}", self.addr), self.key("all"));
        let line = [&["fanfare"], args, &["--url", &url, "--key", key]].concat();
        match Line::try_parse_from(line).unwrap() {
            Line::Send(args) => cli::send::run(args).await,
            Line::Fanout(command) => cli::fanout::run(command).await,
            Line::Devices(command) => cli::devices::run(command).await,
        }
    }
}

#[tokio::test]
async fn the_command_line_posts_waits_and_lists() {
    for_each_store(async |store| {
        let mut service = Service::start(&store).await;
        let goal =
            ["send", "goal", "--match", "4711", "--id", "evt-1", "--field", "home=Arsenal", "--field", "away=Chelsea"];
        let goal = [&goal[..], &["--field", "score=2-1", "--field", "minute=67", "--field", "player=Saka"]].concat();
        service.cli(&goal).await.unwrap();
        let freeze = service.freezes.recv().await.unwrap().job;
        assert_eq!((freeze.event.id.as_str(), &freeze.event.fields["minute"][..]), ("evt-1", "67"));
        let id = freeze.id.to_string();
        let wait = ["fanout", "show", &id, "--wait", "0"];
        assert!(matches!(service.cli(&wait).await, Err(Failure::Runtime(why)) if why.contains("not settled")));
        service.settle(freeze.id).await;
        service.cli(&["fanout", "show", &id, "--wait"]).await.unwrap();
        service.cli(&["fanout", "list", "--state", "done", "--json"]).await.unwrap();
        service.cli(&["fanout", "explain", &id, "nobody"]).await.unwrap();
        let late = service.cli(&["fanout", "cancel", &id]).await;
        assert!(matches!(late, Err(Failure::Runtime(why)) if why.starts_with("fanout_settled")));
        let bad = service.cli(&["send", "gaol", "--match", "1"]).await;
        assert!(matches!(bad, Err(Failure::Runtime(why)) if why.contains("did you mean goal?")));
    })
    .await;
}

#[tokio::test]
async fn the_command_line_imports_from_a_file() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("devices.ndjson");
        let good = json!({"id": "d1", "user_id": "u", "token": "t", "platform": "web", "follows": ["team:ars"]});
        std::fs::write(&file, format!("{good}\n")).unwrap();
        let import = ["devices", "import", file.to_str().unwrap()];
        service.cli(&import).await.unwrap();
        service.cli(&["devices", "show", "d1"]).await.unwrap();
        std::fs::write(&file, format!("{good}\nnonsense\n")).unwrap();
        assert!(matches!(service.cli(&import).await, Err(Failure::Runtime(why)) if why.starts_with("1 line")));
        let missing = service.cli(&["devices", "import", "/nowhere/at/all"]).await;
        assert!(matches!(missing, Err(Failure::Runtime(why)) if why.contains("/nowhere/at/all")));
        store.close().await;
        assert!(matches!(service.cli(&["devices", "show", "d1"]).await, Err(Failure::Unavailable(_))));
    })
    .await;
}

#[tokio::test]
async fn without_its_database_the_service_says_try_again() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        store.close().await;
        let response = service.post_event(&goal("evt-1")).await;
        assert!(response.headers().contains_key("retry-after"));
        let down = refused(response, 503, "database_unavailable").await;
        assert!(down.retryable && !down.detail.to_lowercase().contains("sql"), "{down:?}");
        refused(service.get("/v1/fanouts/1").await, 503, "database_unavailable").await;
    })
    .await;
}

#[tokio::test]
async fn health_is_told_part_by_part() {
    let parts = Arc::new(std::sync::Mutex::new(vec![
        ("database".to_owned(), Part::Well("sqlite".to_owned())),
        ("sender".to_owned(), Part::Well("idle".to_owned())),
    ]));
    let told = Arc::clone(&parts);
    let ops = api::ops_router(api::OpsState {
        parts: Arc::new(move || told.lock().unwrap().clone()),
        metrics: Arc::new(|| "# EOF\n".to_owned()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(door::serve(listener, ops, door::Limits::default(), stop.clone()));
    let get = async |path: &str| {
        let response = reqwest::get(format!("http://{addr}{path}")).await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(get("/readyz?verbose").await.1, "[+] database: sqlite\n[+] sender: idle\nready\n");
    assert_eq!(get("/metrics").await, (200, "# EOF\n".to_owned()));
    assert_eq!(get("/nowhere").await.0, 404);
    parts.lock().unwrap()[1].1 = Part::Degraded("no access token".to_owned());
    assert_eq!(get("/readyz").await, (200, "ready\n".to_owned()), "what is taken now is sent later");
    assert_eq!(get("/readyz?verbose").await.1, "[+] database: sqlite\n[~] sender: no access token\nready\n");
    parts.lock().unwrap()[0].1 = Part::Failed("no answer for 3 s".to_owned());
    assert_eq!(get("/readyz").await, (503, "[-] database: no answer for 3 s\nnot ready\n".to_owned()));
    assert_eq!(get("/healthz").await.0, 503);
    assert_eq!(get("/livez").await.0, 200, "a dead database is no reason to be restarted");
    stop.cancel();
    task.await.unwrap().unwrap();
}
