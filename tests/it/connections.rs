//! Our own sender when the provider's connections fail under it: nobody is lost, nothing is counted twice, and what was
//! never looked at costs no retry.

use std::time::Duration;

use fanfare::emulator::{Act, Control, Network};
use fanfare::wire::Fanout;
use tokio::time::timeout;

use super::harness::service::{Database, Service, World};

/// Of an event, seconds: longer than any of these tests.
const USEFUL_S: u32 = 300;
/// A connection that is silent has to be replaced in this time: PING after 10 s without a frame, 5 s for its answer,
/// and as much again for a loaded machine.
const REPLACED: Duration = Duration::from_secs(30);
/// Long enough for anything else on a loaded machine.
const LONG: Duration = Duration::from_secs(20);

async fn serving(start: Control, tokens: &[String]) -> (World, Service) {
    let settings = fanfare::emulator::Settings { control: start, ..fanfare::emulator::Settings::default() };
    let world = World::with(Database::Sqlite, false, settings).await;
    let service = world.serve().await;
    service.follow("m", tokens).await;
    (world, service)
}

fn phones(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("phone-{i}")).collect()
}

fn network(network: Network) -> Control {
    Control { latency_ms: Some(10), network, ..Control::default() }
}

/// Everybody got it once, and sender and provider agree on every request.
fn exact(world: &World, fanout: &Fanout, n: usize) {
    let (n, stats) = (n as u64, world.emulator.stats());
    assert_eq!((fanout.delivered, fanout.failed, fanout.ledger.as_str()), (n, 0, "exact"), "{fanout:?}");
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (n, 0), "{stats:?} {fanout:?}");
    assert_eq!(fanout.attempts - fanout.unprocessed - fanout.unsent, stats.requests, "{stats:?} {fanout:?}");
    assert_eq!(fanout.retried, 0, "nothing failed: {fanout:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goaway_every_hundred_requests_costs_no_outcome_and_no_retry() {
    let storm = Network { goaway_every: Some(100), goaway_unprocessed: Some(3), ..Network::default() };
    let (world, service) = serving(network(storm), &phones(1500)).await;
    let fanout = service.settled(&service.goal("goaway", "m", USEFUL_S).await).await;
    exact(&world, &fanout, 1500);
    let stats = world.emulator.stats();
    assert!(stats.goaways >= 10 && fanout.unprocessed > 0, "{stats:?} {fanout:?}");
    assert!(fanout.unprocessed <= stats.unprocessed, "no more than were left out: {stats:?} {fanout:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_is_sent_again_and_is_no_retry() {
    let tokens: Vec<String> = (0..300).map(|i| format!("flakyrefused-{i}")).collect();
    let (world, service) = serving(network(Network::default()), &tokens).await;
    let fanout = service.settled(&service.goal("refused", "m", USEFUL_S).await).await;
    exact(&world, &fanout, 300);
    assert_eq!((fanout.unprocessed, world.emulator.stats().refused), (300, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_limit_that_is_lowered_in_a_burst_to_nothing_and_raised_again_loses_nobody() {
    let (world, service) = serving(network(Network::default()), &phones(1500)).await;
    let id = service.goal("limit", "m", USEFUL_S).await;
    let limit = |n: u32| world.emulate(network(Network { max_streams: Some(n), ..Network::default() }));
    world.emulator.logged(200).await;
    limit(4);
    world.emulator.logged(400).await;
    limit(0);
    let silent = async {
        loop {
            let before = world.emulator.stats().requests;
            tokio::time::sleep(Duration::from_millis(300)).await;
            if world.emulator.stats().requests == before {
                return before;
            }
        }
    };
    let before = timeout(LONG, silent).await.expect("no stream is allowed, so none comes");
    assert!(before < 1500, "in the middle of it");
    limit(100);
    let fanout = service.settled(&id).await;
    exact(&world, &fanout, 1500);
    assert_eq!((fanout.attempts, world.emulator.stats().overruns), (1500, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_is_replaced_and_only_what_it_took_is_sent_twice() {
    let (world, service) = serving(network(Network::default()), &phones(1500)).await;
    let id = service.goal("silent", "m", USEFUL_S).await;
    world.emulator.logged(300).await;
    let silent = Network { now: vec![Act::BlackHole { connection: None }], ..Network::default() };
    world.emulate(network(silent));
    // What was under way is logged still; what comes after it has come over a new connection.
    let opened = world.emulator.stats().connections_opened;
    let replaced = async {
        while world.emulator.stats().connections_opened == opened {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(REPLACED, replaced).await.expect("a new connection");
    let fanout = service.settled(&id).await;
    let stats = world.emulator.stats();
    assert_eq!((fanout.delivered, fanout.failed), (1500, 0), "{fanout:?}");
    assert_eq!(stats.distinct_accepted, 1500);
    // 32 slots and 16 lent: what was open on the silent connection is all that can arrive twice.
    assert!(stats.duplicates_accepted <= 48, "{stats:?}");
}
