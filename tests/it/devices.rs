//! Registering, following and importing devices through the API, on every store.

#![allow(clippy::unwrap_used)] // the switch for tests does not reach what tests share

use std::time::Duration;

use bytes::Bytes;
use fanfare::api;
use fanfare::client::{Client, ClientError, ListQuery};
use fanfare::devices::MAX_LINE_BYTES;
use fanfare::domain::catalogue::{BUILT_IN, Catalogue};
use fanfare::domain::ids::{DeviceId, DeviceKey};
use fanfare::domain::recipient::DeviceState;
use fanfare::door;
use fanfare::store::{FollowerPage, Store};
use fanfare::wire::{
    DeviceAnswer, DeviceRegistered, DeviceRequest, EventRequest, FollowEntry, FollowsRequest, ImportAnswer,
};
use futures_util::stream;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::api::{SOON, Service, for_each_store, refused, until};

fn device(token: &str) -> Value {
    json!({"user_id": "u1", "token": token, "platform": "android", "locale": "pt-BR"})
}

impl Service {
    async fn put(&self, path: &str, body: Value) -> reqwest::Response {
        self.call(Method::PUT, path, body).await
    }

    async fn shown(&self, id: &str) -> DeviceAnswer {
        self.get(&format!("/v1/devices/{id}")).await.json().await.unwrap()
    }

    async fn import(&self, kind: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        let url = format!("http://{}/v1/devices/import", self.addr);
        let request = reqwest::Client::new().post(url).bearer_auth(self.key("devices"));
        request.header("content-type", kind).body(body).send().await.unwrap()
    }

    async fn imported(&self, body: String) -> ImportAnswer {
        let response = self.import("application/x-ndjson", body).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.unwrap()
    }

    fn client(&self, key: &str) -> Client {
        Client::new(&format!("http://{}", self.addr), self.key(key).to_owned().into()).unwrap()
    }
}

async fn followers(store: &dyn Store, subject: &str, kind: &str) -> usize {
    let kinds = Catalogue::parse(BUILT_IN).unwrap().mask([kind]).unwrap();
    let page = FollowerPage { subject: subject.to_owned(), kinds, after: DeviceKey(0), limit: 10_000 };
    store.follower_page(page).await.unwrap().len()
}

#[tokio::test]
async fn a_device_registers_follows_and_leaves() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let new = service.put("/v1/devices/d1", device(" tok-secret-1 ")).await;
        assert_eq!(new.status(), StatusCode::CREATED);
        assert_eq!(new.json::<DeviceRegistered>().await.unwrap().id, "d1");
        assert_eq!(service.put("/v1/devices/d1", device("tok-secret-1")).await.status(), StatusCode::OK);

        let follows =
            json!({"follows": [{"subject": "team:ars", "types": ["goal"]}, "match:4711"], "muted": ["corner"]});
        assert_eq!(service.put("/v1/devices/d1/follows", follows).await.status(), StatusCode::NO_CONTENT);
        let text = service.get("/v1/devices/d1").await.text().await.unwrap();
        assert!(!text.contains("tok-secret"), "{text}");
        let shown: DeviceAnswer = serde_json::from_str(&text).unwrap();
        assert_eq!((shown.user_id.as_str(), shown.locale.as_str(), shown.state.as_str()), ("u1", "pt-BR", "live"));
        assert_eq!((shown.addressed_by.as_str(), shown.address_hash.len()), ("token", 12));
        let entry = |subject: &str, types: Option<&str>| FollowEntry {
            subject: subject.to_owned(),
            types: types.map(|name| vec![name.to_owned()]),
        };
        assert_eq!(shown.follows, [entry("match:4711", None), entry("team:ars", Some("goal"))]);
        assert_eq!(shown.muted, ["corner"]);
        assert_eq!(followers(&*store, "match:4711", "goal").await, 1);
        assert_eq!(followers(&*store, "match:4711", "corner").await, 0, "muted");

        for _ in 0..2 {
            let gone = service.call(Method::DELETE, "/v1/devices/d1", Value::Null).await;
            assert_eq!(gone.status(), StatusCode::NO_CONTENT);
        }
        refused(service.get("/v1/devices/d1").await, 404, "device_not_found").await;
        assert_eq!(followers(&*store, "match:4711", "goal").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_token_belongs_to_the_device_that_registered_it_last() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        service.put("/v1/devices/old", device("tok")).await;
        assert_eq!(service.put("/v1/devices/new", device("tok")).await.status(), StatusCode::CREATED);
        assert_eq!(service.shown("new").await.addressed_by, "token");
        let old = store.device(DeviceId::parse("old").unwrap()).await.unwrap();
        assert!(old.is_none_or(|view| view.state != DeviceState::Live), "one token, one device that is sent to");
    })
    .await;
}

