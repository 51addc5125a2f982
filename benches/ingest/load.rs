//! Owns the load: events that are posted when they are due, however the service fares, and what became of each.
//!
//! What a post took is counted from the instant at which it was due, so that a service that keeps its callers waiting makes
//! the figures worse and not better ("coordinated omission"). Beside it stands how late the generator itself was, with a
//! caller free to post: on a machine where it shares its core that is part of the figure, and no doing of the service.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caller::Caller;
use crate::service::{Target, rss};

/// Connections of the generator. Far more than are ever busy while the gate works; each has its turn.
const CALLERS: usize = 512;

/// Longest wait for an answer. No caller of a service that sheds waits nearly as long.
const LONGEST: Duration = Duration::from_secs(10);

/// Longest time between two looks of whoever says what is due. A runtime's own timers see to milliseconds only.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Ids of events, each used once.
static IDS: AtomicU64 = AtomicU64::new(0);

/// How many events are offered.
#[derive(Clone, Copy)]
pub enum Rate {
    /// So many per second, come what may.
    Open(f64),
    /// By so many callers, each of whom posts its next event when the last one is answered.
    Closed(usize),
}

/// How events are offered.
#[derive(Clone)]
pub struct Offer {
    pub rate: Rate,
    /// For how long, unless it is stopped before.
    pub lasts: Duration,
    pub stop: CancellationToken,
    /// Whoever is refused comes back at once, four times.
    pub stubborn: bool,
    /// What is accepted later than this after it was due is too late to count.
    pub in_time: Duration,
}

/// The middle of some times, and what 99 in 100 of them do not exceed.
#[derive(Clone, Copy, Default)]
pub struct Times {
    pub p50: Duration,
    pub p99: Duration,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        Self { p50: at(50), p99: at(99) }
    }
}

/// What one load came to.
#[derive(Default)]
pub struct Load {
    pub name: String,
    /// Per second.
    pub offered: f64,
    pub sent: f64,
    pub accepted: f64,
    /// Accepted in time.
    pub good: f64,
    pub accepted_in: Times,
    /// From when the post was due.
    pub refused_in: Times,
    /// From when it was written: without what the generator was late.
    pub refused_after: Times,
    /// How late the generator began posts for which a caller was free.
    pub begun_late: Times,
    /// Neither accepted nor refused: another answer, or none.
    pub strange: u64,
    /// The slowest answer of health.
    pub health: Duration,
    pub grown_kib: u64,
    pub ids: Vec<u64>,
}

#[derive(Default)]
struct Seen {
    accepted: Vec<(u64, Duration)>,
    refused: Vec<Duration>,
    refused_after: Vec<Duration>,
    late: Vec<Duration>,
    strange: u64,
}

/// Callers with nothing to do, in turn; posts that nobody was free for; and what was seen so far.
struct Crowd {
    free: VecDeque<Caller>,
    waiting: VecDeque<Instant>,
    seen: Seen,
    stubborn: bool,
}

type Shared = Arc<Mutex<Crowd>>;

fn look(crowd: &Shared) -> MutexGuard<'_, Crowd> {
    crowd.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Posts one event, due at `due`, and again if its caller is stubborn. What is accepted in the end took from when it was
/// due; a refusal, from when that post was.
async fn post(crowd: &Shared, caller: &mut Caller, due: Instant) {
    let (mut from, stubborn) = (due, look(crowd).stubborn);
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    for _ in 0..if stubborn { 5 } else { 1 } {
        let begun = Instant::now();
        let answer = timeout(LONGEST, caller.post(id)).await;
        let mut crowd = look(crowd);
        match answer {
            Ok(Ok(200 | 202)) => return crowd.seen.accepted.push((id, due.elapsed())),
            Ok(Ok(503)) => {
                crowd.seen.refused.push(from.elapsed());
                crowd.seen.refused_after.push(begun.elapsed());
            }
            _ => {
                caller.hang_up();
                crowd.seen.strange += 1;
            }
        }
        from = Instant::now();
    }
}

/// A caller posts what is due, and then whatever nobody was free for.
async fn serve(crowd: Shared, mut caller: Caller, mut due: Instant) {
    look(&crowd).seen.late.push(due.elapsed());
    loop {
        post(&crowd, &mut caller, due).await;
        let mut crowd = look(&crowd);
        match crowd.waiting.pop_front() {
            Some(next) => due = next,
            None => return crowd.free.push_back(caller),
        }
    }
}

/// Posts whatever is due, when it is due, until nothing is any more and every answer is there.
async fn open(crowd: &Shared, rate: f64, offer: &Offer) {
    let (sender, mut due) = mpsc::unbounded_channel();
    let (lasts, stop) = (offer.lasts, offer.stop.clone());
    let pacer = std::thread::spawn(move || say_what_is_due(&sender, rate, lasts, &stop));
    let under_way = TaskTracker::new();
    while let Some(due) = due.recv().await {
        let free = look(crowd).free.pop_front();
        match free {
            Some(caller) => drop(under_way.spawn(serve(Arc::clone(crowd), caller, due))),
            None => look(crowd).waiting.push_back(due),
        }
    }
    under_way.close();
    under_way.wait().await;
    pacer.join().expect("the pacer does not panic");
}

