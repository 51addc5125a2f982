//! What a provider that misbehaves costs those who have nothing to do with it: throughput beside a calm run of the same
//! minute, on the whole service with the emulator in the same process.
//!
//! `cargo bench --bench connections [-- RECIPIENTS] [-- --quick]` exits with 1 when the median of the pairs' ratios is
//! below what a story has to keep. `--quick` is one small pair of each, to see that the bench works: it judges nothing.
//! Only a release build on a quiet machine can show a loss of 5 %.

#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "shares the tests' harness")]

#[path = "../tests/it/harness/mod.rs"]
mod harness;

use std::process::ExitCode;
use std::time::Duration;

use fanfare::emulator::{Control, Network};
use harness::service::{Database, World};

/// Before every answer, ms: 32 slots make 1,600 requests/s of it.
const LATENCY_MS: u64 = 20;
/// Pairs of a calm run and one with the fault: the median of their ratios is judged.
const PAIRS: usize = 5;

/// One fault.
#[derive(Clone, Copy)]
struct Story {
    name: &'static str,
    /// Device token of the `i`-th recipient.
    kind: fn(usize) -> &'static str,
    goaway_every: u32,
    useful_s: u32,
    /// Least share of the calm rate that is kept.
    keeps: f64,
}

const CALM: Story = Story { name: "calm", kind: |_| "ok", goaway_every: 0, useful_s: 60, keeps: 1.0 };

const STORIES: [Story; 3] = [
    Story { name: "GOAWAY every 100 requests", goaway_every: 100, keeps: 0.90, ..CALM },
    Story {
        name: "5 % answered 503 with Retry-After 20",
        kind: |i| if i % 20 == 7 { "unavailable-20" } else { "ok" },
        useful_s: 15,
        keeps: 0.95,
        ..CALM
    },
    // Their slots are lent out.
    Story {
        name: "8 of 32 slots stalled",
        kind: |i| if i < 8 { "hang" } else { "ok" },
        useful_s: 15,
        keeps: 0.90,
        ..CALM
    },
];

/// Recipients a second, from the first request to the last to somebody who is well. All recipients are counted, so that
/// a calm run and one with a fault have had the same work when their last one is served.
async fn rate(story: Story, n: usize, run: &str) -> f64 {
    let world = World::new(Database::Sqlite, false).await;
    let network = Network { goaway_every: Some(story.goaway_every), ..Network::default() };
    world.emulate(Control { latency_ms: Some(LATENCY_MS), network, ..Control::default() });
    let service = world.serve().await;
    let tokens: Vec<String> = (0..n).map(|i| format!("{}-{run}-{i}", (story.kind)(i))).collect();
    service.follow(run, &tokens).await;
    let fanout = service.settled(&service.goal(run, run, story.useful_s).await).await;
    let log = world.emulator.log();
    let well: Vec<u64> = log.iter().filter(|e| e.token.starts_with("ok-")).map(|e| e.t_ns).collect();
    let expected = tokens.iter().filter(|t| t.starts_with("ok-")).count();
    assert!(fanout.delivered as usize == expected && well.len() == expected, "{fanout:?}");
    service.stop().await.unwrap();
    let took = Duration::from_nanos(well.last().unwrap() - log[0].t_ns);
    n as f64 / took.as_secs_f64()
}

/// Whether the story keeps what it has to.
async fn judge(s: usize, story: Story, n: usize, pairs: usize) -> bool {
    let mut ratios = Vec::new();
    for pair in 0..pairs {
        let (calm, fault) = (format!("calm-{s}-{pair}"), format!("story-{s}-{pair}"));
        // Each comes first every other time: a machine that grows slower favours neither.
        let (calm, rate) = if pair % 2 == 0 {
            let calm = rate(CALM, n, &calm).await;
            (calm, rate(story, n, &fault).await)
        } else {
            let rate = rate(story, n, &fault).await;
            (self::rate(CALM, n, &calm).await, rate)
        };
        ratios.push((rate / calm, rate, calm));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, rate, calm) = ratios[pairs / 2];
    let spread = format!("{:.3} to {:.3} in {pairs}", ratios[0].0, ratios[pairs - 1].0);
    let kept = ratio >= story.keeps;
    let verdict = match (pairs, kept) {
        (1, _) => "not judged",
        (_, true) => "kept",
        (_, false) => "MISSED",
    };
    println!(
        "{}: {rate:.0}/s beside {calm:.0}/s, ratio {ratio:.3} ({spread}), at least {:.2}: {verdict}",
        story.name, story.keeps
    );
    kept
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let (usual, pairs) = if quick { (500, 1) } else { (8000, PAIRS) };
    let n = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(usual);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kept = runtime.block_on(async {
        println!("{n} recipients, 32 slots, {LATENCY_MS} ms per answer, SQLite");
        let mut kept = true;
        for (s, story) in STORIES.into_iter().enumerate() {
            kept &= judge(s, story, n, pairs).await;
        }
        kept
    });
    if quick {
        println!("--quick: one pair each, nothing is judged");
    }
    if kept || quick { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
