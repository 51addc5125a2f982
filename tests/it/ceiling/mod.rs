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

use lateness::{Lateness, QUIET};

mod away;
mod fleet;
mod lateness;
mod ledger;
mod pause;
mod processes;
mod script;
mod tasks;

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
    late: Lateness,
    started: Instant,
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
        Self { ceiling, stop, used, late: Lateness::watch(), started: Instant::now(), _live: live }
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

    /// How late this machine was since then, at worst.
    fn late(&self, since: Instant) -> Duration {
        self.late.worst(since.into_std(), std::time::Instant::now())
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

/// When grants were used, in order, and the share of instances that left the fleet's rate more than `meant` times, for
/// which only a machine that was late is an excuse.
async fn all_stop(instances: Vec<Instance>, meant: u32) -> (Vec<Instant>, f64) {
    for instance in &instances {
        instance.stop.cancel();
    }
    let (n, mut at, mut left) = (instances.len(), Vec::new(), 0);
    let mut late = Duration::ZERO;
    for instance in instances {
        late = late.max(instance.late(instance.started));
        let used = instance.stop().await;
        left += u32::from(used.left > meant);
        at.extend(used.at);
    }
    println!("{left} of {n} left Redis unasked, this machine was late by {late:?} at worst");
    assert!(left == 0 || late > QUIET, "{left} left Redis unasked though nothing was later than {late:?}");
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
    println!("{:.3} of the ceiling in the worst second, {factor} allowed", worst as f64 / RATE);
    assert!(worst as f64 <= RATE * factor, "{worst} grants used within a second at a ceiling of {RATE}");
}
