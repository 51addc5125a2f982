//! Fifty tasks that all want a grant now, as a crowd of workers would.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fanfare::ceiling::{Ceiling, FORFEIT_AFTER, GrantRun, Settings};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
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
    fn new(settings: Settings) -> Arc<Self> {
        let (live, receiver) = watch::channel(1);
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

/// Grants that `crowds` gave to fifty tasks altogether, and how long it took.
async fn measure(crowds: &[Arc<Crowd>]) -> (f64, Duration) {
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
    tasks.join_all().await;
    let granted: u64 = crowds.iter().map(|crowd| crowd.granted.load(SeqCst)).sum();
    (granted as f64, begun.elapsed())
}

fn assert_exact((granted, took): (f64, Duration), burst: f64) {
    let most = burst + RATE * took.as_secs_f64();
    println!("{granted} grants in {took:?}, at most {most:.0}");
    assert!(granted <= most, "{granted} grants in {took:?}: more than burst and rate");
    assert!(granted >= 0.8 * RATE * (took.as_secs_f64() - 0.2), "{granted} grants in {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_tasks_at_once_get_no_more_than_burst_and_rate_in_one_process() {
    let settings = settings(None, false);
    let burst = settings.burst;
    assert_exact(measure(&[Crowd::new(settings)]).await, burst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_tasks_at_five_ceilings_get_no_more_than_burst_and_rate_of_one_redis() {
    let redis = RedisServer::start().await;
    let settings = settings(Some(redis.url()), true);
    let crowds: Vec<_> = (0..5).map(|_| Crowd::new(settings.clone())).collect();
    assert_exact(measure(&crowds).await, settings.burst);
    for crowd in &crowds {
        assert_eq!(crowd.ceiling.snapshot().reason, "", "it was asked for the whole of the time");
    }
}
