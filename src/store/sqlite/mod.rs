//! Owns the store on SQLite: one file, one process, one connection that writes and a few that read.
//! Must never know: HTTP, sending, or why a row is written.

mod accept;
mod cancel;
mod claim;
mod compare;
mod correct;
mod counts;
mod device;
mod explain;
mod export;
mod fault;
mod file;
mod flush;
mod freeze;
mod frozen;
mod import;
mod job;
mod lease;
mod load;
mod open;
mod probe;
mod purge;
mod replay;
mod rows;
mod settle;
mod sql;
mod sweep;
mod view;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{SqliteConnection, SqlitePool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::detached::detached;
use super::{
    ACCEPT_WITHIN, Accepted, CancelReply, ClaimRequest, DevicePage, DeviceView, Explained, FanoutQuery, FanoutView,
    FollowerPage, FreezeJob, FreezeReply, FreezeStep, FrozenPage, Heartbeat, ImportRow, Imported, NewFanout, NewReplay,
    Purge, PutDevice, ReplayReply, ResumeReply, SettleReply, Store, StoreError, Swept, Waiting,
};
use super::{NewSweep, SweepBegun, SweepEnd};
use crate::domain::batch::{ChunkAck, ClaimedChunk, Class, FanoutJob, FlushBatch};
use crate::domain::derived::{Pause, Source};
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Device, Follows};
use crate::domain::tally::PartCounters;
pub use counts::WriteCounts;
use fault::{Answer, Fault};
pub use probe::probe;
pub use sql::STATEMENTS;
use writer::Writer;

/// The store in one SQLite file, open in one process at a time.
pub struct SqliteStore {
    writer: Writer,
    readers: SqlitePool,
    /// Turns of callers at the readers: one reader is always left to what this process does by itself.
    turns: Arc<Semaphore>,
}

impl SqliteStore {
    /// Work of the writer since it was opened.
    #[must_use]
    pub fn write_counts(&self) -> WriteCounts {
        self.writer.counts()
    }

