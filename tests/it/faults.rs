//! Real faults on the real binary: it is killed, drained and cut off in the middle of a fan-out, and the emulator's log
//! says what every follower got.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use fanfare::emulator::{Control, Rule};
use fanfare::wire::{Fanout, Problem};

use super::harness::process::Process;
use super::harness::service::{Caller, Database, World, goal};
use super::harness::together::together;

/// The most recipients a kill may repeat by default: 32 slots, 16 lent, 16 not written down yet (law 9).
const EXPOSURE: u64 = 64;
/// Longer than any fault here lasts.
const USEFUL_S: u32 = 240;
/// Time between two looks at something that has no event to wait for.
const LOOK: Duration = Duration::from_millis(50);

fn followers(run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{run}-{i}")).collect()
}

fn latency(ms: u64) -> Control {
    Control { latency_ms: Some(ms), ..Control::default() }
}

/// A world and a service in it, with `n` followers of `run`.
async fn serving(mut world: World, run: &str, n: usize) -> (World, Process) {
    world.emulate(latency(20));
    world.set("DATABASE__MAX_CONNECTIONS", 4);
    let service = world.spawn().await;
    service.follow(run, &followers(run, n)).await;
    (world, service)
}

/// Everybody got it, and at most `most` got it twice.
fn everybody_got_it(world: &World, fanout: &Fanout, n: u64, most: u64) {
    let stats = world.emulator.stats();
    println!("{}: {} duplicates of at most {most}", fanout.event_id, stats.duplicates_accepted);
    assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (n, n, 0), "{fanout:#?}");
    assert_eq!(stats.distinct_accepted, n, "somebody was lost: {stats:?}");
    assert!(stats.duplicates_accepted <= most, "{stats:?}");
}

/// Waits until `/readyz` answers this.
async fn ready(service: &Process, status: u16) {
    let look = async {
        loop {
            let answer = reqwest::get(format!("{}/readyz", service.ops)).await.unwrap();
            if answer.status() == status {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), look).await.unwrap_or_else(|_| panic!("/readyz is not {status}"));
}

async fn killed_in_the_middle(database: Database, kills: &[u64], run: &'static str) {
    let (world, mut service) = serving(World::new(database, false).await, run, 1500).await;
    let id = service.goal(run, run, USEFUL_S).await;
    for sent in kills {
        world.emulator.logged(*sent).await;
        service.kill().await;
        assert!(world.emulator.stats().distinct_accepted < 1500, "it was killed in the middle");
        service = world.spawn().await;
    }
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1500, EXPOSURE * kills.len() as u64);
    let line = service.line(&id).await;
    assert_eq!((line["ledger"].as_str(), fanout.ledger.as_str()), (Some("lower_bound"), "lower_bound"));
    assert!(line["interrupted"].as_u64() >= Some(1), "{line}");
    assert!(fanout.attempts <= world.emulator.stats().requests, "a lower bound: {fanout:?}");
}

