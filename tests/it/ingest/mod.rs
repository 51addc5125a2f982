//! The door in bad weather: hostile and hasty callers over real sockets, each with its expected answer, and others served
//! all the while.

mod crowds;
mod frames;
mod lines;
mod shares;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare::api::{self, Keys, Scope, State};
use fanfare::client::{Client, ClientError};
use fanfare::domain::ids::DeviceId;
use fanfare::door;
use fanfare::emulator::Control;
use fanfare::store::Store;
use fanfare::store::postgres::PostgresStore;
use fanfare::wire::{EventAccepted, EventRequest};
use reqwest::{Method, StatusCode};
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::api::{SOON, Service, for_each_store, goal, goal_with, problem, read_until, refused, until, until_closed};
use crate::harness::postgres::TestDatabase;
use crate::harness::service::{Database, World};

fn set(change: impl FnOnce(&mut api::Limits)) -> impl FnOnce(&mut State) {
    |state| change(&mut state.limits)
}

fn post(service: &Service, body: &str) -> String {
    format!("{}{body}", service.post_head(&format!("Content-Length: {}", body.len())))
}

async fn on_postgres(limits: door::Limits, change: impl FnOnce(&mut State)) -> (TestDatabase, Arc<dyn Store>, Service) {
    let database = TestDatabase::create().await;
    let store = Arc::new(PostgresStore::connect(&database.url.clone().into(), 8).unwrap()) as Arc<dyn Store>;
    store.migrate().await.unwrap();
    let service = Service::start_with(&store, change, limits).await;
    (database, store, service)
}

/// Requests that two parsers could take for different ones, and what none could take for one. The answer is 400, or none;
/// nothing is kept, and whatever follows on the connection is not read as a request.
#[tokio::test]
async fn a_request_that_can_be_read_in_two_ways_is_not_read_at_all() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let smuggled = post(&service, &goal("evt-smuggled").to_string());
        let body = goal("evt-1").to_string();
        let n = body.len();
        let chunked = format!("{n:x}\r\n{body}\r\n0\r\n\r\n");
        for (head, body) in [
            ("Transfer-Encoding: chunked, identity".to_owned(), &chunked),
            ("Transfer-Encoding: identity".to_owned(), &chunked),
            ("Transfer-Encoding: \x0bchunked".to_owned(), &chunked),
            ("Transfer-Encoding : chunked".to_owned(), &chunked),
            (format!("Content-Length: {n}\r\nContent-Length: {}", n + 1), &body),
            (format!("Content-Length: +{n}"), &body),
            ("Content-Length: -1".to_owned(), &body),
            (format!("Content-Length: {n}, {n}1"), &body),
            ("Content-Length: 99999999999999999999999".to_owned(), &body),
            (format!("X-A: 1\r\n Content-Length: {n}"), &body),
            ("Transfer-Encoding: chunked".to_owned(), &format!("0x{n:x}\r\n{body}\r\n0\r\n\r\n")),
            ("Transfer-Encoding: chunked".to_owned(), &format!("{n:x}\n{body}\n0\n\n")),
            ("Transfer-Encoding: chunked".to_owned(), &format!("-1\r\n{body}\r\n0\r\n\r\n")),
            ("Transfer-Encoding: chunked".to_owned(), &format!("ffffffffffffffff1\r\n{body}\r\n0\r\n\r\n")),
        ] {
            let mut stream = service.raw().await;
            stream.write_all(format!("{}{body}", service.post_head(&head)).as_bytes()).await.unwrap();
            stream.write_all(smuggled.as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
            let answer = until_closed(stream).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{head:?}: {answer}");
            assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{head:?} was answered twice: {answer}");
            assert_eq!(store.backlog().await.unwrap().fanouts(), 0, "{head:?}");
        }
        // Both given: the chunks count, whatever the length says (RFC 9112, 6.3), so that no second request hides in the body.
        for length in [5, n, n + smuggled.len()] {
            for order in
                [["Transfer-Encoding: chunked", "Content-Length: "], ["Content-Length: ", "Transfer-Encoding: chunked"]]
            {
                let head =
                    order.map(|h| if h.ends_with(' ') { format!("{h}{length}") } else { h.to_owned() }).join("\r\n");
                let mut stream = service.raw().await;
                stream.write_all(format!("{}{chunked}", service.post_head(&head)).as_bytes()).await.unwrap();
                let answer = read_until(&mut stream, "fanout_id").await;
                assert!(answer.starts_with("HTTP/1.1 20"), "{head:?}: {answer}");
            }
        }
        assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
        service.accept("evt-2").await;
    })
    .await;
}

