//! Owns the proof that any bytes, sent as anything, are an event or refused as the API's document says: never a fault of ours.
//! Must never know: sockets, keys, or the database.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use super::super::body::{MAX_BODY_BYTES, json as read_json};
use super::super::events::{out_of_time, parse};
use super::super::problem::{Code, Refusal};
use crate::domain::catalogue::{BUILT_IN, Catalogue};
use crate::domain::event::Event;
use crate::wire::{EventRequest, Problem};

/// 2026-11-30T15:05:00Z: an event of [`GOAL`] is in time.
const NOW_MS: i64 = 1_796_051_100_000;

const GOAL: &str = r#"{"id":"evt-8841","type":"goal","match_id":"4711","occurred_at":"2026-11-30T15:04:12Z",
 "subjects":["match:4711","team:ars","team:che"],
 "fields":{"home":"Arsenal","away":"Chelsea","score":"2-1","minute":67,"player":"Saka"},
 "data":{"deeplink":"app://match/4711"},"supersedes":{"event_id":"evt-8840","mode":"replace"},"useful_for_s":120}"#;

/// What a caller sends.
#[derive(Debug, Clone)]
struct Sent {
    bytes: Vec<u8>,
    /// Sizes of the pieces it comes in, and whether it breaks off.
    pieces: usize,
    breaks_off: bool,
    headers: Vec<(HeaderName, Vec<u8>)>,
}

impl Sent {
    fn request(&self) -> Request {
        let pieces = self.bytes.chunks(self.pieces).map(|piece| Ok(Bytes::copy_from_slice(piece)));
        let end = self.breaks_off.then(|| Err(std::io::Error::other("it broke off")));
        let mut request = Request::new(Body::from_stream(stream::iter(pieces.chain(end).collect::<Vec<_>>())));
        for (name, value) in &self.headers {
            // What cannot be a header's value never comes this far.
            if let Ok(value) = HeaderValue::from_bytes(value) {
                request.headers_mut().append(name, value);
            }
        }
        request
    }
}

fn header(name: HeaderName, usual: &'static [&'static str]) -> impl Strategy<Value = Option<(HeaderName, Vec<u8>)>> {
    let value = prop_oneof![4 => select(usual).prop_map(|text| text.as_bytes().to_vec()), 1 => vec(any::<u8>(), 0..40)];
    option::of(value.prop_map(move |value| (name.clone(), value)))
}

fn headers() -> impl Strategy<Value = Vec<(HeaderName, Vec<u8>)>> {
    let kinds = &["application/json", "application/json; charset=utf-16", "Application/LD+JSON", "text/plain", ";", ""];
    let encodings = &["", "identity", "gzip", "identity, gzip", "br;q=1"];
    let lengths = &["0", "7", "65537", "99999999999999999999", "-1", "+1", "x"];
    let all = (header(CONTENT_TYPE, kinds), header(CONTENT_ENCODING, encodings), header(CONTENT_LENGTH, lengths));
    all.prop_map(|(kind, encoding, length)| [kind, encoding, length].into_iter().flatten().collect())
}

/// An event with some bytes of it gone, twice there, or others.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let blow = (any::<Index>(), 0..8_usize, vec(prop_oneof![any::<u8>(), select(b"{}[]\",:\\0e-u\x1b\r\n")], 0..4));
    vec(blow, 0..4).prop_map(|blows| {
        let mut bytes = GOAL.as_bytes().to_vec();
        for (at, gone, instead) in blows {
            let at = at.index(bytes.len());
            bytes.splice(at..(at + gone).min(bytes.len()), instead);
        }
        bytes
    })
}

/// Any value, with the names that mean something here among its keys.
fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        select(&["goal", "corner", "4711", "match:4711", "2026-11-30T15:04:12Z", "replace", "2-1"][..])
            .prop_map(str::to_owned)
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let names =
        select(&["id", "type", "home", "minute", "event_id", "mode", "deeplink", ""][..]).prop_map(str::to_owned);
    let key = prop_oneof![names, any::<String>()];
    leaf.prop_recursive(4, 24, 6, move |inner| {
        let object = vec((key.clone(), inner.clone()), 0..6);
        prop_oneof![
            vec(inner, 0..6).prop_map(Value::from),
            object.prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>()))
        ]
    })
}

