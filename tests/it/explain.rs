//! Explaining every device of a fan-out that was really sent: the explanations add up to the tally, and whoever was no
//! recipient is told why.

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare::client::ClientError;
use fanfare::emulator::Control;
use fanfare::wire::{DeviceRequest, Explanation, FollowEntry, FollowsRequest};

use super::harness::service::{Database, Service, World, device_id};

/// Device tokens by how they begin, and the outcome and status each must be explained with.
const MIX: &[(&str, usize, &str, Option<u16>)] = &[
    ("ok", 40, "delivered", None),
    ("dead", 3, "token_dead", Some(404)),
    ("invalid-field", 2, "token_invalid", Some(400)),
    ("foreign", 2, "token_foreign", Some(403)),
    ("payload", 2, "payload", Some(400)),
    ("iam", 1, "credential", Some(403)),
    ("unavailable", 2, "transient", Some(503)),
    ("hang", 1, "unconfirmed", None),
    ("noname200", 2, "protocol", Some(200)),
    ("quota-60", 1, "expired", Some(429)),
];

async fn register(service: &Service, id: &str, follows: FollowsRequest) {
    let device = DeviceRequest {
        user_id: "u".into(),
        token: Some(format!("ok-{id}")),
        fid: None,
        platform: "web".into(),
        locale: None,
    };
    service.client.put_device(id, &device).await.unwrap();
    service.client.put_follows(id, &follows).await.unwrap();
}

fn following(subject: &str, types: Option<&str>, muted: Option<&str>) -> FollowsRequest {
    let types = types.map(|name| vec![name.to_owned()]);
    FollowsRequest {
        follows: vec![FollowEntry { subject: subject.to_owned(), types }],
        muted: muted.map(str::to_owned).into_iter().collect(),
    }
}

async fn told(service: &Service, fanout: &str, device: &str) -> Explanation {
    service.client.explain(fanout, device).await.unwrap()
}

async fn absent(service: &Service, fanout: &str, device: &str, because: &str, certain: bool) -> Explanation {
    let told = told(service, fanout, device).await;
    assert_eq!(
        (told.answer.as_str(), told.because.as_str(), told.certain),
        ("not_a_recipient", because, certain),
        "{told:?}"
    );
    assert_eq!((told.attempts, told.chunk), (None, None), "{told:?}");
    told
}