/// What a refusal leaves unread: a small body that has come is passed over, anything else ends the connection.
#[tokio::test]
async fn a_refused_request_gives_up_its_connection_unless_its_body_has_come() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, set(|l| l.places.interactive = 0), door::Limits::default()).await;
        let next = "GET /v1/nowhere HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut whole = service.raw().await;
        whole.write_all(format!("{}{next}", post(&service, &goal("evt-1").to_string())).as_bytes()).await.unwrap();
        assert!(read_until(&mut whole, "not_found").await.contains("overloaded"));

        let mut endless = service.raw().await;
        endless.write_all(service.post_head("Transfer-Encoding: chunked").as_bytes()).await.unwrap();
        let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000));
        let mut written = 0;
        let feeding = async {
            while endless.write_all(chunk.as_bytes()).await.is_ok() {
                written += chunk.len();
            }
        };
        timeout(SOON, feeding).await.expect("nobody reads an endless body that was refused");
        assert!(written < 64 << 20, "{written} bytes were taken");
        assert_eq!(service.get("/v1/ceiling").await.status(), 200);
    })
    .await;
}

/// Bytes that are no text, in a body, a path and headers.
#[tokio::test]
async fn bytes_that_are_no_text_are_refused_by_name() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        for (n, wrong) in [&b"\xff"[..], b"\xc3\x28", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf", b"\xe2\x82"]
            .into_iter()
            .enumerate()
        {
            let event = goal_with("/fields/player", json!("here")).to_string();
            let (before, after) = event.split_once("here").unwrap();
            let body = [before.as_bytes(), wrong, after.as_bytes()].concat();
            let head = service.post_head(&format!("Content-Length: {}\r\nConnection: close", body.len()));
            let mut stream = service.raw().await;
            stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
            let answer = timeout(SOON, until_closed(stream)).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"bad_json\""), "{n}: {answer}");
        }
        let key = service.key("all");
        let (known, end) = (format!("Host: x\r\nAuthorization: Bearer {key}\r\n"), "Connection: close\r\n\r\n");
        for (line, headers, status) in [
            (&b"GET /v1/fanouts/%ff HTTP/1.1\r\n"[..], known.as_bytes(), "400"),
            (b"GET /v1/devices/%c0%af HTTP/1.1\r\n", known.as_bytes(), "400"),
            (b"GET /v1/ceiling HTTP/1.1\r\n", b"Host: x\r\nAuthorization: Bearer \xff\r\n", "401"),
            (b"GET /v1/ceiling HTTP/1.1\r\n", &[known.as_bytes(), b"X-Request-Timeout-Ms: \xff\r\n"].concat(), "400"),
            (b"GET /v1/ceiling HTTP/1.1\r\n", &[known.as_bytes(), b"X-Request-Id: \xff\r\n"].concat(), "200"),
        ] {
            let mut stream = service.raw().await;
            stream.write_all(&[line, headers, end.as_bytes()].concat()).await.unwrap();
            let answer = timeout(SOON, until_closed(stream)).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{line:?}: {answer}");
            assert!(!answer.contains('\u{fffd}'), "what was sent is not shown: {answer}");
        }
        assert_eq!(store.backlog().await.unwrap().fanouts(), 0);
    })
    .await;
}

