//! One goal from the API to the last device, over real sockets, on every combination of databases and Redis: the line,
//! the API and the emulator's own log must agree to the last count.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fanfare::emulator::{Control, Settings};
use fanfare::wire::Fanout;

use super::harness::beside::Beside;
use super::harness::logs::{Event, logs};
use super::harness::service::{Database, Service, World, device_id};

/// How many followers begin with which token, and what must become of them.
const MIX: &[(&str, usize, &str)] = &[
    ("ok", 2285, "delivered"),
    ("flaky503", 20, "delivered"),
    ("flakyrefused", 10, "delivered"),
    ("flakyreset", 5, "delivered"),
    ("dead", 12, "token_dead"),
    ("dead404apns", 4, "token_dead"),
    ("apnsgone", 4, "token_dead"),
    ("invalid-field", 8, "token_invalid"),
    ("suspect", 6, "token_invalid"),
    ("foreign", 5, "token_foreign"),
    ("payload", 4, "payload"),
    ("badjson", 2, "payload"),
    ("iam", 3, "credential"),
    ("noproject", 2, "credential"),
    ("thirdparty", 3, "credential"),
    ("expired401", 2, "credential"),
    ("unavailable", 6, "transient"),
    ("internal", 3, "transient"),
    ("html502", 2, "transient"),
    ("hang", 3, "unconfirmed"),
    ("reset", 3, "unconfirmed"),
    ("empty200", 2, "protocol"),
    ("noname200", 2, "protocol"),
    ("nonstring200", 2, "protocol"),
    ("html404", 2, "protocol"),
    ("truncated", 2, "protocol"),
    ("redirect302", 2, "protocol"),
    ("oversize413", 2, "protocol"),
    ("quota-60", 1, "expired"),
    ("deleted", 10, "gone"),
];

const RECIPIENTS: usize = 2417;

fn expected() -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for (_, n, outcome) in MIX {
        *counts.entry(*outcome).or_default() += *n as u64;
    }
    counts
}

/// Tokens in an order that spreads every kind; those to be deleted come last, into the last chunk.
fn tokens(run: &str) -> Vec<String> {
    let mut all: Vec<(u64, String)> = Vec::new();
    for (kind, n, outcome) in MIX {
        for i in 0..*n {
            let token = format!("{kind}-{run}-{i}");
            let place = if *outcome == "gone" { u64::MAX } else { scramble(&token) };
            all.push((place, token));
        }
    }
    all.sort();
    all.into_iter().map(|(_, token)| token).collect()
}

fn scramble(text: &str) -> u64 {
    let mut h = text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (h ^ (h >> 33)) >> 1
}

async fn line_of(fanout: &Fanout) -> Event {
    let id = fanout.id.clone();
    let event = fanout.event_id.clone();
    let ours =
        move |e: &Event| e.is("fanfare::fanout", "fanout_id", &id) && e.is("fanfare::fanout", "event_id", &event);
    let found = logs().wait_for(1, ours).await;
    assert_eq!(found.len(), 1, "one line per fan-out");
    assert_eq!(found[0].message, "fan-out finished");
    found[0].clone()
}

async fn every_outcome(database: Database, redis: bool, run: &'static str) {
    let mut world = World::new(database, redis).await;
    world.emulate(Control { latency_ms: Some(20), jitter_ms: Some(10), ..Control::default() });
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 1500);
    world.set("FCM__STALL_AFTER_MS", 500);
    let service = world.serve().await;
    let tokens = tokens(run);
    assert_eq!(tokens.len(), RECIPIENTS);
    service.follow(run, &tokens).await;

    let id = service.goal(&format!("evt-{run}"), run, 40).await;
    while service.client.fanout(&id, Duration::ZERO).await.unwrap().state == "freezing" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let gone: Vec<usize> = (0..RECIPIENTS).filter(|i| tokens[*i].starts_with("deleted")).collect();
    for i in gone {
        service.client.delete_device(&device_id(run, i)).await.unwrap();
    }
    let fanout = service.settled(&id).await;

    let found: BTreeMap<&str, u64> =
        fanout.outcomes.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(found, expected(), "{fanout:#?}\n{:#?}", world.emulator.stats());
    assert_eq!(fanout.recipients, RECIPIENTS as u64);
    assert_eq!((fanout.delivered + fanout.failed, fanout.pending), (fanout.recipients, 0));

    the_line_says_the_same(&fanout).await;
    the_emulator_counted_the_same(&world, &fanout, &tokens);
    let mode = match (database, redis) {
        (_, true) => "shared",
        (Database::Sqlite, false) => "single",
        (Database::Postgres, false) => "split",
    };
    assert_eq!((fanout.ceiling.mode.as_str(), fanout.ledger.as_str()), (mode, "exact"));
    the_dead_are_not_sent_to_again(&service, run).await;
    assert_eq!(service.client.fanout(&id, Duration::ZERO).await.unwrap(), fanout, "settled for good");
    service.stop().await.unwrap();
}

