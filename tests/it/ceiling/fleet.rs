//! One rate for all instances, whatever happens to Redis.

use std::time::Duration;

use fanfare::ceiling::{Ceiling, Mode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Instance, RATE, all_stop, assert_under, fleet, settings};
use crate::harness::redis::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_instances_on_one_redis_keep_to_one_rate_and_use_it() {
    let redis = RedisServer::start().await;
    let instances = fleet(4, &settings(Some(redis.url()), true));
    for instance in &instances {
        instance.mode(Mode::Shared).await;
    }
    let start = Instant::now();
    sleep(Duration::from_secs(4)).await;
    let end = Instant::now();
    let calls: String = redis.command(&["INFO", "commandstats"]).await;
    let (used, left) = all_stop(instances, 0).await;
    assert_under(&used, 1.10 + left);
    let most = if left > 0.0 { 0.7 } else { 0.9 };
    let n = used.iter().filter(|at| (start..end).contains(at)).count() as f64;
    assert!(n >= most * RATE * (end - start).as_secs_f64(), "{n} grants used in {:?}", end - start);
    let calls = calls.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).expect("calls");
    let calls: f64 = calls.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number");
    assert!(calls <= 0.6 * n, "{calls} round trips for {n} grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_forgets_everything_lets_no_extra_request_out() {
    let redis = RedisServer::start().await;
    let instances = fleet(4, &settings(Some(redis.url()), true));
    for instance in &instances {
        instance.mode(Mode::Shared).await;
    }
    let start = Instant::now();
    for forget in [["FLUSHALL"].as_slice(), &["SCRIPT", "FLUSH"], &["FLUSHALL"], &["SCRIPT", "FLUSH"]] {
        sleep(Duration::from_millis(800)).await;
        redis.command::<()>(forget).await;
    }
    sleep(Duration::from_millis(800)).await;
    let took = start.elapsed().as_secs_f64();
    let (used, left) = all_stop(instances, 0).await;
    assert_under(&used, 1.10 + left);
    assert!(used.len() as f64 >= 0.7 * RATE * took, "{} grants used in {took} s", used.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_falls_silent_splits_the_rate_until_it_answers_again() {
    let redis = RedisServer::start().await;
    let instances = fleet(4, &settings(Some(redis.url()), true));
    sleep(Duration::from_millis(800)).await;
    redis.freeze().await;
    let frozen = Instant::now();
    let mut noticed = Vec::new();
    for instance in &instances {
        let now = instance.mode(Mode::Split).await;
        noticed.push(frozen.elapsed());
        assert_eq!((now.share, now.reason.as_str()), (RATE / 4.0, "redis: silent"));
    }
    // Nobody has answered for 100 ms; from a request's timer to the look at it are four turns of this machine, each of
    // which may be late. The first of them, since they are looked at one after another.
    let late = instances[0].late(frozen);
    println!("the silence was noticed after {noticed:?}, this machine was late by {late:?} at worst");
    assert!(noticed[0] <= Duration::from_millis(150) + 4 * late, "{noticed:?}, late by {late:?}");
    assert!(noticed[3] <= Duration::from_millis(200) + 8 * late, "{noticed:?}, late by {late:?}");
    sleep(Duration::from_secs(2)).await;
    redis.thaw().await;
    let thawed = Instant::now();
    for instance in &instances {
        assert_eq!(instance.mode(Mode::Shared).await.reason, "");
    }
    sleep(Duration::from_secs(3)).await;
    let (used, left) = all_stop(instances, 1).await;
    let meanwhile = used.iter().filter(|at| **at > frozen && **at < thawed).count();
    assert_under(&used, 1.10 + left);
    assert!(meanwhile as f64 >= 0.5 * RATE * (thawed - frozen).as_secs_f64(), "{meanwhile} used meanwhile");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_redis_at_boot_each_serves_its_share_and_joins_when_redis_comes() {
    let mut redis = RedisServer::absent();
    let instances: Vec<Instance> = (0..2).map(|_| Instance::start(settings(Some(redis.url()), true), 4)).collect();
    // 3 s in which the others would not know of them, and 1.5 s to measure.
    sleep(Duration::from_millis(4_500)).await;
    for instance in &instances {
        let now = instance.mode(Mode::Split).await;
        assert_eq!((now.share, now.reason.as_str()), (RATE / 4.0, "redis: refused"));
        assert!(now.used as f64 >= 0.5 * RATE / 4.0, "{now:?}");
    }
    redis.run().await;
    for instance in &instances {
        let back = instance.mode(Mode::Shared).await.used;
        sleep(Duration::from_millis(700)).await;
        let settling = (instance.ceiling.snapshot().used - back) as f64;
        assert!(settling <= 1.3 * 0.7 * RATE / 4.0, "{settling} used at once, the others may not be back yet");
    }
    redis.kill().await;
    for instance in &instances {
        instance.mode(Mode::Split).await;
    }
    let (used, left) = all_stop(instances, 1).await;
    assert_under(&used, 0.65 + left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_the_own_share_of_those_who_came_back_ceases_to_apply_nothing_is_had_twice() {
    let mut redis = RedisServer::absent();
    let instances = fleet(4, &settings(Some(redis.url()), true));
    for instance in &instances {
        instance.mode(Mode::Split).await;
    }
    redis.run().await;
    for instance in &instances {
        instance.mode(Mode::Shared).await;
    }
    // The own share applies for 10 s more, and puts off a little what the fleet gives.
    sleep(Duration::from_millis(11_500)).await;
    let late = instances.iter().map(|instance| instance.late(instance.started)).max().unwrap_or_default();
    let (used, left) = all_stop(instances, 1).await;
    // A fiftieth put off, and a hundredth of burst; what is late arrives together.
    assert_under(&used, 1.04 + left + 2.0 * late.as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_process_alone_keeps_to_the_rate_and_uses_it() {
    let instance = Instance::start(settings(None, false), 7);
    let start = Instant::now();
    sleep(Duration::from_secs(3)).await;
    let (took, now) = (start.elapsed().as_secs_f64(), instance.ceiling.snapshot());
    assert_eq!((now.mode, now.share, now.reason.as_str()), (Mode::Single, RATE, ""));
    let used = instance.stop().await.at;
    assert_under(&used, 1.10);
    assert!(used.len() as f64 >= 0.9 * RATE * (took - 0.1), "{} grants used in {took} s", used.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_instance_that_can_use_nothing_leaves_the_rate_to_the_others() {
    let redis = RedisServer::start().await;
    let settings = settings(Some(redis.url()), true);
    let instances = fleet(3, &settings);
    // Wants grants all the time, and never uses one: its provider has stalled.
    let (_live, live) = watch::channel(4);
    let (starved, mut runs) = Ceiling::start(settings, live, CancellationToken::new());
    let wants = async {
        loop {
            starved.want(100);
            if let Ok(Some(run)) = timeout(Duration::from_millis(5), runs.recv()).await {
                starved.forfeited(u64::from(run.n));
            }
        }
    };
    let start = Instant::now();
    let _ = timeout(Duration::from_secs(3), wants).await;
    let (took, wasted) = (start.elapsed().as_secs_f64(), starved.snapshot().forfeited as f64);
    let (used, left) = all_stop(instances, 0).await;
    println!("{wasted} wasted, {} used in {took} s", used.len());
    assert!(wasted > 0.0 && wasted <= 20.0 * took + 20.0, "{wasted} wasted in {took} s");
    assert_under(&used, 1.10 + left);
    let most = if left > 0.0 { 0.7 } else { 0.9 };
    assert!(used.len() as f64 >= most * RATE * (took - 0.2), "{} used in {took} s", used.len());
}