/// Text that would move a terminal's cursor, end a log line or turn its direction round, in every field that takes text.
#[tokio::test]
async fn control_characters_reach_neither_an_answer_nor_a_log_line() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let hostile = "\u{1b}[31mGOAL\u{1b}[0m\r\nlevel=ERROR forged=1\u{202e}\u{0}";
        let texts = ["/id", "/type", "/match_id", "/occurred_at", "/subjects", "/fields/home", "/fields/score"];
        for pointer in texts.iter().chain(&["/fields/player", "/fields/minute", "/data/deeplink"]) {
            let value = if *pointer == "/subjects" { json!([hostile]) } else { json!(hostile) };
            let response = service.post_event(&goal_with(pointer, value)).await;
            let status = response.status();
            let text = response.text().await.unwrap();
            assert!(status == StatusCode::UNPROCESSABLE_ENTITY || status.is_success(), "{pointer}: {status} {text}");
            assert!(!text.contains(['\u{1b}', '\r', '\u{0}', '\u{202e}']), "{pointer}: {text:?}");
        }
        for header in ["\u{1b}[31m", "a\tb", "x;forged=1"] {
            let request = format!("GET /v1/ceiling HTTP/1.1\r\nHost: x\r\nX-Request-Id: {header}\r\n\r\n");
            let mut stream = service.raw().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = timeout(SOON, async {
                let _ = stream.shutdown().await;
                until_closed(stream).await
            });
            let answer = answer.await.unwrap();
            assert!(!answer.contains(header), "{answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_caller_in_a_hurry_is_refused_at_once_or_answered() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let call = async |ms: &str, id: &str| {
            let url = format!("http://{}/v1/events", service.addr);
            let request = reqwest::Client::new().post(url).bearer_auth(service.key("events"));
            request.header("X-Request-Timeout-Ms", ms).json(&goal(id)).send().await.unwrap()
        };
        refused(call("soon", "evt-1").await, 400, "bad_request").await;
        let hasty = refused(call("0", "evt-1").await, 503, "out_of_time").await;
        assert!(hasty.retryable && hasty.detail.contains("x-request-timeout-ms"), "{hasty:?}");
        assert_eq!(store.backlog().await.unwrap().fanouts(), 0);
        until(async || call("60000", "evt-1").await.status().is_success()).await;
    })
    .await;
}