    /// Runs a read in one snapshot of the database.
    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        self.read_in_turn(None, work).await
    }

    /// The same for a caller, who is told so when its turn does not come `within` that time: however many ask, no read of
    /// ours, a freeze's say, stands in line behind them.
    async fn ask<T, F>(&self, within: Duration, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let turn = timeout(within, Arc::clone(&self.turns).acquire_owned()).await.ok().and_then(Result::ok);
        let busy = || StoreError::Unavailable("the readers were busy for too long".to_owned());
        self.read_in_turn(Some(turn.ok_or_else(busy)?), work).await
    }

    async fn read_in_turn<T, F>(&self, turn: Option<OwnedSemaphorePermit>, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Answer<T>> + Send + 'static,
    {
        let readers = self.readers.clone();
        detached(async move {
            // As long as the reader is, whatever becomes of the caller.
            let _turn = turn;
            let read = async {
                let mut snapshot = readers.begin().await?;
                let answer = work(&mut snapshot).await;
                snapshot.rollback().await?;
                answer
            };
            read.await.map_err(|fault: Fault| fault.0)
        })
        .await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("written", &self.write_counts()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    async fn migrate(&self) -> Result<u32, StoreError> {
        self.writer.run(1, |c| open::migrate(c).boxed()).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.read(|c| open::check(c).boxed()).await
    }

    async fn now_ms(&self) -> Result<i64, StoreError> {
        Ok(rows::now_ms())
    }

    async fn heartbeat(&self, boot: BootId, lease_ms: i64) -> Result<Heartbeat, StoreError> {
        self.writer.run(8, move |c| lease::heartbeat(c, boot, lease_ms).boxed()).await
    }

    async fn leave(&self, boot: BootId) -> Result<(), StoreError> {
        self.writer.run(8, move |c| lease::leave(c, boot).boxed()).await
    }

    async fn accept_by(&self, boot: BootId, new: NewFanout, start_by: Instant) -> Result<Accepted, StoreError> {
        self.writer.run_by(start_by, 3, move |c| correct::accept(c, boot, new).boxed()).await
    }

    async fn seen(&self, id: EventId) -> Result<Option<(FanoutId, Vec<u8>)>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| accept::seen(c, id).boxed()).await
    }

    async fn take_freezes(
        &self,
        boot: BootId,
        running: Vec<FanoutId>,
        limit: u32,
    ) -> Result<Vec<FreezeJob>, StoreError> {
        self.writer.run(limit as usize, move |c| accept::take_freezes(c, boot, running, limit).boxed()).await
    }

    async fn follower_page(&self, page: FollowerPage) -> Result<Vec<DeviceKey>, StoreError> {
        self.read(move |c| freeze::follower_page(c, page).boxed()).await
    }

    async fn kin(&self, id: FanoutId) -> Result<Vec<FanoutId>, StoreError> {
        self.read(move |c| frozen::kin(c, id).boxed()).await
    }

    async fn reached_page(&self, page: FrozenPage) -> Result<Vec<(DeviceKey, bool)>, StoreError> {
        self.read(move |c| frozen::reached(c, page).boxed()).await
    }

    async fn failed_page(&self, page: FrozenPage, source: Source) -> Result<Vec<DeviceKey>, StoreError> {
        self.read(move |c| frozen::failed(c, page, source).boxed()).await
    }

    async fn freeze_step(&self, step: FreezeStep) -> Result<FreezeReply, StoreError> {
        // A row of keys spans a page of its own.
        self.writer.run(4 * step.chunks.len(), move |c| freeze::freeze_step(c, step).boxed()).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, StoreError> {
        self.writer.run(request.want as usize, move |c| claim::claim(c, request).boxed()).await
    }

    async fn claim_floor(&self, boot: BootId, than: Class) -> Result<Vec<ClaimedChunk>, StoreError> {
        self.writer.run(1, move |c| claim::claim_floor(c, boot, than).boxed()).await
    }

    async fn owned(&self, boot: BootId) -> Result<Vec<ClaimedChunk>, StoreError> {
        self.read(move |c| claim::owned(c, boot).boxed()).await
    }

    async fn release(&self, boot: BootId, chunks: Vec<(ChunkRef, i32)>, not_before_ms: i64) -> Result<(), StoreError> {
        self.writer.run(chunks.len(), move |c| claim::release(c, boot, chunks, not_before_ms).boxed()).await
    }

    async fn recall(&self, chunks: Vec<(ChunkRef, i32)>) -> Result<(), StoreError> {
        self.writer.run(chunks.len(), move |c| claim::recall(c, chunks).boxed()).await
    }

    async fn job(&self, id: FanoutId) -> Result<Option<FanoutJob>, StoreError> {
        self.read(move |c| accept::job(c, id).boxed()).await
    }

    async fn flush(&self, batch: FlushBatch) -> Result<Vec<ChunkAck>, StoreError> {
        let rows = batch.chunks.len() + batch.failures.len();
        self.writer.run(rows, move |c| flush::flush(c, batch).boxed()).await
    }

    async fn put_parts(
        &self,
        boot: BootId,
        parts: Vec<(FanoutId, PartCounters)>,
    ) -> Result<Vec<(FanoutId, i32)>, StoreError> {
        self.writer.run(parts.len(), move |c| flush::put_parts(c, boot, parts).boxed()).await
    }

    async fn replay_named(&self, parent: FanoutId, request_id: String) -> Result<Option<FanoutId>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| replay::named(c, parent, request_id).boxed()).await
    }

    async fn replay(&self, boot: BootId, new: NewReplay) -> Result<ReplayReply, StoreError> {
        self.writer.run(8, move |c| replay::replay(c, boot, new).boxed()).await
    }

    async fn pause(&self, paused: Vec<Pause>) -> Result<(), StoreError> {
        self.writer.run(paused.len(), move |c| replay::pause(c, paused).boxed()).await
    }

    async fn resume(&self, id: FanoutId, more: u64) -> Result<ResumeReply, StoreError> {
        self.writer.run(1, move |c| replay::resume(c, id, more).boxed()).await
    }

    async fn settle(&self, id: FanoutId) -> Result<SettleReply, StoreError> {
        if self.read(move |c| settle::busy(c, id).boxed()).await? {
            return Ok(SettleReply::Open);
        }
        self.writer.run(100, move |c| settle::settle(c, id).boxed()).await
    }

    async fn mark_reported(&self, id: FanoutId) -> Result<(), StoreError> {
        self.writer.run(1, move |c| settle::mark_reported(c, id).boxed()).await
    }

    async fn sweep(&self, older_than_ms: i64) -> Result<Swept, StoreError> {
        self.read(move |c| settle::sweep(c, older_than_ms).boxed()).await
    }

    async fn fanout(&self, id: FanoutId) -> Result<Option<FanoutView>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| view::fanout(c, id).boxed()).await
    }

    async fn fanouts(&self, query: FanoutQuery) -> Result<Vec<FanoutView>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| view::fanouts(c, query).boxed()).await
    }

    async fn open_since(&self) -> Result<(i64, Option<i64>), StoreError> {
        self.read(|c| view::open_since(c).boxed()).await
    }

    async fn cancel(&self, id: FanoutId) -> Result<CancelReply, StoreError> {
        self.writer.run(100, move |c| cancel::cancel(c, id).boxed()).await
    }

    async fn explain(&self, id: FanoutId, device: DeviceId) -> Result<Option<Explained>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| explain::explain(c, id, device).boxed()).await
    }

    async fn backlog(&self) -> Result<Waiting, StoreError> {
        self.read(|c| settle::backlog(c).boxed()).await
    }

    async fn purge(&self, boot: BootId, keep_ms: i64) -> Result<Purge, StoreError> {
        self.writer.run(purge::STEP as usize, move |c| purge::step(c, boot, keep_ms).boxed()).await
    }

    async fn live_page(&self, after: DeviceKey, limit: u32) -> Result<Vec<DeviceKey>, StoreError> {
        self.read(move |c| sweep::live_page(c, after, limit).boxed()).await
    }

    async fn live_count(&self, after: DeviceKey) -> Result<u64, StoreError> {
        self.read(move |c| sweep::live_count(c, after).boxed()).await
    }

    async fn begin_sweep(&self, boot: BootId, new: NewSweep) -> Result<SweepBegun, StoreError> {
        self.writer.run(2, move |c| sweep::begin(c, boot, new).boxed()).await
    }

    async fn end_paused_sweeps(&self) -> Result<u64, StoreError> {
        if !self.read(|c| sweep::any_paused(c).boxed()).await? {
            return Ok(0);
        }
        self.writer.run(1, |c| sweep::end_paused(c).boxed()).await
    }

    async fn sweep_end(&self, id: FanoutId) -> Result<Option<SweepEnd>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| sweep::end(c, id).boxed()).await
    }

    async fn put_device(&self, device: Device) -> Result<PutDevice, StoreError> {
        self.writer.run(2, move |c| device::put_device(c, device).boxed()).await
    }

    async fn device(&self, id: DeviceId) -> Result<Option<DeviceView>, StoreError> {
        self.ask(ACCEPT_WITHIN, move |c| device::device(c, id).boxed()).await
    }

    async fn delete_device(&self, id: DeviceId) -> Result<bool, StoreError> {
        self.writer.run(8, move |c| device::delete_device(c, id).boxed()).await
    }

    async fn put_follows(&self, id: DeviceId, follows: Follows) -> Result<bool, StoreError> {
        self.writer.run(follows.subjects.len() + 1, move |c| device::put_follows(c, id, follows).boxed()).await
    }

    fn imports_at_once(&self) -> usize {
        import::AT_ONCE
    }

    async fn import(&self, rows: Vec<ImportRow>, revive: bool) -> Result<Imported, StoreError> {
        let written: usize = rows.iter().map(ImportRow::written).sum();
        self.writer.run_bulk(written, move |c| import::import(c, rows, revive).boxed()).await
    }

    async fn device_page(&self, page: DevicePage) -> Result<Vec<DeviceView>, StoreError> {
        self.ask(open::ACQUIRE_TIMEOUT, move |c| export::page(c, page).boxed()).await
    }

    async fn device_ids(&self, keys: Vec<DeviceKey>) -> Result<Vec<(DeviceKey, DeviceId)>, StoreError> {
        self.read(move |c| compare::device_ids(c, keys).boxed()).await
    }

    async fn holders(&self, addresses: Vec<String>) -> Result<Vec<(String, DeviceId)>, StoreError> {
        self.read(move |c| compare::holders(c, addresses).boxed()).await
    }

    async fn close(&self) {
        // The last connection to close folds the write-ahead log into the file, and a reader may not.
        self.readers.close().await;
        self.writer.close().await;
    }
}
