//! Owns the store on Postgres: what runs on which pool, each call in a task of its own.
//! Must never know: HTTP, sending, or SQLite.

mod accept;
mod call;
mod cancel;
mod claim;
mod compare;
mod copy;
mod correct;
mod devices;
mod explain;
mod export;
mod fault;
mod flush;
mod freeze;
mod frozen;
mod import;
mod ingest;
mod instance;
mod pool;
mod probe;
mod purge;
mod reads;
mod replay;
mod rows;
mod schema;
mod settle;
mod statements;
mod sweep;

use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::time::Instant;

use self::call::Lane;
use self::fault::{Fault, explain};
use self::ingest::Ingest;
use super::detached::detached;
use super::records::{
    Accepted, DevicePage, DeviceView, FanoutQuery, FanoutView, FollowerPage, FreezeJob, FreezeReply, FreezeStep,
    Heartbeat, ImportRow, Imported, NewFanout, PutDevice, SettleReply, Swept,
};
use super::{
    ACCEPT_WITHIN, CancelReply, ClaimRequest, Explained, FrozenPage, NewReplay, NewSweep, Purge, ReplayReply,
    ResumeReply, Store, StoreError, SweepBegun, SweepEnd, Waiting,
};
use crate::domain::batch::{ChunkAck, ClaimedChunk, Class, FanoutJob, FlushBatch};
use crate::domain::derived::{Pause, Source};
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Device, Follows};
use crate::domain::tally::PartCounters;
pub use probe::probe;
pub use statements::STATEMENTS;

/// The store on Postgres 14 or newer (`bit_count`).
pub struct PostgresStore {
    options: PgConnectOptions,
    /// For everything but events and facts.
    main: Lane,
    /// For events.
    ingest: Ingest,
    /// For facts and heartbeats: a lease or an outcome must not wait behind reads and accepts.
    facts: Lane,
}

impl PostgresStore {
    /// Prepares the pools; the first call connects, and [`Store::ready`] is the one that tells whether all is well.
    /// Two connections more than `max_connections` are used, for facts. Three eighths are for events.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the URL does not parse; the text holds nothing of it.
    pub fn connect(url: &SecretString, max_connections: u32) -> Result<Self, StoreError> {
        Self::connect_with(url, max_connections, max_connections * 3 / 8)
    }

    /// The same with this many of `max_connections` for events; at least one is, and one for all else.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`].
    pub fn connect_with(url: &SecretString, max_connections: u32, for_events: u32) -> Result<Self, StoreError> {
        let options = pool::options(url)?;
        let lane = |connections: u32| Lane { pool: pool::main(options.clone(), connections), limit: call::LIMIT };
        let main = lane(max_connections.saturating_sub(for_events).max(1));
        let ingest = Ingest::new(lane(for_events.max(1)), for_events.max(1));
        let facts = Lane { pool: pool::facts(options.clone()), limit: call::LIMIT };
        Ok(Self { options, main, ingest, facts })
    }

    /// The database by its server and name, without anything secret.
    #[must_use]
    pub fn place(&self) -> String {
        Self::place_of(&self.options)
    }

    fn place_of(options: &PgConnectOptions) -> String {
        let name = options.get_database().unwrap_or("(of the user's name)");
        format!("{}:{}/{name}", options.get_host(), options.get_port())
    }

    /// Sets how long a call may take once it has a connection, instead of 12 s. A settle may take a minute more, and a
    /// migration as long as it takes.
    #[must_use]
    pub fn limited_to(mut self, limit: Duration) -> Self {
        self.main.limit = limit;
        self.ingest.lane.limit = limit;
        self.facts.limit = limit;
        self
    }
}

/// One call on one pool within a limit, in a task of its own.
macro_rules! on {
    ($lane:expr, $operation:literal, |$conn:ident| $call:expr) => {
        detached($lane.clone().call($operation, async move |$conn: &mut PgConnection| $call.await)).await
    };
}

/// The same on the lane of events, for a call whose turn has to come by then.
macro_rules! on_ingest {
    ($store:expr, $operation:literal, $start_by:expr, |$conn:ident| $call:expr) => {
        detached($store.ingest.clone().call($operation, $start_by, async move |$conn: &mut PgConnection| $call.await))
            .await
    };
}