/// A caller is not kept waiting past its time, and what it posted is kept or not, but never half.
#[tokio::test]
async fn a_database_that_stalls_costs_a_caller_no_more_than_its_time() {
    let (database, store, service) = on_postgres(door::Limits::default(), set(|l| l.places.interactive = 2)).await;
    service.accept("evt-0").await;
    let mut blocker = database.connection().await;
    blocker.execute("BEGIN; LOCK TABLE event IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let key = SecretString::from(service.key("events").to_owned());
    let post = async |id: &str, ms: u64| {
        let url = format!("http://{}/v1/events", service.addr);
        let request = reqwest::Client::new().post(url).bearer_auth(secrecy::ExposeSecret::expose_secret(&key));
        request.header("X-Request-Timeout-Ms", ms.to_string()).json(&goal(id)).send().await.unwrap()
    };
    let begun = Instant::now();
    let both = tokio::join!(post("evt-1", 300), post("evt-2", 300));
    for answer in [both.0, both.1] {
        let late = refused(answer, 503, "out_of_time").await;
        assert!(late.detail.contains("may have been kept"), "{late:?}");
    }
    // Both writes are under way still and have their places, so the next is shed without a look at the database.
    refused(post("evt-3", 5_000).await, 503, "overloaded").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(service.get("/v1/ceiling").await.status(), 200);
    blocker.execute("ROLLBACK").await.unwrap();
    until(async || store.backlog().await.is_ok_and(|waiting| waiting.fanouts() == 3)).await;
    assert_eq!(service.posted(&goal("evt-3")).await.status(), 202);
}

/// An event that comes too late is looked up, in case it came before: that costs no more than the caller's time either.
#[tokio::test]
async fn a_database_that_stalls_costs_the_caller_of_a_late_event_no_more_than_its_time() {
    let (database, store, service) = on_postgres(door::Limits::default(), set(|l| l.places.interactive = 1)).await;
    let late = goal_with("/occurred_at", json!("2020-01-01T12:00:00Z"));
    refused(service.post_event(&late).await, 422, "event_too_late").await;
    let mut blocker = database.connection().await;
    blocker.execute("BEGIN; LOCK TABLE event IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let url = format!("http://{}/v1/events", service.addr);
    let request = reqwest::Client::new().post(url).bearer_auth(service.key("events"));
    let answer = request.header("X-Request-Timeout-Ms", "300").json(&late).send().await.unwrap();
    refused(answer, 503, "out_of_time").await;
    // The database is at work for it still, and so its place is not free.
    refused(service.post_event(&goal("evt-1")).await, 503, "overloaded").await;
    blocker.execute("ROLLBACK").await.unwrap();
    assert!(service.posted(&goal("evt-1")).await.status().is_success());
    drop(store);
}

/// Whoever asks and hangs up has no more work going in the database than there are places, however often it does so.
#[tokio::test]
async fn callers_who_hang_up_have_no_more_work_going_than_there_are_places() {
    let (database, store, service) = on_postgres(door::Limits::default(), set(|l| l.places.read = 2)).await;
    let mut watcher = database.connection().await;
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let key = service.key("all").to_owned();
    let follows = r#"{"follows":[]}"#;
    for (table, call, body) in [
        ("device", "DELETE /v1/devices/d1", ""),
        ("device", "GET /v1/devices/d1", ""),
        ("device", "PUT /v1/devices/d1/follows", follows),
        ("fanout", "GET /v1/fanouts", ""),
        ("fanout", "GET /v1/fanouts/1", ""),
        ("fanout", "GET /v1/fanouts/1/recipients/d1", ""),
        ("fanout", "POST /v1/fanouts/1/cancel", ""),
    ] {
        let mut blocker = database.connection().await;
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut blocker).await.unwrap();
        let request = format!(
            "{call} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (mut most, mut shed) = (0, 0);
        for _ in 0..100 {
            let mut stream = service.raw().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            // It is answered, or its work has begun: then it hangs up.
            let seen = most;
            let mut head = [0; 12];
            let answered = async {
                stream.read_exact(&mut head).await.unwrap();
                assert_eq!(&head, b"HTTP/1.1 503", "{call}");
                1
            };
            let begun = async {
                until(async || {
                    most = most.max(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut watcher).await.unwrap());
                    most > seen
                })
                .await;
                0
            };
            shed += tokio::select! { n = answered => n, n = begun => n };
        }
        assert!(most == 2 && shed >= 90, "{call}: {most} at once, {shed} of 100 were shed");
        blocker.execute("ROLLBACK").await.unwrap();
        until(async || service.get("/v1/fanouts").await.status().is_success()).await;
    }
    drop(store);
}

/// All connections but those of events are stuck, and events go on.
#[tokio::test]
async fn events_have_connections_of_their_own() {
    let (database, store, service) = on_postgres(door::Limits::default(), |_| ()).await;
    let device = json!({"user_id": "u1", "token": "tok-1", "platform": "web"});
    assert!(service.call(Method::PUT, "/v1/devices/d1", device.clone()).await.status().is_success());
    let mut blocker = database.connection().await;
    blocker.execute("BEGIN; SELECT 1 FROM device FOR UPDATE").await.unwrap();
    let stuck: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.delete_device(DeviceId::parse("d1").unwrap()).await })
        })
        .collect();
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut watcher = database.connection().await;
    until(async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut watcher).await.unwrap() >= 5).await;
    for n in 0..10 {
        service.accept(&format!("evt-{n}")).await;
    }
    blocker.execute("ROLLBACK").await.unwrap();
    for call in stuck {
        // Who waited for a lock or a connection for 2 s was told so.
        let _ = call.await.unwrap();
    }
}

