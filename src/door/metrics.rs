//! Owns what is counted at the door: who is inside, who waited, who was sent away and why, how many are connected.
//! Must never know: what is asked for, or who asks.

use crate::metrics::{Counter, Family, Gauge, Histogram, Metrics, second_buckets};

use super::gate::Pool;
use super::shedding::Reason;

type Inside = [(&'static str, &'static str); 1];
type Away = [(&'static str, &'static str); 2];

/// Handles of the door's metrics.
#[derive(Debug, Clone)]
pub struct DoorMetrics {
    pub(super) in_flight: Family<Inside, Gauge>,
    pub(super) waited: Histogram,
    pub(super) shed: Family<Away, Counter>,
    /// Open connections of the API.
    pub connections: Gauge,
}

impl DoorMetrics {
    /// Registers them. Every label set is there as 0 from the beginning.
    #[must_use]
    pub fn register(m: &mut Metrics) -> Self {
        let metrics = Self {
            in_flight: m.gauges("requests_in_flight", "Requests being served, by pool."),
            waited: m.histogram(
                "request_queue_seconds",
                "Wait for a place at the gate, of those who waited.",
                second_buckets(),
            ),
            shed: m.counters(
                "requests_shed",
                "Requests answered 503 unserved, by pool and reason: add instances when it grows.",
            ),
            connections: m.gauge("connections", "Open connections of the API."),
        };
        for pool in Pool::ALL {
            let _ = metrics.in_flight.get_or_create(&[("pool", pool.as_str())]);
            for reason in Reason::ALL {
                let _ = metrics.shed.get_or_create(&[("pool", pool.as_str()), ("reason", reason.as_str())]);
            }
        }
        metrics
    }
}