#[tokio::test]
async fn ids_may_hold_what_urls_escape() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let client = service.client("devices");
        let request: DeviceRequest = serde_json::from_value(device("tok")).unwrap();
        for id in ["a/b", "a?b", "a%2Fb", "münchen", "..", "a#b;c"] {
            let registered = client.put_device(id, &request).await;
            // `..` would climb out of the path: the client's URL folds it away, so it finds no such call.
            if id == ".." {
                assert!(registered.is_err());
                continue;
            }
            assert_eq!(registered.unwrap().id, id);
            assert_eq!(client.device(id).await.unwrap().id, id);
        }
        let bad = refused(service.put("/v1/devices/a%00b", device("tok")).await, 422, "invalid").await;
        assert_eq!(bad.errors[0].field, "/id");
    })
    .await;
}

#[tokio::test]
async fn every_fault_of_a_device_is_named() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let faulty = json!({"user_id": "", "token": "a b", "platform": "ps5", "locale": "p t"});
        let named = refused(service.put("/v1/devices/d1", faulty).await, 422, "invalid").await;
        let fields: Vec<&str> = named.errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(fields, ["/user_id", "/token", "/platform", "/locale"]);
        for (body, field) in [
            (json!({"user_id": "u", "platform": "ios"}), "/token"),
            (json!({"user_id": "u", "platform": "ios", "token": "t", "fid": "f"}), "/fid"),
            (json!({"user_id": "u", "platform": "ios", "token": 7}), "/token"),
            (json!({"user_id": "u", "platform": "ios", "token": "t\u{0}"}), "/token"),
            (json!({"user_id": "u", "platform": "ios", "token": "x".repeat(4097)}), "/token"),
        ] {
            assert_eq!(refused(service.put("/v1/devices/d1", body).await, 422, "invalid").await.errors[0].field, field);
        }
        let nobody = service.put("/v1/devices/d1/follows", json!({"follows": []})).await;
        refused(nobody, 404, "device_not_found").await;
        service.put("/v1/devices/d1", device("tok")).await;
        let typo = json!({"follows": [{"subject": "team:ars", "types": ["gaol"]}]});
        let named = refused(service.put("/v1/devices/d1/follows", typo).await, 422, "invalid").await;
        assert_eq!(named.errors[0].field, "/follows/0/types/0");
        assert!(named.errors[0].problem.contains("goal"), "{named:?}");
    })
    .await;
}

fn line(n: usize) -> String {
    json!({"id": format!("d{n}"), "user_id": "u", "token": format!("tok-{n}"), "platform": "ios", "follows": ["team:ars"]})
        .to_string()
}

