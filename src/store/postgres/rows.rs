//! Owns how rows become domain values; an unknown code or a damaged value is a typed error.
//! Must never know: why a row is read.

use std::collections::HashMap;

use sqlx::FromRow;

use super::fault::{Fault, corrupt, count};
use crate::domain::batch::{ClaimedChunk, Class, FanoutJob};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::{Cap, Origin, Source};
use crate::domain::ids::{ChunkRef, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::{Address, Locale, Platform, Recipient};
use crate::store::FreezeJob;

/// The columns of [`JobRow`], of a fan-out `f` and its event `e`. What was spent is added up only where there is a cap.
macro_rules! job_columns {
    () => {
        "f.id, f.class, f.accepted_ms, f.deadline_ms, e.body, f.source, f.parent, f.root_event, f.collapse_key,
       f.max_attempts, f.resumed, f.paused,
       CASE WHEN f.max_attempts IS NULL THEN 0 ELSE coalesce((
           SELECT sum((p.counters::json ->> 'attempts')::bigint) FROM fanout_part p WHERE p.fanout_id = f.id), 0)::bigint
       END AS spent"
    };
}
pub(super) use job_columns;

/// What a sender must know of a fan-out.
#[derive(Debug, FromRow)]
pub(super) struct JobRow {
    id: i64,
    class: i16,
    accepted_ms: i64,
    deadline_ms: i64,
    body: String,
    source: i16,
    parent: Option<i64>,
    root_event: Option<String>,
    collapse_key: Option<String>,
    max_attempts: Option<i64>,
    resumed: i32,
    paused: i16,
    spent: i64,
}

impl JobRow {
    fn cap(&self) -> Result<Option<Cap>, Fault> {
        let Some(most) = self.max_attempts else { return Ok(None) };
        let (most, spent) = (count("most attempts", most)?, count("attempts", self.spent)?);
        Ok(Some(Cap { most, spent, resumed: self.resumed, paused: self.paused != 0 }))
    }

    pub(super) fn parse(self) -> Result<FanoutJob, Fault> {
        let event = serde_json::from_str(&self.body)
            .map_err(|_| corrupt(format!("the event of fan-out {} does not parse", self.id)))?;
        let cap = self.cap()?;
        Ok(FanoutJob {
            id: FanoutId(self.id),
            event,
            class: Class::from_code(self.class)?,
            accepted_ms: self.accepted_ms,
            deadline_ms: self.deadline_ms,
            origin: Origin {
                source: Source::from_code(self.source)?,
                parent: self.parent.map(FanoutId),
                root: self.root_event.as_deref().map(EventId::parse).transpose()?,
                key: self.collapse_key,
                cap,
            },
        })
    }
}

/// A fan-out with where its freeze stands.
#[derive(Debug, FromRow)]
pub(super) struct FreezeRow {
    #[sqlx(flatten)]
    job: JobRow,
    freeze_epoch: i32,
    freeze_cursor: i64,
    freeze_chunks: i32,
}

impl FreezeRow {
    /// Which fan-out it is, whatever else of it can be read.
    pub(super) fn fanout(&self) -> FanoutId {
        FanoutId(self.job.id)
    }

    pub(super) fn parse(self) -> Result<FreezeJob, Fault> {
        Ok(FreezeJob {
            job: self.job.parse()?,
            epoch: self.freeze_epoch,
            cursor: DeviceKey(self.freeze_cursor),
            next_chunk: self.freeze_chunks,
            hold_ms: 0,
        })
    }
}

/// A chunk just claimed, with the live ones among its recipients as parallel arrays: one row per chunk, not per device.
#[derive(Debug, FromRow)]
pub(super) struct ClaimedRow {
    fanout_id: i64,
    chunk_no: i32,
    epoch: i32,
    class: i16,
    rank: i64,
    n: i16,
    done: String,
    maybe: String,
    keys: Vec<i64>,
    live: Vec<i64>,
    tokens: Vec<Option<String>>,
    fids: Vec<Option<String>>,
    platforms: Vec<i16>,
    locales: Vec<String>,
    versions: Vec<i64>,
}

impl ClaimedRow {
    /// What the chunk is handed back by.
    pub(super) fn hold(&self) -> (ChunkRef, i32) {
        (chunk_ref(self.fanout_id, self.chunk_no), self.epoch)
    }

    pub(super) fn parse(mut self) -> Result<ClaimedChunk, Fault> {
        let n = length(self.n)?;
        if self.keys.len() != n {
            return Err(corrupt(format!("a chunk of {n} recipients has {} keys", self.keys.len())));
        }
        let keys: Vec<DeviceKey> = self.keys.iter().copied().map(DeviceKey).collect();
        let mut live = self.recipients()?;
        Ok(ClaimedChunk {
            chunk: chunk_ref(self.fanout_id, self.chunk_no),
            epoch: self.epoch,
            class: Class::from_code(self.class)?,
            rank: self.rank,
            recipients: keys.iter().map(|key| live.remove(key)).collect(),
            keys,
            done: Bitmap::from_text(&self.done, n)?,
            maybe: Bitmap::from_text(&self.maybe, n)?,
        })
    }

    /// All arrays come from one `array_agg` each over the same rows, so they have one length and one order.
    fn recipients(&mut self) -> Result<HashMap<DeviceKey, Recipient>, Fault> {
        let mut live = HashMap::with_capacity(self.live.len());
        for i in 0..self.live.len() {
            let key = DeviceKey(self.live[i]);
            let recipient = Recipient {
                key,
                address: address(self.tokens[i].take(), self.fids[i].take())?,
                platform: Platform::from_code(self.platforms[i])?,
                locale: parse_locale(&self.locales[i])?,
                version: self.versions[i],
            };
            live.insert(key, recipient);
        }
        Ok(live)
    }
}

/// The address of a device row: the table allows exactly one of the two.
pub(super) fn address(token: Option<String>, fid: Option<String>) -> Result<Address, Fault> {
    match (token, fid) {
        (Some(token), None) => Ok(Address::Token(token)),
        (None, Some(fid)) => Ok(Address::Fid(fid)),
        _ => Err(corrupt("a device needs exactly one of token and fid")),
    }
}

/// Both address columns of a device row.
pub(super) fn columns(address: &Address) -> (Option<&str>, Option<&str>) {
    match address {
        Address::Token(token) => (Some(token), None),
        Address::Fid(fid) => (None, Some(fid)),
    }
}

pub(super) fn parse_locale(raw: &str) -> Result<Locale, Fault> {
    Locale::parse(raw).ok_or_else(|| corrupt("a device's locale is no language tag"))
}

pub(super) fn chunk_ref(fanout: i64, no: i32) -> ChunkRef {
    ChunkRef { fanout: FanoutId(fanout), no }
}

/// Recipients of a chunk.
pub(super) fn length(n: i16) -> Result<usize, Fault> {
    usize::try_from(n).map_err(|_| corrupt(format!("a chunk has {n} recipients")))
}