async fn killed_beside_another(run: &'static str) {
    let (world, first) = serving(World::new(Database::Postgres, false).await, run, 3000).await;
    let second = world.spawn().await;
    let id = first.goal(run, run, USEFUL_S).await;
    world.emulator.logged(700).await;
    first.kill().await;
    let fanout = second.settled(&id).await;
    everybody_got_it(&world, &fanout, 3000, EXPOSURE);
    let line = second.line(&id).await;
    assert_eq!((line["ledger"].as_str(), line["interrupted"].as_u64()), (Some("lower_bound"), Some(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_kill_in_the_middle_loses_nobody_and_repeats_at_most_the_exposure() {
    together(vec![
        ("SQLite, once", Box::pin(killed_in_the_middle(Database::Sqlite, &[400], "kill-sqlite"))),
        ("SQLite, three times", Box::pin(killed_in_the_middle(Database::Sqlite, &[300, 650, 1000], "kill-sqlite-3"))),
        ("Postgres, once", Box::pin(killed_in_the_middle(Database::Postgres, &[400], "kill-pg"))),
        ("Postgres, two instances", Box::pin(killed_beside_another("kill-two"))),
    ])
    .await;
}

async fn killed_after_the_202(database: Database, rounds: u64, run: &'static str) {
    let (world, mut service) = serving(World::new(database, false).await, run, 600).await;
    let mut ids = Vec::new();
    // Killed at once each time: before, in or just after the freeze, as it happens.
    for i in 0..rounds {
        ids.push(service.goal(&format!("{run}-{i}"), run, USEFUL_S).await);
        service.kill().await;
        service = world.spawn().await;
    }
    for id in &ids {
        let fanout = service.settled(id).await;
        assert_eq!((fanout.recipients, fanout.delivered, fanout.failed), (600, 600, 0), "{fanout:#?}");
    }
    let stats = world.emulator.stats();
    assert_eq!(stats.accepted - stats.duplicates_accepted, rounds * 600, "{stats:?}");
    assert!(stats.duplicates_accepted <= rounds * EXPOSURE, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_202_is_delivered_although_the_process_is_killed_at_once() {
    together(vec![
        // Three kills: four without progress would set a chunk aside, as they should.
        ("SQLite", Box::pin(killed_after_the_202(Database::Sqlite, 3, "kept-sqlite"))),
        ("Postgres", Box::pin(killed_after_the_202(Database::Postgres, 2, "kept-pg"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_share_one_fan_out_and_repeat_nobody() {
    let (world, first) = serving(World::new(Database::Postgres, true).await, "share", 4000).await;
    let second = world.spawn().await;
    let id = first.goal("share", "share", USEFUL_S).await;
    let fanout = second.settled(&id).await;
    everybody_got_it(&world, &fanout, 4000, 0);
    assert_eq!((fanout.attempts, fanout.ledger.as_str(), fanout.ceiling.mode.as_str()), (4000, "exact", "shared"));
    let line = tokio::select! {
        line = first.line(&id) => line,
        line = second.line(&id) => line,
    };
    assert_eq!((line["instances"].as_u64(), line["interrupted"].as_u64()), (Some(2), Some(0)), "{line}");
    let lines = first.said("fan-out finished").len() + second.said("fan-out finished").len();
    assert_eq!(lines, 1, "one line, whoever settles");
}

async fn drained_in_the_middle(database: Database, run: &'static str) {
    let (world, mut first) = serving(World::new(database, false).await, run, 1500).await;
    let id = first.goal(run, run, USEFUL_S).await;
    world.emulator.logged(400).await;
    first.terminate().await;
    assert_eq!(first.ended().await.code(), Some(0));
    assert_eq!(first.says(1, |line| line["message"] == "drained").await["clean"], true);
    let sent = world.emulator.stats();
    assert!((400..1500).contains(&sent.accepted), "drained in the middle: {sent:?}");
    let second = world.spawn().await;
    let fanout = second.settled(&id).await;
    everybody_got_it(&world, &fanout, 1500, 0);
    assert_eq!((fanout.attempts, fanout.ledger.as_str()), (1500, "exact"));
    assert_eq!(second.line(&id).await["interrupted"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_in_the_middle_exits_0_and_repeats_nobody() {
    together(vec![
        ("SQLite", Box::pin(drained_in_the_middle(Database::Sqlite, "term-sqlite"))),
        ("Postgres", Box::pin(drained_in_the_middle(Database::Postgres, "term-pg"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_ends_it_at_once() {
    let world = World::new(Database::Sqlite, false).await;
    let mut service = world.spawn().await;
    service.follow("twice", &["hang-twice".to_owned()]).await;
    service.goal("twice", "twice", USEFUL_S).await;
    world.emulator.logged(1).await;
    service.terminate().await;
    // The attempt that hangs keeps the drain waiting.
    service.says(1, |line| line["target"] == "fanfare::app" && line["message"] == "draining").await;
    service.terminate().await;
    let ended = service.ended().await;
    assert_eq!((ended.code(), ended.signal()), (Some(143), None));
}

/// Posts a goal and gives status, content type and `Retry-After` of the answer.
async fn post(caller: &Caller, service: &str, id: &str) -> (u16, String, Option<u64>) {
    let body = serde_json::to_string(&goal(id, "nobody", USEFUL_S)).unwrap();
    let request = reqwest::Client::new().post(format!("{service}/v1/events")).bearer_auth(&caller.key);
    let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let retry_after = header("retry-after").map(|seconds| seconds.parse().unwrap());
    (answer.status().as_u16(), header("content-type").unwrap_or_default(), retry_after)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_away_stops_sending_at_the_exposure_and_loses_and_repeats_nobody() {
    let mut world = World::new(Database::Postgres, false).await;
    let proxy = world.proxy_postgres().await;
    let (world, service) = serving(world, "away", 1500).await;
    ready(&service, 200).await;
    let id = service.goal("away", "away", USEFUL_S).await;
    world.emulator.logged(400).await;
    proxy.cut();
    let cut_at = world.emulator.stats().requests;
    service.says(1, |line| line["message"].as_str().is_some_and(|text| text.starts_with("flush failed"))).await;
    service.says(1, |line| line["message"].as_str().is_some_and(|text| text.starts_with("heartbeat failed"))).await;
    // Every answer is in after the slowest of 20 ms and more than a second: whatever could still be sent has been.
    ready(&service, 503).await;
    let stopped_at = world.emulator.stats().requests;
    assert!(stopped_at <= cut_at + EXPOSURE + 16, "{cut_at} when it was cut, {stopped_at} then");
    let (status, content_type, retry_after) = post(&service, &service.api, "away-2").await;
    assert_eq!((status, content_type.as_str()), (503, "application/problem+json"));
    assert!(retry_after >= Some(1), "{retry_after:?}");
    assert_eq!(world.emulator.stats().requests, stopped_at, "nothing more is sent");
    proxy.mend();
    service.says(1, |line| line["message"] == "heartbeat is back").await;
    ready(&service, 200).await;
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1500, 0);
    assert_eq!((fanout.attempts, fanout.ledger.as_str()), (1500, "exact"));
    assert_eq!(post(&service, &service.api, "away-2").await.0, 202);
}

/// An instance that was cut off for longer than its lease has lost its chunks; one of them comes back to it while an
/// attempt from before is still in flight.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_cut_off_for_longer_than_its_lease_goes_on_with_what_comes_back() {
    let mut world = World::new(Database::Postgres, false).await;
    world.emulate(latency(20));
    let direct = world.settings["FANFARE__DATABASE__URL"].clone();
    let proxy = world.proxy_postgres().await;
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 34_000);
    let first = world.spawn().await;
    let mut tokens = followers("lapse", 1500);
    tokens.insert(0, "hang-lapse".to_owned());
    first.follow("lapse", &tokens).await;
    let id = first.goal("lapse", "lapse", USEFUL_S).await;
    world.emulator.logged(200).await;
    proxy.cut();

    world.set("DATABASE__URL", direct);
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 4000);
    let mut second = world.spawn().await;
    second.says(1, |line| line["message"].as_str().is_some_and(|text| text.starts_with("took over chunks"))).await;
    while world.emulator.stats().distinct_accepted < 1500 {
        tokio::time::sleep(LOOK).await;
    }
    second.terminate().await;
    assert_eq!(second.ended().await.code(), Some(0));
    let well = Rule { prefix: "hang".into(), answer: "ok".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![well], ..Control::default() });
    proxy.mend();
    let fanout = first.settled(&id).await;
    everybody_got_it(&world, &fanout, 1501, EXPOSURE);
    assert_eq!(fanout.ledger, "lower_bound");
}

/// What an instance owns because of an answer that never arrived must not lie idle for as long as the instance lives.
async fn answer_lost((statement, at_least, times): (&'static str, usize, u32), run: &'static str) {
    let mut world = World::new(Database::Postgres, false).await;
    let proxy = world.proxy_postgres().await;
    proxy.lose_answer_to(statement, at_least, times);
    let (world, service) = serving(world, run, 1500).await;
    let id = service.goal(run, run, USEFUL_S).await;
    let fanout = service.settled(&id).await;
    proxy.lost(times).await;
    everybody_got_it(&world, &fanout, 1500, 0);
    assert_eq!((fanout.attempts, fanout.ledger.as_str()), (1500, "exact"));
}

/// An answer with a chunk in it: 500 keys.
const A_CHUNK: usize = 2000;

/// The event is committed, its caller is told to ask again, and asking again is no second event.
async fn accept_lost() {
    let mut world = World::new(Database::Postgres, false).await;
    let proxy = world.proxy_postgres().await;
    proxy.lose_answer_to("INSERT INTO event", 0, 1);
    let (world, service) = serving(world, "lost-accept", 300).await;
    let event = goal("lost-accept", "lost-accept", USEFUL_S);
    // By hand: our client would ask again by itself.
    let once = reqwest::Client::new().post(format!("{}/v1/events", service.api)).bearer_auth(&service.key);
    let problem: Problem = once.json(&event).send().await.unwrap().json().await.expect("its answer is lost");
    assert_eq!((problem.status, problem.retryable), (503, true), "{problem:?}");
    assert!(!problem.detail.contains("nothing was kept"), "{problem:?}");
    let (accepted, repeat) = service.client.post_event(&event).await.unwrap();
    assert!(repeat, "it was kept");
    let fanout = service.settled(&accepted.fanout_id).await;
    everybody_got_it(&world, &fanout, 300, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_lost_answer_of_postgres_leaves_nobody_unsent() {
    let chunks_of_a_step = "chunk_no < $4 AND state = 1 AND owner = $1";
    together(vec![
        ("accept", Box::pin(accept_lost())),
        ("claim", Box::pin(answer_lost(("LIMIT $2 FOR UPDATE OF k SKIP LOCKED", A_CHUNK, 2), "lost-claim"))),
        ("freeze step", Box::pin(answer_lost(("INSERT INTO chunk_ids", 0, 1), "lost-step"))),
        ("chunks of a step", Box::pin(answer_lost((chunks_of_a_step, A_CHUNK, 1), "lost-chunks"))),
        ("flush", Box::pin(answer_lost(("INSERT INTO failure", 0, 2), "lost-flush"))),
        ("counters", Box::pin(answer_lost(("INSERT INTO fanout_part", 0, 2), "lost-parts"))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_away_fails_nobody_and_is_asked_little() {
    together(vec![("connections end", Box::pin(provider_cut())), ("503 for all", Box::pin(provider_503()))]).await;
}

/// Waits until the breaker has opened `n` times: with every time it waits longer.
async fn opened(service: &Process, n: usize) {
    service.says(n, |line| line["message"] == "breaker changed" && line["to"] == "open").await;
}

async fn provider_cut() {
    let mut world = World::new(Database::Sqlite, false).await;
    let proxy = world.proxy_provider().await;
    let (world, service) = serving(world, "cut", 1500).await;
    let id = service.goal("cut", "cut", USEFUL_S).await;
    world.emulator.logged(300).await;
    proxy.cut();
    opened(&service, 3).await;
    proxy.mend();
    let fanout = service.settled(&id).await;
    // An attempt cut off in flight may have been delivered, and is repeated: one for each.
    everybody_got_it(&world, &fanout, 1500, EXPOSURE);
    assert!(fanout.attempts <= 1500 + 150, "few attempts while it was away: {fanout:?}");
}

async fn provider_503() {
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "503", 1500).await;
    let id = service.goal("503", "503", USEFUL_S).await;
    world.emulator.logged(300).await;
    let away = Rule { answer: "unavailable".into(), ..Rule::default() };
    world.emulate(Control { rules: vec![away], ..Control::default() });
    opened(&service, 3).await;
    world.emulate(Control { clear_rules: true, ..Control::default() });
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1500, 0);
    assert!(fanout.attempts <= 1500 + 150, "few attempts while it was away: {fanout:?}");
    let stats = world.emulator.stats();
    assert_eq!(fanout.attempts - fanout.unsent - fanout.unprocessed, stats.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_project_pauses_and_fails_and_prunes_nobody() {
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "throttle", 1000).await;
    let id = service.goal("throttle", "throttle", USEFUL_S).await;
    world.emulator.logged(300).await;
    let throttle = Rule { answer: "quota".into(), retry_after: Some(3), ..Rule::default() };
    world.emulate(Control { rules: vec![throttle], ..Control::default() });
    service.says(1, |line| line["message"] == "ceiling paused by the provider").await;
    world.emulate(Control { clear_rules: true, ..Control::default() });
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1000, 0);

    let log = world.emulator.log();
    let first = log.iter().find(|entry| entry.status == 429).unwrap().t_ns;
    // What was in flight at the first 429 still arrives; after it nothing, until Retry-After has passed.
    let second = |entry: &&fanfare::emulator::LogEntry| entry.t_ns.saturating_sub(first) / 1_000_000;
    let paused = log.iter().filter(|entry| (800..2900).contains(&second(entry))).count();
    assert_eq!(paused, 0, "no request during the pause");
    let line = service.line(&id).await;
    let throttled = line["throttled"].as_u64().unwrap();
    assert!((2..=EXPOSURE).contains(&throttled), "{throttled} throttled");
    assert_eq!(throttled, fanout.throttled);
    assert_eq!(fanout.retried, 0, "a throttle is no failure");
    assert!(line["ceiling_pace"].as_f64() < line["ceiling_rate"].as_f64(), "the pace went down: {line}");
    let again = service.settled(&service.goal("throttle-2", "throttle", USEFUL_S).await).await;
    assert_eq!(again.recipients, 1000, "no device was judged");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_in_the_middle_splits_the_ceiling_and_goes_on() {
    let (mut world, service) = serving(World::new(Database::Postgres, true).await, "redis", 1500).await;
    world.emulate(latency(60));
    let id = service.goal("redis", "redis", USEFUL_S).await;
    world.emulator.logged(300).await;
    world.redis.as_mut().unwrap().kill().await;
    service.says(1, |line| line["message"] == "ceiling mode changed" && line["to"] == "split").await;
    assert!(world.emulator.stats().accepted < 1500, "killed in the middle");
    let fanout = service.settled(&id).await;
    everybody_got_it(&world, &fanout, 1500, 0);
    assert_eq!((fanout.attempts, fanout.ceiling.mode.as_str()), (1500, "split"));
    assert_eq!(service.line(&id).await["ceiling_mode"], "split");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_start_says_in_one_message_what_to_change() {
    let bad_types = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bad_types.path(), "[types.goal]\nclass = \"soon\"\n").unwrap();
    let no_pem = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(no_pem.path(), "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n").unwrap();
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (types, no_pem, nothing) = (&path(&bad_types), &path(&no_pem), "/nowhere/at-all.pem");
    type Case<'a> = (&'a [(&'a str, &'a str)], i32, &'a str);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let user = r#"{"type":"authorized_user","refresh_token":"1//x"}"#;
    let cases: [Case<'_>; 12] = [
        (&[("FCM__SLOT", "8")], 78, "fcm.slot"),
        (&[("FCM__CREDENTIALS", "{\"type\":\"service_account\"")], 78, "fcm.credentials"),
        (&[("FCM__CREDENTIALS", ""), ("FCM__CREDENTIALS_FILE", nothing)], 78, "fcm.credentials_file"),
        (&[("FCM__CREDENTIALS", ""), ("FCM__CREDENTIALS_FILE", directory)], 78, "it is a directory"),
        (&[("FCM__CREDENTIALS", user)], 78, "fcm.credentials: this is a user's credentials"),
        (&[("REDIS__URL", "redis://h:notaport")], 78, "redis.url"),
        (&[("REDIS__URL", "redis://")], 78, "redis.url"),
        (&[("FCM__CA_FILE", nothing)], 78, "fcm.ca_file"),
        (&[("FCM__CA_FILE", no_pem)], 78, "fcm.ca_file"),
        (&[("TYPES__FILE", types)], 78, "types.file"),
        (&[("DATABASE__URL", "postgres://nobody@127.0.0.1:1/none")], 69, "database.url"),
        (&[("API__LISTEN", "203.0.113.1:80")], 69, "api.listen"),
    ];
    for (settings, code, names) in cases {
        let mut world = World::new(Database::Sqlite, false).await;
        for (name, value) in settings {
            world.set(name, value);
        }
        let ended = world.run("serve").await;
        assert_eq!(ended.code, Some(code), "{settings:?}: {ended:?}");
        assert!(ended.err.starts_with("fanfare: ") && ended.err.lines().count() == 1, "{settings:?}: {}", ended.err);
        assert!(ended.err.contains(names), "{settings:?}: {}", ended.err);
        assert!(!ended.out.contains("\"serving\""), "{}", ended.out);
        if code == 78 {
            let check = world.command("config").arg("check").output().await.unwrap();
            assert_eq!(String::from_utf8(check.stderr).unwrap(), ended.err, "config check says what serve says");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_before_migrate_exits_69_and_names_the_command() {
    let mut world = World::new(Database::Sqlite, false).await;
    let database = super::harness::postgres::TestDatabase::create().await;
    world.set("DATABASE__URL", &database.url);
    let ended = world.run("serve").await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.err.contains("`fanfare migrate`"), "{}", ended.err);
    assert_eq!(world.run("migrate").await.code, Some(0));
    drop(world.spawn().await);
}
