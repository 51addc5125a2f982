//! Owns the stories: which fault, when, how often.
//! Must never know: what must hold afterwards.

use std::time::{Duration, Instant};

use fanfare::emulator::Control;
use sqlx::{Connection, PgConnection};

use super::fleet::{Fleet, LEASE, Plan};
use super::{long, scale};
use crate::harness::own_postgres::{OwnPostgres, SmallDisk};
use crate::harness::proxy::Proxy;

fn plan(name: &'static str, seed: u64, instances: usize) -> Plan {
    let rate = if long() { 400 } else { 150 };
    Plan { name, seed, instances, recipients: 1_500 * scale(), rate, redis: false }
}

/// Whether a log line begins so.
fn begins(line: &serde_json::Value, with: &str) -> bool {
    line["message"].as_str().is_some_and(|message| message.starts_with(with))
}

/// Whoever it hits is replaced at once, again and again.
pub async fn killed() {
    let mut fleet = Fleet::sending(plan("kill -9", 1, 4), None).await;
    while !fleet.sent(85) {
        fleet.pause(800, 2_500).await;
        let i = fleet.any();
        fleet.kill_and_bury(i).await;
        fleet.post_small().await;
        fleet.spawn().await;
    }
    fleet.holds(0).await;
}

/// Two die and nobody helps their leases to end.
pub async fn killed_and_left() {
    let mut fleet = Fleet::sending(plan("kill -9, lease left", 2, 3), None).await;
    fleet.reach(200).await;
    fleet.kill(0).await;
    fleet.post_small().await;
    fleet.kill(0).await;
    fleet.post_small().await;
    fleet.holds(0).await;
}