async fn the_line_says_the_same(fanout: &Fanout) {
    let line = line_of(fanout).await;
    for (outcome, n) in &fanout.outcomes {
        assert_eq!(line.number(outcome), *n, "{outcome}");
    }
    let numbers = [
        ("recipients", fanout.recipients),
        ("delivered", fanout.delivered),
        ("failed", fanout.failed),
        ("attempts", fanout.attempts),
        ("retried", fanout.retried),
        ("throttled", fanout.throttled),
        ("unprocessed", fanout.unprocessed),
        ("unsent", fanout.unsent),
        ("reauthed", fanout.reauthed),
        ("stalled", fanout.stalled),
        ("slowest_send_ms", fanout.slowest_send_ms),
    ];
    for (field, n) in numbers {
        assert_eq!(line.number(field), n, "{field}");
    }
}

/// Law 2: `attempts - unsent - unprocessed` are the requests the provider counted; and nobody got it twice.
fn the_emulator_counted_the_same(world: &World, fanout: &Fanout, tokens: &[String]) {
    let stats = world.emulator.stats();
    assert_eq!(fanout.attempts - fanout.unsent - fanout.unprocessed, stats.requests, "{fanout:?} {stats:?}");
    assert_eq!(fanout.unprocessed, stats.refused);
    assert_eq!(fanout.delivered, stats.distinct_accepted);
    assert_eq!(stats.duplicates_accepted, 0);
    let mut attempts: HashMap<&str, u32> = HashMap::new();
    let log = world.emulator.log();
    for entry in &log {
        *attempts.entry(entry.token.as_str()).or_default() += 1;
    }
    for token in tokens {
        let sent = attempts.get(token.as_str()).copied().unwrap_or(0);
        let kind = token.split('-').next().unwrap();
        let most = match kind {
            "deleted" => 0,
            "ok" | "dead" | "dead404apns" | "apnsgone" | "foreign" => 1,
            // The last ones without an answer are asked until their deadline: nobody else shows that the provider works.
            "hang" | "reset" => 50,
            _ => 4,
        };
        assert!(sent <= most && (sent > 0 || kind == "deleted"), "{token}: {sent} attempts");
    }
}

async fn the_dead_are_not_sent_to_again(service: &Service, run: &str) {
    let again = service.goal(&format!("again-{run}"), run, 5).await;
    let fanout = service.settled(&again).await;
    let judged: u64 = ["token_dead", "token_invalid", "token_foreign", "gone"].iter().map(|o| expected()[o]).sum();
    assert_eq!(fanout.recipients, RECIPIENTS as u64 - judged);
}

