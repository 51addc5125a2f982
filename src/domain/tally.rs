//! Owns the counts of one fan-out: outcomes that always sum to the recipients, and the counters beside them.
//! Must never know: where counts come from.

use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::recipient::Platform;

/// Counts of outcomes. `delivered + failed + pending == recipients` holds by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    recipients: u64,
    counts: [u64; Outcome::ALL.len()],
}

/// More outcomes than recipients: two parts of the store disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{finished} outcomes for {recipients} recipients")]
pub struct Overcounted {
    /// Recipients frozen.
    pub recipients: u64,
    /// Outcomes found.
    pub finished: u64,
}

impl Tally {
    /// Builds a tally from counts per outcome.
    ///
    /// # Errors
    /// [`Overcounted`] when there are more outcomes than recipients.
    pub fn new(recipients: u64, outcomes: impl IntoIterator<Item = (Outcome, u64)>) -> Result<Self, Overcounted> {
        let mut tally = Self { recipients, ..Self::default() };
        for (outcome, n) in outcomes {
            tally.counts[outcome as usize] += n;
        }
        let finished = tally.finished();
        if finished > recipients { Err(Overcounted { recipients, finished }) } else { Ok(tally) }
    }

    /// Devices the event must reach.
    #[must_use]
    pub const fn recipients(&self) -> u64 {
        self.recipients
    }

    /// How many ended in `outcome`.
    #[must_use]
    pub const fn count(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize]
    }

    /// How many have any outcome.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Accepted by FCM.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.count(Outcome::Delivered)
    }

    /// Every outcome but `delivered`.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.finished() - self.delivered()
    }

    /// No outcome yet.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.recipients - self.finished()
    }
}

/// Upper bounds of the histogram's buckets grow by a quarter from 1 ms: percentiles are right to 25 %.
const BUCKETS: usize = 64;

/// ceil(x * 5 / 4) over and over: 1, 2, 3, 4, 5, 7, 9, 12, 15, 19, ...
const BOUNDS: [u64; BUCKETS] = {
    let mut bounds = [1; BUCKETS];
    let mut i = 1;
    while i < BUCKETS {
        bounds[i] = (bounds[i - 1] * 5_u64).div_ceil(4);
        i += 1;
    }
    bounds
};

/// A histogram of milliseconds with logarithmic buckets, mergeable by addition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    max_ms: u64,
}

impl Histogram {
    fn bound(i: usize) -> u64 {
        BOUNDS[i]
    }

    /// Counts one value.
    pub fn record(&mut self, ms: u64) {
        let slot = (0..BUCKETS - 1).find(|i| ms <= Self::bound(*i)).unwrap_or(BUCKETS - 1);
        if self.counts.len() <= slot {
            self.counts.resize(slot + 1, 0);
        }
        self.counts[slot] += 1;
        self.max_ms = self.max_ms.max(ms);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.max_ms = self.max_ms.max(other.max_ms);
    }

    /// Number of values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Largest value, exact.
    #[must_use]
    pub const fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// Upper bound of the bucket that holds the given per mille, never above the exact maximum; 0 when empty.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> u64 {
        let rank = (self.total() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Self::bound(i).min(self.max_ms);
            }
        }
        0
    }
}

