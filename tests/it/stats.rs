//! Totals of a window: what is complete never changes again, and what may change says so.

use std::time::Duration;

use fanfare::client::ClientError;
use fanfare::emulator::Control;
use fanfare::wire::Stats;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::harness::service::{Caller, Database, World};

fn at(text: &str) -> OffsetDateTime {
    OffsetDateTime::parse(text, &Rfc3339).unwrap()
}

async fn read(caller: &Caller, window: &str, to: Option<&str>) -> Stats {
    caller.client.stats(window, to.map(str::to_owned).as_ref()).await.unwrap()
}

fn agrees(stats: &Stats) {
    for group in [&stats.total, &stats.sweeps].into_iter().chain(stats.classes.values()).chain(stats.types.values()) {
        assert_eq!(group.delivered + group.failed + group.pending, group.recipients, "{group:?}");
    }
    let sum = |of: fn(&fanfare::wire::StatsGroup) -> u64| {
        let total = of(&stats.total);
        assert_eq!(stats.classes.values().map(of).sum::<u64>(), total);
        assert_eq!(stats.types.values().map(of).sum::<u64>(), total);
    };
    sum(|group| group.fanouts);
    sum(|group| group.recipients);
    sum(|group| group.attempts);
}

async fn a_window(database: Database, run: &str) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    let tokens: Vec<String> = (0..40).map(|i| format!("{}-{run}-{i}", if i < 30 { "ok" } else { "dead" })).collect();
    service.follow(run, &tokens).await;
    let none = read(&service, "1h", None).await;
    assert_eq!((none.total.fanouts, none.total.mean_duration_ms, none.counts.as_str()), (0, None, "lower_bound"));
    for i in 0..3 {
        let id = service.goal(&format!("{run}-{i}"), run, 600).await;
        service.settled(&id).await;
    }
    // What is dead after the first is no recipient of the second.
    let now = read(&service, "1h", None).await;
    agrees(&now);
    let total = &now.total;
    assert_eq!((total.fanouts, total.open, total.delivered), (3, 0, 90), "{now:#?}");
    assert_eq!((total.outcomes["token_dead"], total.failed), (10, total.recipients - 90));
    assert_eq!((now.types["goal"].fanouts, now.classes["urgent"].fanouts), (3, 3));
    assert_eq!(now.counts, "lower_bound", "it ends now");
    assert_eq!(at(&now.to) - at(&now.from), time::Duration::HOUR);

    // One more that stays open: nothing accepted since is complete, all before it is.
    world.emulate(Control { latency_ms: Some(60_000), ..Control::default() });
    let to = now.to.clone();
    let before = read(&service, "10m", Some(&to)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let open = service.goal(&format!("{run}-open"), run, 600).await;
    let complete = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let stats = read(&service, "10m", Some(&to)).await;
            if stats.counts == "exact" {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let complete = complete.await.expect("complete a quarter of a minute later");
    assert_eq!((&complete.total, &complete.types), (&before.total, &before.types));
    agrees(&read(&service, "1h", None).await);
    // Whatever happens then: the same.
    service.client.cancel(&open).await.unwrap();
    let again = read(&service, "10m", Some(&to)).await;
    assert_eq!((&again.total, &again.classes, &again.types), (&complete.total, &complete.classes, &complete.types));
    let later = read(&service, "1h", None).await;
    assert_eq!((later.total.fanouts, later.total.open, later.counts.as_str()), (4, 1, "lower_bound"), "{later:#?}");
    assert!(at(&later.complete_through) <= at(&later.to));
    // It is not settled as long as its attempts are in flight, so nothing from it on is complete.
    let accepted = service.client.fanout(&open, Duration::ZERO).await.unwrap().accepted_at;
    assert_eq!(at(&later.complete_through), at(&accepted), "{later:#?}");

    for (window, to, field) in [
        ("1w", None, "window"),
        ("0s", None, "window"),
        ("32d", None, "window"),
        ("", None, "window"),
        ("1h", Some("now"), "to"),
    ] {
        match service.client.stats(window, to.map(str::to_owned).as_ref()).await {
            Err(ClientError::Refused(problem)) => {
                assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, field), "{problem:?}");
            }
            other => panic!("{window} {to:?}: {other:?}"),
        }
    }
    world.emulate(Control { latency_ms: Some(0), ..Control::default() });
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_complete_never_changes_and_the_rest_says_that_it_may() {
    tokio::join!(a_window(Database::Sqlite, "stats-sqlite"), a_window(Database::Postgres, "stats-pg"));
}
