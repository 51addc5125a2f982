//! Owns how stored facts become a tally, and what is kept of a fan-out once it is settled.
//! Must never know: SQL, or which database the facts were read from.

use serde::{Deserialize, Serialize};

use super::{DEAD_SHARE_LIMIT_PERCENT, DEAD_SHARE_MIN, StoreError};
use crate::domain::outcome::Outcome;
use crate::domain::tally::{PartCounters, Tally};

/// What the rows of one fan-out say, read in one snapshot. Nothing here was ever incremented.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Recipients the fan-out counts.
    pub recipients: u64,
    /// Recipients its chunks hold; another way to the same number.
    pub frozen: u64,
    /// Set `ok` bits.
    pub delivered: u64,
    /// `done` bits without an `ok` bit: each needs a failure row.
    pub failed: u64,
    /// Failure rows of those bits, by outcome.
    pub failures: Vec<(Outcome, u64)>,
    /// Recipients of closed chunks that have no bit, by the outcome they share.
    pub rest: Vec<(Outcome, u64)>,
}

impl Facts {
    /// The tally these facts add up to.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when two ways to the same number differ.
    pub(crate) fn tally(&self) -> Result<Tally, StoreError> {
        if self.frozen != self.recipients {
            let (frozen, said) = (self.frozen, self.recipients);
            return Err(StoreError::Corrupt(format!("chunks hold {frozen} recipients, their fan-out counts {said}")));
        }
        let rows: u64 = self.failures.iter().map(|(_, n)| n).sum();
        if rows != self.failed {
            let failed = self.failed;
            return Err(StoreError::Corrupt(format!("{failed} failed recipients have {rows} failure rows")));
        }
        let delivered = [(Outcome::Delivered, self.delivered)];
        let outcomes = delivered.iter().chain(&self.failures).chain(&self.rest).copied();
        Tally::new(self.recipients, outcomes).map_err(|e| StoreError::Corrupt(e.to_string()))
    }
}

/// Whether so many verdicts against devices look like a fault of ours (law 7): then nobody is judged.
pub(crate) fn dead_share_leaps(tally: &Tally) -> bool {
    let against: u64 = Outcome::ALL.iter().filter(|o| o.against_device()).map(|o| tally.count(*o)).sum();
    against >= DEAD_SHARE_MIN && against * 100 > tally.recipients() * DEAD_SHARE_LIMIT_PERCENT
}

/// What is kept of a settled fan-out and never computed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Counts of outcomes, nothing pending.
    pub tally: Tally,
    /// Counters of all instances, merged.
    pub counters: PartCounters,
    /// Instances that took part.
    pub instances: u32,
    /// Devices tombstoned and suspended.
    pub judged: u64,
    /// The dead share leapt.
    pub judgement_withheld: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            recipients: 10,
            frozen: 10,
            delivered: 4,
            failed: 2,
            failures: vec![(Outcome::TokenDead, 1), (Outcome::Transient, 1)],
            rest: vec![(Outcome::Expired, 3)],
        }
    }

    #[test]
    fn facts_add_up_to_a_tally_with_the_remainder_pending() {
        let tally = facts().tally().unwrap();
        assert_eq!((tally.delivered(), tally.failed(), tally.pending()), (4, 5, 1));
    }

    #[test]
    fn two_ways_to_a_number_that_differ_are_corruption() {
        let missing_row = Facts { failed: 3, ..facts() };
        let lost_chunk = Facts { frozen: 9, ..facts() };
        let overshoot = Facts { rest: vec![(Outcome::Expired, 5)], ..facts() };
        for broken in [missing_row, lost_chunk, overshoot] {
            assert!(matches!(broken.tally(), Err(StoreError::Corrupt(_))), "{broken:?}");
        }
    }

    #[test]
    fn the_dead_share_leaps_only_when_it_is_large_and_many() {
        let leaps = |recipients, dead| {
            dead_share_leaps(&Tally::new(recipients, [(Outcome::TokenDead, dead)]).expect("fits its recipients"))
        };
        assert!(!leaps(10, 10), "too few to tell");
        assert!(!leaps(100, 30), "exactly the limit");
        assert!(leaps(100, 31));
        assert!(!leaps(1000, 299));
    }
}
