//! Owns the counts: what the provider counted, per answer and per second.
//! Must never know: tokens and messages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::script::Play;
use super::table::ANSWERS;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Counts since start or the last reset; connections and streams since start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Send requests the provider counted: all that arrived whole, whatever the answer, but for `refused`.
    pub requests: u64,
    /// Answered REFUSED_STREAM: said to be not processed, so not counted in `requests`.
    pub refused: u64,
    /// Streams above the last one of a GOAWAY: never looked at, so neither in the log nor in another count.
    pub unprocessed: u64,
    /// Messages the provider took, whatever became of the answer, and not `validate_only`.
    pub accepted: u64,
    /// Tokens among `accepted`.
    pub distinct_accepted: u64,
    /// Accepted although the same message was accepted for the same token before.
    pub duplicates_accepted: u64,
    /// By name of the answer, those that were given at least once; they add up to `requests + refused`.
    pub answers: BTreeMap<String, u64>,
    /// Counted requests in each second since the start, by arrival.
    pub per_second: Vec<u32>,
    /// The most counted requests in any 1 s window, not only whole seconds.
    pub max_in_1s: u32,
    /// Calls of the token endpoint.
    pub oauth_calls: u64,
    /// Access tokens given out.
    pub oauth_issued: u64,
    /// Accepted by the listener.
    pub connections_opened: u32,
    /// Open now.
    pub connections_open: u32,
    /// GOAWAYs sent.
    pub goaways: u64,
    /// Streams opened above the limit that the client had acknowledged.
    pub overruns: u64,
    /// PINGs left unanswered.
    pub pings_ignored: u64,
    /// TLS handshakes that failed.
    pub tls_failures: u32,
    /// Requests in flight now, on all connections.
    pub streams_open: u32,
    /// The most at a time on all connections.
    pub peak_streams: u32,
    /// The most at a time on one connection.
    pub peak_streams_per_connection: u32,
    /// Log lines that could not be written to the log file.
    pub log_write_failures: u64,
    /// Since the emulator started, ms.
    pub uptime_ms: u64,
}

/// The counts that go with the log, under its lock.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) accepted: u64,
    pub(super) duplicates: u64,
    pub(super) oauth_calls: u64,
    pub(super) oauth_issued: u64,
    pub(super) log_write_failures: u64,
    refused: u64,
    by_answer: Vec<u64>,
    per_second: Vec<u32>,
    /// Arrivals of the last second.
    window: VecDeque<u64>,
    max_in_1s: usize,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            accepted: 0,
            duplicates: 0,
            oauth_calls: 0,
            oauth_issued: 0,
            log_write_failures: 0,
            refused: 0,
            by_answer: vec![0; ANSWERS.len()],
            per_second: Vec::new(),
            window: VecDeque::new(),
            max_in_1s: 0,
        }
    }
}

impl Counters {
    /// One request that arrived at `t_ns`, never before the one counted last.
    pub(super) fn count(&mut self, t_ns: u64, play: &Play) {
        self.by_answer[play.id.row()] += 1;
        if play.refused() {
            self.refused += 1;
            return;
        }
        let second = usize::try_from(t_ns / SECOND).unwrap_or(usize::MAX);
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
        while self.window.front().is_some_and(|first| first + SECOND <= t_ns) {
            self.window.pop_front();
        }
        self.window.push_back(t_ns);
        self.max_in_1s = self.max_in_1s.max(self.window.len());
    }

    /// As given out; tokens and connections are filled in by those who know them.
    pub(super) fn stats(&self) -> Stats {
        let given = || ANSWERS.iter().zip(&self.by_answer).filter(|(_, n)| **n > 0);
        Stats {
            requests: self.by_answer.iter().sum::<u64>() - self.refused,
            refused: self.refused,
            accepted: self.accepted,
            duplicates_accepted: self.duplicates,
            answers: given().map(|(answer, n)| (answer.name.to_owned(), *n)).collect(),
            per_second: self.per_second.clone(),
            max_in_1s: u32::try_from(self.max_in_1s).unwrap_or(u32::MAX),
            oauth_calls: self.oauth_calls,
            oauth_issued: self.oauth_issued,
            log_write_failures: self.log_write_failures,
            ..Stats::default()
        }
    }
}

/// A number that goes up and down, and the highest it was.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    now: AtomicU32,
    peak: AtomicU32,
}

impl Gauge {
    /// One more; the count with it.
    pub(super) fn up(&self) -> u32 {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    /// One less.
    pub(super) fn down(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    /// The count.
    pub(super) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// The highest count so far.
    pub(super) fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::AnswerId;
    use super::*;

    fn play(name: &str) -> Play {
        Play::plain(AnswerId::named(name).unwrap())
    }

    #[test]
    fn the_window_slides_and_is_not_aligned_to_seconds() {
        let mut counters = Counters::default();
        let at = |ms: u64| ms * 1_000_000;
        for ms in [600, 700, 1500, 1599, 1600, 2700] {
            counters.count(at(ms), &play("ok"));
        }
        let stats = counters.stats();
        assert_eq!(stats.per_second, [2, 3, 1]);
        assert_eq!(stats.max_in_1s, 4, "600..1599, while 1600 is a full second after 600");
    }

    #[test]
    fn a_refused_stream_is_seen_but_not_counted_as_a_request() {
        let mut counters = Counters::default();
        counters.count(0, &play("ok"));
        counters.count(0, &play("refused"));
        let stats = counters.stats();
        assert_eq!((stats.requests, stats.refused, stats.max_in_1s), (1, 1, 1));
        assert_eq!(stats.answers.values().sum::<u64>(), 2);
    }

    #[test]
    fn a_gauge_keeps_its_peak() {
        let gauge = Gauge::default();
        gauge.up();
        assert_eq!(gauge.up(), 2);
        gauge.down();
        assert_eq!((gauge.now(), gauge.peak()), (1, 2));
    }
}
