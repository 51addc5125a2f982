//! The ceiling against a real Redis and a real clock: one rate, whatever happens to Redis.
//!
//! Rates are counted where grants are used. Bounds are ratios: a busy machine makes grants late, and late grants are
//! given up, so a slow run falls short. On a machine so busy that Redis takes over 100 ms to answer, some instances
//! leave it while others do not; the law for p of N cut off is (1 + p/N) x rate, and that is what is then asked for.

use std::collections::VecDeque;
use std::time::Duration;

use fanfare::ceiling::{Ceiling, CeilingSnapshot, FORFEIT_AFTER, GrantRun, Mode, Settings};
use secrecy::SecretString;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::harness::redis::RedisServer;

/// The ceiling of these tests, per second.
const RATE: f64 = 2_000.0;
/// Grants an instance would use at once: full demand.
const STOCK: usize = 100;
/// Longest wait for something that must happen.
const SOON: Duration = Duration::from_secs(15);

fn settings(redis_url: Option<SecretString>, shared_database: bool) -> Settings {
    Settings { rate_per_s: RATE, burst: RATE * 0.010, redis_url, project: "test".to_owned(), shared_database }
}

/// One instance under full demand: uses every grant when it is due, gives up what is late, notes when.
struct Instance {
    ceiling: Ceiling,
    stop: CancellationToken,
    used: JoinHandle<Used>,
    _live: watch::Sender<u32>,
}

/// When one instance used a grant, and how often it left the fleet's rate for its own share.
#[derive(Default)]
struct Used {
    at: Vec<Instant>,
    left: u32,
}

impl Instance {
    fn start(settings: Settings, live: u32) -> Self {
        let (live, receiver) = watch::channel(live);
        let stop = CancellationToken::new();
        let (ceiling, runs) = Ceiling::start(settings, receiver, stop.clone());
        let used = tokio::spawn(consume(ceiling.clone(), runs, stop.clone()));
        Self { ceiling, stop, used, _live: live }
    }

    async fn mode(&self, mode: Mode) -> CeilingSnapshot {
        self.shows(|now| now.mode == mode).await
    }

