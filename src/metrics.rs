//! Owns the metrics registry and the kinds of handle a room registers its own metrics with.
//! Must never know: which metrics there are.
//!
//! Register once, keep the handle, clone it freely: counting on a handle is one atomic addition. A name has its unit
//! in it and no `fanfare_` in front (it is added here), a counter no `_total` (the format adds it). Labels are closed
//! sets: never a device token, a user, a URL or an id.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

pub use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::registry::{Metric, Registry};

/// The content type of [`Metrics::render`]: Prometheus' text format, which every scraper reads.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bucket bounds for durations, in seconds: 1 ms doubling to 65 s, past every time-out there is.
pub fn second_buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.001, 2.0, 17)
}

/// A gauge with fractions, for rates.
pub type FloatGauge = Gauge<f64, AtomicU64>;

/// What labels of a family must be able to do.
pub trait Labels: EncodeLabelSet + Clone + Debug + Eq + Hash + Send + Sync + 'static {}

impl<L: EncodeLabelSet + Clone + Debug + Eq + Hash + Send + Sync + 'static> Labels for L {}

/// The metrics of one service. Not global: two services in one process count apart.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry that holds `fanfare_build_info` only.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self { registry: Registry::with_prefix("fanfare") };
        let build: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        metrics.register("build_info", "Always 1; the version is the label.", build);
        metrics
    }

    /// A counter: a number that only grows.
    pub fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register(name, help, counter.clone());
        counter
    }

    /// One counter per label set. Touch each label set once at start, so that it is there as 0 from the beginning.
    pub fn counters<L: Labels>(&mut self, name: &str, help: &str) -> Family<L, Counter> {
        let family = Family::default();
        self.register(name, help, family.clone());
        family
    }

    /// A gauge: a number that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.register(name, help, gauge.clone());
        gauge
    }

    /// A gauge with fractions.
    pub fn float_gauge(&mut self, name: &str, help: &str) -> FloatGauge {
        let gauge = FloatGauge::default();
        self.register(name, help, gauge.clone());
        gauge
    }

    /// One gauge per label set.
    pub fn gauges<L: Labels>(&mut self, name: &str, help: &str) -> Family<L, Gauge> {
        let family = Family::default();
        self.register(name, help, family.clone());
        family
    }

    /// A histogram with these upper bounds; for durations [`second_buckets`].
    pub fn histogram(&mut self, name: &str, help: &str, buckets: impl IntoIterator<Item = f64>) -> Histogram {
        let histogram = Histogram::new(buckets);
        self.register(name, help, histogram.clone());
        histogram
    }

    fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        // The library puts a full stop of its own behind the help.
        self.registry.register(name, help.trim_end_matches('.'), metric);
    }

    /// Everything registered, as [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail; a label that fails to encode ends the text early, which a scraper reports.
        if let Err(error) = prometheus_text::encode(&mut text, &self.registry) {
            tracing::error!(target: "fanfare::metrics", %error, "metrics cannot be written");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_room_registers_and_counts_is_rendered() {
        let mut metrics = Metrics::new();
        let sent = metrics.counter("attempts", "HTTP attempts.");
        let outcomes = metrics.counters::<[(&'static str, &'static str); 1]>("outcomes", "Outcomes.");
        let slots = metrics.gauge("slots_in_use", "Slots in use.");
        let pace = metrics.float_gauge("pace_per_s", "Pace.");
        let wait = metrics.histogram("wait_seconds", "Wait.", second_buckets());
        sent.inc_by(3);
        outcomes.get_or_create(&[("outcome", "delivered")]).inc();
        slots.set(7);
        pace.set(4500.5);
        wait.observe(0.0015);

        let text = metrics.render();
        for line in [
            concat!("fanfare_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "# HELP fanfare_attempts_total HTTP attempts.",
            "fanfare_attempts_total 3",
            "fanfare_outcomes_total{outcome=\"delivered\"} 1",
            "fanfare_slots_in_use 7",
            "fanfare_pace_per_s 4500.5",
            "fanfare_wait_seconds_bucket{le=\"0.001\"} 0",
            "fanfare_wait_seconds_bucket{le=\"0.002\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn two_services_in_one_process_count_apart() {
        let (mut a, mut b) = (Metrics::new(), Metrics::new());
        a.counter("attempts", "HTTP attempts.").inc();
        b.counter("attempts", "HTTP attempts.");
        assert!(a.render().contains("fanfare_attempts_total 1"));
        assert!(b.render().contains("fanfare_attempts_total 0"));
    }
}
