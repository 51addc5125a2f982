//! What a goal waits beside a corner's fan-out to a million that is in flight: the real binary on Postgres, the emulator
//! in this process, goals to the same followers without and with the corner.
//!
//! `FANFARE_TEST_POSTGRES_URL=... cargo bench --bench beside [-- --corner N] [-- --instances N] [-- --quick]` exits with 1
//! when the first request of any goal came later than a second, or when the median of the goals' 99th percentiles is more
//! than twice that of the calm ones. `--quick` is a small corner and two goals, to see that the bench works.

#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "shares the tests' harness")]

#[path = "../tests/it/harness/mod.rs"]
mod harness;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fanfare::emulator::Control;
use harness::process::Process;
use harness::service::{Database, World, goal};
use sqlx::{Connection, PgConnection};

/// Before every answer, ms: 32 slots make 1,600 requests/s of it.
const LATENCY_MS: u64 = 20;
/// Followers of the goals' match.
const FOLLOWERS: usize = 2_000;
/// Latest first request of a goal, ms after it was posted.
const FIRST_MS: f64 = 1_000.0;
/// Times the calm goals' 99th percentile.
const TIMES: f64 = 2.0;

const SEED: &str = "
WITH d AS (
    INSERT INTO device (id, user_id, token, platform, locale, registered_ms)
    SELECT $1 || n, 'u' || n, 'ok-' || $1 || '-' || n || '-' || repeat(md5(n::text), 3), 1 + n % 3, 'en', fanfare_now_ms()
    FROM generate_series(1, $2::bigint) AS n RETURNING device_key
)
INSERT INTO follow (subject, device_key, wanted, kinds)
SELECT 'match:' || $1, device_key, 9223372036854775807, 9223372036854775807 FROM d";

/// Of one goal, ms after it was posted: the first request, the median and the 99th percentile of all.
#[derive(Debug, Clone, Copy)]
struct Waited {
    first: f64,
    p50: f64,
    p99: f64,
}

struct Bench {
    world: World,
    processes: Vec<Process>,
    /// Zero of the emulator's clock.
    zero: Instant,
    goals: usize,
}

impl Bench {
    async fn start(corner: usize, instances: usize) -> Self {
        let before = Instant::now();
        let world = World::new(Database::Postgres, instances > 1).await;
        world.emulate(Control { latency_ms: Some(LATENCY_MS), ..Control::default() });
        let mut sql = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
        for (name, n) in [("corner", corner), ("goal", FOLLOWERS)] {
            sqlx::query(SEED).bind(name).bind(n as i64).execute(&mut sql).await.unwrap();
        }
        sqlx::query("VACUUM ANALYZE").execute(&mut sql).await.unwrap();
        let mut processes = Vec::new();
        for _ in 0..instances {
            processes.push(world.spawn().await);
        }
        println!("{corner} followers of the corner made in {:.1} s", before.elapsed().as_secs_f64());
        let mut bench = Self { world, processes, zero: before, goals: 0 };
        bench.find_zero().await;
        bench
    }

    /// The emulator tells times since its start: one request, met as it arrives, tells when that was.
    async fn find_zero(&mut self) {
        let first = self.world.emulator.logged(1);
        let event = goal("evt-zero", "goal", 600);
        let (posted, ()) = tokio::join!(self.processes[0].client.post_event(&event), first);
        let met = Instant::now();
        let at = Duration::from_nanos(self.world.emulator.log()[0].t_ns);
        self.zero = met.checked_sub(at).unwrap();
        self.wait(&posted.unwrap().0.fanout_id).await;
    }

    async fn wait(&self, id: &str) {
        while self.processes[0].client.fanout(id, Duration::from_secs(5)).await.unwrap().settled_at.is_none() {}
    }