    /// Waits until the snapshot shows it.
    async fn shows(&self, wanted: impl Fn(&CeilingSnapshot) -> bool) -> CeilingSnapshot {
        let look = async {
            loop {
                let now = self.ceiling.snapshot();
                if wanted(&now) {
                    return now;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, look).await.unwrap_or_else(|_| panic!("{:?}", self.ceiling.snapshot()))
    }

    async fn stop(self) -> Used {
        self.stop.cancel();
        self.used.await.expect("the consumer")
    }
}

/// What the dispatcher does, without sending.
async fn consume(ceiling: Ceiling, mut runs: mpsc::Receiver<GrantRun>, stop: CancellationToken) -> Used {
    let mut stock: VecDeque<Instant> = VecDeque::new();
    let (mut used, mut mode) = (Used::default(), ceiling.snapshot().mode);
    loop {
        ceiling.want((STOCK - stock.len().min(STOCK)) as u64);
        let next = stock.front().copied();
        let before = std::mem::replace(&mut mode, ceiling.snapshot().mode);
        used.left += u32::from(before == Mode::Shared && mode != Mode::Shared);
        tokio::select! {
            () = stop.cancelled() => return used,
            Some(run) = runs.recv() => stock.extend((0..run.n).map(|i| run.first + run.every * i)),
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                let now = Instant::now();
                let pause = ceiling.paused_until();
                while let Some(due) = stock.pop_front_if(|due| *due <= now) {
                    if now - due > FORFEIT_AFTER || pause.is_some_and(|end| due < end) {
                        ceiling.forfeited(1);
                    } else {
                        used.at.push(Instant::now());
                        ceiling.used(1);
                    }
                }
            }
        }
    }
}

fn fleet(n: u32, settings: &Settings) -> Vec<Instance> {
    (0..n).map(|_| Instance::start(settings.clone(), n)).collect()
}

/// When grants were used, in order, and the share of instances that left the fleet's rate more than `meant` times.
async fn all_stop(instances: Vec<Instance>, meant: u32) -> (Vec<Instant>, f64) {
    for instance in &instances {
        instance.stop.cancel();
    }
    let (n, mut at, mut left) = (instances.len(), Vec::new(), 0);
    for instance in instances {
        let used = instance.stop().await;
        left += u32::from(used.left > meant);
        at.extend(used.at);
    }
    at.sort();
    (at, f64::from(left) / n as f64)
}

/// Most grants used within any second.
fn worst_second(used: &[Instant]) -> usize {
    let mut from = 0;
    let mut worst = 0;
    for (i, at) in used.iter().enumerate() {
        while *at - used[from] >= Duration::from_secs(1) {
            from += 1;
        }
        worst = worst.max(i + 1 - from);
    }
    worst
}

fn assert_under(used: &[Instant], factor: f64) {
    let worst = worst_second(used);
    assert!(worst as f64 <= RATE * factor, "{worst} grants used within a second at a ceiling of {RATE}");
}

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
    for instance in &instances {
        let now = instance.mode(Mode::Split).await;
        assert_eq!((now.share, now.reason.as_str()), (RATE / 4.0, "redis: silent"));
    }
    assert!(frozen.elapsed() < Duration::from_secs(1), "noticed after {:?}", frozen.elapsed());
    sleep(Duration::from_secs(2)).await;
    redis.thaw().await;
    let thawed = Instant::now();
    for instance in &instances {
        assert_eq!(instance.mode(Mode::Shared).await.reason, "");
    }
    sleep(Duration::from_secs(3)).await;
    let (used, left) = all_stop(instances, 1).await;
    let meanwhile = used.iter().filter(|at| **at > frozen && **at < thawed).count();
    assert_under(&used, 1.25 + left);
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
async fn a_pause_holds_the_whole_fleet_and_survives_a_flush() {
    let redis = RedisServer::start().await;
    let instances = fleet(3, &settings(Some(redis.url()), true));
    instances[0].shows(|now| now.used > 100).await;
    let told = Instant::now();
    instances[0].ceiling.throttled(Some(Duration::from_secs(3)));
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
    sleep_until(told + Duration::from_millis(4_500)).await;
    let now = instances[1].ceiling.snapshot();
    assert!((0.5..0.7).contains(&(now.pace / RATE)), "halved once, recovering: {now:?}");
    let (used, new) = (all_stop(instances, 0).await.0, newcomer.stop().await.at);
    let end = told + Duration::from_secs(3);
    let inside = |used: &[Instant]| used.iter().filter(|at| **at > heard && **at < end).count();
    assert_eq!(inside(&used), 0, "used inside the pause by those who were told");
    assert!(inside(&new) as f64 <= 0.1 * RATE, "{} used inside it by the newcomer", inside(&new));
    let after = (used.len() + new.len()) - used.iter().chain(&new).filter(|at| **at < end).count();
    let expected = 1.5 * 0.54 * RATE;
    assert!((0.7 * expected..1.2 * expected).contains(&(after as f64)), "{after} used after the pause");
}

/// Breaks Redis for one instance, mends it, and says what the instance gave as its reason in between.
async fn reason_for(break_it: &[&str], mend_it: &[&str]) -> String {
    let redis = RedisServer::start().await;
    let instance = Instance::start(settings(Some(redis.url()), true), 1);
    instance.shows(|now| now.used > 100).await;
    // The test's own connection stays in while the server's password changes.
    let mut own = redis.connection().await;
    let mut run = async |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query_async::<()>(&mut own).await.expect("an answer");
    };
    run(break_it).await;
    // A busy machine may have left for its own reason just before; the next try to come back finds this one.
    let away = instance.shows(|now| now.mode == Mode::Split && now.reason != "redis: silent").await;
    run(mend_it).await;
    let back = instance.mode(Mode::Shared).await;
    instance.shows(|now| now.used > back.used + 100).await;
    assert_under(&instance.stop().await.at, 1.10);
    away.reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_answers_but_cannot_serve_is_away_and_says_why() {
    let key = "{fanfare:test}:fcm.send";
    let clients = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let reasons = tokio::join!(
        async {
            let script = format!("redis.call('DEL', '{key}') return redis.call('SET', '{key}', 'x')");
            reason_for(&["EVAL", &script, "0"], &["DEL", key]).await
        },
        reason_for(&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
        reason_for(&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        reason_for(&clients, &["PING"]),
    );
    let (wrong_type, full, replica, killed) = reasons;
    assert_eq!(
        [wrong_type, full, replica, killed],
        ["redis: WRONGTYPE", "redis: OOM", "redis: READONLY", "redis: connection lost"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redis_that_wants_another_password_is_away_from_the_start() {
    let redis = RedisServer::start().await;
    redis.command::<()>(&["CONFIG", "SET", "requirepass", "right"]).await;
    for query in ["", "?pass=hunter2"] {
        use secrecy::ExposeSecret;
        let url = SecretString::from(format!("{}{query}", redis.url().expose_secret()));
        let instance = Instance::start(settings(Some(url), true), 1);
        let away = instance.shows(|now| now.mode == Mode::Split && now.used > 0).await;
        let expected = if query.is_empty() { "redis: NOAUTH" } else { "redis: authentication failed" };
        assert_eq!(away.reason, expected);
        instance.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_from_a_clock_gone_back_or_from_a_stranger_holds_nobody_up() {
    let redis = RedisServer::start().await;
    let instance = Instance::start(settings(Some(redis.url()), true), 1);
    instance.shows(|now| now.used > 100).await;
    let key = "{fanfare:test}:fcm.send";
    let stored: Vec<f64> = redis.command(&["HMGET", key, "due", "pause", "pace", "cut"]).await;
    assert_eq!(stored[1..], [0.0, 1_000_000.0, 0.0], "nothing is in force");
    let hour = 3_600e6;
    let fields = [
        ("due", format!("{}", stored[0] + hour)),
        ("due", "nan".to_owned()),
        ("due", "x".to_owned()),
        ("pause", format!("{}", stored[0] + 2.0 * hour)),
        ("pause", "-1".to_owned()),
        ("pace", "0".to_owned()),
        ("cut", format!("{}", stored[0] + hour)),
    ];
    for (field, value) in fields {
        let before = instance.ceiling.snapshot().used;
        redis.command::<()>(&["HSET", key, field, &value]).await;
        let now = instance.shows(|now| now.mode == Mode::Shared && now.used > before + RATE as u64 / 4).await;
        assert_eq!(now.paused_for, Duration::ZERO, "{field} = {value}");
    }
    assert_under(&instance.stop().await.at, 1.10);
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

#[tokio::test]
async fn a_memory_of_a_pause_counts_only_when_it_differs_by_more_than_a_round_trip() {
    let redis = RedisServer::start().await;
    let script = redis::Script::new(include_str!("../../src/ceiling/reserve.lua"));
    let mut connection = redis.connection().await;
    let mut pause_after = async |own_pause: u64, news: bool| -> i64 {
        let mut call = script.key("{fanfare:test}:fcm.send");
        call.arg(500.0).arg(20).arg(5).arg(100_000).arg(3_600_000_000_u64).arg(50_000);
        call.arg(own_pause).arg(1_000_000).arg(u8::from(news));
        let answer: Vec<i64> = call.invoke_async(&mut connection).await.expect("an answer");
        (answer[3] - answer[6]).max(0)
    };
    assert_eq!(pause_after(99_000, false).await, 0, "the end of a pause that is over for the fleet");
    assert_eq!(pause_after(50_000, true).await, 50_000, "news, to the microsecond");
    assert_eq!(pause_after(9_000_000, false).await, 9_000_000, "the fleet has forgotten");
    let left = pause_after(9_050_000, false).await;
    assert!(left <= 9_000_000, "{left}: a memory does not stretch the pause");
    assert_eq!(pause_after(9_050_000, true).await, 9_050_000);
    assert_eq!(pause_after(7_200_000_000, true).await, 3_600_000_000, "an hour at most");
}
