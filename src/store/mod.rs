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

mod accepting;
mod claiming;
mod damaged;
mod detached;
mod explained;
mod facts;
mod frozen;
mod import;
mod pages;
mod planted;
pub mod postgres;
mod probe;
pub mod records;
mod replay;
pub mod sqlite;
mod upkeep;
mod verdicts;
mod waiting;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::domain::batch::{ChunkAck, ClaimedChunk, Class, FanoutJob, FlushBatch};
use crate::domain::derived::{Pause, Source};
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Device, Follows};
use crate::domain::tally::PartCounters;
pub use claiming::{ClaimRequest, Open};
pub use explained::{CancelReply, ChunkState, Explained, FormerDevice, KeptFailure, KnownDevice, Place};
pub use probe::{ConnectionFacts, FileLock, PostgresFacts, SchemaState, SqliteFacts};
pub use records::*;
pub use replay::{FrozenPage, Kin, NewReplay, ReplayReply, ResumeReply};
pub use upkeep::{NewSweep, Purge, SweepBegun, SweepEnd};
pub use verdicts::{Leap, Ruling, Withheld, many_foreign};
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
    /// A second post of the same id answers [`Accepted::Repeat`] or [`Accepted::Conflict`]. The same news under another
    /// id while the first fan-out is not over is [`Accepted::Duplicate`]. What an event supersedes is stopped in the same
    /// transaction; of an event and its correction whichever comes second finds the other.
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

    /// The fan-outs of a chain: what was posted, its corrections, their replays; in order of id, `id` left out.
    async fn kin(&self, id: FanoutId) -> Result<Vec<FanoutId>, StoreError>;

    /// Recipients of a fan-out after a key, in order, each with whether an attempt reached it or may have. In a chunk
    /// somebody has in hand, or that was lost uncleanly, that is everyone without an outcome. At least `limit` of them,
    /// fewer only at the end of what is frozen.
    async fn reached_page(&self, page: FrozenPage) -> Result<Vec<(DeviceKey, bool)>, StoreError>;

    /// Recipients of a fan-out after a key whose outcome is one that `source` takes, whose device is live, and whom no
    /// replay of the same fan-out has reached since. Pages end as those of [`Store::reached_page`].
    async fn failed_page(&self, page: FrozenPage, source: Source) -> Result<Vec<DeviceKey>, StoreError>;

    /// Writes the next chunks of a freeze and moves its cursor in one transaction; the first `claim_first` of them
    /// are created already owned by the freezing instance and returned claimed, with recipients looked up.
    /// [`FreezeReply::Lost`] when another instance owns the freeze now, or the fan-out was cancelled.
    async fn freeze_step(&self, step: FreezeStep) -> Result<FreezeReply, StoreError>;

    /// Takes up to `want` open chunks in order of (class, rank), each with recipients looked up now. The `maybe` of a
    /// chunk that was ever lost uncleanly is everyone without an outcome.
    /// Of those that are overdue any come first.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, StoreError>;

    /// Takes the first open chunk of the least urgent class that has any, if that class is less urgent than `than`: it
    /// must not wait until nothing urgent is left.
    async fn claim_floor(&self, boot: BootId, than: Class) -> Result<Vec<ClaimedChunk>, StoreError>;

    /// Every chunk `boot` owns, with recipients looked up now, under the epoch it owns it: those in its hands, and
    /// those it does not know of because the answer to a claim or a freeze step was lost. Changes nothing.
    async fn owned(&self, boot: BootId) -> Result<Vec<ClaimedChunk>, StoreError>;

    /// Hands chunks back in an orderly way: open again, not unclean, not counted as a takeover.
    /// `not_before_ms` keeps them from being claimed earlier; 0 = at once.
    async fn release(&self, boot: BootId, chunks: Vec<(ChunkRef, i32)>, not_before_ms: i64) -> Result<(), StoreError>;

    /// Lets chunks be claimed at once that were handed back until later, those that nobody has claimed since: `epoch` is
    /// the one they were handed back under.
    async fn recall(&self, chunks: Vec<(ChunkRef, i32)>) -> Result<(), StoreError>;

    /// What the sender must know of a fan-out; `None` when there is no such fan-out.
    async fn job(&self, id: FanoutId) -> Result<Option<FanoutJob>, StoreError>;

    /// Writes facts: bits are OR-ed whoever owns the chunk, failure rows never overwrite. One idempotent statement
    /// (or transaction): repeating it changes nothing. A chunk whose recipients all have an outcome is closed.
    async fn flush(&self, batch: FlushBatch) -> Result<Vec<ChunkAck>, StoreError>;

    /// Upserts absolute counters of this instance. A fan-out whose attempts, those of all instances, have reached its cap is
    /// paused by it; the answer names those of `parts` that are paused, with how often each was resumed before.
    async fn put_parts(
        &self,
        boot: BootId,
        parts: Vec<(FanoutId, PartCounters)>,
    ) -> Result<Vec<(FanoutId, i32)>, StoreError>;

    /// The replay of a fan-out that was asked for under this name before.
    async fn replay_named(&self, parent: FanoutId, request_id: String) -> Result<Option<FanoutId>, StoreError>;

    /// Makes a replay of a fan-out that is settled or set aside, the freeze leased to `boot`. One at a
    /// time of one message, whichever fan-out of it is replayed.
    async fn replay(&self, boot: BootId, new: NewReplay) -> Result<ReplayReply, StoreError>;

    /// Pauses capped fan-outs that are under way: their chunks are claimed no more, until they are resumed or past their
    /// deadline. What is in hand is handed back by whoever has it. One that was resumed since the pause was decided on
    /// stays as it is.
    async fn pause(&self, paused: Vec<Pause>) -> Result<(), StoreError>;

    /// Lets a paused fan-out go on with `more` attempts beside those it was allowed.
    async fn resume(&self, id: FanoutId, more: u64) -> Result<ResumeReply, StoreError>;

    /// Settles a fan-out under its row lock if it is frozen and every chunk is closed: snapshots the tally,
    /// judges devices (tombstone, suspend; none of a platform whose dead share leaps), returns what its line says.
    /// Exactly one caller gets [`SettleReply::Settled`].
    async fn settle(&self, id: FanoutId) -> Result<SettleReply, StoreError>;

    /// Notes that the line of a settled fan-out was written.
    async fn mark_reported(&self, id: FanoutId) -> Result<(), StoreError>;

    /// Fan-outs that are complete but not settled, and settled ones whose line is not marked after `older_than_ms`. And
    /// what stands of leaps, whoever settled what leapt.
    async fn sweep(&self, older_than_ms: i64) -> Result<Swept, StoreError>;

    /// One fan-out with its tally as it stands.
    async fn fanout(&self, id: FanoutId) -> Result<Option<FanoutView>, StoreError>;

    /// Fan-outs, newest first, after `before` (exclusive), optionally of one state.
    async fn fanouts(&self, query: FanoutQuery) -> Result<Vec<FanoutView>, StoreError>;

    /// Database time, and when the oldest fan-out that is not settled was accepted.
    async fn open_since(&self) -> Result<(i64, Option<i64>), StoreError>;

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

    /// One small step of retention, if no other instance is at it: fan-outs that were settled longer than `keep_ms` ago,
    /// that are reported and from which none derives, with all their rows and their events; traces of devices deleted
    /// before the oldest fan-out kept; instances dead for as long. A fan-out disappears whole, whatever stops a step.
    async fn purge(&self, boot: BootId, keep_ms: i64) -> Result<Purge, StoreError>;

    /// Live devices after a key, in order of key, at most `limit`.
    async fn live_page(&self, after: DeviceKey, limit: u32) -> Result<Vec<DeviceKey>, StoreError>;

    /// How many live devices there are after a key.
    async fn live_count(&self, after: DeviceKey) -> Result<u64, StoreError>;

    /// Commits a sweep, its freeze leased to `boot`, unless another one is under way: one at a time in the whole fleet.
    async fn begin_sweep(&self, boot: BootId, new: NewSweep) -> Result<SweepBegun, StoreError>;

    /// Ends sweeps that were paused: nothing more of them is asked, what nobody has in hand ends as `cancelled`, and the
    /// next settle judges what was found. Whoever resumes one begins another where it stopped.
    async fn end_paused_sweeps(&self) -> Result<u64, StoreError>;

    /// Where a sweep got to; `None` when no sweep has this id.
    async fn sweep_end(&self, id: FanoutId) -> Result<Option<SweepEnd>, StoreError>;

    /// Registers a device, or updates it; revives a dead one; takes the token over from a device that had it.
    async fn put_device(&self, device: Device) -> Result<PutDevice, StoreError>;

    /// One device with its follows and state.
    async fn device(&self, id: DeviceId) -> Result<Option<DeviceView>, StoreError>;

    /// Deletes a device and its follows; whether it was there.
    async fn delete_device(&self, id: DeviceId) -> Result<bool, StoreError>;

    /// Replaces what a device follows; `false` when there is no such device.
    async fn put_follows(&self, id: DeviceId, follows: Follows) -> Result<bool, StoreError>;

    /// How many batches of one import may be handed over before the first is answered; they are done in that order.
    fn imports_at_once(&self) -> usize {
        1
    }

    /// Imports up to 2,000 devices with their follows, each id and each address once. All of them are on disk when it
    /// answers; when it fails, some may be. A row takes its address over from whoever has it; one about a dead device is
    /// rejected unless `revive` is asked for, and one that says its device is dead never touches a live one. No row stops
    /// the batch. It is handed over the first time the future is polled.
    async fn import(&self, rows: Vec<ImportRow>, revive: bool) -> Result<Imported, StoreError>;

    /// Devices with what they follow, in order of key.
    async fn device_page(&self, page: DevicePage) -> Result<Vec<DeviceView>, StoreError>;

    /// The ids of devices by their rows, those that were deleted since among them.
    async fn device_ids(&self, keys: Vec<DeviceKey>) -> Result<Vec<(DeviceKey, DeviceId)>, StoreError>;

    /// The devices that have these addresses now; one that nobody has is left out.
    async fn holders(&self, addresses: Vec<String>) -> Result<Vec<(String, DeviceId)>, StoreError>;

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

/// Share of a platform's answers that are against the device, in per cent, above which a settle judges none of that
/// platform whatever was usual before (law 7): it looks like a fault of ours.
pub const DEAD_SHARE_LIMIT_PERCENT: u64 = 30;

/// Verdicts of a platform below which a fan-out by itself is never taken for a leap; together with what those before it
/// found beyond the share allowed, it is.
pub const DEAD_SHARE_MIN: u64 = 20;