/// In a thread of its own, which sleeps more finely than a runtime does.
fn say_what_is_due(sender: &mpsc::UnboundedSender<Instant>, rate: f64, lasts: Duration, stop: &CancellationToken) {
    let begun = Instant::now();
    let mut said = 0_u64;
    while begun.elapsed() < lasts && !stop.is_cancelled() {
        let next = begun + Duration::from_secs_f64(said as f64 / rate);
        let early = next.saturating_duration_since(Instant::now());
        if early.is_zero() {
            let _ = sender.send(next);
            said += 1;
        } else {
            std::thread::sleep(early.max(LOOK_EVERY / 2).min(10 * LOOK_EVERY));
        }
    }
}

/// So many callers post one event after the other.
async fn closed(crowd: &Shared, callers: usize, lasts: Duration) {
    let (until, under_way) = (Instant::now() + lasts, TaskTracker::new());
    for _ in 0..callers {
        let free = look(crowd).free.pop_front();
        let (Some(mut caller), crowd) = (free, Arc::clone(crowd)) else { break };
        under_way.spawn(async move {
            while Instant::now() < until {
                post(&crowd, &mut caller, Instant::now()).await;
            }
        });
    }
    under_way.close();
    under_way.wait().await;
}

/// Offers events as `offer` says, and tells what became of them.
pub async fn offer(target: &Target, offer: Offer, name: impl Into<String>) -> Load {
    let before = rss(target.pid);
    let free = (0..CALLERS).map(|_| Caller::new(&target.api, &target.key)).collect();
    let (waiting, seen) = (VecDeque::new(), Seen::default());
    let crowd = Arc::new(Mutex::new(Crowd { free, waiting, seen, stubborn: offer.stubborn }));
    let (begun, probe) = (Instant::now(), tokio::spawn(health(target.ops.clone(), offer.clone())));
    match offer.rate {
        Rate::Closed(callers) => closed(&crowd, callers, offer.lasts).await,
        Rate::Open(rate) => open(&crowd, rate, &offer).await,
    }
    let took = begun.elapsed().as_secs_f64();
    let seen = std::mem::take(&mut look(&crowd).seen);
    let accepted: Vec<Duration> = seen.accepted.iter().map(|(_, took)| *took).collect();
    let good = accepted.iter().filter(|took| **took <= offer.in_time).count();
    let sent = (accepted.len() + seen.refused.len()) as f64 / took;
    Load {
        name: name.into(),
        offered: if let Rate::Open(rate) = offer.rate { rate } else { sent },
        sent,
        accepted: accepted.len() as f64 / took,
        good: good as f64 / took,
        accepted_in: Times::of(accepted),
        refused_in: Times::of(seen.refused),
        refused_after: Times::of(seen.refused_after),
        begun_late: Times::of(seen.late),
        strange: seen.strange,
        health: probe.await.expect("the probe does not panic"),
        grown_kib: rss(target.pid).saturating_sub(before),
        ids: seen.accepted.into_iter().map(|(id, _)| id).collect(),
    }
}

/// The slowest of many answers of `/livez` and `/readyz`; for ever, when one was not "yes". No time, where there is no health.
async fn health(addr: Option<String>, during: Offer) -> Duration {
    let (until, http) = (Instant::now() + during.lasts, reqwest::Client::new());
    let mut slowest = Duration::ZERO;
    let Some(addr) = addr else { return slowest };
    for path in ["livez", "readyz"].into_iter().cycle() {
        if Instant::now() >= until || during.stop.is_cancelled() {
            break;
        }
        let begun = Instant::now();
        let answer = http.get(format!("http://{addr}/{path}")).send().await;
        let well = answer.is_ok_and(|answer| answer.status().is_success());
        slowest = slowest.max(if well { begun.elapsed() } else { Duration::MAX });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    slowest
}

/// Prints one load.
pub fn told(load: &Load) {
    let Load { offered, sent, accepted, good, grown_kib, strange, .. } = load;
    let times = |times: Times| format!("{:.1?} / {:.1?}", times.p50, times.p99);
    println!(
        "{:<34} offered {offered:>6.0}/s  sent {sent:>6.0}/s  accepted {accepted:>5.0}/s, in time {good:>5.0}/s, in {}  refused in {}, once written in {}  \
         begun late by {}  health {:.1?}  +{grown_kib} KiB  strange {strange}",
        load.name,
        times(load.accepted_in),
        times(load.refused_in),
        times(load.refused_after),
        times(load.begun_late),
        load.health,
    );
}