#[tokio::test]
async fn an_import_keeps_good_lines_and_numbers_bad_ones() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let too_long = format!("{{\"id\":\"{}\"}}", "x".repeat(MAX_LINE_BYTES));
        let lines = [
            line(1),
            "not json".to_owned(),
            String::new(),
            line(2).replace("ios", "ps5"),
            too_long,
            line(3).replace("\"id\":\"d3\"", "\"id\":\"d3\",\"id\":\"d4\""),
            line(5).replace("follows", "muted").replace("team:ars", "goal"),
            line(1).replace("team:ars", "team:che"),
            line(6),
        ];
        let answer = service.imported(lines.join("\r\n")).await;
        let rejected: Vec<(u64, &str)> = answer.rejected.iter().map(|r| (r.line, r.code.as_str())).collect();
        let expected = [(2, "bad_json"), (4, "invalid"), (5, "line_too_long"), (6, "invalid"), (7, "invalid")];
        assert_eq!(rejected, expected, "{:?}", answer.rejected);
        assert_eq!((answer.imported, answer.updated, answer.rejected_total), (2, 1, 5));
        assert!(answer.rejected[1].reason.contains("/platform"), "{:?}", answer.rejected[1]);
        let subject = |d: DeviceAnswer| d.follows[0].subject.clone();
        assert_eq!(subject(service.shown("d1").await), "team:che", "the later line won");
        assert_eq!(subject(service.shown("d6").await), "team:ars");

        let kept = line(1).replace(",\"follows\":[\"team:ars\"]", "").replace("\"follows\":[\"team:ars\"],", "");
        assert_eq!(service.imported(kept).await.updated, 1);
        assert_eq!(subject(service.shown("d1").await), "team:che", "no `follows` leaves them");
    })
    .await;
}

#[tokio::test]
async fn an_import_of_thousands_is_streamed_and_may_be_repeated() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let text = (0..2_500).map(line).collect::<Vec<_>>().join("\n");
        // Pieces that end anywhere but where lines do.
        let pieces =
            || stream::iter(text.as_bytes().chunks(777).map(|c| Ok(Bytes::copy_from_slice(c))).collect::<Vec<_>>());
        let client = service.client("devices");
        let answer = client.import(pieces()).await.unwrap();
        assert_eq!((answer.imported, answer.updated, answer.rejected_total), (2_500, 0, 0));
        assert_eq!(followers(&*store, "team:ars", "goal").await, 2_500);
        let again = client.import(pieces()).await.unwrap();
        assert_eq!((again.imported, again.updated), (0, 2_500));
        assert_eq!(followers(&*store, "team:ars", "goal").await, 2_500);
    })
    .await;
}

#[tokio::test]
async fn only_the_first_rejects_are_told_and_all_are_counted() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let response = service.import("application/x-ndjson", "x\n".repeat(1_500)).await;
        let answer = refused(response, 422, "nothing_imported").await.import.unwrap();
        assert_eq!((answer.rejected.len(), answer.rejected_total), (1_000, 1_500));
        assert_eq!(answer.rejected.last().unwrap().line, 1_000);
    })
    .await;
}

fn import_head(service: &Service, rest: &str) -> String {
    let key = service.key("devices");
    format!(
        "POST /v1/devices/import HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/x-ndjson\r\n{rest}\r\n\r\n"
    )
}

#[tokio::test]
async fn an_import_that_breaks_off_keeps_whole_batches() {
    for_each_store(async |store| {
        let patient = door::Limits { grace: SOON, ..door::Limits::default() };
        let service = Service::start_with(&store, |_| (), patient).await;
        let mut stream = tokio::net::TcpStream::connect(service.addr).await.unwrap();
        let head = import_head(&service, "Content-Length: 1000000");
        let lines: String = (0..2_200).map(|n| line(n) + "\n").collect();
        stream.write_all(format!("{head}{lines}").as_bytes()).await.unwrap();
        // The first batch is committed while the rest is awaited.
        until(async || followers(&*store, "team:ars", "goal").await == 2_000).await;
        drop(stream);
        assert_eq!(service.stop().await, Ok(()));
        assert_eq!(followers(&*store, "team:ars", "goal").await, 2_000);
    })
    .await;
}

