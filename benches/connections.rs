//! What a provider that misbehaves costs those who have nothing to do with it: throughput beside a calm run of the same
//! minute, on the whole service with the emulator in the same process.
//!
//! `cargo bench --bench connections [-- RECIPIENTS]`

#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "shares the tests' harness")]

#[path = "../tests/it/harness/mod.rs"]
mod harness;

use std::time::Duration;

use fanfare::emulator::{Control, Network};
use harness::service::{Database, World};

/// Before every answer, ms: 32 slots make 1,600 requests/s of it.
const LATENCY_MS: u64 = 20;
/// Pairs of a calm run and one with the fault; the median of their ratios is told.
const PAIRS: usize = 3;

/// One fault.
#[derive(Clone, Copy)]
struct Story {
    name: &'static str,
    /// Device token of the `i`-th recipient.
    kind: fn(usize) -> &'static str,
    goaway_every: u32,
    useful_s: u32,
}

const CALM: Story = Story { name: "calm", kind: |_| "ok", goaway_every: 0, useful_s: 60 };

const STORIES: [Story; 3] = [
    Story { name: "GOAWAY every 100 requests", goaway_every: 100, ..CALM },
    Story {
        name: "5 % answered 503 with Retry-After 20",
        kind: |i| if i % 20 == 7 { "unavailable-20" } else { "ok" },
        useful_s: 15,
        ..CALM
    },
    Story { name: "8 of 32 slots stalled", kind: |i| if i < 8 { "hang" } else { "ok" }, useful_s: 15, ..CALM },
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

fn main() {
    let n = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(8000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        println!("{n} recipients, 32 slots, {LATENCY_MS} ms per answer, SQLite");
        for (s, story) in STORIES.into_iter().enumerate() {
            let mut pairs = Vec::new();
            for pair in 0..PAIRS {
                let calm = rate(CALM, n, &format!("calm-{s}-{pair}")).await;
                let rate = rate(story, n, &format!("story-{s}-{pair}")).await;
                pairs.push((rate / calm, rate, calm));
            }
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (ratio, rate, calm) = pairs[PAIRS / 2];
            let (least, most) = (pairs[0].0, pairs[PAIRS - 1].0);
            println!("{}: {rate:.0}/s beside {calm:.0}/s, ratio {ratio:.3} ({least:.3} to {most:.3})", story.name);
        }
    });
}
