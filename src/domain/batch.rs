//! Owns what crosses between the store and the sender: chunks with recipients in, outcomes out.
//! Must never know: SQL, threads, or how a chunk is sent.

use super::bitmap::Bitmap;
use super::derived::{Origin, Pause};
use super::event::Event;
use super::ids::{ChunkRef, DeviceKey, FanoutId};
use super::outcome::{Cause, Outcome, coded_enum};
use super::recipient::Recipient;
use super::tally::PartCounters;

coded_enum!(
    /// How urgent a fan-out is. A lower code goes first.
    Class ("class") {
        /// Worth seconds: goals, red cards.
        Urgent = 0 "urgent",
        /// Worth a minute or two.
        Normal = 1 "normal",
        /// Worth an hour; keeps a floor of 5 %.
        Bulk = 2 "bulk",
    }
);

coded_enum!(
    /// Where a fan-out stands.
    FanoutState ("fan-out state") {
        /// Its followers are being read; sending has begun already.
        Freezing = 0 "freezing",
        /// All recipients are fixed.
        Sending = 1 "sending",
        /// Settled: the tally never changes again.
        Done = 2 "done",
        /// Superseded, or cancelled by an operator; settled as soon as nothing of it is in flight.
        Cancelled = 3 "cancelled",
        /// A chunk was taken over too often without progress; an operator must decide.
        SetAside = 4 "set_aside",
        /// Stopped by its budget or by a throttle, to be resumed. Never stored as such: it stands beside the state.
        Paused = 5 "paused",
    }
);

coded_enum!(
    /// Why a fan-out exists.
    FanoutKind ("fan-out kind") {
        /// An event was posted.
        Original = 0 "original",
        /// It corrects an earlier one.
        Correction = 1 "correction",
        /// It repeats what an earlier one failed to do.
        Replay = 2 "replay",
        /// It asks FCM which devices are dead, and sends nothing.
        Sweep = 3 "sweep",
    }
);

/// What the sender must know of a fan-out to send any of its chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct FanoutJob {
    /// The fan-out.
    pub id: FanoutId,
    /// What happened.
    pub event: Event,
    /// Urgency.
    pub class: Class,
    /// Database time of acceptance, ms.
    pub accepted_ms: i64,
    /// Database time of the deadline, ms.
    pub deadline_ms: i64,
    /// What it follows from.
    pub origin: Origin,
}

/// A chunk this instance owns, with recipients looked up at the time of the claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedChunk {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// Ownership: a write that needs to own the chunk names it.
    pub epoch: i32,
    /// Urgency.
    pub class: Class,
    /// Order inside the class.
    pub rank: i64,
    /// Frozen recipients by ordinal. `None` = gone: deleted, tombstoned or suspended since the freeze.
    pub recipients: Vec<Option<Recipient>>,
    /// Frozen keys by ordinal, for rows about recipients that are gone.
    pub keys: Vec<DeviceKey>,
    /// Who has an outcome already.
    pub done: Bitmap,
    /// Who may have been reached by an attempt of an earlier owner.
    pub maybe: Bitmap,
}

/// One recipient's outcome, as the sender found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeRecord {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// Position in the chunk.
    pub ordinal: u16,
    /// The row it was about.
    pub key: DeviceKey,
    /// How it ended.
    pub outcome: Outcome,
    /// An attempt may have reached the device.
    pub maybe: bool,
    /// Everything to be kept of a failure; `None` for `delivered`.
    pub failure: Option<FailureRecord>,
}

/// What is kept of a failed recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureRecord {
    /// Beside `expired`: what kept it.
    pub cause: Cause,
    /// HTTP status of the last answer; 0 = none.
    pub status: u16,
    /// Sanitised provider text, at most 256 bytes.
    pub text: String,
    /// HTTP requests made for it by this owner.
    pub attempts: u16,
    /// `type/locale/platform`.
    pub variant: String,
    /// The device's row version at the send; 0 = the device was gone.
    pub device_version: i64,
}