#[tokio::test]
async fn a_key_for_bulk_work_cannot_take_the_places_of_events() {
    for_each_store(async |store| {
        let (secret, entry) = api::keys::generate("nightly", &[Scope::Events]).unwrap();
        let (usual, other) = api::keys::generate("backend", &[Scope::Events]).unwrap();
        let change = |state: &mut State| {
            state.keys = Arc::new(Keys::parse(&format!("{entry}:bulk,{other}")).unwrap());
            state.limits.places.bulk = 0;
        };
        let service = Service::start_with(&store, change, door::Limits::default()).await;
        let post = async |key: &str| {
            let url = format!("http://{}/v1/events", service.addr);
            reqwest::Client::new().post(url).bearer_auth(key).json(&goal("evt-1")).send().await.unwrap()
        };
        refused(post(&secret).await, 503, "overloaded").await;
        until(async || post(&usual).await.status().is_success()).await;
    })
    .await;
}

/// An event that is accepted now is sent when there is a token: that is no reason to take the instance out.
#[tokio::test]
async fn without_an_access_token_events_are_taken_and_the_instance_is_ready() {
    let world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { oauth_answer: Some("unavailable".into()), ..Control::default() });
    let service = world.spawn().await;
    let ready = reqwest::get(format!("{}/readyz", service.ops)).await.unwrap();
    assert_eq!((ready.status(), ready.text().await.unwrap().as_str()), (StatusCode::OK, "ready\n"));
    let verbose = reqwest::get(format!("{}/readyz?verbose", service.ops)).await.unwrap().text().await.unwrap();
    assert!(verbose.contains("[~] credentials: ") && verbose.contains("[+] database: "), "{verbose}");
    service.goal("evt-1", "m1", 120).await;
}

/// Nobody posts, and what is shown is what there is.
#[tokio::test]
async fn the_backlog_that_is_shown_does_not_grow_old() {
    for_each_store(async |store| {
        let mut registry = fanfare::metrics::Metrics::new();
        let measured = api::Measured::register(&mut registry);
        let service = Service::start_with(&store, |state| state.measured = measured, door::Limits::default()).await;
        let tended = tokio::spawn(api::router(service.state.clone()).tend());
        // Accepted by another instance: nobody has asked this one for anything.
        let other = Service::start(&store).await;
        let id = other.accept("evt-1").await;
        until(async || registry.render().contains("fanfare_backlog_fanouts 1")).await;
        other.settle(id).await;
        until(async || registry.render().contains("fanfare_backlog_fanouts 0")).await;
        tended.abort();
    })
    .await;
}

#[tokio::test]
async fn a_client_comes_back_when_it_was_asked_to_and_is_accepted_then() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, set(|l| l.max_backlog.fanouts = 1), door::Limits::default()).await;
        let first = service.accept("evt-1").await;
        let client = Client::new(&format!("http://{}", service.addr), service.key("events").to_owned().into()).unwrap();
        let event: EventRequest = serde_json::from_value(goal("evt-2")).unwrap();
        let begun = Instant::now();
        let post = client.post_event(&event);
        let settle = async {
            until(async || problem(service.post_event(&goal("evt-3")).await).await.code == "backlog_full").await;
            service.settle(first).await;
        };
        let (posted, ()) = tokio::join!(post, settle);
        let (accepted, repeat): (EventAccepted, bool) = posted.unwrap();
        assert!(!repeat && accepted.fanout_id != first.to_string());
        assert!(begun.elapsed() >= Duration::from_secs(1), "Retry-After is a second at least");
        // What no waiting mends is said at once.
        let stranger = Client::new(&format!("http://{}", service.addr), "nobody".to_owned().into()).unwrap();
        let Err(ClientError::Refused(refusal)) = stranger.post_event(&event).await else { panic!("it has no key") };
        assert_eq!(refusal.code, "unauthenticated");
    })
    .await;
}

