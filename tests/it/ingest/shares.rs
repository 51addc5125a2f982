//! What one caller may have of what all share: requests, and waiting for something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanfare::api::{self, Keys, Scope, State};
use fanfare::ceiling::Quotas;
use fanfare::domain::quota::{NotShared, SharedQuota};
use fanfare::door;
use futures_util::future::join_all;
use reqwest::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::api::{SOON, Service, for_each_store, goal, read_until, refused, until};
use crate::harness::redis::RedisServer;

#[tokio::test]
async fn a_used_up_quota_names_its_limit_and_is_counted_by_key() {
    for_each_store(async |store| {
        let mut registry = fanfare::metrics::Metrics::new();
        let measured = api::Measured::register(&mut registry);
        let change = |state: &mut State| {
            state.limits.requests_per_s_per_key = 1;
            state.measured = measured;
        };
        let service = Service::start_with(&store, change, door::Limits::default()).await;
        service.get("/v1/ceiling").await;
        let over = refused(service.get("/v1/ceiling").await, 429, "quota_exceeded").await;
        let quota = over.quota.unwrap();
        assert_eq!((quota.limit, quota.window_s, quota.scope.as_str()), (1, 1, "key:all"));
        assert!(over.retry_after_s.is_some());
        let text = registry.render();
        assert!(text.contains("fanfare_requests_over_quota_total{key=\"all\"} 1"), "{text}");
        assert!(text.contains("fanfare_requests_shed_total{pool=\"read\",reason=\"full\"} 0"), "no overload: {text}");
    })
    .await;
}

/// The fleet's quotas in a real Redis, and how often that was not there in time.
struct Watched {
    quotas: Quotas,
    missed: AtomicU64,
}

#[async_trait::async_trait]
impl SharedQuota for Watched {
    async fn take(&self, name: &str, per_s: u32) -> Result<Option<Duration>, NotShared> {
        let answer = self.quotas.take(name, per_s).await;
        self.missed.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
        answer
    }
}

/// Two instances have one quota between them while Redis is there, and half of it each when it is not.
#[tokio::test]
async fn a_quota_is_one_for_the_whole_fleet() {
    for_each_store(async |store| {
        let mut redis = RedisServer::start().await;
        let quotas = Arc::new(Watched { quotas: Quotas::new(&redis.url(), "proj").unwrap(), missed: 0.into() });
        let (_live, two) = watch::channel(2);
        let change = |state: &mut State| {
            state.limits.requests_per_s_per_key = 20;
            state.quotas = Some(Arc::clone(&quotas) as Arc<dyn SharedQuota>);
            state.live = two.clone();
        };
        // Two of one store share its keys here, so that one key asks both.
        let first = Service::start_with(&store, change, door::Limits::default()).await;
        let keys = Arc::clone(&first.state.keys);
        let second = Service::start_with(
            &store,
            |state: &mut State| {
                change(state);
                state.keys = keys;
            },
            door::Limits::default(),
        );
        let addrs = [first.addr, second.await.addr];
        let http = reqwest::Client::new();
        let served = async || {
            let begun = Instant::now();
            let calls = (0..60)
                .map(|n| http.get(format!("http://{}/v1/ceiling", addrs[n % 2])).bearer_auth(first.key("all")).send());
            let answers = join_all(calls).await.into_iter().map(|answer| answer.unwrap().status());
            (answers.filter(StatusCode::is_success).count() as f64, begun.elapsed().as_secs_f64())
        };
        // Whoever comes before it is connected, or when it takes longer than a request waits, is counted by its instance:
        // such a round says nothing.
        let (n, took) = loop {
            until(async || quotas.take("nobody", 1000).await.is_ok()).await;
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            let missed = quotas.missed.load(Ordering::Relaxed);
            let round = served().await;
            if quotas.missed.load(Ordering::Relaxed) == missed {
                break round;
            }
        };
        assert!((20.0..=21.0 + 20.0 * took).contains(&n), "{n} in {took} s");
        redis.kill().await;
        // What was used up there is not to be had once more.
        let (n, took) = served().await;
        assert!(n <= 4.0 + 20.0 * took, "{n} in {took} s without redis");
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let (n, took) = served().await;
        // A full bucket of ten on either side, a second later.
        assert!((20.0..=21.0 + 20.0 * took).contains(&n), "{n} in {took} s without redis");
    })
    .await;
}