/// It stands still for longer than its lease, and then cannot reach the database, so that nothing tells it what
/// happened meanwhile: it must know by itself.
pub async fn stopped() {
    let mut fleet = Fleet::new(plan("SIGSTOP", 3, 2), None).await;
    let direct = fleet.world.settings["FANFARE__DATABASE__URL"].clone();
    let proxy = fleet.world.proxy_postgres().await;
    fleet.spawn().await;
    fleet.post("big", fleet.plan.recipients).await;
    fleet.reach(100).await;
    // It is alone, so that these are its connections.
    let mut own: Vec<u32> = fleet.world.emulator.log().iter().map(|entry| entry.connection).collect();
    own.sort_unstable();
    own.dedup();
    fleet.world.set("DATABASE__URL", direct);
    fleet.spawn().await;
    fleet.instances[0].process.signal("-STOP").await;
    fleet.done.stalls += 1;
    tokio::time::sleep(LEASE).await;
    proxy.cut();
    let before = fleet.world.emulator.log().len();
    fleet.instances[0].process.signal("-CONT").await;
    // It says so itself that it runs again.
    fleet.instances[0].process.says(1, |line| begins(line, "heartbeat failed")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let late = fleet.world.emulator.log()[before..].iter().filter(|entry| own.contains(&entry.connection)).count();
    // What was bound and not yet written when it was stopped: a few of those launched within the same millisecond.
    assert!(late <= 4, "{late} attempts were launched after the lease");
    proxy.mend();
    fleet.post_small().await;
    fleet.holds(0).await;
}

/// Kills, and stops longer than a lease, at the same time.
pub async fn mixed() {
    let rounds = if long() { 4 } else { 1 };
    let mut fleet = Fleet::sending(plan("mixed", 4, 4), None).await;
    for _ in 0..rounds {
        fleet.pause(300, 1_200).await;
        let stopped = fleet.any();
        fleet.instances[stopped].process.signal("-STOP").await;
        fleet.done.stalls += 1;
        let boot = fleet.instances[stopped].boot;
        fleet.pause(200, 900).await;
        // One of those that run, and the stopped one cannot be asked for anything.
        let runs = (stopped + 1) % fleet.instances.len();
        fleet.kill(runs).await;
        fleet.spawn().await;
        tokio::time::sleep(LEASE).await;
        let stopped = fleet.instances.iter().find(|i| i.boot == boot).expect("it was not killed");
        stopped.process.signal("-CONT").await;
        fleet.post_small().await;
    }
    fleet.holds(0).await;
}

/// Whoever takes this chunk dies before it gets anywhere. The fifth is not asked to.
pub async fn poisoned() {
    let mut fleet = Fleet::new(Plan { recipients: 100, ..plan("poisoned", 12, 1) }, None).await;
    fleet.world.emulate(Control { latency_ms: Some(20_000), ..Control::default() });
    fleet.spawn().await;
    fleet.post("big", 100).await;
    for _ in 0..4 {
        let before = fleet.world.emulator.stats().requests;
        fleet.world.emulator.logged(before + 1).await;
        fleet.kill_and_bury(0).await;
        fleet.spawn().await;
    }
    let survivor = &fleet.instances[0].process;
    let said = survivor.says(1, |line| line["message"] == "fan-out set aside").await;
    assert_eq!((said["chunks"].as_u64(), said["level"].as_str()), (Some(1), Some("WARN")));
    // Whoever waits for it is told, long before a minute is over.
    let begun = Instant::now();
    let told = survivor.client.fanout(&fleet.posted[0].id, Duration::from_secs(60)).await.unwrap();
    assert_eq!((told.state.as_str(), told.pending, told.settled_at), ("set_aside", 100, None));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let asked = fleet.world.emulator.stats().requests;
    let ended = survivor.client.cancel(&fleet.posted[0].id).await.unwrap();
    assert_eq!((ended.state.as_str(), ended.outcomes["cancelled"]), ("cancelled", 100), "an operator ends it");
    assert_eq!(fleet.world.emulator.stats().requests, asked, "nobody is sent to any more");
}

/// The ceiling's Redis comes and goes while instances die. (What that does to the rate is measured by `ceiling::processes`.)
pub async fn redis_flaps() {
    let mut fleet = Fleet::sending(Plan { redis: true, ..plan("Redis flaps, kills", 5, 3) }, None).await;
    while !fleet.sent(80) {
        let kill = fleet.dice.roll(0, 3) == 0;
        let redis = fleet.world.redis.as_mut().expect("a world with Redis");
        if kill {
            redis.kill().await;
            tokio::time::sleep(Duration::from_millis(400)).await;
            redis.run().await;
        } else {
            redis.freeze().await;
            tokio::time::sleep(Duration::from_millis(400)).await;
            redis.thaw().await;
        }
        fleet.done.others += 1;
        fleet.pause(300, 900).await;
        if fleet.dice.roll(0, 3) == 0 {
            let i = fleet.any();
            fleet.kill_and_bury(i).await;
            fleet.spawn().await;
        }
        fleet.post_small().await;
    }
    fleet.holds(0).await;
}

/// The server is shot, and comes back after a recovery, again and again.
pub async fn restarted() {
    let mut server = OwnPostgres::start(&["max_connections=40"]).await;
    let mut fleet = Fleet::sending(plan("immediate restarts", 6, 2), Some(server.url())).await;
    let most = if long() { 20 } else { 5 };
    while !fleet.sent(85) && fleet.done.others < most {
        fleet.pause(300, 1_500).await;
        server.stop_at_once();
        fleet.pause(100, 900).await;
        server.run().await;
        fleet.done.others += 1;
        fleet.post_small().await;
    }
    fleet.holds(0).await;
    drop(fleet);
}

/// A connection is ended every 200 ms, and now and then all of them.
pub async fn cut() {
    let mut fleet = Fleet::sending(plan("connections cut", 7, 2), None).await;
    while !fleet.sent(95) {
        let all = fleet.dice.roll(0, 8) == 0;
        fleet.cut(all).await;
        fleet.done.others += 1;
        if fleet.done.others % 10 == 0 {
            fleet.post_small().await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    fleet.holds(0).await;
}

/// Statements whose answers are lost after they were committed.
const STATEMENTS: [&str; 7] = [
    "INSERT INTO failure",
    "FOR UPDATE OF k SKIP LOCKED",
    "INSERT INTO chunk_ids",
    "INSERT INTO fanout_part",
    "INSERT INTO instance",
    "UPDATE fanout SET state = $2, settled_ms",
    "INSERT INTO event",
];

/// Everything is committed and nobody hears of it.
pub async fn answers_lost() {
    let mut fleet = Fleet::new(plan("answers lost", 8, 2), None).await;
    let proxy: Proxy = fleet.world.proxy_postgres().await;
    proxy.lose_answer_to("INSERT INTO event", 0, 1);
    fleet.spawn().await;
    fleet.spawn().await;
    fleet.post("big", fleet.plan.recipients).await;
    while !fleet.sent(90) {
        let which = usize::try_from(fleet.dice.roll(0, STATEMENTS.len() as u64)).unwrap();
        proxy.lose_answer_to(STATEMENTS[which], 0, 1);
        // Only connections made from now on are watched.
        fleet.cut(true).await;
        fleet.done.others += 1;
        fleet.pause(200, 700).await;
        if fleet.done.others % 3 == 0 {
            fleet.post_small().await;
        }
    }
    proxy.lose_answer_to("", 0, 0);
    fleet.holds(0).await;
}

/// Somebody else has all of the server's connections.
pub async fn squatted() {
    let server = OwnPostgres::start(&["max_connections=24", "superuser_reserved_connections=0"]).await;
    let mut fleet = Fleet::sending(plan("squatters", 9, 2), Some(server.url())).await;
    fleet.reach(200).await;
    let rounds = if long() { 6 } else { 2 };
    for _ in 0..rounds {
        // Their places first, then those of the instances, which come back too late.
        let mut squatters = Vec::new();
        let begun = Instant::now();
        while squatters.len() < 20 {
            assert!(begun.elapsed() < Duration::from_secs(30), "they have the places: {}", squatters.len());
            match PgConnection::connect(&server.url()).await {
                Ok(one) => squatters.push(one),
                Err(_) => {
                    let Some(one) = squatters.first_mut() else { continue };
                    let cut =
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fanfare'";
                    sqlx::query(cut).execute(one).await.unwrap();
                }
            }
        }
        fleet.done.others += 1;
        fleet.pause(3_000, 5_000).await;
        for squatter in squatters {
            let _ = squatter.close().await;
        }
        fleet.post_small().await;
    }
    fleet.holds(0).await;
    drop(fleet);
}

/// Nobody may touch a chunk, for longer than a statement waits; in the long form for longer than a lease.
pub async fn locked() {
    let held = Duration::from_secs(if long() { 30 } else { 6 });
    let mut fleet = Fleet::sending(plan("table locked", 10, 2), None).await;
    fleet.reach(200).await;
    let mut locker = fleet.database().await;
    let mut transaction = locker.begin().await.unwrap();
    sqlx::query("LOCK TABLE chunk IN ACCESS EXCLUSIVE MODE").execute(&mut *transaction).await.unwrap();
    fleet.done.others += 1;
    let before = fleet.reached();
    fleet.post_small().await;
    tokio::time::sleep(held).await;
    let meanwhile = fleet.reached() - before;
    assert!(meanwhile <= 2 * 64, "{meanwhile} were sent to and could not be written down");
    transaction.commit().await.unwrap();
    fleet.post_small().await;
    fleet.holds(0).await;
}

/// The disk of the database is full for a while; the server may die of it.
pub async fn disk_full() {
    let mut server =
        OwnPostgres::on(Some(SmallDisk::make()), &["max_connections=40", "max_wal_size=4MB", "min_wal_size=2MB"]).await;
    let mut fleet = Fleet::sending(plan("disk full", 11, 2), Some(server.url())).await;
    fleet.reach(200).await;
    let filler = server.fill_disk();
    // What is left inside of files of the server is used up too.
    if let Ok(mut connection) = PgConnection::connect(&server.url()).await {
        let grow = "INSERT INTO device (id, user_id, token, platform, locale, registered_ms)
            SELECT 'junk-' || i, repeat('x', 200), 'junk-' || i, 1, 'en', 0 FROM generate_series(1, 400000) i";
        let mut own = fleet.database().await;
        assert!(sqlx::query(grow).execute(&mut own).await.is_err(), "the disk is full");
        let _ = connection.ping().await;
    }
    fleet.done.others += 1;
    let full_for = fleet.dice.roll(1_000, 2_000);
    let refused = fleet.until_refused(async || {
        tokio::time::sleep(Duration::from_millis(full_for)).await;
        drop(filler);
        server.run().await;
    });
    println!("disk full: {}", refused.await);
    fleet.post_small().await;
    fleet.holds(0).await;
    drop(fleet);
}
