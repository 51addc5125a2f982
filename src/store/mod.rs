//! Owns all SQL: the one [`Store`] trait and its two implementations.
//! Must never know: HTTP, sending, or why a row is written.
//!
//! No database future is ever dropped: a dropped `begin()` returns its connection inside an open transaction
//! (transact-rs/sqlx#4393). Every method of an implementation therefore runs in a task of its own
//! and the caller, which may be cancelled, awaits the handle.
//!
//! [`StoreError::Unavailable`] can mean that the database did what was asked and its answer was lost. Every method may
//! be called again then. What an answer nobody received made this instance own is not lost for that: a freeze is taken
//! again by [`Store::take_freezes`], a chunk is found by [`Store::owned`].

mod damaged;
mod detached;
mod explained;
mod facts;
mod import;
pub mod postgres;
pub mod records;
pub mod sqlite;
mod waiting;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::domain::batch::{ChunkAck, ClaimedChunk, FanoutJob, FlushBatch};
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Device, Follows};
use crate::domain::tally::PartCounters;
pub use explained::{CancelReply, ChunkState, Explained, FormerDevice, KeptFailure, KnownDevice, Place};
pub use records::*;
pub use waiting::Waiting;

/// Why the store did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is read-only, full, or too slow. The same call may succeed later.
    #[error("database unavailable: {0}")]
    Unavailable(String),
    /// A stored value this build does not understand. Waiting does not help.
    #[error("damaged or unknown stored value: {0}")]
    Corrupt(String),
    /// The schema is missing, older or newer than this build.
    #[error("schema: {0}")]
    Schema(String),
    /// A fault of ours: a statement the database refused.
    #[error("statement refused: {0}")]
    Statement(String),
}