/// One request finds out that Redis does not answer in time. Nobody else waits for it: a place at the gate is worth more.
#[tokio::test]
async fn a_redis_that_does_not_answer_keeps_one_request_waiting_and_no_more() {
    let redis = RedisServer::start().await;
    let quotas = Quotas::new(&redis.url(), "proj").unwrap();
    let take = async || quotas.take("backend", 1000).await;
    assert_eq!(take().await, Err(NotShared), "nobody waits until it is connected");
    until(async || take().await.is_ok()).await;
    redis.freeze().await;
    let begun = Instant::now();
    let mut waited = 0;
    // Long enough for more than one try to connect again.
    while begun.elapsed() < Duration::from_millis(2_500) {
        let mut asked = Box::pin(take());
        if futures_util::poll!(&mut asked).is_pending() {
            waited += 1;
            assert_eq!(asked.await, Err(NotShared));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(waited, 1);
    redis.thaw().await;
    until(async || take().await.is_ok()).await;
}

/// What an instance granted alone while Redis was away is not to be had there once more.
#[tokio::test]
async fn a_redis_that_comes_back_empty_grants_no_second_burst() {
    const PER_S: u32 = 20;
    let mut redis = RedisServer::start().await;
    let quotas = Quotas::new(&redis.url(), "proj").unwrap();
    // How many are granted at once; unknown, when one of them had no answer in time.
    let burst = async |name: &str| {
        until(async || quotas.take("nobody", 1_000).await.is_ok()).await;
        let (begun, mut granted) = (Instant::now(), 0);
        for _ in 0..60 {
            granted += u32::from(quotas.take(name, PER_S).await.ok()?.is_none());
        }
        Some((f64::from(granted), begun.elapsed().as_secs_f64()))
    };
    let mut strangers = 0;
    let (whole, took) = loop {
        strangers += 1;
        if let Some(granted) = burst(&format!("stranger-{strangers}")).await {
            break granted;
        }
    };
    assert!((20.0..=21.0 + 20.0 * took).contains(&whole), "whoever was counted nowhere has all of it: {whole}");
    redis.kill().await;
    until(async || quotas.take("backend", PER_S).await.is_err()).await;
    redis.run().await;
    let (once_more, took) = loop {
        if let Some(granted) = burst("backend").await {
            break granted;
        }
    };
    assert!((1.0..=2.0 + 20.0 * took).contains(&once_more), "{once_more} in {took} s");
}

/// Keeps one key waiting for its quota, as a Redis that is slow does, until it is told.
struct Slow {
    asked: Notify,
    go: Notify,
}

#[async_trait::async_trait]
impl SharedQuota for Slow {
    async fn take(&self, name: &str, _: u32) -> Result<Option<Duration>, NotShared> {
        if name == "nightly" {
            self.asked.notify_one();
            self.go.notified().await;
        }
        Ok(None)
    }
}

#[tokio::test]
async fn a_key_for_bulk_work_does_not_wait_for_its_quota_in_a_place_of_events() {
    for_each_store(async |store| {
        let (nightly, entry) = api::keys::generate("nightly", &[Scope::Events]).unwrap();
        let (backend, other) = api::keys::generate("backend", &[Scope::Events]).unwrap();
        let slow = Arc::new(Slow { asked: Notify::new(), go: Notify::new() });
        let change = |state: &mut State| {
            state.keys = Arc::new(Keys::parse(&format!("{entry}:bulk,{other}")).unwrap());
            state.limits.requests_per_s_per_key = 1_000;
            state.limits.places.interactive = 1;
            state.quotas = Some(Arc::clone(&slow) as Arc<dyn SharedQuota>);
        };
        let service = Service::start_with(&store, change, door::Limits::default()).await;
        let post = async |key: &str, id: &str| {
            let url = format!("http://{}/v1/events", service.addr);
            reqwest::Client::new().post(url).bearer_auth(key).json(&goal(id)).send().await.unwrap().status()
        };
        let bulk = async {
            slow.asked.notified().await;
            until(async || post(&backend, "evt-1").await.is_success()).await;
            slow.go.notify_one();
        };
        let both = async { tokio::join!(post(&nightly, "evt-2"), bulk) };
        let (posted, ()) = timeout(SOON * 2, both).await.expect("events go on while it waits");
        assert!(posted.is_success() || posted == StatusCode::SERVICE_UNAVAILABLE, "{posted}");
    })
    .await;
}

/// What one key has waiting leaves room for the others.
#[tokio::test]
async fn one_key_can_take_half_of_the_long_polls_and_no_more() {
    for_each_store(async |store| {
        let mut registry = fanfare::metrics::Metrics::new();
        let measured = api::Measured::register(&mut registry);
        let service = Service::start_with(&store, |state| state.measured = measured, door::Limits::default()).await;
        let id = service.accept("evt-1").await;
        let poll = async |key: &str| {
            let mut stream = service.raw().await;
            let key = service.key(key);
            let path = format!("/v1/fanouts/{id}?wait_ms=60000");
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream
        };
        let mut greedy = Vec::new();
        for _ in 0..250 {
            greedy.push(poll("all").await);
        }
        // The last of them may not have come as far as the others, and the first that is one too many is told so.
        until(async || {
            let mut one_more = poll("all").await;
            let mut byte = [0];
            let told = timeout(Duration::from_millis(200), one_more.peek(&mut byte)).await.is_ok();
            if told {
                assert!(read_until(&mut one_more, "}").await.contains("calls of this key wait"));
            }
            greedy.push(one_more);
            told
        })
        .await;
        // More instances would not have let them wait.
        let text = registry.render();
        let counted = |reason: &str| {
            let name = format!("fanfare_requests_shed_total{{pool=\"read\",reason=\"{reason}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u32>().ok()).unwrap()
        };
        assert!(counted("parked") > 0, "{text}");
        let mut other = poll("events").await;
        service.settle(id).await;
        service.state.settled.send(id).unwrap();
        assert!(read_until(&mut other, "recipients").await.starts_with("HTTP/1.1 200"));
    })
    .await;
}
