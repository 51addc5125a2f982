//! Owns what the store tells of one device in one fan-out, how its chunk is found, and what becomes of a cancel.
//! Must never know: SQL, or what the facts mean to whoever asked.

use crate::domain::batch::{FanoutJob, FanoutState, RestOutcome};
use crate::domain::derived::PauseReason;
use crate::domain::ids::{BootId, ChunkRef, DeviceKey, FanoutId};
use crate::domain::outcome::{Cause, Outcome, coded_enum};

use super::DeviceView;

coded_enum!(
    /// Where a chunk stands.
    ChunkState ("chunk state") {
        /// Nobody has it.
        Open = 0 "open",
        /// An instance has it in its hands.
        Owned = 1 "owned",
        /// All its recipients have an outcome.
        Closed = 2 "closed",
        /// Taken over too often without progress.
        SetAside = 3 "set_aside",
    }
);

/// Everything kept that bears on one device in one fan-out, as of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// The fan-out, with its event.
    pub job: FanoutJob,
    /// Where it stands.
    pub state: FanoutState,
    /// The fan-out that has taken its place.
    pub superseded_by: Option<FanoutId>,
    /// Why it waits to be resumed.
    pub paused: Option<PauseReason>,
    /// Followers up to and with this key were looked at.
    pub cursor: DeviceKey,
    /// It was cancelled before all followers were looked at.
    pub cut: bool,
    /// Database time, ms.
    pub now_ms: i64,
    /// The device that has the id now.
    pub device: Option<KnownDevice>,
    /// Devices that had the id and were deleted, the latest first.
    pub former: Vec<FormerDevice>,
    /// Where one of them stands among the recipients.
    pub place: Option<Place>,
}

/// A device with the times an explanation needs, all database ms.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownDevice {
    /// As anybody sees it.
    pub view: DeviceView,
    /// First registered; 0 = before this was kept.
    pub created_ms: i64,
    /// What it follows or mutes was last written no later than this.
    pub follows_ms: i64,
    /// It last died or came back; 0 = never.
    pub state_ms: i64,
}

/// A device that was deleted, by its caller or because its token went to another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormerDevice {
    /// Its row.
    pub key: DeviceKey,
    /// Database ms.
    pub deleted_ms: i64,
}

/// A recipient's place in its chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which device row was frozen.
    pub key: DeviceKey,
    /// Its chunk.
    pub chunk: ChunkRef,
    /// Times the chunk was owned.
    pub epoch: i32,
    /// Where the chunk stands.
    pub state: ChunkState,
    /// Who has the chunk, and whether its lease is running.
    pub owner: Option<(BootId, bool)>,
    /// The chunk is not claimed before then, database ms; 0 = at once.
    pub not_before_ms: i64,
    /// It has an outcome of its own.
    pub done: bool,
    /// That outcome is `delivered`.
    pub ok: bool,
    /// An attempt may have reached it.
    pub maybe: bool,
    /// How those of its chunk ended that have no outcome of their own.
    pub rest: Option<RestOutcome>,
    /// What is kept of its failure.
    pub failure: Option<KeptFailure>,
}

/// A failure as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFailure {
    /// How it ended.
    pub outcome: Outcome,
    /// Beside `expired` and `cancelled`: what kept it.
    pub cause: Cause,
    /// HTTP status of the last answer; 0 = none.
    pub status: u16,
    /// Sanitised provider text.
    pub text: String,
    /// HTTP requests made for it.
    pub attempts: u16,
    /// `type/locale/platform`; empty when the device was gone.
    pub variant: String,
    /// The device's row version at the send; 0 = the device was gone.
    pub device_version: i64,
    /// Written down, database ms.
    pub at_ms: i64,
}

/// What became of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReply {
    /// This caller cancelled it.
    Cancelled,
    /// It had ended, or was cancelled before: its state.
    Ended(FanoutState),
    /// There is no such fan-out.
    Unknown,
}

/// Most deleted devices of one id that are looked for.
pub(crate) const MOST_FORMER: i64 = 5;

/// Finds the one chunk a key can be in. Chunks hold ascending keys in the order of their numbers, so eleven chunks are
/// looked at for a million recipients, by primary key, and no index is kept for what is asked twice a day.
#[derive(Debug)]
pub(crate) struct ChunkSearch {
    key: i64,
    /// Chunks below this one begin at or below the key.
    low: i32,
    /// Chunks from this one on begin above it.
    high: i32,
}

impl ChunkSearch {
    /// Among chunks 0 to `chunks - 1`.
    pub(crate) const fn new(key: DeviceKey, chunks: i32) -> Self {
        Self { key: key.0, low: 0, high: chunks }
    }

    /// The next chunk whose first key must be known.
    pub(crate) fn probe(&self) -> Option<i32> {
        (self.low < self.high).then(|| i32::midpoint(self.low, self.high))
    }

    /// The first key of the chunk asked for.
    pub(crate) const fn saw(&mut self, chunk: i32, first: i64) {
        if first <= self.key { self.low = chunk + 1 } else { self.high = chunk }
    }

    /// The chunk that holds the key, if any does. Asked when there is nothing left to probe.
    pub(crate) fn chunk(&self) -> Option<i32> {
        (self.low > 0).then(|| self.low - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_chunk_of_a_key_is_found_in_few_looks(firsts in proptest::collection::btree_set(0_i64..5_000, 0..300), key in 0_i64..5_000) {
            let firsts: Vec<i64> = firsts.into_iter().collect();
            let mut search = ChunkSearch::new(DeviceKey(key), firsts.len() as i32);
            let mut looks = 0;
            while let Some(chunk) = search.probe() {
                search.saw(chunk, firsts[chunk as usize]);
                looks += 1;
            }
            prop_assert!(looks <= 9, "{} looks", looks);
            let want = firsts.iter().rposition(|first| *first <= key).map(|no| no as i32);
            prop_assert_eq!(search.chunk(), want);
        }
    }
}
