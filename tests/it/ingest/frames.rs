//! HTTP/2 as no decent client speaks it: the frames are written by hand.

use std::time::Duration;

use fanfare::door;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::api::{SOON, Service, for_each_store};

/// One frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// ENHANCE_YOUR_CALM.
const CALM: u32 = 11;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
/// GET, http, /, and the authority x.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'x'];
/// POST, http, /, and the authority x.
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x41, 1, b'x'];

/// Kind and payload of every whole frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = bytes {
        let Some((payload, next)) = payload.split_at_checked(u32::from_be_bytes([0, *a, *b, *c]) as usize) else {
            break;
        };
        frames.push((*kind, payload));
        bytes = next;
    }
    frames
}

/// Sends it all, and reads what is answered until the connection ends.
async fn ended(service: &Service, bytes: Vec<u8>) -> Vec<u8> {
    let (mut reader, mut writer) = service.raw().await.into_split();
    let feeding = tokio::spawn(async move {
        // The server may hang up in the middle.
        let _ = writer.write_all(&bytes).await;
        writer
    });
    let mut answer = Vec::new();
    let _ = timeout(SOON, reader.read_to_end(&mut answer)).await.expect("the connection must end");
    let _ = feeding.await;
    answer
}

/// Why the server said goodbye.
fn goodbye(answer: &[u8]) -> Option<u32> {
    let last = frames(answer).into_iter().rfind(|(kind, _)| *kind == GOAWAY)?;
    Some(u32::from_be_bytes(last.1.get(4..8)?.try_into().ok()?))
}

/// CVE-2023-44487: whole streams that begin and end in one packet. The bytes are written by hand, because a decent client
/// sends nothing of a stream it gave up in time.
#[tokio::test]
async fn streams_opened_and_reset_without_end_cost_their_caller_the_connection() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        for stream in (1..4_000).step_by(2) {
            bytes.extend(frame(HEADERS, END_HEADERS, stream, POST));
            bytes.extend(frame(RESET, 0, stream, &8_u32.to_be_bytes()));
        }
        assert_eq!(goodbye(&ended(&service, bytes).await), Some(CALM));
        service.accept("evt-1").await;
    })
    .await;
}

/// CVE-2024-27316: headers that never end.
#[tokio::test]
async fn headers_continued_without_end_cost_their_caller_the_connection() {
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        for piece in [&[][..], &[0x40, 1, b'a', 1, b'b'].repeat(3_000)] {
            let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, 0, 1, POST)].concat();
            for _ in 0..200 {
                bytes.extend(frame(CONTINUATION, 0, 1, piece));
            }
            let answer = ended(&service, bytes).await;
            assert!(goodbye(&answer).is_some_and(|reason| reason != 0), "{:?}", frames(&answer));
        }
        service.accept("evt-1").await;
    })
    .await;
}

#[tokio::test]
async fn callers_are_told_how_many_streams_and_how_long_headers_there_may_be() {
    const STREAMS: u16 = 3;
    const HEADER_BYTES: u16 = 6;
    for_each_store(async |store| {
        let service = Service::start(&store).await;
        let mut stream = service.raw().await;
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut settings = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut settings).await.unwrap();
        let told = |id: u16| {
            let mut all = settings.chunks(6).filter(|one| one[..2] == id.to_be_bytes());
            all.next().map(|one| u32::from_be_bytes(one[2..].try_into().unwrap()))
        };
        assert_eq!((head[3], told(STREAMS), told(HEADER_BYTES)), (SETTINGS, Some(64), Some(32 * 1024)));
    })
    .await;
}

