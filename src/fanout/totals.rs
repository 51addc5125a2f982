//! Owns the totals of this instance's ledger since its start: what the counters of all fan-outs add up to.
//! Must never know: which fan-out an attempt was for.

use crate::metrics::{Counter, Metrics};

/// Counters; a clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// HTTP requests to FCM, each with a grant of its own.
    pub attempts: Counter,
    /// Attempts that were a recipient's one retry.
    pub retried: Counter,
    /// Answers that said "slower".
    pub throttled: Counter,
    /// Attempts the provider provably did not look at.
    pub unprocessed: Counter,
    /// Attempts that provably never left.
    pub unsent: Counter,
    /// Recipients sent to again because the access token was refused.
    pub reauthed: Counter,
    /// Attempts that stalled.
    pub stalled: Counter,
}

impl Totals {
    /// Registers them.
    pub fn register(m: &mut Metrics) -> Self {
        Self {
            attempts: m.counter("attempts", "HTTP requests to FCM; each used a grant."),
            retried: m.counter("retried", "Attempts that were the one retry of a recipient."),
            throttled: m.counter("throttled", "Attempts that FCM answered with a throttle."),
            unprocessed: m.counter("unprocessed", "Attempts that FCM provably did not process; sent again."),
            unsent: m.counter("unsent", "Attempts that provably never left."),
            reauthed: m.counter("reauthed", "Resends because the access token had been refused."),
            stalled: m.counter("stalled", "Attempts that took longer than fcm.stall_after_ms."),
        }
    }
}
