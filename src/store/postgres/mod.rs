//! Owns the store on Postgres: what runs on which pool, each call in a task of its own.
//! Must never know: HTTP, sending, or SQLite.

mod accept;
mod claim;
mod devices;
mod fault;
mod flush;
mod freeze;
mod import;
mod instance;
mod pool;
mod reads;
mod rows;
mod schema;
mod settle;
mod statements;

use std::fmt;

use async_trait::async_trait;
use secrecy::SecretString;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use self::fault::{Fault, retrying};
use super::detached::detached;
use super::records::{
    Accepted, ClaimRequest, DeviceView, FanoutQuery, FanoutView, FollowerPage, FreezeJob, FreezeReply, FreezeStep,
    Heartbeat, ImportRow, Imported, NewFanout, PutDevice, SettleReply, Swept,
};
use super::{Store, StoreError};
use crate::domain::batch::{ChunkAck, ClaimedChunk, FanoutJob, FlushBatch};
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Device, Follows};
use crate::domain::tally::PartCounters;
pub use statements::STATEMENTS;

/// The store on Postgres 14 or newer (`bit_count`).
pub struct PostgresStore {
    options: PgConnectOptions,
    /// For everything but facts.
    main: PgPool,
    /// For facts and heartbeats: a lease or an outcome must not wait behind reads and accepts.
    facts: PgPool,
}

impl PostgresStore {
    /// Prepares both pools; the first call connects, and [`Store::ready`] is the one that tells whether all is well.
    /// Two connections more than `max_connections` are used, for facts.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when the URL does not parse; the text holds nothing of it.
    pub fn connect(url: &SecretString, max_connections: u32) -> Result<Self, StoreError> {
        let options = pool::options(url)?;
        let main = pool::main(options.clone(), max_connections);
        let facts = pool::facts(options.clone());
        Ok(Self { options, main, facts })
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.options.get_host();
        f.debug_struct("PostgresStore").field("host", &host).field("database", &self.options.get_database()).finish()
    }
}

/// One call on one pool: a task of its own, tried again when it lost a race, named in its error.
macro_rules! on {
    ($pool:expr, $operation:literal, |$p:ident| $call:expr) => {{
        let $p = $pool.clone();
        detached(async move { retrying($operation, || $call).await }).await
    }};
}

#[async_trait]
impl Store for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    async fn migrate(&self) -> Result<u32, StoreError> {
        on!(self.options, "migrate", |options| schema::migrate(&options))
    }

    async fn ready(&self) -> Result<(), StoreError> {
        on!(self.main, "ready", |pool| schema::check(&pool))
    }

    async fn now_ms(&self) -> Result<i64, StoreError> {
        on!(self.main, "now_ms", |pool| now_ms(&pool))
    }

    async fn heartbeat(&self, boot: BootId, lease_ms: i64) -> Result<Heartbeat, StoreError> {
        on!(self.facts, "heartbeat", |pool| instance::heartbeat(&pool, boot, lease_ms))
    }

    async fn leave(&self, boot: BootId) -> Result<(), StoreError> {
        on!(self.facts, "leave", |pool| instance::leave(&pool, boot))
    }

    async fn accept(&self, boot: BootId, new: NewFanout) -> Result<Accepted, StoreError> {
        on!(self.main, "accept", |pool| accept::accept(&pool, boot, &new))
    }

    async fn seen(&self, id: EventId) -> Result<Option<(FanoutId, Vec<u8>)>, StoreError> {
        on!(self.main, "seen", |pool| accept::seen(&pool, &id))
    }

    async fn take_freezes(
        &self,
        boot: BootId,
        running: Vec<FanoutId>,
        limit: u32,
    ) -> Result<Vec<FreezeJob>, StoreError> {
        on!(self.main, "take_freezes", |pool| freeze::take(&pool, boot, &running, limit))
    }

    async fn follower_page(&self, page: FollowerPage) -> Result<Vec<DeviceKey>, StoreError> {
        on!(self.main, "follower_page", |pool| freeze::follower_page(&pool, &page))
    }

    async fn freeze_step(&self, step: FreezeStep) -> Result<FreezeReply, StoreError> {
        on!(self.main, "freeze_step", |pool| freeze::step(&pool, &step))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<ClaimedChunk>, StoreError> {
        on!(self.main, "claim", |pool| claim::claim(&pool, request))
    }

    async fn release(&self, boot: BootId, chunks: Vec<(ChunkRef, i32)>, not_before_ms: i64) -> Result<(), StoreError> {
        on!(self.facts, "release", |pool| claim::release(&pool, boot, &chunks, not_before_ms))
    }

    async fn job(&self, id: FanoutId) -> Result<Option<FanoutJob>, StoreError> {
        on!(self.main, "job", |pool| reads::job(&pool, id))
    }

    async fn flush(&self, batch: FlushBatch) -> Result<Vec<ChunkAck>, StoreError> {
        on!(self.facts, "flush", |pool| flush::flush(&pool, &batch))
    }

    async fn put_parts(&self, boot: BootId, parts: Vec<(FanoutId, PartCounters)>) -> Result<(), StoreError> {
        on!(self.facts, "put_parts", |pool| flush::put_parts(&pool, boot, &parts))
    }

    async fn settle(&self, id: FanoutId) -> Result<SettleReply, StoreError> {
        on!(self.main, "settle", |pool| settle::settle(&pool, id))
    }

    async fn mark_reported(&self, id: FanoutId) -> Result<(), StoreError> {
        on!(self.main, "mark_reported", |pool| reads::mark_reported(&pool, id))
    }

    async fn sweep(&self, older_than_ms: i64) -> Result<Swept, StoreError> {
        on!(self.main, "sweep", |pool| reads::sweep(&pool, older_than_ms))
    }

    async fn fanout(&self, id: FanoutId) -> Result<Option<FanoutView>, StoreError> {
        on!(self.main, "fanout", |pool| reads::fanout(&pool, id))
    }

    async fn fanouts(&self, query: FanoutQuery) -> Result<Vec<FanoutView>, StoreError> {
        on!(self.main, "fanouts", |pool| reads::fanouts(&pool, query))
    }

    async fn backlog(&self) -> Result<u64, StoreError> {
        on!(self.main, "backlog", |pool| reads::backlog(&pool))
    }

    async fn put_device(&self, device: Device) -> Result<PutDevice, StoreError> {
        on!(self.main, "put_device", |pool| devices::put(&pool, &device))
    }

    async fn device(&self, id: DeviceId) -> Result<Option<DeviceView>, StoreError> {
        on!(self.main, "device", |pool| devices::get(&pool, &id))
    }

    async fn delete_device(&self, id: DeviceId) -> Result<bool, StoreError> {
        on!(self.main, "delete_device", |pool| devices::delete(&pool, &id))
    }

    async fn put_follows(&self, id: DeviceId, follows: Follows) -> Result<bool, StoreError> {
        on!(self.main, "put_follows", |pool| devices::put_follows(&pool, &id, &follows))
    }

    async fn import(&self, rows: Vec<ImportRow>) -> Result<Imported, StoreError> {
        on!(self.main, "import", |pool| import::import(&pool, &rows))
    }

    async fn close(&self) {
        self.main.close().await;
        self.facts.close().await;
    }
}

const NOW: &str = "SELECT fanfare_now_ms()";

async fn now_ms(pool: &PgPool) -> Result<i64, Fault> {
    Ok(sqlx::query_scalar(NOW).fetch_one(pool).await?)
}