/// Every call with the pool it is served from, the scopes that may make it, and the largest body it takes. A call that is
/// missing here, or does not ask for a key, fails this test.
#[tokio::test]
async fn every_call_asks_for_a_key_and_has_a_pool_and_a_limit() {
    const NONE: usize = 0;
    const STREAM: usize = usize::MAX;
    const ROUTES: &[(&str, &str, &str, &str, usize)] = &[
        ("post", "/v1/events", "interactive", "events", 64 << 10),
        ("get", "/v1/fanouts", "read", "events ops", NONE),
        ("get", "/v1/fanouts/{id}", "read", "events ops", NONE),
        ("get", "/v1/fanouts/{id}/recipients/{device}", "read", "events ops", NONE),
        ("post", "/v1/fanouts/{id}/cancel", "read", "ops", NONE),
        ("post", "/v1/fanouts/{id}/replay", "bulk", "ops", 64 << 10),
        ("post", "/v1/fanouts/{id}/resume", "bulk", "ops", 64 << 10),
        ("post", "/v1/sweeps", "bulk", "ops", 64 << 10),
        ("get", "/v1/sweeps/{id}", "read", "ops", NONE),
        ("put", "/v1/devices/{id}", "read", "devices", 64 << 10),
        ("get", "/v1/devices/{id}", "read", "devices", NONE),
        ("delete", "/v1/devices/{id}", "read", "devices", NONE),
        ("put", "/v1/devices/{id}/follows", "read", "devices", 256 << 10),
        ("post", "/v1/devices/import", "bulk", "devices", STREAM),
        ("get", "/v1/devices/export", "bulk", "devices", NONE),
        ("get", "/v1/ceiling", "read", "ops", NONE),
        ("get", "/v1/stats", "read", "ops", NONE),
    ];
    let dir = tempfile::tempdir().unwrap();
    let store = fanfare::store::sqlite::SqliteStore::open(&dir.path().join("f.db")).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    store.migrate().await.unwrap();
    let service = Service::start(&store).await;
    let document: Value = service.get("/openapi.json").await.json().await.unwrap();
    let mut open = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            open.insert((method.clone(), path.clone()), operation["security"].clone());
        }
    }
    for (method, path, pool, scopes, limit) in ROUTES {
        let security = open.remove(&((*method).to_owned(), (*path).to_owned()));
        let security = security.unwrap_or_else(|| panic!("{method} {path} is not in the document"));
        let told: Vec<&str> = security.as_array().unwrap().iter().filter_map(|one| one["key"][0].as_str()).collect();
        assert_eq!(told.join(" "), *scopes, "{method} {path}");
        let path = path.replace("{id}", "1").replace("{device}", "d");
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let bare = reqwest::Client::new().request(method.clone(), format!("http://{}{path}", service.addr));
        refused(bare.send().await.unwrap(), 401, "unauthenticated").await;
        for scope in ["events", "devices", "ops"].into_iter().filter(|scope| !scopes.contains(scope)) {
            refused(service.call_as(scope, method.clone(), &path, None).await, 403, "forbidden").await;
        }
        for size in [64 << 10, (64 << 10) + 1, 256 << 10, (256 << 10) + 1] {
            let answer = service.call_as("all", method.clone(), &path, Some(" ".repeat(size))).await.status();
            let refused = (1..size).contains(limit);
            assert_eq!(answer == StatusCode::PAYLOAD_TOO_LARGE, refused, "{method} {path} with {size} bytes: {answer}");
        }
        let shut = |state: &mut State| {
            let places = &mut state.limits.places;
            *match *pool {
                "interactive" => &mut places.interactive,
                "read" => &mut places.read,
                _ => &mut places.bulk,
            } = 0;
        };
        let shut = Service::start_with(&store, shut, door::Limits::default()).await;
        refused(shut.call_as("all", method, &path, None).await, 503, "overloaded").await;
    }
    open.retain(|_, security| !security.is_null());
    assert_eq!(open.into_keys().collect::<Vec<_>>(), [], "calls without a line in this test");
}
