//! Owns the shapes the [`Store`](super::Store) takes and gives beside those of the domain.
//! Must never know: SQL.

pub use super::upkeep::Swept;
use crate::domain::batch::{ClaimedChunk, Class, FanoutJob, FanoutKind, FanoutState};
use crate::domain::ids::{BootId, DeviceId, DeviceKey, EventId, FanoutId, MatchId};
use crate::domain::recipient::{Device, DeviceState, Follows, KindMask};
use crate::domain::tally::{PartCounters, Tally};

/// An event about to be accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct NewFanout {
    /// The event.
    pub event: crate::domain::event::Event,
    /// Its [`content_hash`](crate::domain::event::Event::content_hash).
    pub content_hash: [u8; 32],
    /// The collapse key of its message, unless it corrects one that goes by another.
    pub collapse_key: String,
    /// Fields that people are shown: those its type requires.
    pub shown: Vec<String>,
    /// Its class.
    pub class: Class,
    /// Its deadline, database ms.
    pub deadline_ms: i64,
}

/// What became of a post.
#[derive(Debug, Clone, PartialEq)]
pub enum Accepted {
    /// Committed; the freeze is this instance's.
    New(FreezeJob),
    /// The same event was accepted before.
    Repeat(FanoutId),
    /// The same id was accepted before with other content.
    Conflict(FanoutId),
    /// Committed as another name of a fan-out that tells the same news and is not over: that of the event `of`.
    Duplicate {
        /// That fan-out.
        fanout: FanoutId,
        /// Its event.
        of: EventId,
    },
    /// A correction, committed; the freeze is this instance's when its hold is over. What it supersedes has stopped.
    Correction {
        /// Its freeze.
        freeze: FreezeJob,
        /// Fan-outs that were under way.
        stopped: Vec<FanoutId>,
    },
    /// Committed, and superseded as it came, because its correction had come before: nobody is sent it.
    Superseded {
        /// Its fan-out.
        fanout: FanoutId,
        /// The last state.
        by: FanoutId,
        /// Fan-outs that were under way.
        stopped: Vec<FanoutId>,
    },
    /// Refused: what it supersedes belongs to this other match.
    OtherMatch(MatchId),
    /// Refused: this correction of it came before it and was sent, not to the audience of what it corrects itself.
    CorrectedBefore(FanoutId),
}

/// A freeze this instance owns.
#[derive(Debug, Clone, PartialEq)]
pub struct FreezeJob {
    /// What to freeze.
    pub job: FanoutJob,
    /// Ownership of the freeze.
    pub epoch: i32,
    /// Followers up to and with this key are in chunks already.
    pub cursor: DeviceKey,
    /// Number of the next chunk.
    pub next_chunk: i32,
    /// It begins this long after it was handed over, ms.
    pub hold_ms: i64,
}

/// One page of one subject's followers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowerPage {
    /// `team:ars`.
    pub subject: String,
    /// Types of which the follower must want at least one.
    pub kinds: KindMask,
    /// Exclusive lower bound.
    pub after: DeviceKey,
    /// Most rows.
    pub limit: u32,
}

/// The next chunks of a freeze.
#[derive(Debug, Clone, PartialEq)]
pub struct FreezeStep {
    /// The freezing instance.
    pub boot: BootId,
    /// Which fan-out.
    pub fanout: FanoutId,
    /// Ownership of the freeze.
    pub epoch: i32,
    /// Cursor before this step: a repeated step changes nothing.
    pub from: DeviceKey,
    /// Chunks, at most 500 keys each, ascending.
    pub chunks: Vec<Vec<DeviceKey>>,
    /// Number of the first of them.
    pub first_chunk: i32,
    /// Rank of each chunk.
    pub ranks: Vec<i64>,
    /// How many, from the first, are created owned by `boot`.
    pub claim_first: usize,
    /// Of a correction: how many up to the end of this step were an audience of what it corrects and were not sent it.
    pub never_saw: Option<u64>,
    /// Whether no follower is left: the fan-out is frozen after this step.
    pub last: bool,
}

/// What became of a freeze step.
#[derive(Debug, Clone, PartialEq)]
pub enum FreezeReply {
    /// Written; the claimed chunks with their recipients.
    Written(Vec<ClaimedChunk>),
    /// The freeze is not ours any more.
    Lost,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Database time at the heartbeat, ms.
    pub now_ms: i64,
    /// Instances whose lease is running, this one included.
    pub live_instances: u32,
    /// Chunks freed from instances whose lease had expired.
    pub freed_chunks: u32,
    /// Chunks set aside by this heartbeat.
    pub set_aside: u32,
    /// Cancelled fan-outs of which this instance has chunks in hand.
    pub cancelled: Vec<FanoutId>,
}

