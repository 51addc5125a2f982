//! Owns the breaker's numbers.
//! Must never know: how they are used.

use std::time::Duration;

/// The breaker's numbers.
#[derive(Debug, Clone, Copy)]
pub struct BreakerSettings {
    /// Verdicts within the window before a rate means anything.
    pub min_samples: u32,
    /// Share of failures that opens it, 0 to 1.
    pub failure_share: f64,
    /// Failures in a row that open it, however few there were before: a total outage is seen at once.
    pub consecutive: u32,
    /// How long it stays open the first time; doubles with each time.
    pub open_first: Duration,
    /// How long it stays open at most, before jitter. It is what a goal may have to wait for nothing once the provider is
    /// well again, so it is short: a probe every ten seconds and instance costs the provider nothing.
    pub open_max: Duration,
    /// How long a probe may go without an answer until it counts as failed. Far shorter than an attempt may take: a provider
    /// that swallows requests is asked again after the next opening, not after a time-out. The attempt itself goes on, and a
    /// good answer of it counts whenever it comes.
    pub probe_limit: Duration,
    /// Closed for this long, one whole window, it is well: the next opening starts at `open_first` again. Without a
    /// failure for this long, with somebody served, the ramp is over too, however little there was to send.
    pub healthy_after: Duration,
    /// A draw from 0 to 1; spreads the end of an opening by up to 20 % either way, so that instances do not
    /// probe in step.
    pub jitter: fn() -> f64,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            min_samples: 20,
            failure_share: 0.5,
            consecutive: 16,
            open_first: Duration::from_secs(1),
            open_max: Duration::from_secs(10),
            probe_limit: Duration::from_secs(5),
            healthy_after: Duration::from_secs(10),
            jitter: rand::random::<f64>,
        }
    }
}