/// Side by side, since most of the time is spent waiting for the deadline of whoever is throttled until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_outcome_is_counted_alike_by_line_api_and_emulator() {
    let worlds = [
        (Database::Sqlite, false, "sqlite-alone"),
        (Database::Sqlite, true, "sqlite-redis"),
        (Database::Postgres, false, "postgres-alone"),
        (Database::Postgres, true, "postgres-redis"),
    ];
    let running = worlds.map(|(database, redis, run)| (run, tokio::spawn(every_outcome(database, redis, run))));
    for (run, world) in running {
        world.await.unwrap_or_else(|error| panic!("{run}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goal_over_tls_with_an_authority_of_ones_own() {
    let world = World::with(Database::Sqlite, false, Settings { tls: true, ..Settings::default() }).await;
    assert!(world.emulator.endpoint().starts_with("https://"));
    let service = world.serve().await;
    service.follow("tls", &(0..40).map(|i| format!("ok-tls-{i}")).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-tls", "tls", 60).await).await;
    assert_eq!((fanout.delivered, fanout.attempts), (40, 40));
    let stats = world.emulator.stats();
    assert_eq!((stats.requests, stats.tls_failures), (40, 0));
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goal_nobody_follows_is_settled_with_its_line() {
    for database in [Database::Sqlite, Database::Postgres] {
        let world = World::new(database, false).await;
        let service = world.serve().await;
        let fanout = service.settled(&service.goal("evt-nobody", &format!("nobody-{database:?}"), 60).await).await;
        assert_eq!((fanout.recipients, fanout.delivered, fanout.attempts), (0, 0, 0));
        let id = fanout.match_id.clone();
        let lines = logs().wait_for(1, |e| e.is("fanfare::fanout", "match_id", &id)).await;
        assert_eq!(lines[0].number("recipients"), 0);
        service.stop().await.unwrap();
    }
}

/// What an answer shows of others must not lose the recipient it was for, though it is the last of its chunk.
#[tokio::test(flavor = "multi_thread")]
async fn suspects_are_judged_by_the_last_answer_of_their_chunk() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__SLOTS", 2);
    let service = world.serve().await;
    // One locale and platform each (every ninth follower), so that the accepted one speaks for the suspect.
    let mut tokens: Vec<String> = (0..10).map(|i| format!("dead-{i}")).collect();
    (tokens[0], tokens[9]) = ("suspect-0".to_owned(), "slow-300-9".to_owned());
    service.follow("pair", &tokens).await;
    let fanout = service.settled(&service.goal("evt-pair", "pair", 60).await).await;
    let found = |outcome: &str| fanout.outcomes[outcome];
    assert_eq!((found("delivered"), found("token_invalid"), found("token_dead")), (1, 1, 8), "{fanout:?}");

    // Nobody accepts it: after 20 refusals it is the message, and no device is blamed.
    service.follow("refused", &(0..225).map(|i| format!("suspect-{i}")).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-refused", "refused", 60).await).await;
    assert_eq!((fanout.outcomes["payload"], fanout.failed), (225, 225), "{fanout:?}");
    assert!((180..=225).contains(&fanout.attempts), "9 variants stop after 20 each: {fanout:?}");
    let device = service.client.device(&device_id("refused", 0)).await.unwrap();
    assert_eq!(device.state, "live");
    service.stop().await.unwrap();
}

/// One bad import leaves neighbours with bad device tokens: the message is not given up for that, it is tried elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn bad_neighbours_do_not_condemn_the_message() {
    let world = World::new(Database::Sqlite, false).await;
    world.emulate(Control { latency_ms: Some(10), ..Control::default() });
    let service = world.serve().await;
    let bad = (0..250).map(|i| format!("suspect-{i}"));
    let tokens: Vec<String> = bad.chain((0..250).map(|i| format!("ok-{i}"))).collect();
    service.follow("neighbours", &tokens).await;
    let fanout = service.settled(&service.goal("evt-neighbours", "neighbours", 60).await).await;
    assert_eq!((fanout.delivered, fanout.outcomes["token_invalid"]), (250, 250), "{fanout:?}");
    service.stop().await.unwrap();
}

/// Recipients that fail for a reason of their own open the breaker; they must not keep it open for the others.
#[tokio::test(flavor = "multi_thread")]
async fn poisoned_recipients_do_not_hold_the_others_up() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__SLOTS", 8);
    let service = world.serve().await;
    let poisoned = (0..30).map(|i| format!("unavailable-{i}"));
    let tokens: Vec<String> = poisoned.chain((0..470).map(|i| format!("ok-{i}"))).collect();
    service.follow("poison", &tokens).await;
    let fanout = service.settled(&service.goal("evt-poison", "poison", 30).await).await;
    assert_eq!((fanout.delivered, fanout.failed), (470, 30), "{fanout:?}");
    // When only the poisoned are left, they look like an outage, and an outage fails nobody before the deadline.
    assert_eq!(fanout.outcomes["transient"] + fanout.outcomes["expired"], 30, "{fanout:?}");
    let opened = logs().find(|e| e.message == "breaker changed" && e.is("fanfare::fanout", "to", "open"));
    assert!(!opened.is_empty(), "the breaker had a reason to open");
    service.stop().await.unwrap();
}

/// Device 9 reads the same variant as device 0, and its answer, the last of all, shows whose fault the refusal of device
/// 0 was. Ending device 0 must not end the chunk over the head of device 9, who has the push on the phone.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_counts_although_it_acquits_the_others() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    let token = |i: usize| match i {
        0 => "suspect-last".to_owned(),
        9 => "slow-500-last".to_owned(),
        _ => format!("ok-last-{i}"),
    };
    service.follow("last", &(0..10).map(token).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-last", "last", 60).await).await;
    let stats = world.emulator.stats();
    assert_eq!((fanout.delivered, stats.accepted, fanout.outcomes["token_invalid"]), (9, 9, 1), "{fanout:?}");
    service.stop().await.unwrap();
}

/// Nine variants of twenty: the twentieth refusal of each stops it and settles the suspects before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_refused_everywhere_is_the_messages_fault_for_every_recipient() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    service.follow("refused", &(0..180).map(|i| format!("suspect-refused-{i}")).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-refused", "refused", 60).await).await;
    assert_eq!((fanout.outcomes["payload"], fanout.failed), (180, 180), "{fanout:?}");
    let again = service.settled(&service.goal("evt-refused-2", "refused", 60).await).await;
    assert_eq!(again.recipients, 180, "no device was judged: {again:?}");
    service.stop().await.unwrap();
}

