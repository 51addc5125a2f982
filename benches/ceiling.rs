//! What a grant costs: in process, through Redis as the service has them, and through Redis one call each.
//!
//! `cargo bench --bench ceiling [-- --quick]` starts a redis-server of its own. Exits with 1 when the median of its rounds
//! misses one of these: a stock of grants from Redis costs a tenth of one call each, or less, in time and in CPU; at the
//! default ceiling 95 % of it are had and no more than 110 %; with a demand below the rate, fewer than one grant in a
//! hundred come more than a millisecond after they were wanted. `--quick` is one short round, to see that the bench works:
//! it judges nothing.

#![allow(missing_docs)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Duration;

use fanfare::ceiling::{Ceiling, FORFEIT_AFTER, GrantRun, Settings};
use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};
use secrecy::SecretString;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

#[allow(dead_code)]
#[path = "../tests/it/harness/redis.rs"]
mod server;

/// Length of one measurement, and how many rounds of them: the medians are judged.
const MEASURED: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;
/// The same for a look at whether it works.
const QUICK: (Duration, usize) = (Duration::from_millis(600), 1);
/// The highest ceiling there can be. What costs less than a microsecond a grant reaches it, so compare the CPU then.
const ENDLESS: f64 = 1_000_000.0;
/// The default ceiling.
const RATE: f64 = 9_000.0;
/// Attempts in flight and how long one takes: about 1,200 a second of the 9,000.
const SLOTS: usize = 32;
const ATTEMPT: Duration = Duration::from_millis(25);
/// Most a grant may come late, in one of a hundred.
const LATE: Duration = Duration::from_millis(1);

/// One instance.
struct Instance {
    ceiling: Ceiling,
    runs: mpsc::Receiver<GrantRun>,
    stop: CancellationToken,
    _live: watch::Sender<u32>,
}