async fn every_device_is_explained(database: Database, run: &'static str) {
    let mut world = World::new(database, false).await;
    world.emulate(Control { latency_ms: Some(5), ..Control::default() });
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 1000);
    world.set("FCM__STALL_AFTER_MS", 500);
    let service = world.serve().await;
    let tokens: Vec<(String, &str, Option<u16>)> = MIX
        .iter()
        .flat_map(|(kind, n, outcome, status)| (0..*n).map(move |i| (format!("{kind}-{run}-{i}"), *outcome, *status)))
        .collect();
    service.follow(run, &tokens.iter().map(|(token, ..)| token.clone()).collect::<Vec<_>>()).await;
    let subject = format!("match:{run}");
    let name = |what: &str| format!("{run}-{what}");
    register(&service, &name("elsewhere"), following("team:none", None, None)).await;
    register(&service, &name("corners"), following(&subject, Some("corner"), None)).await;
    register(&service, &name("muted"), following(&subject, None, Some("goal"))).await;
    register(&service, &name("changes"), following(&subject, Some("corner"), None)).await;
    register(&service, &name("before"), following(&subject, None, None)).await;
    service.client.delete_device(&name("before")).await.unwrap();

    let id = service.goal(run, run, 15).await;
    let fanout = service.settled(&id).await;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (i, (token, outcome, status)) in tokens.iter().enumerate() {
        let told = told(&service, &id, &device_id(run, i)).await;
        // A second failure is final only while others are served; else it ends at the deadline, with that as its cause.
        let found = told.cause.as_deref().filter(|cause| cause == outcome).unwrap_or(&told.because);
        assert_eq!((found, told.status, told.certain), (*outcome, *status, true), "{token}: {told:?}");
        assert_eq!(told.answer, if *outcome == "delivered" { "delivered" } else { "failed" }, "{token}");
        assert_eq!(told.attempts.is_none(), *outcome == "delivered", "{token}: {told:?}");
        assert_eq!(
            told.retryable,
            (*outcome != "delivered")
                .then(|| ["credential", "transient", "unconfirmed", "protocol", "expired"].contains(outcome))
        );
        assert!(told.text.ends_with('.') && (told.chunk, told.event_type.as_str()) == (Some(0), "goal"), "{told:?}");
        *counts.entry(told.because).or_default() += 1;
    }
    let outcomes: BTreeMap<String, u64> = fanout.outcomes.into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(counts, outcomes, "the explanations add up to the tally");

    absent(&service, &id, &name("elsewhere"), "no_follow", true).await;
    absent(&service, &id, &name("corners"), "type_not_wanted", true).await;
    absent(&service, &id, &name("muted"), "type_muted", true).await;
    absent(&service, &id, &name("before"), "deleted", true).await;
    absent(&service, &id, "nobody", "unknown_device", false).await;
    register(&service, &name("late"), following(&subject, None, None)).await;
    absent(&service, &id, &name("late"), "registered_later", true).await;
    service.client.put_follows(&name("changes"), &following(&subject, None, None)).await.unwrap();
    let changed = absent(&service, &id, &name("changes"), "followed_later", false).await;
    assert!(changed.text.contains("after the event was accepted"), "{}", changed.text);
    service.client.put_follows(&name("corners"), &following("team:none", None, None)).await.unwrap();
    absent(&service, &id, &name("corners"), "no_follow", false).await;

    // Judged by the first fan-out, so not a recipient of the second; deleted since, and still explained.
    let again = service.goal(&name("again"), run, 5).await;
    let dead = tokens.iter().position(|(token, ..)| token.starts_with("dead-")).unwrap();
    let judged = absent(&service, &again, &device_id(run, dead), "device_dead", true).await;
    assert_eq!(judged.device.unwrap().state, "tombstoned");
    service.client.delete_device(&device_id(run, dead)).await.unwrap();
    service.client.delete_device(&device_id(run, 0)).await.unwrap();
    let gone = told(&service, &id, &device_id(run, dead)).await;
    assert_eq!((gone.because.as_str(), gone.device.unwrap().state.as_str()), ("token_dead", "deleted"));
    assert_eq!(told(&service, &id, &device_id(run, 0)).await.answer, "delivered");
    service.settled(&again).await;

    match service.client.explain("99", "nobody").await {
        Err(ClientError::Refused(problem)) => assert_eq!(problem.code, "fanout_not_found"),
        other => panic!("{other:?}"),
    }
    service.stop().await.unwrap();
}

/// Side by side: most of the time passes until the deadline of whoever is throttled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_device_of_a_fan_out_is_explained_and_so_is_whoever_was_not_in_it() {
    tokio::join!(
        every_device_is_explained(Database::Sqlite, "explain-sqlite"),
        every_device_is_explained(Database::Postgres, "explain-pg"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_is_told_where_and_whoever_left_why() {
    let mut world = World::new(Database::Sqlite, false).await;
    // One slot, and answers that take their time: the last ones wait for long.
    world.set("FCM__SLOTS", 1);
    world.emulate(Control { latency_ms: Some(150), ..Control::default() });
    let service = world.serve().await;
    let tokens: Vec<String> = (0..1200).map(|i| format!("ok-wait-{i}")).collect();
    service.follow("wait", &tokens).await;
    let id = service.goal("wait", "wait", 600).await;
    world.emulator.logged(1).await;
    while service.client.fanout(&id, Duration::ZERO).await.unwrap().state == "freezing" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let hand = told(&service, &id, &device_id("wait", 400)).await;
    assert_eq!((hand.answer.as_str(), hand.because.as_str(), hand.certain), ("pending", "in_hand", true), "{hand:?}");
    assert!(hand.instance.is_some() && hand.text.contains(hand.instance.as_ref().unwrap()), "{hand:?}");
    let open = told(&service, &id, &device_id("wait", 1199)).await;
    assert_eq!((open.because.as_str(), open.chunk, open.instance), ("waiting", Some(2), None));
    service.client.cancel(&id).await.unwrap();
    service.settled(&id).await;
    let ended = told(&service, &id, &device_id("wait", 1199)).await;
    assert_eq!((ended.answer.as_str(), ended.because.as_str(), ended.attempts), ("failed", "cancelled", Some(0)));
    service.stop().await.unwrap();
}