#[async_trait]
impl Store for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    async fn migrate(&self) -> Result<u32, StoreError> {
        let options = self.options.clone();
        detached(async move { schema::migrate(&options).await.map_err(|fault| explain("migrate", fault)) }).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        on!(self.main, "ready", |conn| schema::check(conn))
    }

    async fn now_ms(&self) -> Result<i64, StoreError> {
        on!(self.main, "now_ms", |conn| now_ms(conn))
    }

    async fn heartbeat(&self, boot: BootId, lease_ms: i64) -> Result<Heartbeat, StoreError> {
        on!(self.facts, "heartbeat", |conn| instance::heartbeat(conn, boot, lease_ms))
    }

    async fn leave(&self, boot: BootId) -> Result<(), StoreError> {
        on!(self.facts, "leave", |conn| instance::leave(conn, boot))
    }

    async fn accept_by(&self, boot: BootId, new: NewFanout, start_by: Instant) -> Result<Accepted, StoreError> {
        on_ingest!(self, "accept", start_by, |conn| accept::accept(conn, boot, &new))
    }

    async fn seen(&self, id: EventId) -> Result<Option<(FanoutId, Vec<u8>)>, StoreError> {
        on_ingest!(self, "seen", Instant::now() + ACCEPT_WITHIN, |conn| accept::seen(conn, &id))
    }

    async fn take_freezes(
        &self,
        boot: BootId,
        running: Vec<FanoutId>,
        limit: u32,
    ) -> Result<Vec<FreezeJob>, StoreError> {
        on!(self.main, "take_freezes", |conn| freeze::take(conn, boot, &running, limit))
    }

    async fn follower_page(&self, page: FollowerPage) -> Result<Vec<DeviceKey>, StoreError> {
        on!(self.main, "follower_page", |conn| freeze::follower_page(conn, &page))
    }

    async fn kin(&self, id: FanoutId) -> Result<Vec<FanoutId>, StoreError> {
        on!(self.main, "kin", |conn| frozen::kin(conn, id))
    }

    async fn reached_page(&self, page: FrozenPage) -> Result<Vec<(DeviceKey, bool)>, StoreError> {
        on!(self.main, "reached_page", |conn| frozen::reached(conn, page))
    }

    async fn failed_page(&self, page: FrozenPage, source: Source) -> Result<Vec<DeviceKey>, StoreError> {
        on!(self.main, "failed_page", |conn| frozen::failed(conn, page, source))
    }

    async fn freeze_step(&self, step: FreezeStep) -> Result<FreezeReply, StoreError> {
        on!(self.main, "freeze_step", |conn| freeze::step(conn, &step))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, StoreError> {
        on!(self.main, "claim", |conn| claim::claim(conn, request))
    }

    async fn claim_floor(&self, boot: BootId, than: Class) -> Result<Vec<ClaimedChunk>, StoreError> {
        on!(self.main, "claim_floor", |conn| claim::claim_floor(conn, boot, than))
    }

    async fn owned(&self, boot: BootId) -> Result<Vec<ClaimedChunk>, StoreError> {
        on!(self.main, "owned", |conn| claim::owned(conn, boot))
    }

    async fn release(&self, boot: BootId, chunks: Vec<(ChunkRef, i32)>, not_before_ms: i64) -> Result<(), StoreError> {
        on!(self.facts, "release", |conn| claim::release(conn, boot, &chunks, not_before_ms))
    }

    async fn recall(&self, chunks: Vec<(ChunkRef, i32)>) -> Result<(), StoreError> {
        on!(self.facts, "recall", |conn| claim::recall(conn, &chunks))
    }

    async fn job(&self, id: FanoutId) -> Result<Option<FanoutJob>, StoreError> {
        on!(self.main, "job", |conn| reads::job(conn, id))
    }

    async fn flush(&self, batch: FlushBatch) -> Result<Vec<ChunkAck>, StoreError> {
        on!(self.facts, "flush", |conn| flush::flush(conn, &batch))
    }

    async fn put_parts(
        &self,
        boot: BootId,
        parts: Vec<(FanoutId, PartCounters)>,
    ) -> Result<Vec<(FanoutId, i32)>, StoreError> {
        on!(self.facts, "put_parts", |conn| flush::put_parts(conn, boot, &parts))
    }

    async fn replay_named(&self, parent: FanoutId, request_id: String) -> Result<Option<FanoutId>, StoreError> {
        on!(self.main, "replay_named", |conn| replay::named(conn, parent, &request_id))
    }

    async fn replay(&self, boot: BootId, new: NewReplay) -> Result<ReplayReply, StoreError> {
        on!(self.main, "replay", |conn| replay::replay(conn, boot, &new))
    }

    async fn pause(&self, paused: Vec<Pause>) -> Result<(), StoreError> {
        on!(self.facts, "pause", |conn| replay::pause(conn, &paused))
    }

    async fn resume(&self, id: FanoutId, more: u64) -> Result<ResumeReply, StoreError> {
        on!(self.main, "resume", |conn| replay::resume(conn, id, more))
    }

    async fn settle(&self, id: FanoutId) -> Result<SettleReply, StoreError> {
        on!(self.main.longer_by(settle::WAITING_AND_JUDGING), "settle", |conn| settle::settle(conn, id))
    }

    async fn mark_reported(&self, id: FanoutId) -> Result<(), StoreError> {
        on!(self.main, "mark_reported", |conn| reads::mark_reported(conn, id))
    }

    async fn sweep(&self, older_than_ms: i64) -> Result<Swept, StoreError> {
        on!(self.main, "sweep", |conn| reads::sweep(conn, older_than_ms))
    }

    async fn fanout(&self, id: FanoutId) -> Result<Option<FanoutView>, StoreError> {
        on!(self.main, "fanout", |conn| reads::fanout(conn, id))
    }

    async fn fanouts(&self, query: FanoutQuery) -> Result<Vec<FanoutView>, StoreError> {
        on!(self.main, "fanouts", |conn| reads::fanouts(conn, query))
    }

    async fn open_since(&self) -> Result<(i64, Option<i64>), StoreError> {
        on!(self.main, "open_since", |conn| reads::open_since(conn))
    }

    async fn cancel(&self, id: FanoutId) -> Result<CancelReply, StoreError> {
        on!(self.main, "cancel", |conn| cancel::cancel(conn, id))
    }

    async fn explain(&self, id: FanoutId, device: DeviceId) -> Result<Option<Explained>, StoreError> {
        on!(self.main, "explain", |conn| explain::explain(conn, id, &device))
    }

    async fn backlog(&self) -> Result<Waiting, StoreError> {
        on_ingest!(self, "backlog", Instant::now() + ACCEPT_WITHIN, |conn| reads::backlog(conn))
    }

    async fn purge(&self, boot: BootId, keep_ms: i64) -> Result<Purge, StoreError> {
        on!(self.main, "purge", |conn| purge::step(conn, boot, keep_ms))
    }

    async fn live_page(&self, after: DeviceKey, limit: u32) -> Result<Vec<DeviceKey>, StoreError> {
        on!(self.main, "live_page", |conn| sweep::live_page(conn, after, limit))
    }

    async fn live_count(&self, after: DeviceKey) -> Result<u64, StoreError> {
        on!(self.main, "live_count", |conn| sweep::live_count(conn, after))
    }

    async fn begin_sweep(&self, boot: BootId, new: NewSweep) -> Result<SweepBegun, StoreError> {
        on!(self.main, "begin_sweep", |conn| sweep::begin(conn, boot, &new))
    }

    async fn end_paused_sweeps(&self) -> Result<u64, StoreError> {
        on!(self.main, "end_paused_sweeps", |conn| sweep::end_paused(conn))
    }

    async fn sweep_end(&self, id: FanoutId) -> Result<Option<SweepEnd>, StoreError> {
        on!(self.main, "sweep_end", |conn| sweep::end(conn, id))
    }

    async fn put_device(&self, device: Device) -> Result<PutDevice, StoreError> {
        on!(self.main, "put_device", |conn| devices::put(conn, &device))
    }

    async fn device(&self, id: DeviceId) -> Result<Option<DeviceView>, StoreError> {
        on!(self.main, "device", |conn| devices::get(conn, &id))
    }

    async fn delete_device(&self, id: DeviceId) -> Result<bool, StoreError> {
        on!(self.main, "delete_device", |conn| devices::delete(conn, &id))
    }

    async fn put_follows(&self, id: DeviceId, follows: Follows) -> Result<bool, StoreError> {
        on!(self.main, "put_follows", |conn| devices::put_follows(conn, &id, &follows))
    }

    async fn import(&self, rows: Vec<ImportRow>, revive: bool) -> Result<Imported, StoreError> {
        detached(import::import(self.main.clone(), rows, revive)).await
    }

    async fn device_page(&self, page: DevicePage) -> Result<Vec<DeviceView>, StoreError> {
        on!(self.main, "device_page", |conn| export::page(conn, page))
    }

    async fn device_ids(&self, keys: Vec<DeviceKey>) -> Result<Vec<(DeviceKey, DeviceId)>, StoreError> {
        on!(self.main, "device_ids", |conn| compare::device_ids(conn, &keys))
    }

    async fn holders(&self, addresses: Vec<String>) -> Result<Vec<(String, DeviceId)>, StoreError> {
        on!(self.main, "holders", |conn| compare::holders(conn, &addresses))
    }

    async fn close(&self) {
        self.main.pool.close().await;
        self.ingest.lane.pool.close().await;
        self.facts.pool.close().await;
    }
}

const NOW: &str = "SELECT fanfare_now_ms()";

async fn now_ms(conn: &mut PgConnection) -> Result<i64, Fault> {
    Ok(sqlx::query_scalar(NOW).fetch_one(conn).await?)
}