/// Everything the service keeps. All times are database time in ms since the epoch.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// `postgres` or `sqlite`.
    fn engine(&self) -> &'static str;

    /// Brings the schema up to date; returns how many migrations were applied now.
    async fn migrate(&self) -> Result<u32, StoreError>;

    /// Answers when the database answers and the schema is the one this build needs.
    async fn ready(&self) -> Result<(), StoreError>;

    /// Database time.
    async fn now_ms(&self) -> Result<i64, StoreError>;

    /// Says this instance lives, for `lease_ms` from the database's now. Also frees what instances whose lease
    /// has expired held: their chunks become open with epoch + 1 and `unclean`, their fan-outs count `interrupted`;
    /// a chunk taken over `MAX_TAKEOVERS` times without progress is set aside; their freezes may be taken.
    /// The answer lists what this instance owns then, whether it knows of it or not.
    /// An owner that never sent a heartbeat counts as lost: the first one goes before the first accept or claim.
    async fn heartbeat(&self, boot: BootId, lease_ms: i64) -> Result<Heartbeat, StoreError>;

    /// Ends this instance's lease, forgets it, and hands back its chunks and freezes, not as unclean.
    async fn leave(&self, boot: BootId) -> Result<(), StoreError>;

    /// Commits an event and its fan-out, the freeze leased to `boot`, in one transaction.
    /// A second post of the same id answers [`Accepted::Repeat`] or [`Accepted::Conflict`].
    async fn accept(&self, boot: BootId, new: NewFanout) -> Result<Accepted, StoreError> {
        self.accept_by(boot, new, Instant::now() + PATIENT).await
    }

    /// The same for a caller in a hurry: [`StoreError::Unavailable`] when the write could not begin by `start_by`. One
    /// that began goes on to its end.
    async fn accept_by(&self, boot: BootId, new: NewFanout, start_by: Instant) -> Result<Accepted, StoreError>;

    /// The fan-out an event id was accepted as, with the event's content hash.
    async fn seen(&self, id: EventId) -> Result<Option<(FanoutId, Vec<u8>)>, StoreError>;

    /// Fan-outs accepted whose freeze has not ended, owned by nobody alive: leases up to `limit` of them to `boot`.
    /// So are freezes of `boot` itself that are not among the `running` and were accepted [`HANDOVER_MS`] ago or
    /// earlier: their hand-over in process, or the answer to one of their steps, was lost.
    async fn take_freezes(
        &self,
        boot: BootId,
        running: Vec<FanoutId>,
        limit: u32,
    ) -> Result<Vec<FreezeJob>, StoreError>;

    /// Up to `limit` followers of one subject that want any type of `kinds`, after `after`, in order of key.
    /// Joins nothing and touches one index range.
    async fn follower_page(&self, page: FollowerPage) -> Result<Vec<DeviceKey>, StoreError>;

    /// Writes the next chunks of a freeze and moves its cursor in one transaction; the first `claim_first` of them
    /// are created already owned by the freezing instance and returned claimed, with recipients looked up.
    /// [`FreezeReply::Lost`] when another instance owns the freeze now, or the fan-out was cancelled.
    async fn freeze_step(&self, step: FreezeStep) -> Result<FreezeReply, StoreError>;

    /// Takes up to `want` open chunks in order of (class, rank), each with recipients looked up now. The `maybe` of a
    /// chunk that was ever lost uncleanly is everyone without an outcome.
    /// With `more_urgent_than` only chunks of a more urgent class than that one.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, StoreError>;

    /// Every chunk `boot` owns, with recipients looked up now, under the epoch it owns it: those in its hands, and
    /// those it does not know of because the answer to a claim or a freeze step was lost. Changes nothing.
    async fn owned(&self, boot: BootId) -> Result<Vec<ClaimedChunk>, StoreError>;

    /// Hands chunks back in an orderly way: open again, not unclean, not counted as a takeover.
    /// `not_before_ms` keeps them from being claimed earlier; 0 = at once.
    async fn release(&self, boot: BootId, chunks: Vec<(ChunkRef, i32)>, not_before_ms: i64) -> Result<(), StoreError>;

    /// What the sender must know of a fan-out; `None` when there is no such fan-out.
    async fn job(&self, id: FanoutId) -> Result<Option<FanoutJob>, StoreError>;

    /// Writes facts: bits are OR-ed whoever owns the chunk, failure rows never overwrite. One idempotent statement
    /// (or transaction): repeating it changes nothing. A chunk whose recipients all have an outcome is closed.
    async fn flush(&self, batch: FlushBatch) -> Result<Vec<ChunkAck>, StoreError>;

    /// Upserts absolute counters of this instance.
    async fn put_parts(&self, boot: BootId, parts: Vec<(FanoutId, PartCounters)>) -> Result<(), StoreError>;

    /// Settles a fan-out under its row lock if it is frozen and every chunk is closed: snapshots the tally,
    /// judges devices (tombstone, suspend; nothing when the dead share leaps), returns what its line says.
    /// Exactly one caller gets [`SettleReply::Settled`].
    async fn settle(&self, id: FanoutId) -> Result<SettleReply, StoreError>;

    /// Notes that the line of a settled fan-out was written.
    async fn mark_reported(&self, id: FanoutId) -> Result<(), StoreError>;

    /// Fan-outs that are complete but not settled, and settled ones whose line is not marked after `older_than_ms`.
    async fn sweep(&self, older_than_ms: i64) -> Result<Swept, StoreError>;

    /// One fan-out with its tally as it stands.
    async fn fanout(&self, id: FanoutId) -> Result<Option<FanoutView>, StoreError>;

    /// Fan-outs, newest first, after `before` (exclusive), optionally of one state.
    async fn fanouts(&self, query: FanoutQuery) -> Result<Vec<FanoutView>, StoreError>;

    /// Cancels a fan-out that has not ended, in one transaction: it freezes no further, and what nobody has in hand ends
    /// as `cancelled`. What an instance has in hand is ended by its owner, who hears of it with the next flush of that
    /// fan-out ([`ChunkAck::cancelled`]) or the next heartbeat ([`Heartbeat::cancelled`]); what a dead one had, by the
    /// next settle. Exactly one caller gets [`CancelReply::Cancelled`].
    async fn cancel(&self, id: FanoutId) -> Result<CancelReply, StoreError>;

    /// Everything kept that bears on one device in one fan-out, read in one snapshot; `None` when there is no such
    /// fan-out. Looks at a logarithm of the chunks, however many recipients there are.
    async fn explain(&self, id: FanoutId, device: DeviceId) -> Result<Option<Explained>, StoreError>;

    /// What is accepted and not done yet, on all instances.
    async fn backlog(&self) -> Result<Waiting, StoreError>;

    /// Registers a device, or updates it; revives a dead one; takes the token over from a device that had it.
    async fn put_device(&self, device: Device) -> Result<PutDevice, StoreError>;

    /// One device with its follows and state.
    async fn device(&self, id: DeviceId) -> Result<Option<DeviceView>, StoreError>;

    /// Deletes a device and its follows; whether it was there.
    async fn delete_device(&self, id: DeviceId) -> Result<bool, StoreError>;

    /// Replaces what a device follows; `false` when there is no such device.
    async fn put_follows(&self, id: DeviceId, follows: Follows) -> Result<bool, StoreError>;

    /// Imports up to 1,000 devices with their follows in one transaction, each id and each address once. A row takes its
    /// address over from whoever has it; one about a dead device is rejected unless `revive` is asked for, and one that
    /// says its device is dead never touches a live one. No row stops the batch.
    async fn import(&self, rows: Vec<ImportRow>, revive: bool) -> Result<Imported, StoreError>;

    /// Devices with what they follow, in order of key.
    async fn device_page(&self, page: DevicePage) -> Result<Vec<DeviceView>, StoreError>;

    /// Waits for what was handed to the database, then closes it.
    async fn close(&self);
}

/// An event waits this long for its write to begin, and no longer: its caller is better told to come again.
pub const ACCEPT_WITHIN: Duration = Duration::from_millis(250);

/// The same for who is in no hurry: as long as any call may take.
const PATIENT: Duration = Duration::from_secs(12);

/// Time an accepted freeze has to reach the freezer of its own instance, ms.
pub const HANDOVER_MS: i64 = 2_000;

/// Takeovers of one chunk without progress after which it is set aside.
pub const MAX_TAKEOVERS: i16 = 4;

/// Share of recipients with a verdict against their device, in per cent, above which a settle judges nobody (law 7):
/// it looks like a fault of ours.
pub const DEAD_SHARE_LIMIT_PERCENT: u64 = 30;

/// A fan-out with fewer judged devices than this is never taken for a leap.
pub const DEAD_SHARE_MIN: u64 = 20;
