//! What becomes of events when more arrive than fit: a real service over a real PostgreSQL whose commits take a fixed time.
//!
//! `FANFARE_TEST_POSTGRES_URL=… cargo bench --bench ingest [-- --quick] [--plot FILE.svg]` offers 1 to 50 times what the
//! service can take and measures every answer from the instant at which its request was due, so that a generator that falls
//! behind makes the figures worse and not better ("coordinated omission"). Service and generator have a core each where
//! `taskset` is there. Exits with 1 unless, at 10 and 50 times: as much is accepted as nine tenths of what fits, the 99th
//! percentile of accepted is under twice the quiet one + 25 ms, that of refusals under 5 ms, `/livez` under 50 ms and the
//! memory flat; the same with callers who come back at once, and, but for what is accepted, with a database that stalls.
//! `--quick` is a short look at whether it works: it judges nothing but that something was accepted and refused.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanfare::api::{Scope, keys};
use fanfare::emulator::{Emulator, Settings};
use fanfare::store::Store;
use fanfare::store::postgres::PostgresStore;
use sqlx::{AssertSqlSafe, Executor};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

#[allow(dead_code)]
#[path = "../tests/it/harness/postgres.rs"]
mod postgres;

/// Events served at once, each on a connection of its own.
const AT_ONCE: u32 = 8;
/// Connections of the generator. Far more than are ever busy while the gate works.
const CALLERS: usize = 512;

/// Ids of events, each used once.
static IDS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
struct Plan {
    /// How long a commit takes.
    commit: Duration,
    /// How long each load is offered.
    measured: Duration,
    multiples: &'static [u32],
}

const FULL: Plan =
    Plan { commit: Duration::from_millis(20), measured: Duration::from_secs(20), multiples: &[1, 2, 5, 10, 20, 50] };
const QUICK: Plan = Plan { commit: Duration::from_millis(100), measured: Duration::from_secs(2), multiples: &[1, 10] };

impl Plan {
    /// Events per second that fit.
    fn capacity(self) -> f64 {
        f64::from(AT_ONCE) / self.commit.as_secs_f64()
    }
}

/// A service of its own process, and what it stands on.
struct Bench {
    child: Child,
    api: String,
    ops: String,
    key: String,
    database: postgres::TestDatabase,
    _emulator: Emulator,
}

