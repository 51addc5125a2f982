//! What a grant costs: in process, through Redis as the service has them, and through Redis one call each.
//!
//! `cargo bench --bench ceiling` starts a redis-server of its own. All figures are of one run on one machine, so the
//! ratios are what to compare. Exits 1 when, with a demand below the rate, one in a hundred grants came more than a
//! millisecond after it was wanted.

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

/// Length of one measurement.
const MEASURED: Duration = Duration::from_secs(3);
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
async fn full_demand(mut instance: Instance) -> Cost {
    let mut stock = 0;
    // The start is empty for 100 ms.
    let warm = Instant::now() + Duration::from_millis(300);
    let (mut begun, mut used, mut before) = (Instant::now(), 0, cpu());
    while begun.elapsed() < MEASURED {
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
async fn call_each(connection: &MultiplexedConnection, callers: u32) -> Cost {
    let script = redis::Script::new(include_str!("../src/ceiling/reserve.lua"));
    let (begun, before) = (Instant::now(), cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (script, mut connection) = (script.clone(), connection.clone());
        tasks.spawn(async move {
            let mut granted = 0;
            while begun.elapsed() < MEASURED {
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
async fn below_the_rate(mut instance: Instance) -> Vec<Duration> {
    let mut waits = Vec::new();
    let mut stock: VecDeque<Instant> = VecDeque::new();
    let mut free: VecDeque<Instant> = (0..SLOTS).map(|_| Instant::now()).collect();
    let mut flying = BinaryHeap::new();
    let begun = Instant::now();
    while begun.elapsed() < MEASURED {
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
    let mut waits = waits.split_off(SLOTS * 4);
    waits.sort();
    waits
}

/// Whether it is as quick as it has to be.
fn say_waits(what: &str, waits: &[Duration]) -> bool {
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    let (per_s, p99) = (waits.len() as f64 / MEASURED.as_secs_f64(), at(0.99));
    println!("{what:<42} {per_s:>10.0} grants/s    waited p50 {:?}, p99 {p99:?}, most {:?}", at(0.5), at(1.0));
    p99 < LATE
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let redis = server::RedisServer::start().await;
    println!("{} s each; the server's own CPU is not counted", MEASURED.as_secs());
    let bare = call_each(&redis.connection().await, 1).await;
    bare.say("EVALSHA, one call per grant", None);
    let crowd = call_each(&redis.connection().await, 50).await;
    crowd.say("the same, 50 callers on one connection", Some(&bare));
    full_demand(Instance::start(ENDLESS, Some(redis.url())))
        .await
        .say("through Redis, as the service does", Some(&bare));
    full_demand(Instance::start(ENDLESS, None)).await.say("in process", Some(&bare));
    full_demand(Instance::start(RATE, Some(redis.url()))).await.say("through Redis at 9,000/s", Some(&bare));
    let quick = [
        say_waits("32 slots of 25 ms, through Redis", &below_the_rate(Instance::start(RATE, Some(redis.url()))).await),
        say_waits("32 slots of 25 ms, in process", &below_the_rate(Instance::start(RATE, None)).await),
    ];
    if quick.contains(&false) {
        println!("a grant came too late: p99 has to be under {LATE:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
