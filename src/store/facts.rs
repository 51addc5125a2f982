//! Owns how stored facts become a tally, and what is kept of a fan-out once it is settled.
//! Must never know: SQL, or which database the facts were read from.

use serde::{Deserialize, Serialize};

use super::{StoreError, Withheld};
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
    /// Some platform's devices were not judged. (An earlier build asks for it.)
    pub judgement_withheld: bool,
    /// Which, and why.
    #[serde(default)]
    pub withheld: Vec<Withheld>,
}

/// How many devices a settled fan-out judged and what it withheld, from its snapshot; nothing while there is none.
///
/// # Errors
/// [`StoreError::Corrupt`] for one that does not parse.
pub(crate) fn judgement_of(settled: Option<&str>) -> Result<(u64, Vec<Withheld>), StoreError> {
    let Some(settled) = settled else { return Ok((0, Vec::new())) };
    let snapshot: Snapshot =
        serde_json::from_str(settled).map_err(|error| StoreError::Corrupt(format!("a snapshot: {error}")))?;
    Ok((snapshot.judged, snapshot.withheld))
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
}