/// A window of no bytes: the answer can never be sent. Whoever keeps it open, and goes on asking, keeps nobody out.
#[tokio::test]
async fn answers_without_a_window_keep_no_seat() {
    const WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    for_each_store(async |store| {
        let limits = door::Limits {
            max_connections: 2,
            header: Duration::from_secs(1),
            unread: Duration::from_millis(300),
            ..Default::default()
        };
        let service = Service::start_with(&store, |_| (), limits).await;
        let mut stuck = Vec::new();
        for _ in 0..2 {
            let mut stream = service.raw().await;
            let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, GET);
            stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &WINDOW), &request].concat()).await.unwrap();
            // Answered, as far as it can be.
            let mut bytes = Vec::new();
            while !frames(&bytes).iter().any(|(kind, _)| *kind == HEADERS) {
                timeout(SOON, stream.read_buf(&mut bytes)).await.unwrap().unwrap();
            }
            let (mut reader, mut writer) = stream.into_split();
            tokio::spawn(async move {
                for more in (3..).step_by(2) {
                    let asked = frame(HEADERS, END_HEADERS | END_STREAM, more, GET);
                    let given_up = frame(RESET, 0, more, &8_u32.to_be_bytes());
                    let ping = frame(PING, 0, 0, &[0; 8]);
                    if writer.write_all(&[&asked, &ping].map(Vec::as_slice).concat()).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let _ = writer.write_all(&given_up).await;
                }
            });
            stuck.push(async move {
                let mut rest = Vec::new();
                let _ = timeout(SOON, reader.read_to_end(&mut rest)).await.expect("it must go");
                assert!(!frames(&rest).iter().any(|(kind, _)| *kind == DATA), "no byte of an answer was sent");
            });
        }
        timeout(SOON, service.accept("evt-1")).await.expect("a newcomer takes a seat");
        for gone in stuck {
            gone.await;
        }
    })
    .await;
}

/// An answer stays unread, and others are taken, a few hundred bytes now and then: so little keeps nobody out.
#[tokio::test]
async fn a_small_answer_taken_now_and_then_keeps_no_seat() {
    const TINY: [u8; 6] = [0, 4, 0, 0, 0, 0];
    for_each_store(async |store| {
        let limits = door::Limits { max_connections: 1, unread: Duration::from_secs(2), ..Default::default() };
        let service = Service::start_with(&store, |_| (), limits).await;
        let mut stream = service.raw().await;
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &TINY)].concat()).await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let asking = tokio::spawn(async move {
            let unread = frame(HEADERS, END_HEADERS | END_STREAM, 1, GET);
            let _ = writer.write_all(&unread).await;
            for more in (3..).step_by(2) {
                let asked = frame(HEADERS, END_HEADERS | END_STREAM, more, GET);
                let room = 4_096_u32.to_be_bytes();
                let window = frame(WINDOW_UPDATE, 0, more, &room);
                if writer.write_all(&asked).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(800)).await;
                let _ = writer.write_all(&window).await;
            }
        });
        let mut said = Vec::new();
        while !frames(&said).iter().any(|(kind, _)| *kind == DATA) {
            timeout(SOON, reader.read_buf(&mut said)).await.unwrap().unwrap();
        }
        timeout(SOON, service.accept("evt-1")).await.expect("a newcomer takes the seat");
        let _ = timeout(SOON, reader.read_to_end(&mut said)).await.expect("it must go");
        asking.abort();
    })
    .await;
}

/// Nothing is asked for, and pings are answered: a newcomer takes the seat, and who had it is told.
#[tokio::test]
async fn whoever_has_to_go_is_told_goodbye_first() {
    for_each_store(async |store| {
        let limits = door::Limits { max_connections: 1, ..Default::default() };
        let service = Service::start_with(&store, |_| (), limits).await;
        let mut idle = service.raw().await;
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, GET);
        idle.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &request].concat()).await.unwrap();
        let mut said = Vec::new();
        while !frames(&said).iter().any(|(kind, _)| *kind == DATA) {
            timeout(SOON, idle.read_buf(&mut said)).await.unwrap().unwrap();
        }
        timeout(SOON, service.accept("evt-1")).await.expect("a newcomer takes the seat");
        let _ = timeout(SOON, idle.read_to_end(&mut said)).await.expect("it must go");
        assert_eq!(goodbye(&said), Some(0), "{:?}", frames(&said));
    })
    .await;
}

/// The same over HTTP/1.1: one request after the other, and no answer is read.
#[tokio::test]
async fn answers_that_nobody_reads_keep_no_seat() {
    for_each_store(async |store| {
        let limits = door::Limits { max_connections: 1, unread: Duration::from_millis(300), ..Default::default() };
        let service = Service::start_with(&store, |_| (), limits).await;
        let mut stream = service.raw().await;
        let requests = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
        stream.write_all(requests.as_bytes()).await.unwrap();
        timeout(SOON, service.accept("evt-1")).await.expect("a newcomer takes the seat");
        drop(stream);
    })
    .await;
}
