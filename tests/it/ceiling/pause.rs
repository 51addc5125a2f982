//! A throttle of the provider holds the whole fleet, once, and no fault of Redis ends it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Instance, RATE, all_stop, fleet, settings};
use crate::harness::logs::logs;
use crate::harness::redis::RedisServer;

/// Of no other test's length, so that what is said of it is found again.
const PAUSE: Duration = Duration::from_millis(3_900);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pause_holds_the_whole_fleet_and_survives_a_flush() {
    let logs = logs();
    let redis = RedisServer::start().await;
    let instances = fleet(3, &settings(Some(redis.url()), true));
    instances[0].shows(|now| now.used > 100).await;
    let told = Instant::now();
    instances[0].ceiling.throttled(Some(PAUSE));
    let most_of_it = Duration::from_millis(1_500);
    for instance in &instances {
        instance.shows(|now| now.paused_for > most_of_it).await;
    }
    let heard = Instant::now();
    redis.command::<()>(&["FLUSHALL"]).await;
    let newcomer = Instance::start(settings(Some(redis.url()), true), 4);
    let now = newcomer.shows(|now| now.paused_for > Duration::from_secs(1)).await;
    assert!(now.reason.contains("throttled"), "{now:?}");
    redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
    sleep_until(told + PAUSE + Duration::from_millis(1_500)).await;
    let now = instances[1].ceiling.snapshot();
    assert!((0.5..0.7).contains(&(now.pace / RATE)), "halved once, recovering: {now:?}");
    let (used, new) = (all_stop(instances, 0).await.0, newcomer.stop().await.at);
    let end = told + PAUSE;
    let inside = |used: &[Instant]| used.iter().filter(|at| **at > heard && **at < end).count();
    assert_eq!(inside(&used), 0, "used inside the pause by those who were told");
    assert!(inside(&new) as f64 <= 0.1 * RATE, "{} used inside it by the newcomer", inside(&new));
    let after = (used.len() + new.len()) - used.iter().chain(&new).filter(|at| **at < end).count();
    let expected = 1.5 * 0.54 * RATE;
    assert!((0.7 * expected..1.2 * expected).contains(&(after as f64)), "{after} used after the pause");
    let said = |by: &str| {
        let ours = |ms: u64| (3_001..=3_900).contains(&ms);
        logs.find(|e| e.is("fanfare::ceiling", "told_by", by) && ours(e.number("paused_ms"))).len()
    };
    // The newcomer may have come when less than that was left.
    let (provider, fleet) = (said("provider"), said("fleet"));
    assert!(provider == 1 && (2..=3).contains(&fleet), "each instance says once who told it: {provider}, {fleet}");
}