impl Bench {
    async fn start(plan: Plan, places: u32) -> Self {
        let database = postgres::TestDatabase::create().await;
        PostgresStore::connect(&database.url.clone().into(), 1).unwrap().migrate().await.unwrap();
        let slow = format!(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep({}); RETURN NEW; END $$;
             CREATE TRIGGER slow BEFORE INSERT ON event FOR EACH ROW EXECUTE FUNCTION slow()",
            plan.commit.as_secs_f64()
        );
        database.connection().await.execute(AssertSqlSafe(slow)).await.unwrap();
        let emulator = Emulator::start(Settings::default()).unwrap();
        let (key, entry) = keys::generate("bench", &[Scope::Events]).unwrap();
        let settings = [
            ("API__LISTEN", "127.0.0.1:0".to_owned()),
            ("OPS__LISTEN", "127.0.0.1:0".to_owned()),
            ("API__KEYS", entry),
            ("API__MAX_IN_FLIGHT", places.to_string()),
            ("API__MAX_BACKLOG", "10000000".to_owned()),
            ("DATABASE__URL", database.url.clone()),
            ("DATABASE__MAX_CONNECTIONS", (2 * AT_ONCE).to_string()),
            ("DATABASE__INGEST_CONNECTIONS", AT_ONCE.to_string()),
            ("FCM__ENDPOINT", emulator.endpoint().to_owned()),
            ("FCM__CREDENTIALS", emulator.key_json()),
            ("LOG__FORMAT", "json".to_owned()),
        ];
        let mut command = pinned(0);
        command.args([env!("CARGO_BIN_EXE_fanfare"), "serve"]).stdout(Stdio::piped()).kill_on_drop(true);
        for (name, value) in settings {
            command.env(format!("FANFARE__{name}"), value);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = loop {
            let line = lines.next_line().await.unwrap().expect("it serves");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "serving" {
                break line;
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let addr = |field: &str| said[field].as_str().unwrap().to_owned();
        Self { child, api: addr("api"), ops: addr("ops"), key, database, _emulator: emulator }
    }

    /// Resident memory, KiB.
    fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

/// A command on one core, where that can be had.
fn pinned(core: u32) -> Command {
    let there = std::process::Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    let mut command = Command::new(if there { "taskset" } else { "env" });
    if there {
        command.args(["-c", &core.to_string()]);
    }
    command
}

#[derive(Default)]
struct Seen {
    accepted: Vec<Duration>,
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
    /// The status of the answer to one event.
    async fn post(&mut self, id: u64) -> std::io::Result<u16> {
        let happened = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let body = format!(
            r#"{{"id":"evt-{id}","type":"goal","match_id":"1","occurred_at":"{happened}","subjects":["match:1"],"fields":{{"home":"A","away":"B","score":"1-0","minute":1,"player":"P"}}}}"#
        );
        let request = format!(
            "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        if self.stream.is_none() {
            self.stream = Some(TcpStream::connect(&self.addr).await?);
        }
        let stream = self.stream.as_mut().expect("just connected");
        let _ = stream.set_nodelay(true);
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
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    (body.len() >= length.unwrap_or(0)).then(|| head.get(9..12)?.parse().ok())?
}

/// What one load came to.
struct Load {
    name: String,
    offered: f64,
    sent: f64,
    good: f64,
    accepted_p99: Duration,
    refused_p99: Duration,
    strange: u64,
    livez: Duration,
    grown_kib: u64,
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get((times.len() * 99 / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Posts what is due, one after the other, until nothing is any more.
async fn serve_due(mut caller: Caller, due: Arc<Mutex<mpsc::Receiver<Instant>>>, stubborn: bool) -> Seen {
    let mut seen = Seen::default();
    loop {
        let Some(mut from) = due.lock().await.recv().await else { return seen };
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        for _ in 0..if stubborn { 5 } else { 1 } {
            match caller.post(id).await {
                Ok(200 | 202) => {
                    seen.accepted.push(from.elapsed());
                    break;
                }
                Ok(503) => seen.refused.push(from.elapsed()),
                _ => {
                    caller.stream = None;
                    seen.strange += 1;
                }
            }
            from = Instant::now();
        }
    }
}

/// Offers `rate` events a second for the planned time. With `stubborn`, whoever is refused comes back at once, four times.
async fn offer(bench: &Bench, plan: Plan, rate: f64, stubborn: bool, name: String) -> Load {
    let (due_sender, due) = mpsc::channel::<Instant>(1 << 20);
    let due = Arc::new(Mutex::new(due));
    let before = bench.rss();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let due = Arc::clone(&due);
            let caller = Caller { stream: None, addr: bench.api.clone(), key: bench.key.clone(), buffer: Vec::new() };
            tokio::spawn(serve_due(caller, due, stubborn))
        })
        .collect();
    let probe = tokio::spawn(livez(bench.ops.clone(), plan.measured));
    let begun = Instant::now();
    let mut sent = 0_u64;
    while begun.elapsed() < plan.measured {
        while (sent as f64) < begun.elapsed().as_secs_f64() * rate {
            let _ = due_sender.try_send(begun + Duration::from_secs_f64(sent as f64 / rate));
            sent += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(due_sender);
    let mut all = Seen::default();
    for caller in callers {
        let seen = caller.await.unwrap();
        all.accepted.extend(seen.accepted);
        all.refused.extend(seen.refused);
        all.strange += seen.strange;
    }
    let took = begun.elapsed().as_secs_f64();
    Load {
        name,
        offered: rate,
        sent: (all.accepted.len() + all.refused.len()) as f64 / took,
        good: all.accepted.len() as f64 / took,
        accepted_p99: p99(&mut all.accepted),
        refused_p99: p99(&mut all.refused),
        strange: all.strange,
        livez: probe.await.unwrap(),
        grown_kib: bench.rss().saturating_sub(before),
    }
}

/// The slowest of many answers of `/livez`.
async fn livez(addr: String, during: Duration) -> Duration {
    let until = Instant::now() + during;
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let begun = Instant::now();
        let answer = reqwest::get(format!("http://{addr}/livez")).await.and_then(reqwest::Response::error_for_status);
        slowest = slowest.max(if answer.is_ok() { begun.elapsed() } else { Duration::MAX });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    slowest
}

fn told(load: &Load) {
    println!(
        "{:<28} offered {:>7.0}/s  sent {:>7.0}/s  accepted {:>6.0}/s  p99 accepted {:>8.1?}  p99 refused {:>8.1?}  livez {:>7.1?}  +{} KiB  strange {}",
        load.name,
        load.offered,
        load.sent,
        load.good,
        load.accepted_p99,
        load.refused_p99,
        load.livez,
        load.grown_kib,
        load.strange
    );
}

/// What a load over capacity must come to.
fn faults(load: &Load, quiet: Duration, least: f64) -> Vec<String> {
    let limits = [
        (load.good >= least, format!("accepted {:.0}/s, less than {least:.0}/s", load.good)),
        (load.accepted_p99 < 2 * quiet + Duration::from_millis(25), format!("accepted in {:?}", load.accepted_p99)),
        (load.refused_p99 < Duration::from_millis(5), format!("refused in {:?}", load.refused_p99)),
        (load.livez < Duration::from_millis(50), format!("/livez took {:?}", load.livez)),
        (load.grown_kib < 32 << 10, format!("grew by {} KiB", load.grown_kib)),
    ];
    limits.into_iter().filter(|(kept, _)| !kept).map(|(_, what)| format!("{}: {what}", load.name)).collect()
}

async fn measure(quick: bool, plot: Option<String>) -> Result<(), Vec<String>> {
    let plan = if quick { QUICK } else { FULL };
    let capacity = plan.capacity();
    let gated = Bench::start(plan, AT_ONCE).await;
    let quiet = offer(&gated, plan, capacity / 4.0, false, "quiet".to_owned()).await;
    told(&quiet);
    let (mut with, mut without, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for multiple in plan.multiples {
        let load = offer(&gated, plan, capacity * f64::from(*multiple), false, format!("{multiple} times")).await;
        told(&load);
        if *multiple >= 10 {
            wrong.extend(faults(&load, quiet.accepted_p99, 0.9 * capacity));
        }
        with.push((*multiple, load.good));
    }
    let storm = offer(&gated, plan, capacity * 10.0, true, "10 times, coming back at once".to_owned()).await;
    told(&storm);
    wrong.extend(faults(&storm, quiet.accepted_p99, 0.9 * capacity));
    let mut blocker = gated.database.connection().await;
    blocker.execute("BEGIN; LOCK TABLE event IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let unblock = async {
        tokio::time::sleep(plan.measured).await;
        blocker.execute("ROLLBACK").await.unwrap();
    };
    let stalled = offer(&gated, plan, capacity * 10.0, false, "10 times, database stalled".to_owned());
    let (stalled, ()) = tokio::join!(stalled, unblock);
    told(&stalled);
    wrong.extend(faults(&stalled, Duration::MAX / 4, 0.0));
    drop(gated);

    let open = Bench::start(plan, 65_536).await;
    for multiple in plan.multiples {
        let load =
            offer(&open, plan, capacity * f64::from(*multiple), false, format!("{multiple} times, no gate")).await;
        told(&load);
        without.push((*multiple, load.good));
    }
    if let Some(path) = plot {
        std::fs::write(&path, svg(capacity, &with, &without)).unwrap();
    }
    match (quick, wrong.is_empty()) {
        (true, _) if storm.good > 0.0 && storm.sent > storm.good => Ok(()),
        (true, _) => Err(vec!["nothing was accepted, or nothing refused".to_owned()]),
        (false, true) => Ok(()),
        (false, false) => Err(wrong),
    }
}

/// Accepted against offered, both in multiples of what fits, with a logarithmic axis of what is offered.
fn svg(capacity: f64, with: &[(u32, f64)], without: &[(u32, f64)]) -> String {
    let x = |multiple: u32| 60.0 + f64::from(multiple).log10() / 50_f64.log10() * 520.0;
    let y = |good: f64| 260.0 - (good / capacity).min(1.2) * 180.0;
    let line = |points: &[(u32, f64)]| {
        points
            .iter()
            .map(|(multiple, good)| format!("{:.0},{:.0}", x(*multiple), y(*good)))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut svg = String::from(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 310" font-family="sans-serif" font-size="13"><rect width="620" height="310" fill="white"/>"#,
    );
    let _ = write!(svg, r#"<path d="M60 40V260H590" fill="none" stroke="black"/>"#);
    for (multiple, _) in with {
        let _ = write!(svg, r#"<text x="{:.0}" y="278" text-anchor="middle">{multiple}x</text>"#, x(*multiple));
    }
    let _ = write!(
        svg,
        r#"<text x="590" y="298" text-anchor="end">offered, in multiples of the {capacity:.0} events/s that fit</text>"#
    );
    for percent in [0, 50, 100] {
        let height = y(capacity * f64::from(percent) / 100.0);
        let _ = write!(svg, r#"<text x="54" y="{:.0}" text-anchor="end">{percent} %</text>"#, height + 4.0);
    }
    for (points, colour, name, at) in
        [(with, "#0a7d36", "accepted, with the gate", 40), (without, "#c0392b", "accepted, without it", 58)]
    {
        let _ = write!(svg, r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, line(points));
        let _ = write!(svg, r#"<text x="580" y="{at}" text-anchor="end" fill="{colour}">{name}</text>"#);
    }
    svg.push_str("</svg>\n");
    svg
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let args: Vec<String> = std::env::args().collect();
    let plot = args.iter().position(|arg| arg == "--plot").and_then(|at| args.get(at + 1)).cloned();
    let own = std::process::id().to_string();
    let alone = Command::new("taskset").args(["-c", "-p", "1", &own]).stdout(Stdio::null()).status().await;
    if !alone.is_ok_and(|status| status.success()) {
        eprintln!("no core of their own for service and generator: taskset is missing, or there is one core only");
    }
    match measure(args.iter().any(|arg| arg == "--quick"), plot).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            wrong.iter().for_each(|what| eprintln!("{what}"));
            ExitCode::FAILURE
        }
    }
}