/// An event with some of its members other than they were, and its time among those of a caller whose clock is wrong.
fn altered() -> impl Strategy<Value = Vec<u8>> {
    let members = ["id", "type", "match_id", "occurred_at", "subjects", "fields", "data", "supersedes", "useful_for_s"];
    let times =
        select(&["2026-11-30T15:00:00Z", "2026-11-30T15:09:59Z", "2026-11-30T15:20:00+00:00", "9999-12-31T23:59:59Z"]);
    (vec((select(members.to_vec()), option::of(value())), 0..3), option::of(times)).prop_map(|(changes, time)| {
        let mut event: Value = serde_json::from_str(GOAL).expect("the event is JSON");
        if let Some(time) = time {
            event["occurred_at"] = json!(time);
        }
        for (member, instead) in changes {
            match (instead, event.as_object_mut()) {
                (Some(value), Some(members)) => drop(members.insert(member.to_owned(), value)),
                (None, Some(members)) => drop(members.remove(member)),
                _ => {}
            }
        }
        event.to_string().into_bytes()
    })
}

fn sent() -> impl Strategy<Value = Sent> {
    let bytes = prop_oneof![
        3 => altered(),
        3 => damaged(),
        1 => value().prop_map(|value| value.to_string().into_bytes()),
        1 => vec(any::<u8>(), 0..400),
        1 => (0..2 * MAX_BODY_BYTES).prop_map(|size| vec![b'['; size]),
    ];
    let breaks_off = prop_oneof![9 => Just(false), 1 => Just(true)];
    (bytes, 1..2_000_usize, breaks_off, headers()).prop_map(|(bytes, pieces, breaks_off, headers)| Sent {
        bytes,
        pieces,
        breaks_off,
        headers,
    })
}

async fn judged(request: Request, catalogue: &Catalogue) -> Result<Event, Refusal> {
    let posted = read_json::<EventRequest>(request, MAX_BODY_BYTES).await?;
    let event = parse(catalogue, posted)?;
    event.deadline_ms(NOW_MS).map_err(out_of_time)?;
    Ok(event)
}

/// What a post of an event may be answered with, by status, as the document has it.
fn documented() -> Value {
    let document: Value = serde_json::from_str(&crate::api::openapi::document()).expect("the document is JSON");
    document["paths"]["/v1/events"]["post"]["responses"].clone()
}

/// A refusal is one of those the document names, in words fit to be read.
async fn check_refusal(refusal: Refusal, documented: &Value) -> Result<Code, TestCaseError> {
    let answer = refusal.into_response();
    let (status, code) =
        (answer.status(), answer.extensions().get::<Code>().copied().expect("each refusal has a code"));
    prop_assert!(status.is_client_error(), "{status} {code:?}");
    prop_assert_eq!(code.status(), status.as_u16());
    let told = documented[status.as_str()]["description"].as_str().unwrap_or_default();
    prop_assert!(told.contains(&format!("`{}`", code.as_str())), "{} {}", status, code.as_str());
    let body = answer.into_body().collect().await.expect("it is whole").to_bytes();
    let problem: Problem = serde_json::from_slice(&body).expect("a problem");
    prop_assert_eq!(problem.code, code.as_str());
    let texts = problem.errors.iter().map(|one| &one.problem).chain([&problem.detail]);
    for text in texts {
        let odd = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        prop_assert!(!text.contains(odd), "{:?}", text);
    }
    Ok(code)
}

/// What was taken for an event says so in JSON that another parser reads.
fn check_event(event: &Event, sent: &Sent) -> Result<(), TestCaseError> {
    let read: Result<Value, _> = serde_json::from_slice(&sent.bytes);
    prop_assert!(read.is_ok() && !sent.breaks_off, "{read:?}");
    let read = read.unwrap_or_default();
    prop_assert_eq!(read["id"].as_str(), Some(event.id.as_str()));
    prop_assert_eq!(read["match_id"].as_str(), Some(event.match_id.as_str()));
    prop_assert_eq!(read["type"].as_str(), Some(event.kind.as_str()));
    Ok(())
}

#[test]
fn any_bytes_are_an_event_or_refused_as_the_document_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let catalogue = Catalogue::parse(BUILT_IN).unwrap();
    let documented = documented();
    let mut seen = std::collections::BTreeMap::new();
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(16 * ProptestConfig::default().cases));
    let seen_by = std::cell::RefCell::new(&mut seen);
    let ran = runner.run(&sent(), |sent| {
        runtime.block_on(async {
            let what = match judged(sent.request(), &catalogue).await {
                Ok(event) => check_event(&event, &sent).map(|()| "an event")?,
                Err(refusal) => check_refusal(refusal, &documented).await?.as_str(),
            };
            *seen_by.borrow_mut().entry(what).or_insert(0) += 1;
            Ok(())
        })
    });
    ran.unwrap();
    // That none of them is reached would say that the bytes are not what they are meant to be.
    for reached in
        ["an event", "bad_json", "bad_request", "body_too_large", "unsupported_media_type", "invalid", "event_too_late"]
    {
        assert!(seen.contains_key(reached), "{reached} is missing in {seen:?}");
    }
}
