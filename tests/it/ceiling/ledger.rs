//! The ceiling is charged where requests leave: each has a grant of its own, whatever it is for.

use std::time::Duration;

use crate::harness::service::{Database, World};

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_uses_a_grant_and_the_provider_counts_the_same() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__RETRY_DELAY_MS", 20);
    let service = world.serve().await;
    // Most are served, so that neither breaker nor credentials hold up the rest.
    let answer = |i: usize| match i % 10 {
        _ if i == 101 => "flakyexpired401",
        1 => "flaky503",
        4 => "flakyreset",
        6 => "flakyrefused",
        8 => "dead",
        _ => "ok",
    };
    let tokens: Vec<String> = (0..200).map(|i| format!("{}-charged-{i}", answer(i))).collect();
    service.follow("charged", &tokens).await;
    let fanout = service.settled(&service.goal("charged", "charged", 60).await).await;
    let (stats, used) = (world.emulator.stats(), service.client.ceiling().await.unwrap().used);
    assert!(fanout.retried >= 39 && fanout.unprocessed >= 20 && fanout.reauthed >= 1, "{fanout:#?}");
    assert_eq!(used, fanout.attempts, "a grant for each attempt: {fanout:#?}");
    assert_eq!(fanout.attempts - fanout.unsent - fanout.unprocessed, stats.requests, "{stats:#?}");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn however_the_provider_asks_for_a_pause_it_is_never_shorter() {
    // Answer, and the pause it asks for in ms.
    let asked = [
        ("quota-2", 2_000),
        ("quotadate-2", 1_000),
        ("quotafraction", 1_500),
        ("quotahuge", 3_600_000),
        ("quotanegative", 1_000),
        ("quotadate-0", 1_000),
        ("quotagarbage", 60_000),
        ("quota", 60_000),
    ];
    let stories = asked.map(|(answer, ms)| tokio::spawn(paused(answer, ms)));
    for (story, (answer, _)) in stories.into_iter().zip(asked) {
        story.await.unwrap_or_else(|error| panic!("{answer}: {error}"));
    }
}

async fn paused(answer: &'static str, ms: u64) {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    let tokens: Vec<String> = (0..60).map(|i| format!("{}-{i}", if i < 2 { answer } else { "ok-pause" })).collect();
    service.follow("pause", &tokens).await;
    service.goal("pause", "pause", 600).await;
    let throttled = async {
        loop {
            let now = service.client.ceiling().await.unwrap();
            // The pause is in force at once, the pace a moment later.
            if now.paused_for_ms > 0 && now.pace < now.rate {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let now = tokio::time::timeout(Duration::from_secs(20), throttled).await.expect("a pause and a lower pace");
    assert!(now.paused_for_ms <= ms + 1_100, "{now:?}");
    // A long pause tells which it is; a short one is looked for in the log.
    assert!(ms <= 2_000 || now.paused_for_ms + 10_000 >= ms, "{now:?}");
    assert!(now.reason.contains("throttled by the provider"), "{now:?}");
    if ms <= 2_000 {
        // The two that are throttled again after the pause.
        world.emulator.logged(62).await;
        let log = world.emulator.log();
        let throttles: Vec<u64> = log.iter().filter(|entry| !entry.accepted).map(|entry| entry.t_ns).collect();
        let gap = Duration::from_nanos(throttles[2] - throttles[1]);
        assert!(gap >= Duration::from_millis(ms), "{gap:?} between two throttles");
        // What was in flight at the second throttle may still arrive.
        let inside = (throttles[1] + 500_000_000)..(throttles[1] + ms * 1_000_000);
        assert_eq!(log.iter().filter(|entry| inside.contains(&entry.t_ns)).count(), 0, "in the pause");
    }
}