impl Instance {
    fn start(rate_per_s: f64, redis_url: Option<SecretString>) -> Self {
        let burst = rate_per_s * 0.010;
        let settings = Settings { rate_per_s, burst, redis_url, project: "bench".to_owned(), shared_database: false };
        let (live, receiver) = watch::channel(1);
        let stop = CancellationToken::new();
        let (ceiling, runs) = Ceiling::start(settings, receiver, stop.clone());
        Self { ceiling, runs, stop, _live: live }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Grants a second, and CPU time of this process for each.
struct Cost {
    per_s: f64,
    cpu: Duration,
}

/// CPU time this process has used.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Cost {
    fn of(grants: u64, begun: Instant, cpu_before: Duration) -> Self {
        let each = (cpu() - cpu_before).as_secs_f64() / grants.max(1) as f64;
        Self { per_s: grants as f64 / begun.elapsed().as_secs_f64(), cpu: Duration::from_secs_f64(each) }
    }

    fn say(&self, what: &str, other: Option<&Self>) {
        let ratio = other.map_or(String::new(), |other| {
            let cpu = other.cpu.as_secs_f64() / self.cpu.as_secs_f64();
            format!("   {:7.1} x the grants, {cpu:5.1} x less CPU", self.per_s / other.per_s)
        });
        println!("{what:<42} {:>10.0} grants/s {:>9.3} us CPU each{ratio}", self.per_s, self.cpu.as_secs_f64() * 1e6);
    }
}

/// Uses every grant as it comes, with a full stock wanted all the time.
async fn full_demand(mut instance: Instance, measured: Duration) -> Cost {
    let mut stock = 0;
    // The start is empty for 100 ms.
    let warm = Instant::now() + Duration::from_millis(300);
    let (mut begun, mut used, mut before) = (Instant::now(), 0, cpu());
    while begun.elapsed() < measured {
        instance.ceiling.want(10_000_u64.saturating_sub(stock));
        let Some(run) = instance.runs.recv().await else { break };
        sleep_until(run.first).await;
        stock = 0;
        used += u64::from(run.n);
        instance.ceiling.used(u64::from(run.n));
        if begun < warm && Instant::now() >= warm {
            (begun, used, before) = (Instant::now(), 0, cpu());
        }
    }
    Cost::of(used, begun, before)
}

/// The same script, one call for each grant, by so many callers on one connection.
async fn call_each(connection: &MultiplexedConnection, callers: u32, measured: Duration) -> Cost {
    let script = redis::Script::new(include_str!("../src/ceiling/reserve.lua"));
    let (begun, before) = (Instant::now(), cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (script, mut connection) = (script.clone(), connection.clone());
        tasks.spawn(async move {
            let mut granted = 0;
            while begun.elapsed() < measured {
                let mut call = script.key("{fanfare:bare}:fcm.send");
                call.arg(1e6 / ENDLESS).arg(ENDLESS * 0.010).arg(1).arg(100_000).arg(3_600_000_000_u64).arg(50_000);
                call.arg(0).arg(1_000_000).arg(0);
                let answer: Vec<i64> = call.invoke_async(&mut connection).await.expect("an answer");
                granted += u64::from(answer[0] == 1);
            }
            granted
        });
    }
    let granted = tasks.join_all().await.into_iter().sum();
    Cost::of(granted, begun, before)
}

/// What a grant adds to an attempt whose slot has just become free: the waits, sorted. The loop is the dispatcher's: a
/// little more is wanted than there are free slots, and a grant more than 50 ms late is given up.
async fn below_the_rate(mut instance: Instance, measured: Duration) -> Vec<Duration> {
    let mut waits = Vec::new();
    let mut stock: VecDeque<Instant> = VecDeque::new();
    let mut free: VecDeque<Instant> = (0..SLOTS).map(|_| Instant::now()).collect();
    let mut flying = BinaryHeap::new();
    let begun = Instant::now();
    while begun.elapsed() < measured {
        let now = Instant::now();
        while flying.peek().is_some_and(|Reverse(end)| *end <= now) {
            flying.pop();
            free.push_back(now);
        }
        while stock.pop_front_if(|due| *due + FORFEIT_AFTER < now).is_some() {
            instance.ceiling.forfeited(1);
        }
        while stock.front().is_some_and(|due| *due <= now)
            && let Some(since) = free.pop_front()
        {
            stock.pop_front();
            instance.ceiling.used(1);
            // Spread, so that the slots do not march in step.
            flying.push(Reverse(now + ATTEMPT.mul_f64(0.5 + rand::random::<f64>())));
            waits.push(now - since);
        }
        instance.ceiling.want((free.len() + SLOTS / 8).saturating_sub(stock.len()) as u64);
        let due = stock.front().filter(|_| !free.is_empty()).copied();
        let wake = [due, flying.peek().map(|Reverse(end)| *end)].into_iter().flatten().min();
        tokio::select! {
            Some(run) = instance.runs.recv() => stock.extend((0..run.n).map(|i| run.first + run.every * i)),
            () = sleep_until(wake.unwrap_or(now + ATTEMPT)) => {}
        }
    }
    // The first slots waited for a process that starts empty.
    let mut waits = waits.split_off((SLOTS * 4).min(waits.len() - 1));
    waits.sort();
    waits
}

/// Its 99th percentile.
fn say_waits(what: &str, waits: &[Duration], measured: Duration) -> Duration {
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    let (per_s, p99) = (waits.len() as f64 / measured.as_secs_f64(), at(0.99));
    println!("{what:<42} {per_s:>10.0} grants/s    waited p50 {:?}, p99 {p99:?}, most {:?}", at(0.5), at(1.0));
    p99
}

/// What is judged, in one round.
struct Round {
    /// Beside one call each: times the grants, and times less CPU.
    grants: f64,
    cpu: f64,
    /// Share of the default ceiling.
    had: f64,
    /// Waits below the rate, in seconds.
    through_redis: f64,
    in_process: f64,
}

async fn round(redis: &server::RedisServer, measured: Duration) -> Round {
    let bare = call_each(&redis.connection().await, 1, measured).await;
    bare.say("EVALSHA, one call per grant", None);
    let crowd = call_each(&redis.connection().await, 50, measured).await;
    crowd.say("the same, 50 callers on one connection", Some(&bare));
    let stock = full_demand(Instance::start(ENDLESS, Some(redis.url())), measured).await;
    stock.say("through Redis, as the service does", Some(&bare));
    full_demand(Instance::start(ENDLESS, None), measured).await.say("in process", Some(&bare));
    let usual = full_demand(Instance::start(RATE, Some(redis.url())), measured).await;
    usual.say("through Redis at 9,000/s", Some(&bare));
    let waits = below_the_rate(Instance::start(RATE, Some(redis.url())), measured).await;
    let through_redis = say_waits("32 slots of 25 ms, through Redis", &waits, measured);
    let waits = below_the_rate(Instance::start(RATE, None), measured).await;
    let in_process = say_waits("32 slots of 25 ms, in process", &waits, measured);
    Round {
        grants: stock.per_s / bare.per_s,
        cpu: bare.cpu.as_secs_f64() / stock.cpu.as_secs_f64(),
        had: usual.per_s / RATE,
        through_redis: through_redis.as_secs_f64(),
        in_process: in_process.as_secs_f64(),
    }
}

/// Whether the median of the rounds lies within.
fn judge(what: &str, rounds: &[Round], value: fn(&Round) -> f64, within: std::ops::RangeInclusive<f64>) -> bool {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    let (least, median, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
    let kept = within.contains(&median);
    let verdict = match (values.len(), kept) {
        (1, _) => "not judged",
        (_, true) => "kept",
        (_, false) => "MISSED",
    };
    println!("{what}: {median:.4} ({least:.4} to {most:.4} in {}), {within:?}: {verdict}", values.len());
    kept
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let redis = server::RedisServer::start().await;
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (measured, n) = if quick { QUICK } else { (MEASURED, ROUNDS) };
    println!("{measured:?} each; the server's own CPU is not counted");
    let mut rounds = Vec::new();
    for _ in 0..n {
        rounds.push(round(&redis, measured).await);
    }
    let late = LATE.as_secs_f64();
    let kept = [
        judge("times the grants of one call each", &rounds, |r| r.grants, 10.0..=f64::INFINITY),
        judge("times less CPU than one call each", &rounds, |r| r.cpu, 10.0..=f64::INFINITY),
        judge("share of a ceiling of 9,000/s", &rounds, |r| r.had, 0.95..=1.10),
        judge("p99 of the waits through Redis, s", &rounds, |r| r.through_redis, 0.0..=late),
        judge("p99 of the waits in process, s", &rounds, |r| r.in_process, 0.0..=late),
    ];
    if quick {
        println!("--quick: one short round, nothing is judged");
    }
    if quick || !kept.contains(&false) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