/// The end of a chunk whose remaining recipients share one outcome: one field instead of a row each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestOutcome {
    /// `expired`, `cancelled`, `payload` or `credential`.
    pub outcome: Outcome,
    /// Beside `expired`: what kept them.
    pub cause: Cause,
}

/// What one flush writes of one chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkFlush {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// The epoch it was owned under. Bits are written whatever it is now.
    pub epoch: i32,
    /// Newly finished recipients.
    pub done: Bitmap,
    /// Of these, the delivered ones.
    pub ok: Bitmap,
    /// Recipients an attempt may have reached.
    pub maybe: Bitmap,
    /// Ends the chunk for all that have no outcome; only the owner's epoch may.
    pub rest: Option<RestOutcome>,
}

/// One idempotent statement's worth of facts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FlushBatch {
    /// Chunks, each at most once.
    pub chunks: Vec<ChunkFlush>,
    /// Failed recipients. `ok` wins over a row already there.
    pub failures: Vec<OutcomeRecord>,
}

/// What the store knows of a chunk after a flush.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkAck {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// The epoch it was flushed under.
    pub epoch: i32,
    /// Whether the writer still owns it under that epoch. `false`: stop launching from it.
    pub owned: bool,
    /// Whether every recipient has an outcome now.
    pub closed: bool,
    /// The fan-out is cancelled: launch nothing more of it, from any chunk.
    pub cancelled: bool,
    /// Recipients whose outcome this flush changed although the tally was settled: it stays as it is.
    pub late: u32,
    /// The merged bits, an earlier owner's late ones included.
    pub done: Bitmap,
}

/// What the sender hands over, per batch: never a message per recipient.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outbound {
    /// Recipients that ended.
    pub outcomes: Vec<OutcomeRecord>,
    /// Recipients without an outcome yet that an attempt may have reached.
    pub maybes: Vec<(ChunkRef, u16)>,
    /// Chunks in which nobody is left, or whose rest ends together.
    pub ends: Vec<ChunkEnd>,
    /// Size and epoch of every chunk with outcomes, maybes or an end.
    pub chunks: Vec<ChunkMeta>,
    /// Chunks handed back in an orderly way, with their epochs: after the outcomes before them are on disk.
    pub released: Vec<(ChunkRef, i32)>,
    /// The same, not to be claimed before a time, database ms.
    pub put_off: Vec<PutOff>,
    /// Of those put off before: they may be claimed now.
    pub recalled: Vec<(ChunkRef, i32)>,
    /// Absolute counters of this instance.
    pub parts: Vec<(FanoutId, PartCounters)>,
    /// Fan-outs that this instance has paused: to be written before their chunks are handed back.
    pub paused: Vec<Pause>,
    /// Nothing is in flight: there is no reason to wait for more before writing.
    pub idle: bool,
}

impl Outbound {
    /// Whether somebody waits for more than its outcomes: for the end of a chunk, or to claim it.
    #[must_use]
    pub const fn is_waited_for(&self) -> bool {
        let back = !self.released.is_empty() || !self.put_off.is_empty() || !self.recalled.is_empty();
        back || !self.ends.is_empty() || !self.paused.is_empty()
    }
}

/// Chunks handed back until later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOff {
    /// They are not claimed before then, database ms.
    pub not_before_ms: i64,
    /// Which, with their epochs.
    pub chunks: Vec<(ChunkRef, i32)>,
}

/// The end of one chunk in the sender's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEnd {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// What everyone without an outcome ends in; `None` when everyone has one.
    pub rest: Option<RestOutcome>,
}

/// What must be known of a chunk to write bits of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMeta {
    /// Which chunk.
    pub chunk: ChunkRef,
    /// Owned under this epoch.
    pub epoch: i32,
    /// Recipients.
    pub n: u16,
}

/// What the ledger tells the sender after a flush.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Flushed {
    /// Outcomes now on disk: the exposure they held is free again.
    pub outcomes: u32,
    /// The chunks they belonged to, as stored.
    pub acks: Vec<ChunkAck>,
    /// Fan-outs that are paused, with how often each was resumed before.
    pub paused: Vec<(FanoutId, i32)>,
}
