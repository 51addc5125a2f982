//! What a fan-out to a million costs the database and the memory of the process that sends it: WAL, row versions and
//! commits from freeze to settle, on Postgres at 400 slots, the emulator answering at once in this process.
//!
//! `FANFARE_TEST_POSTGRES_URL=... cargo bench --bench write_cost [-- --recipients N] [-- --quick]` exits with 1 when it
//! costs more than the promises below. WAL is counted for the whole server: nobody else may use it meanwhile. `--quick` is
//! 20,000 recipients, judged by the same measures: bytes and rows depend little on how busy the machine is.

#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "shares the tests' harness")]

#[path = "../tests/it/harness/mod.rs"]
mod harness;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fanfare::emulator::Settings;
use fanfare::wire::Fanout;
use harness::process::Process;
use harness::service::{Database, World, goal};
use sqlx::{Connection, PgConnection};

/// Recipients, and of `--quick`.
const RECIPIENTS: i64 = 1_000_000;
const QUICK: i64 = 20_000;
/// Recipients of the run that memory is compared with.
const FEW: i64 = 1_000;
const SLOTS: u32 = 400;
/// WAL bytes a recipient may cost: 40 MB for a million.
const WAL_PER_RECIPIENT: i64 = 40;
/// What a fan-out costs whatever its size: its rows, counters every second, pages first touched after a checkpoint.
const WAL_ONCE: i64 = 1_000_000;
/// Updates of a chunk that move between its partial indexes and so cannot be heap-only: claimed, closed, and one release.
const INDEXED_UPDATES: i64 = 3;
/// Dead row versions of a page or two that no later update has met.
const DEAD_ONCE: i64 = 50;
/// What a large run may need beyond a small one.
const GROWTH_KB: u64 = 64 * 1024;
/// How long an event is useful whose provider is away, s.
const OUTAGE_S: u32 = 30;
/// Rows an outage may leave: those who were sent something when it became clear.
const OUTAGE_ROWS: i64 = 5_000;

/// Everybody follows `match:all`, the first few `match:few`.
const SEED: &str = "
WITH d AS (
    INSERT INTO device (id, user_id, token, platform, locale, registered_ms)
    SELECT 'd' || n, 'u' || n, 'ok-' || md5(n::text) || repeat(md5((-n)::text), 3), 1 + n % 3, 'en', fanfare_now_ms()
    FROM generate_series(1, $1::bigint) AS n RETURNING device_key
), r AS (SELECT device_key, row_number() OVER (ORDER BY device_key) AS n FROM d)
INSERT INTO follow (subject, device_key, wanted, kinds)
SELECT s, device_key, 9223372036854775807, 9223372036854775807
FROM r, unnest(ARRAY['match:all', 'match:few']) AS s WHERE s = 'match:all' OR n <= $2";

/// What the database has done so far.
#[derive(Debug, Clone, Copy)]
struct Counts {
    wal: i64,
    commits: i64,
    updates: i64,
    heap_only: i64,
    dead: i64,
    chunk_bytes: i64,
}

async fn counts(sql: &mut PgConnection) -> Counts {
    // What a backend has done reaches the statistics when it ends, which is a moment after its client has.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (wal, commits, updates, heap_only, dead, chunk_bytes) = sqlx::query_as(
        "SELECT (pg_current_wal_lsn() - '0/0')::bigint, d.xact_commit, t.n_tup_upd, t.n_tup_hot_upd, t.n_dead_tup,
                pg_relation_size('chunk')
         FROM pg_stat_database d, pg_stat_user_tables t WHERE d.datname = current_database() AND t.relname = 'chunk'",
    )
    .fetch_one(sql)
    .await
    .unwrap();
    Counts { wal, commits, updates, heap_only, dead, chunk_bytes }
}

/// Waits until it is settled, saying how far it is.
async fn settled(process: &Process, id: &str) -> Fanout {
    let mut said = Instant::now();
    loop {
        let fanout = process.client.fanout(id, Duration::from_secs(5)).await.unwrap();
        if fanout.settled_at.is_some() {
            return fanout;
        }
        if said.elapsed() > Duration::from_secs(30) {
            said = Instant::now();
            println!("  {} of {} sent", fanout.recipients - fanout.pending, fanout.recipients);
        }
    }
}

/// Most memory the process had so far.
fn peak_kb(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim_end_matches("kB").trim().parse().unwrap()
}

