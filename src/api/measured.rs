//! Owns what the API counts: the door's metrics, and what it alone knows, quotas, clocks and the backlog.
//! Must never know: how a number is scraped.

use crate::door::DoorMetrics;
use crate::metrics::{Counter, Family, Gauge, Histogram, Metrics};

type ByKey = [(&'static str, String); 1];
type ByClass = [(&'static str, &'static str); 1];

/// Handles of the API's metrics.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The door's.
    pub door: DoorMetrics,
    pub(super) over_quota: Family<ByKey, Counter>,
    pub(super) ahead: Histogram,
    pub(super) fanouts: Gauge,
    pub(super) recipients: Family<ByClass, Gauge>,
}

impl Measured {
    /// Registers them.
    #[must_use]
    pub fn register(m: &mut Metrics) -> Self {
        // To 300 s: what is further ahead is refused.
        let ahead = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 120.0, 300.0];
        Self {
            door: DoorMetrics::register(m),
            over_quota: m.counters("requests_over_quota", "Requests answered 429, by name of the key."),
            ahead: m.histogram(
                "event_ahead_seconds",
                "How far ahead of our clock occurred_at was, of events from the future.",
                ahead,
            ),
            fanouts: m.gauge("backlog_fanouts", "Fan-outs of the fleet accepted and not settled, as last read."),
            recipients: m.gauges(
                "backlog_recipients",
                "Recipients of the fleet frozen and in nobody's hands, as last read, by class.",
            ),
        }
    }
}
