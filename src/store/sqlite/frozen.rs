//! Owns reading who is frozen in the chunks of a fan-out, for those derived from it.
//! Must never know: who of them counts (that is `store::frozen`'s), or what for.

use std::collections::{BTreeMap, HashSet};

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};

use super::explain::first_chunk;
use super::fault::{Answer, Fault};
use super::rows::{code, count, keys_from_bytes, keys_to_json};
use super::sql;
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::Outcome;
use crate::store::ChunkState;
use crate::store::frozen::Frozen;
use crate::store::pages::ReadFrozen;
pub(super) use crate::store::pages::{failed, reached};

#[derive(FromRow)]
struct ChunkRow {
    chunk_no: i32,
    n: i64,
    state: i64,
    unclean: bool,
    done: Vec<u8>,
    ok: Vec<u8>,
    maybe: Vec<u8>,
    rest_outcome: Option<i64>,
    keys: Vec<u8>,
}

impl ChunkRow {
    fn parse(self) -> Answer<Frozen> {
        let n = count("chunk length", self.n)?;
        Ok(Frozen {
            no: self.chunk_no,
            keys: keys_from_bytes(&self.keys, n)?,
            state: code(self.state, ChunkState::from_code)?,
            unclean: self.unclean,
            done: Bitmap::from_bytes(&self.done, n)?,
            ok: Bitmap::from_bytes(&self.ok, n)?,
            maybe: Bitmap::from_bytes(&self.maybe, n)?,
            rest: self.rest_outcome.map(|stored| code(stored, Outcome::from_code)).transpose()?,
            failures: BTreeMap::new(),
        })
    }
}

pub(super) async fn kin(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Vec<FanoutId>> {
    let ids: Vec<i64> = query_scalar(sql::KIN).bind(id.0).fetch_all(conn).await?;
    Ok(ids.into_iter().map(FanoutId).collect())
}

impl ReadFrozen for SqliteConnection {
    type Fault = Fault;

    async fn frozen_chunks(&mut self, of: FanoutId) -> Answer<i32> {
        let chunks: Option<i32> = query_scalar(sql::FREEZE_CHUNKS).bind(of.0).fetch_optional(self).await?;
        Ok(chunks.unwrap_or(0))
    }

    async fn chunk_of(&mut self, of: FanoutId, key: DeviceKey, end: i32) -> Answer<Option<i32>> {
        first_chunk(self, of, key, end).await
    }

    async fn chunks(&mut self, of: FanoutId, from: i32, to: i32) -> Answer<Vec<Frozen>> {
        let rows: Vec<ChunkRow> = query_as(sql::FROZEN_CHUNKS).bind(of.0).bind(from).bind(to).fetch_all(self).await?;
        rows.into_iter().map(ChunkRow::parse).collect()
    }

    async fn failures(&mut self, of: FanoutId, from: i32, to: i32) -> Answer<Vec<(i32, usize, Outcome)>> {
        let rows: Vec<(i32, i64, i64)> =
            query_as(sql::FAILURES_OF).bind(of.0).bind(from).bind(to).fetch_all(self).await?;
        let read = |(no, at, outcome)| Ok((no, count("ordinal", at)?, code(outcome, Outcome::from_code)?));
        rows.into_iter().map(read).collect()
    }

    async fn replays(&mut self, of: FanoutId) -> Answer<Vec<FanoutId>> {
        let ids: Vec<i64> = query_scalar(sql::REPLAYS_OF).bind(of.0).fetch_all(self).await?;
        Ok(ids.into_iter().map(FanoutId).collect())
    }

    async fn live(&mut self, keys: &[DeviceKey]) -> Answer<HashSet<DeviceKey>> {
        let live: Vec<i64> = query_scalar(sql::LIVE_OF).bind(keys_to_json(keys)).fetch_all(self).await?;
        Ok(live.into_iter().map(DeviceKey).collect())
    }
}
