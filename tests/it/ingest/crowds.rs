//! Crowds of callers who connect and then do little or nothing.

use std::time::Duration;

use fanfare::door;
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{post, set};
use crate::api::{SOON, Service, for_each_store, goal, read_until, until, until_closed};
use crate::harness::service::{Database, World};

/// Hostile connections of one kind at once; 2,000 in the longer suite (`FANFARE_LONG=1`). Each takes two file descriptors.
fn crowd() -> usize {
    if long() { 2_000 } else { 150 }
}

fn long() -> bool {
    std::env::var("FANFARE_LONG").is_ok_and(|long| long == "1")
}

/// Room for three such crowds.
fn roomy() -> door::Limits {
    door::Limits { max_connections: 8_000, ..door::Limits::default() }
}

/// In waves: more at once than the kernel keeps until they are accepted would wait for the kernel, not for us.
async fn connections(service: &Service, n: usize, opening: &str) -> Vec<TcpStream> {
    let mut all = Vec::with_capacity(n);
    while all.len() < n {
        let wave = (0..(n - all.len()).min(50)).map(|_| async {
            let mut stream = service.raw().await;
            stream.write_all(opening.as_bytes()).await.unwrap();
            stream
        });
        all.extend(join_all(wave).await);
    }
    all
}

#[tokio::test]
async fn a_body_that_comes_slowly_holds_no_place_and_is_taken_in_the_end() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, set(|l| l.places.interactive = 1), roomy()).await;
        let body = goal("evt-slow").to_string();
        let (first, rest) = body.split_at(body.len() / 2);
        let head = service.post_head(&format!("Content-Length: {}", body.len()));
        let slow = connections(&service, crowd(), &format!("{head}{first}")).await;
        until(async || service.post_event(&goal("evt-quick")).await.status().is_success()).await;
        // They queue for the one place like anybody: some are told to come again, and those of a crowd that is larger than
        // what is waited for are told so before their bodies have come.
        let mut taken = 0;
        for mut stream in slow {
            // Whoever was refused before has hung up on us.
            let _ = stream.write_all(rest.as_bytes()).await;
            let answer = read_until(&mut stream, "}").await;
            // The last ones of a large crowd have been waited for too long.
            let known = ["202 Accepted", "200 OK", "503 Service Unavailable", "408 Request Timeout"];
            assert!(known.iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status}"))), "{answer}");
            taken += usize::from(answer.contains("fanout_id"));
        }
        assert!(taken > 0);
        assert_eq!(store.backlog().await.unwrap().fanouts(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_crowd_that_sends_half_a_header_or_nothing_is_dropped_and_others_are_served() {
    for_each_store(async |store| {
        let limits = door::Limits { header: Duration::from_secs(1), ..roomy() };
        let service = Service::start_with(&store, |_| (), limits).await;
        let begun = Instant::now();
        let mut crowds = connections(&service, crowd(), "").await;
        crowds.extend(connections(&service, crowd(), "POST /v1/events HTTP/1.1\r\nHost: x\r\nX-A: ").await);
        crowds.extend(connections(&service, crowd(), "PRI * HTTP/2.0\r\n\r\nSM").await);
        assert!(long() || begun.elapsed() < SOON);
        service.accept("evt-1").await;
        for stream in crowds {
            until_closed(stream).await;
        }
        service.accept("evt-2").await;
    })
    .await;
}

/// 10,000 in the longer suite: a process of its own, so that either side has its own file descriptors.
#[tokio::test]
async fn a_crowd_that_stays_connected_costs_little_memory_and_others_are_served() {
    let n = if long() { 10_000 } else { 500 };
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("API__MAX_CONNECTIONS", n + 100);
    let service = world.spawn().await;
    let addr = service.api.strip_prefix("http://").unwrap().to_owned();
    let connected = async || {
        let metrics = reqwest::get(format!("{}/metrics", service.ops)).await.unwrap().text().await.unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix("fanfare_connections ")).unwrap();
        line.parse::<usize>().unwrap()
    };
    let before = resident_kib(service.pid());
    let mut crowd = Vec::with_capacity(n);
    while crowd.len() < n {
        let some = (n - crowd.len()).min(250);
        crowd.extend(join_all((0..some).map(|_| asked_once(&addr))).await);
    }
    assert!(connected().await >= n);
    let each = resident_kib(service.pid()).saturating_sub(before) / n as u64;
    assert!(each < 64, "{each} KiB for each connection");
    service.goal("evt-1", "m1", 120).await;
    assert!(reqwest::get(format!("{}/livez", service.ops)).await.unwrap().status().is_success());
    drop(crowd);
    until(async || connected().await < 10).await;
}

/// A connection whose one request was answered.
async fn asked_once(addr: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "}").await;
    stream
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Wherever a request breaks off, its event is kept whole or not at all, and posting it again is harmless.
#[tokio::test]
async fn a_post_that_breaks_off_anywhere_may_be_sent_again() {
    for_each_store(async |store| {
        let service = Service::start_with(&store, set(|l| l.max_backlog.fanouts = 10_000), roomy()).await;
        let whole = post(&service, &goal("evt-0000").to_string()).len();
        let cuts: Vec<usize> = (0..=whole).step_by(if long() { 1 } else { 29 }).chain([whole]).collect();
        // Made once: the time of an event is a part of it.
        let goals: Vec<_> = (0..cuts.len()).map(|n| goal(&format!("evt-{n:04}"))).collect();
        for (goal, cut) in goals.iter().zip(&cuts) {
            let mut stream = service.raw().await;
            let request = post(&service, &goal.to_string());
            stream.write_all(&request.as_bytes()[..*cut.min(&request.len())]).await.unwrap();
        }
        for goal in &goals {
            until(async || service.post_event(goal).await.status().is_success()).await;
        }
        assert_eq!(store.backlog().await.unwrap().fanouts(), cuts.len() as u64);
    })
    .await;
}