    /// Posts a goal that differs from the others, and waits for its end.
    async fn goal(&mut self) -> Waited {
        self.goals += 1;
        let mut event = goal(&format!("evt-goal-{}", self.goals), "goal", 600);
        event.fields.insert("minute".to_owned(), self.goals.into());
        let posted = Instant::now();
        let id = self.processes[0].client.post_event(&event).await.unwrap().0.fanout_id;
        self.wait(&id).await;
        let posted_ns = u64::try_from((posted - self.zero).as_nanos()).unwrap();
        let log = self.world.emulator.log();
        let since = log.iter().filter(|entry| entry.t_ns >= posted_ns && entry.token.starts_with("ok-goal-"));
        let mut waits: Vec<f64> = since.map(|entry| (entry.t_ns - posted_ns) as f64 / 1e6).collect();
        waits.sort_by(f64::total_cmp);
        assert_eq!(waits.len(), FOLLOWERS, "each follower was sent the goal once");
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
        Waited { first: waits[0], p50: at(0.5), p99: at(0.99) }
    }

    async fn several(&mut self, what: &str, goals: usize) -> Vec<Waited> {
        let mut waited = Vec::new();
        for _ in 0..goals {
            let one = self.goal().await;
            println!("{what}: first request {:.0} ms, p50 {:.0} ms, p99 {:.0} ms", one.first, one.p50, one.p99);
            waited.push(one);
        }
        waited
    }

    async fn post_corner(&self) -> String {
        let mut event = goal("evt-corner", "corner", 86_000);
        event.kind = "corner".to_owned();
        event.fields.remove("player");
        event.fields.insert("team".to_owned(), "Arsenal".into());
        self.processes[0].client.post_event(&event).await.unwrap().0.fanout_id
    }
}

/// Median with spread.
fn spread(mut values: Vec<f64>) -> (f64, String) {
    values.sort_by(f64::total_cmp);
    let (median, most) = (values[values.len() / 2], values[values.len() - 1]);
    (median, format!("{median:.0} ms ({:.0} to {most:.0} in {})", values[0], values.len()))
}

async fn all(corner: usize, instances: usize, goals: usize) -> bool {
    let mut bench = Bench::start(corner, instances).await;
    println!("{FOLLOWERS} followers of each goal, {instances} instance(s) of 32 slots, {LATENCY_MS} ms per answer");
    bench.several("warm-up", 1).await;
    let mut calm = bench.several("calm", goals).await;
    let id = bench.post_corner().await;
    // The first of these meets the corner while it is frozen.
    let beside = bench.several("beside the corner", goals).await;
    let left = bench.processes[0].client.cancel(&id).await.unwrap();
    println!("the corner had sent {} of {} by then", left.delivered, left.recipients);
    bench.wait(&id).await;
    calm.extend(bench.several("calm again", goals).await);

    let (calm_p99, calm_said) = spread(calm.iter().map(|one| one.p99).collect());
    let (beside_p99, beside_said) = spread(beside.iter().map(|one| one.p99).collect());
    let first = beside.iter().map(|one| one.first).fold(0.0, f64::max);
    let (in_time, close) = (first <= FIRST_MS, beside_p99 <= TIMES * calm_p99);
    let told = |kept: bool| if kept { "kept" } else { "MISSED" };
    println!("first request {first:.0} ms at most, {FIRST_MS:.0} asked for: {}", told(in_time));
    println!("p99 {beside_said} beside the corner, {calm_said} without");
    println!("ratio {:.2}, at most {TIMES}: {}", beside_p99 / calm_p99, told(close));
    assert!(left.pending > 0, "the corner was over before the goals were: take a larger one");
    in_time && close
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let asked = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)?.parse().ok());
    let quick = args.iter().any(|arg| arg == "--quick");
    let (corner, goals) = if quick { (30_000, 2) } else { (1_000_000, 5) };
    let (corner, instances) = (asked("--corner").unwrap_or(corner), asked("--instances").unwrap_or(1));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kept = runtime.block_on(all(corner, instances, goals));
    if quick {
        println!("--quick: nothing is judged");
    }
    if kept || quick { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