/// What a broken key of one platform leaves at the deadline ended for that reason, whether it had an attempt or not.
#[tokio::test(flavor = "multi_thread")]
async fn those_held_by_a_platforms_credential_end_as_that() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__SLOTS", 8);
    let service = world.serve().await;
    service.follow("held", &(0..60).map(|i| format!("thirdparty-held-{i}")).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-held", "held", 5).await).await;
    assert_eq!(fanout.outcomes["credential"], 60, "{fanout:?}");
    assert!(fanout.attempts < 60, "the gate held some of them: {fanout:?}");
    service.stop().await.unwrap();
}

/// Three chunks, of which only some are in hand when the deadline comes: the others are claimed after it. And the time
/// held is the fan-out's, not that of each of its chunks.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_credential_leaves_ends_as_that_in_every_chunk() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    service.follow("role", &(0..1500).map(|i| format!("iam-role-{i}")).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-role", "role", 5).await).await;
    assert_eq!(fanout.outcomes["credential"], 1500, "{fanout:?}");
    let line = line_of(&fanout).await;
    assert!(line.number("held_ms") <= line.number("duration_ms"), "{line:?}");
    service.stop().await.unwrap();
}

/// The first forty are refused for a reason of their own, before anybody was served: as probes they would hold the
/// credential's gate shut for everybody until the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_credential_is_probed_far_from_those_it_was_refused_for() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    let tokens = (0..40).map(|i| format!("iam-first-{i}")).chain((0..260).map(|i| format!("ok-first-{i}")));
    service.follow("first", &tokens.collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-first", "first", 20).await).await;
    assert_eq!((fanout.delivered, fanout.outcomes["credential"]), (260, 40), "{fanout:?}");
    service.stop().await.unwrap();
}

/// Two devices that are throttled whenever they are asked look like the project, which pauses; the others must get their
/// turn between the pauses.
#[tokio::test(flavor = "multi_thread")]
async fn two_throttled_devices_do_not_use_up_the_time_between_pauses() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    let token = |i: usize| if i < 2 { format!("quota-1-{i}") } else { format!("ok-turn-{i}") };
    service.follow("turn", &(0..300).map(token).collect::<Vec<_>>()).await;
    let fanout = service.settled(&service.goal("evt-turn", "turn", 8).await).await;
    assert_eq!((fanout.delivered, fanout.outcomes["expired"]), (298, 2), "{fanout:?}");
    service.stop().await.unwrap();
}

/// A drain repeats nobody and loses nobody: what was not sent is sent by the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_in_the_middle_repeats_nobody_and_loses_nobody() {
    for database in [Database::Sqlite, Database::Postgres] {
        let world = World::new(database, false).await;
        world.emulate(Control { latency_ms: Some(30), ..Control::default() });
        let first = world.serve().await;
        let run = format!("drain-{database:?}");
        first.follow(&run, &(0..1200).map(|i| format!("ok-{run}-{i}")).collect::<Vec<_>>()).await;
        let id = first.goal(&format!("evt-{run}"), &run, 120).await;
        world.emulator.logged(200).await;
        first.stop().await.unwrap();
        let sent = world.emulator.stats().accepted;
        assert!((200..1200).contains(&sent), "{sent} sent before the drain ended");
        let second = world.serve().await;
        let fanout = second.settled(&id).await;
        let stats = world.emulator.stats();
        assert_eq!((fanout.delivered, stats.accepted, stats.duplicates_accepted), (1200, 1200, 0));
        assert_eq!((fanout.attempts, fanout.ledger.as_str()), (1200, "exact"));
        second.stop().await.unwrap();
    }
}

/// While attempts are in flight, for 8 s each here, no transaction is open and the one connection there is is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_database_is_held_while_sending() {
    let mut world = World::new(Database::Postgres, false).await;
    world.emulate(Control { latency_ms: Some(8_000), ..Control::default() });
    world.set("DATABASE__MAX_CONNECTIONS", 1);
    let service = world.spawn().await;
    service.follow("held", &(0..32).map(|i| format!("ok-held-{i}")).collect::<Vec<_>>()).await;
    let id = service.goal("held", "held", 120).await;
    world.emulator.logged(32).await;
    let mut beside = Beside::open(&world).await;
    // Older than any statement of the service takes, younger than the attempts are.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND xact_start < clock_timestamp() - interval '2 seconds'";
    let begun = Instant::now();
    let mut looks = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(beside.number(open.to_owned()).await, 0, "a transaction is open");
        let asked = tokio::time::timeout(Duration::from_secs(2), service.client.fanout(&id, Duration::ZERO));
        let fanout = asked.await.expect("the connection is free").unwrap();
        assert_eq!((fanout.state.as_str(), fanout.pending), ("sending", 32), "all of them are in flight");
        looks += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(looks > 3 && beside.number(sessions.to_owned()).await > 0, "it was looked at while it was connected");
    beside.close().await;
    assert_eq!(service.settled(&id).await.delivered, 32);
}