/// A settled fan-out: what its line says.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The fan-out as it stands for good.
    pub view: FanoutView,
    /// Devices tombstoned and suspended by this settle.
    pub judged: u64,
    /// Platforms with verdicts against devices that were not carried out.
    pub withheld: Vec<super::Withheld>,
}

/// What became of an attempt to settle.
#[derive(Debug, Clone, PartialEq)]
pub enum SettleReply {
    /// This caller settled it and must write the line.
    Settled(Box<Settled>),
    /// Not frozen, or chunks are still open.
    Open,
    /// Somebody else did, or there is no such fan-out.
    NotOurs,
}

/// A fan-out as anyone may see it.
#[derive(Debug, Clone, PartialEq)]
pub struct FanoutView {
    /// The fan-out.
    pub id: FanoutId,
    /// The event's id.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: String,
    /// The match.
    pub match_id: MatchId,
    /// Why it exists.
    pub kind: FanoutKind,
    /// The fan-out it derives from.
    pub parent: Option<FanoutId>,
    /// Where it stands.
    pub state: FanoutState,
    /// Urgency.
    pub class: Class,
    /// When it happened, as the caller said, ms.
    pub occurred_ms: i64,
    /// Accepted, database ms.
    pub accepted_ms: i64,
    /// Deadline, database ms.
    pub deadline_ms: i64,
    /// Settled, database ms.
    pub settled_ms: Option<i64>,
    /// Counts of outcomes; of what is frozen so far.
    pub tally: Tally,
    /// Counters of all instances, merged.
    pub counters: PartCounters,
    /// Instances that took part.
    pub instances: u32,
    /// Times an instance lost this fan-out's chunks uncleanly: above 0 the ledger is a lower bound.
    pub interrupted: u32,
    /// How it stands to others.
    pub kin: super::Kin,
}

/// Which fan-outs to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FanoutQuery {
    /// Only these.
    pub state: Option<FanoutState>,
    /// Only ids below this one.
    pub before: Option<FanoutId>,
    /// Only those accepted at the first time or later, and before the second, database ms.
    pub accepted: Option<(i64, i64)>,
    /// Most rows.
    pub limit: u32,
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutDevice {
    /// It was not there before.
    pub created: bool,
    /// It was tombstoned or suspended and is live again.
    pub revived: bool,
    /// The device that had its address before, which is gone.
    pub moved_from: Option<DeviceId>,
}

/// A device with everything known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceView {
    /// The row.
    pub key: DeviceKey,
    /// The device.
    pub device: Device,
    /// What it follows.
    pub follows: Follows,
    /// Whether it may be sent to.
    pub state: DeviceState,
    /// Row version.
    pub version: i64,
    /// Last registered, database ms.
    pub registered_ms: i64,
}

/// One page of all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePage {
    /// Exclusive lower bound.
    pub after: DeviceKey,
    /// Most rows.
    pub limit: u32,
    /// Only these.
    pub state: Option<DeviceState>,
}

/// One device of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportRow {
    /// Line of the input, from 1.
    pub line: u64,
    /// The device.
    pub device: Device,
    /// What it follows; `None` leaves that as it is.
    pub follows: Option<Follows>,
    /// The state of a device that is not there yet, live when not given; one that is there keeps its own.
    pub state: Option<DeviceState>,
}

/// What became of a batch of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// New devices.
    pub imported: u64,
    /// Devices that were there.
    pub updated: u64,
    /// Of these two, those whose address another device had.
    pub moved: u64,
    /// Of the updated, those that were dead and are live again.
    pub revived: u64,
    /// Lines that were not taken, with a code and a reason.
    pub rejected: Vec<ImportReject>,
}

impl Imported {
    /// The two together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.imported += other.imported;
        self.updated += other.updated;
        self.moved += other.moved;
        self.revived += other.revived;
        self.rejected.extend(other.rejected);
        self
    }
}

/// A line of an import that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReject {
    /// Line of the input, from 1.
    pub line: u64,
    /// Stable code, `tombstoned` for instance.
    pub code: &'static str,
    /// What is wrong and how to mend it.
    pub reason: String,
}

/// The device an import row is about.
impl ImportRow {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &DeviceId {
        &self.device.id
    }

    /// Database rows it writes, about.
    #[must_use]
    pub fn written(&self) -> usize {
        1 + self.follows.as_ref().map_or(0, |follows| follows.subjects.len())
    }
}