#[tokio::test]
async fn an_import_that_loses_its_database_says_how_far_it_came() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let lines = |range: std::ops::Range<usize>| Bytes::from(range.map(|n| line(n) + "\n").collect::<String>());
        let pieces = stream::unfold(receiver, async |mut receiver| Some((Ok(receiver.recv().await?), receiver)));
        let client = service.client("devices");
        let import = client.import(Box::pin(pieces));
        let lose = async {
            sender.send(lines(0..2_500)).unwrap();
            until(async || followers(&*store, "team:ars", "goal").await == 2_000).await;
            store.close().await;
            sender.send(lines(2_500..4_500)).unwrap();
            drop(sender);
        };
        let (answer, ()) = tokio::join!(import, lose);
        let Err(ClientError::Refused(problem)) = answer else { panic!("{answer:?}") };
        assert_eq!(problem.code, "database_unavailable");
        assert!(problem.detail.contains("up to 2000 are kept"), "{problem:?}");
        let so_far = problem.import.unwrap();
        assert_eq!((so_far.imported, so_far.kept_through), (2000, 2000));
    })
    .await;
}

#[tokio::test]
async fn imports_have_a_limit_of_their_own_and_kinds_they_read() {
    for_each_store(async |store| {
        let adjust = |state: &mut api::State| {
            (state.limits.places.read, state.limits.places.bulk) = (1, 2);
        };
        let service = Service::start_with(&store, adjust, door::Limits::default()).await;
        for kind in ["application/json", "text/plain"] {
            let other = refused(service.import(kind, "x").await, 415, "unsupported_media_type").await;
            assert!(other.detail.contains("application/x-ndjson") && other.detail.contains("text/csv"), "{other:?}");
        }
        let mut imports = Vec::new();
        for _ in 0..2 {
            let mut stream = tokio::net::TcpStream::connect(service.addr).await.unwrap();
            let head = import_head(&service, "Content-Length: 100\r\nExpect: 100-continue");
            stream.write_all(head.as_bytes()).await.unwrap();
            // The server asks for the body: this import runs.
            crate::api::read_until(&mut stream, "100 Continue\r\n\r\n").await;
            imports.push(stream);
        }
        refused(service.import("application/jsonl", line(1)).await, 503, "overloaded").await;
        assert_eq!(service.get("/v1/ceiling").await.status(), 200, "small calls go on");
        drop(imports);
        // A broken import gives its place back.
        until(async || service.import("application/jsonl", line(1)).await.status() == StatusCode::OK).await;
    })
    .await;
}

#[tokio::test]
async fn a_refusal_reaches_a_client_in_the_middle_of_its_body() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        for _ in 0..20 {
            let pieces = (0..200).map(|_| Ok(Bytes::from_static(&[b'x'; 65_536])));
            let Err(ClientError::Refused(problem)) = service.client("ops").import(stream::iter(pieces)).await else {
                panic!("the refusal was lost")
            };
            assert_eq!(problem.code, "forbidden");
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_sees_what_any_caller_sees() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let client = service.client("all");
        let request: DeviceRequest = serde_json::from_value(device("tok")).unwrap();
        client.put_device("d1", &request).await.unwrap();
        let follows = FollowsRequest { follows: vec![], muted: vec!["goal".to_owned()] };
        client.put_follows("d1", &follows).await.unwrap();
        assert_eq!(client.device("d1").await.unwrap().muted, ["goal"]);
        client.delete_device("d1").await.unwrap();
        let Err(ClientError::Refused(problem)) = client.device("d1").await else { panic!() };
        assert_eq!(problem.code, "device_not_found");

        let mut event: EventRequest = serde_json::from_value(crate::api::goal("evt-1")).unwrap();
        let (accepted, repeat) = client.post_event(&event).await.unwrap();
        assert!(!repeat && client.post_event(&event).await.unwrap().1);
        assert_eq!(client.fanout(&accepted.fanout_id, Duration::ZERO).await.unwrap().event_id, "evt-1");
        let query = ListQuery { state: Some("freezing".into()), limit: Some(5), cursor: None };
        assert_eq!(client.fanouts(&query).await.unwrap().fanouts.len(), 1);
        assert_eq!(client.ceiling().await.unwrap().mode, "single");
        event.kind = "gaol".to_owned();
        let Err(ClientError::Refused(problem)) = client.post_event(&event).await else { panic!() };
        assert_eq!(problem.errors[0].field, "/type");

        service.stop().await.unwrap();
        assert!(matches!(client.ceiling().await, Err(ClientError::Unreachable(_))));
    })
    .await;
}
