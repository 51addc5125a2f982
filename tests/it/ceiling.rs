//! The ceiling against a real Redis and a real clock: one rate, whatever happens to Redis.
//!
//! Rates are counted where grants are used. Bounds are ratios with a wide margin: a busy machine makes grants late,
//! and late grants are given up, so a slow run can only fall short.

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
    used: JoinHandle<Vec<Instant>>,
    _live: watch::Sender<u32>,
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

    async fn stop(self) -> Vec<Instant> {
        self.stop.cancel();
        self.used.await.expect("the consumer")
    }
}

/// What the dispatcher does, without sending.
async fn consume(ceiling: Ceiling, mut runs: mpsc::Receiver<GrantRun>, stop: CancellationToken) -> Vec<Instant> {
    let mut stock: VecDeque<Instant> = VecDeque::new();
    let mut used = Vec::new();
    loop {
        ceiling.want((STOCK - stock.len().min(STOCK)) as u64);
        let next = stock.front().copied();
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
                        used.push(Instant::now());
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

async fn all_stop(instances: Vec<Instance>) -> Vec<Instant> {
    let mut used = Vec::new();
    for instance in &instances {
        instance.stop.cancel();
    }
    for instance in instances {
        used.extend(instance.stop().await);
    }
    used.sort();
    used
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
    let start = Instant::now();
    sleep(Duration::from_secs(4)).await;
    let took = start.elapsed().as_secs_f64();
    let forfeited: u64 = instances.iter().map(|instance| instance.ceiling.snapshot().forfeited).sum();
    let modes: Vec<Mode> = instances.iter().map(|instance| instance.ceiling.snapshot().mode).collect();
    let calls: String = redis.command(&["INFO", "commandstats"]).await;
    let calls = calls.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
    let used = all_stop(instances).await;
    println!("used {} worst {} forfeited {forfeited} {calls}", used.len(), worst_second(&used));
    assert_eq!(modes, [Mode::Shared; 4]);
    assert_under(&used, 1.10);
    assert!(used.len() as f64 >= 0.9 * RATE * took, "{} grants used in {took} s", used.len());
}