/// A line with its verdict.
fn judge(what: &str, value: i64, most: i64, unit: &str) -> bool {
    let kept = value <= most;
    println!("{what:<52} {value:>12} {unit} (at most {most}): {}", if kept { "kept" } else { "MISSED" });
    kept
}

/// Of a run whose provider answers. The peak of its process, kB.
async fn run(world: &World, sql: &mut PgConnection, subject: &str, n: i64) -> (u64, bool) {
    let process = world.spawn().await;
    sqlx::query("CHECKPOINT").execute(&mut *sql).await.unwrap();
    let before = counts(sql).await;
    let begun = Instant::now();
    let event = goal(&format!("evt-{subject}"), subject, 3_600);
    let id = process.client.post_event(&event).await.unwrap().0.fanout_id;
    let fanout = settled(&process, &id).await;
    let took = begun.elapsed().as_secs_f64();
    let peak = peak_kb(&process);
    process.kill().await;
    let after = counts(sql).await;
    assert_eq!((fanout.delivered as i64, fanout.failed), (n, 0), "{fanout:?}");
    let (commits, chunks) = (after.commits - before.commits, (n + 499) / 500);
    println!("{n} recipients, {SLOTS} slots: {took:.1} s, {:.0}/s, {commits} commits", n as f64 / took);
    let (updates, heap_only) = (after.updates - before.updates, after.heap_only - before.heap_only);
    println!(
        "  {updates} updates of {chunks} chunks, {heap_only} of them heap-only; {} dead now, {} kB of chunks",
        after.dead,
        after.chunk_bytes / 1024
    );
    let fine = judge("WAL from freeze to settle", after.wal - before.wal, WAL_PER_RECIPIENT * n + WAL_ONCE, "bytes")
        & judge("updates of chunks that are not heap-only", updates - heap_only, INDEXED_UPDATES * chunks, "rows")
        & judge("dead chunks", after.dead, INDEXED_UPDATES * chunks + DEAD_ONCE, "rows");
    (peak, fine)
}

/// Of a run whose provider is away until the deadline.
async fn outage(world: &mut World, sql: &mut PgConnection, n: i64) -> bool {
    world.set("FCM__ENDPOINT", "http://127.0.0.1:9");
    let process = world.spawn().await;
    let before = counts(sql).await;
    let event = goal("evt-away", "all", OUTAGE_S);
    let id = process.client.post_event(&event).await.unwrap().0.fanout_id;
    let fanout = settled(&process, &id).await;
    process.kill().await;
    let after = counts(sql).await;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM failure").fetch_one(&mut *sql).await.unwrap();
    let expired = fanout.outcomes.get("expired").copied().unwrap_or_default();
    println!("provider away for {OUTAGE_S} s: {} recipients, {expired} expired after {} ms", n, fanout.duration_ms);
    assert_eq!(fanout.recipients as i64, n, "{fanout:?}");
    judge("recipients of an outage that did not expire", n - expired as i64, 0, "recipients")
        & judge("failure rows of an outage", rows, OUTAGE_ROWS, "rows")
        & judge("WAL of an outage", after.wal - before.wal, WAL_PER_RECIPIENT * n + WAL_ONCE, "bytes")
}

async fn all(n: i64) -> bool {
    let mut world = World::with(Database::Postgres, false, Settings::default()).await;
    world.set("FCM__SLOTS", SLOTS);
    world.set("CEILING__RATE_PER_S", 100_000);
    world.set("CEILING__QUOTA_PER_MINUTE", 10_000_000);
    let mut sql = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    let begun = Instant::now();
    sqlx::query(SEED).bind(n).bind(FEW).execute(&mut sql).await.unwrap();
    sqlx::query("VACUUM ANALYZE").execute(&mut sql).await.unwrap();
    println!("{n} devices made in {:.1} s", begun.elapsed().as_secs_f64());
    let (few, _) = run(&world, &mut sql, "few", FEW).await;
    let (many, cheap) = run(&world, &mut sql, "all", n).await;
    let grown = i64::try_from(many.saturating_sub(few)).unwrap();
    let small = judge("peak memory beyond that of a small run", grown, GROWTH_KB as i64, "kB");
    println!("  {few} kB with {FEW} recipients, {many} kB with {n}");
    cheap & small & outage(&mut world, &mut sql, n).await
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let asked = args.iter().position(|arg| arg == "--recipients").and_then(|at| args.get(at + 1)?.parse().ok());
    let usual = if args.iter().any(|arg| arg == "--quick") { QUICK } else { RECIPIENTS };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if runtime.block_on(all(asked.unwrap_or(usual))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