/// What one instance counted of one fan-out: absolute and cumulative, so that writing it twice changes nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartCounters {
    /// HTTP requests, one grant each.
    pub attempts: u64,
    /// Attempts that were second attempts.
    pub retried: u64,
    /// Answers that were throttles.
    pub throttled: u64,
    /// Attempts the provider provably did not process.
    pub unprocessed: u64,
    /// Attempts that provably never left.
    pub unsent: u64,
    /// Attempts resent after the shared refresh of the access token.
    pub reauthed: u64,
    /// Attempts that were accepted, in the order of [`Platform::ALL`]: what shows that the provider is well for each.
    pub accepted: [u64; Platform::ALL.len()],
    /// Attempts that were older than `stall_after` at some time.
    pub stalled: u64,
    /// Most slots lent out at once.
    pub lent_peak: u64,
    /// Time launches were held by a gate or a pause while recipients waited.
    pub held_ms: u64,
    /// Time launches waited for a grant while slot and stream were free.
    pub grants_waited_ms: u64,
    /// Database time of the first claim here; 0 = none.
    pub first_claim_ms: i64,
    /// Database time of the first attempt here; 0 = none.
    pub first_send_ms: i64,
    /// From launch to answer, per attempt that was answered.
    pub send: Histogram,
    /// From `occurred_at` to acceptance by FCM, per delivered recipient.
    pub behind_pitch: Histogram,
    /// Ceiling mode in force when last written.
    pub mode: String,
    /// Ceiling in force, per second.
    pub rate: f64,
    /// Lowest pace applied, per second; 0 = never recorded.
    pub pace: f64,
}

impl PartCounters {
    /// Adds what another instance counted.
    pub fn merge(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.retried += other.retried;
        self.throttled += other.throttled;
        self.unprocessed += other.unprocessed;
        self.unsent += other.unsent;
        self.reauthed += other.reauthed;
        self.stalled += other.stalled;
        for (mine, theirs) in self.accepted.iter_mut().zip(other.accepted) {
            *mine += theirs;
        }
        self.lent_peak = self.lent_peak.max(other.lent_peak);
        self.held_ms = self.held_ms.max(other.held_ms);
        self.grants_waited_ms = self.grants_waited_ms.max(other.grants_waited_ms);
        self.first_claim_ms = earliest(self.first_claim_ms, other.first_claim_ms);
        self.first_send_ms = earliest(self.first_send_ms, other.first_send_ms);
        self.send.merge(&other.send);
        self.behind_pitch.merge(&other.behind_pitch);
        if self.mode.is_empty() || (!other.mode.is_empty() && other.pace > 0.0 && other.pace < self.pace) {
            self.mode.clone_from(&other.mode);
            self.rate = other.rate;
            self.pace = other.pace;
        }
    }
}

fn earliest(a: i64, b: i64) -> i64 {
    match (a, b) {
        (0, x) | (x, 0) => x,
        (a, b) => a.min(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tally_sums_to_its_recipients_or_is_refused() {
        let tally = Tally::new(10, [(Outcome::Delivered, 6), (Outcome::TokenDead, 1), (Outcome::Gone, 1)]).unwrap();
        assert_eq!((tally.delivered(), tally.failed(), tally.pending()), (6, 2, 2));
        assert_eq!(Tally::new(1, [(Outcome::Delivered, 2)]), Err(Overcounted { recipients: 1, finished: 2 }));
    }

    #[test]
    fn bounds_cover_the_longest_usefulness() {
        let last = Histogram::bound(BUCKETS - 2);
        assert!(last > 600_000, "{last}");
        assert!((1..BUCKETS).all(|i| Histogram::bound(i) > Histogram::bound(i - 1)));
    }

    proptest! {
        #[test]
        fn percentiles_bracket_the_exact_value(mut values in proptest::collection::vec(0_u64..600_000, 1..300)) {
            let mut whole = Histogram::default();
            let (mut left, mut right) = (Histogram::default(), Histogram::default());
            for (i, v) in values.iter().enumerate() {
                whole.record(*v);
                if i % 2 == 0 { left.record(*v) } else { right.record(*v) }
            }
            left.merge(&right);
            prop_assert_eq!(&left, &whole);
            values.sort_unstable();
            for p in [500_u64, 990, 1000] {
                let exact = values[((values.len() as u64 * p).div_ceil(1000) as usize).max(1) - 1];
                let got = whole.percentile(p);
                prop_assert!(got >= exact && got <= exact * 5 / 4 + 2, "p{} exact {} got {}", p, exact, got);
            }
        }
    }
}
