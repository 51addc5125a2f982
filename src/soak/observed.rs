//! Owns what a soak has seen when it is over: the facts that are judged and shown.
//! Must never know: what must hold.

use std::collections::BTreeMap;

use super::oracle::Seen;
use crate::wire::Fanout;

/// One call of `POST /v1/events` and what became of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Posted {
    /// Number of its story: that of the news it repeats or corrects, or its own.
    pub story: usize,
    /// Event id.
    pub event_id: String,
    /// Event type.
    pub kind: String,
    /// Into the day, ms: when it happened.
    pub occurred_ms: u64,
    /// Its fan-out, or that of the same news.
    pub fanout: Option<String>,
    /// The code of a refusal for good, or why no answer came.
    pub refused: Option<String>,
    /// Devices that want it; absent where nobody can know, because it corrects or was corrected.
    pub expected: Option<u64>,
    /// Of those, devices whose refusal is for good, which may be recipients no more.
    pub bad: u64,
}

/// What one process used at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Resident memory, kB.
    pub rss_kb: u64,
    /// Open file descriptors.
    pub fds: u64,
    /// Tasks of its runtime.
    pub tasks: u64,
}

/// One look at one instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Into the day, ms.
    pub at_ms: u64,
    /// Its place in the fleet.
    pub seat: usize,
    /// Its process.
    pub pid: u32,
    /// What it used.
    pub usage: Usage,
    /// Mode of the ceiling; empty when it did not answer.
    pub mode: String,
    /// Pace of the fleet, per second.
    pub pace: f64,
}

/// What a fan-out's line says beyond what the API tells.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Line {
    /// Median send, ms.
    pub p50_send_ms: u64,
    /// 99th percentile, ms.
    pub p99_send_ms: u64,
    /// Slowest send, ms.
    pub slowest_send_ms: u64,
    /// Leases lost under it.
    pub interrupted: u64,
}

/// A time in which Redis was away or an instance was replaced, ms into the day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Begins.
    pub from_ms: u64,
    /// Ends.
    pub to_ms: u64,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Length of the day, ms.
    pub length_ms: u64,
    /// Ceiling, requests per second.
    pub rate: f64,
    /// Instances.
    pub instances: usize,
    /// Most recipients a kill can repeat.
    pub exposure: u64,
    /// Instances killed.
    pub kills: u64,
    /// Instances asked to end.
    pub terminated: u64,
    /// Instances that did not end or start as they should.
    pub mishaps: Vec<String>,
    /// All posts.
    pub posted: Vec<Posted>,
    /// Fan-outs by id, as told at the end.
    pub fanouts: BTreeMap<String, Fanout>,
    /// Their lines.
    pub lines: BTreeMap<String, Line>,
    /// What the provider's log says.
    pub seen: Seen,
    /// When the day began, ns of the provider's log.
    pub began_ns: u64,
    /// The same, Unix ms.
    pub began_unix_ms: i64,
    /// Device tokens that the service sends to no more.
    pub condemned: Vec<String>,
    /// When Redis was away.
    pub away: Vec<Span>,
    /// How late timers of this process were, ms into the day and ms late: the machine's own noise.
    pub late: Vec<(u64, u64)>,
    /// Looks at the instances.
    pub samples: Vec<Sample>,
    /// Slots of an instance.
    pub slots: u64,
    /// After which an attempt lends its slot out, ms.
    pub stall_after_ms: u64,
    /// Requests in flight at the provider: ms into the day, and how many.
    pub crowd: Vec<(u64, u32)>,
    /// When a request came that stalls, ms into the day.
    pub stalled_ms: Vec<u64>,
    /// By place in the fleet: before the day and after it.
    pub rest: Vec<(Usage, Usage)>,
    /// Other log lines of the service at WARN or ERROR, and how often.
    pub complaints: BTreeMap<String, u64>,
}
