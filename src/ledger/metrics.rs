//! Owns the ledger's metrics.
//! Must never know: who scrapes them.

use std::time::Duration;

use crate::domain::outcome::Outcome;
use crate::metrics::{Counter, Family, Histogram, Metrics, second_buckets};

type OutcomeLabel = [(&'static str, &'static str); 1];

/// Counted as outcomes reach the ledger.
#[derive(Debug, Clone)]
pub struct LedgerMetrics {
    outcomes: Family<OutcomeLabel, Counter>,
    flush: Histogram,
    failed: Counter,
    late: Counter,
}

impl LedgerMetrics {
    /// Registers them; every outcome is there as 0 from the beginning.
    pub fn register(metrics: &mut Metrics) -> Self {
        let outcomes = metrics.counters(
            "outcomes",
            "Recipients by outcome, as found by this instance; devices a sweep asked about count as well.",
        );
        for outcome in Outcome::ALL {
            let _ = outcomes.get_or_create(&[("outcome", outcome.as_str())]);
        }
        Self {
            outcomes,
            flush: metrics.histogram("flush_seconds", "Time one flush took to be on disk.", second_buckets()),
            late: metrics.counter("late_facts", "Outcomes that came after their fan-out was settled."),
            failed: metrics.counter("flush_failures", "Flushes that failed and were tried again."),
        }
    }

    /// One recipient ended.
    pub fn outcome(&self, outcome: Outcome) {
        self.outcomes.get_or_create(&[("outcome", outcome.as_str())]).inc();
    }

    /// A flush is on disk.
    pub fn flushed(&self, took: Duration) {
        self.flush.observe(took.as_secs_f64());
    }

    /// So many outcomes came after their fan-out was settled.
    pub fn late(&self, facts: u32) {
        self.late.inc_by(u64::from(facts));
    }

    /// A flush failed.
    pub fn flush_failed(&self) {
        self.failed.inc();
    }
}
