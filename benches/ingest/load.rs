//! Owns the load: events that are posted when they are due, however the service fares, and what became of each.
//!
//! Times are counted from the instant at which a post was due, so that a generator that falls behind makes the figures worse
//! and not better ("coordinated omission").

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::service::Service;

/// Connections of the generator. Far more than are ever busy while the gate works.
const CALLERS: usize = 512;

/// Longest wait for an answer. No caller of a service that sheds waits nearly as long.
const LONGEST: Duration = Duration::from_secs(10);

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
    pub accepted_p50: Duration,
    pub accepted_p99: Duration,
    pub refused_p50: Duration,
    pub refused_p99: Duration,
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
    strange: u64,
}

/// One connection that posts what is due and reads every answer.
struct Caller {
    stream: Option<TcpStream>,
    addr: String,
    key: String,
    buffer: Vec<u8>,
}

impl Caller {
    fn of(service: &Service) -> Self {
        Self { stream: None, addr: service.api.clone(), key: service.key.clone(), buffer: Vec::new() }
    }

    /// The status of the answer to one event. Each is of a match of its own: no two are the same news.
    async fn post(&mut self, id: u64) -> std::io::Result<u16> {
        let happened = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let body = format!(
            r#"{{"id":"evt-{id}","type":"goal","match_id":"{id}","occurred_at":"{happened}","subjects":["match:{id}"],"fields":{{"home":"A","away":"B","score":"1-0","minute":1,"player":"P"}}}}"#
        );
        let request = format!(
            "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.addr).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().expect("just connected");
        stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(status) = whole(&self.buffer) {
                return Ok(status);
            }
        }
    }
}

/// The status, once head and body are there.
fn whole(bytes: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    (body.len() >= length.unwrap_or(0)).then(|| head.get(9..12)?.parse().ok())?
}

/// The value that 99 in 100 do not exceed.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Posts one event, due at `due`, and again if its caller is stubborn. What is accepted in the end took from when it was
/// due; a refusal, from when that post was made.
async fn post(caller: &mut Caller, seen: &mut Seen, due: Instant, stubborn: bool) {
    let mut from = due;
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    for _ in 0..if stubborn { 5 } else { 1 } {
        match timeout(LONGEST, caller.post(id)).await {
            Ok(Ok(200 | 202)) => return seen.accepted.push((id, due.elapsed())),
            Ok(Ok(503)) => seen.refused.push(from.elapsed()),
            _ => {
                caller.stream = None;
                seen.strange += 1;
            }
        }
        from = Instant::now();
    }
}

/// Posts what is due, one after the other, until nothing is any more.
async fn serve_due(mut caller: Caller, due: Arc<Mutex<mpsc::Receiver<Instant>>>, stubborn: bool) -> Seen {
    let mut seen = Seen::default();
    loop {
        let Some(from) = due.lock().await.recv().await else { return seen };
        post(&mut caller, &mut seen, from, stubborn).await;
    }
}

/// Posts one event after the other.
async fn serve_on(mut caller: Caller, until: Instant) -> Seen {
    let mut seen = Seen::default();
    while Instant::now() < until {
        post(&mut caller, &mut seen, Instant::now(), false).await;
    }
    seen
}

/// Offers events as `offer` says, and tells what became of them.
pub async fn offer(service: &Service, offer: Offer, name: impl Into<String>) -> Load {
    let before = service.rss();
    let (begun, probe) = (Instant::now(), tokio::spawn(health(service.ops.clone(), offer.clone())));
    let callers: Vec<_> = match offer.rate {
        Rate::Closed(callers) => {
            (0..callers).map(|_| tokio::spawn(serve_on(Caller::of(service), begun + offer.lasts))).collect()
        }
        Rate::Open(rate) => {
            let (sender, due) = mpsc::channel::<Instant>(1 << 20);
            let due = Arc::new(Mutex::new(due));
            let post = |_| tokio::spawn(serve_due(Caller::of(service), Arc::clone(&due), offer.stubborn));
            let callers = (0..CALLERS).map(post).collect();
            make_due(sender, rate, begun, &offer).await;
            callers
        }
    };
    let mut all = Seen::default();
    for caller in callers {
        let seen = caller.await.unwrap();
        all.accepted.extend(seen.accepted);
        all.refused.extend(seen.refused);
        all.strange += seen.strange;
    }
    let took = begun.elapsed().as_secs_f64();
    let mut accepted: Vec<Duration> = all.accepted.iter().map(|(_, took)| *took).collect();
    let good = accepted.iter().filter(|took| **took <= offer.in_time).count();
    let sent = (accepted.len() + all.refused.len()) as f64 / took;
    Load {
        name: name.into(),
        offered: if let Rate::Open(rate) = offer.rate { rate } else { sent },
        sent,
        accepted: accepted.len() as f64 / took,
        good: good as f64 / took,
        accepted_p50: percentile(&mut accepted, 50),
        accepted_p99: percentile(&mut accepted, 99),
        refused_p50: percentile(&mut all.refused, 50),
        refused_p99: percentile(&mut all.refused, 99),
        strange: all.strange,
        health: probe.await.unwrap(),
        grown_kib: service.rss().saturating_sub(before),
        ids: all.accepted.into_iter().map(|(id, _)| id).collect(),
    }
}

async fn make_due(sender: mpsc::Sender<Instant>, rate: f64, begun: Instant, offer: &Offer) {
    let mut made = 0_u64;
    while begun.elapsed() < offer.lasts && !offer.stop.is_cancelled() {
        while (made as f64) < begun.elapsed().as_secs_f64() * rate {
            let _ = sender.try_send(begun + Duration::from_secs_f64(made as f64 / rate));
            made += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The slowest of many answers of `/livez` and `/readyz`; for ever, when one was not "yes".
async fn health(addr: String, during: Offer) -> Duration {
    let (until, http) = (Instant::now() + during.lasts, reqwest::Client::new());
    let mut slowest = Duration::ZERO;
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
    println!(
        "{:<34} offered {:>6.0}/s  sent {:>6.0}/s  accepted {:>5.0}/s  in time {:>5.0}/s  p50 {:>7.1?}  p99 {:>7.1?}  refused p50 {:>7.1?} p99 {:>7.1?}  health {:>7.1?}  +{} KiB  strange {}",
        load.name,
        load.offered,
        load.sent,
        load.accepted,
        load.good,
        load.accepted_p50,
        load.accepted_p99,
        load.refused_p50,
        load.refused_p99,
        load.health,
        load.grown_kib,
        load.strange
    );
}
