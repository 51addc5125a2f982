//! Fifty tasks that all want a grant now, as a crowd of workers would.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fanfare::ceiling::{Ceiling, FORFEIT_AFTER, GrantRun, Mode, Settings};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{RATE, settings};
use crate::harness::redis::RedisServer;

/// Tasks in all.
const TASKS: usize = 50;
/// How long is measured.
const WINDOW: Duration = Duration::from_secs(3);

/// One ceiling and the tasks that share it: the next grant goes to whoever asks first.
struct Crowd {
    ceiling: Ceiling,
    grants: Mutex<(mpsc::Receiver<GrantRun>, VecDeque<Instant>)>,
    granted: AtomicU64,
    _live: watch::Sender<u32>,
}

impl Crowd {
    fn new(settings: Settings, live: u32) -> Arc<Self> {
        let (live, receiver) = watch::channel(live);
        let (ceiling, runs) = Ceiling::start(settings, receiver, CancellationToken::new());
        Arc::new(Self { ceiling, grants: Mutex::new((runs, VecDeque::new())), granted: AtomicU64::new(0), _live: live })
    }

    async fn acquire(&self) {
        let mut grants = self.grants.lock().await;
        loop {
            while let Some(due) = grants.1.pop_front() {
                sleep_until(due).await;
                if due.elapsed() <= FORFEIT_AFTER {
                    return self.ceiling.used(1);
                }
                self.ceiling.forfeited(1);
            }
            self.ceiling.want(TASKS as u64);
            let run = grants.0.recv().await.expect("the feeder runs");
            grants.1.extend((0..run.n).map(|i| run.first + run.every * i));
        }
    }
}

/// What `crowds` gave to fifty tasks altogether.
struct Measured {
    granted: f64,
    took: Duration,
    /// Share of the ceilings that left Redis meanwhile, on a machine too busy to talk to it for 100 ms.
    left: f64,
}

async fn measure(crowds: &[Arc<Crowd>], mode: Mode) -> Measured {
    while crowds.iter().any(|crowd| crowd.ceiling.snapshot().mode != mode) {
        sleep(Duration::from_millis(5)).await;
    }
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let crowd = Arc::clone(&crowds[i % crowds.len()]);
        tasks.spawn(async move {
            while begun.elapsed() < WINDOW {
                crowd.acquire().await;
                crowd.granted.fetch_add(1, SeqCst);
            }
        });
    }
    // A stay away lasts for a second at least, so that a look now and then sees it.
    let mut away = vec![false; crowds.len()];
    while begun.elapsed() < WINDOW {
        sleep(Duration::from_millis(50)).await;
        for (away, crowd) in away.iter_mut().zip(crowds) {
            *away |= crowd.ceiling.snapshot().mode != mode;
        }
    }
    tasks.join_all().await;
    let left = away.iter().filter(|away| **away).count() as f64 / crowds.len() as f64;
    let granted: u64 = crowds.iter().map(|crowd| crowd.granted.load(SeqCst)).sum();
    Measured { granted: granted as f64, took: begun.elapsed(), left }
}

/// Exactly burst and rate; with p of N ceilings cut off, what the law for that allows.
fn assert_exact(Measured { granted, took, left }: Measured, burst: f64) {
    let most = burst + RATE * took.as_secs_f64() * (1.0 + left);
    println!("{granted} grants in {took:?}, at most {most:.0}; {left} left");
    assert!(granted <= most, "{granted} grants in {took:?}, at most {most:.0}");
    let least = if left > 0.0 { 0.5 } else { 0.8 };
    assert!(granted >= least * RATE * (took.as_secs_f64() - 0.2), "{granted} grants in {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_tasks_at_once_get_no_more_than_burst_and_rate_in_one_process() {
    let settings = settings(None, false);
    let burst = settings.burst;
    assert_exact(measure(&[Crowd::new(settings, 1)], Mode::Single).await, burst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_tasks_at_five_ceilings_get_no_more_than_burst_and_rate_of_one_redis() {
    let redis = RedisServer::start().await;
    let settings = settings(Some(redis.url()), true);
    let crowds: Vec<_> = (0..5).map(|_| Crowd::new(settings.clone(), 5)).collect();
    assert_exact(measure(&crowds, Mode::Shared).await, settings.burst);
}
