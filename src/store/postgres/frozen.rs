//! Owns reading who is frozen in the chunks of a fan-out, for those derived from it.
//! Must never know: who of them counts (that is `store::frozen`'s), or what for.

use std::collections::{BTreeMap, HashSet};

use sqlx::{FromRow, PgConnection};

use super::explain::first_chunk;
use super::fault::{Fault, corrupt};
use super::rows::length;
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::Outcome;
use crate::store::ChunkState;
use crate::store::frozen::Frozen;
use crate::store::pages::ReadFrozen;
pub(super) use crate::store::pages::{failed, reached};

pub(super) const FREEZE_CHUNKS: &str = "SELECT freeze_chunks FROM fanout WHERE id = $1";

/// The family of a fan-out: it goes by the id of one of its members, which has no family of its own.
pub(super) const KIN: &str = "
WITH f AS (SELECT id, coalesce(family, id) AS family FROM fanout WHERE id = $1)
SELECT k.id FROM f JOIN fanout k ON k.id = f.family OR k.family = f.family WHERE k.id <> f.id ORDER BY k.id";

pub(super) const CHUNKS: &str = "
SELECT k.chunk_no, k.n, k.state, k.unclean, k.done::text AS done, k.ok::text AS ok, k.maybe::text AS maybe,
       k.rest_outcome, i.keys
FROM chunk k JOIN chunk_ids i ON i.fanout_id = k.fanout_id AND i.chunk_no = k.chunk_no
WHERE k.fanout_id = $1 AND k.chunk_no >= $2 AND k.chunk_no < $3 ORDER BY k.chunk_no";

pub(super) const FAILURES: &str =
    "SELECT chunk_no, ordinal, outcome FROM failure WHERE fanout_id = $1 AND chunk_no >= $2 AND chunk_no < $3";

pub(super) const LIVE: &str = "SELECT device_key FROM device WHERE device_key = ANY ($1) AND state = 0";

pub(super) const REPLAYS: &str = "
SELECT r.id FROM fanout p JOIN fanout r ON r.family = coalesce(p.family, p.id)
WHERE p.id = $1 AND r.event_id = p.event_id AND r.kind = 2 AND r.id > p.id ORDER BY r.id";

#[derive(Debug, FromRow)]
struct ChunkRow {
    chunk_no: i32,
    n: i16,
    state: i16,
    unclean: bool,
    done: String,
    ok: String,
    maybe: String,
    rest_outcome: Option<i16>,
    keys: Vec<i64>,
}

impl ChunkRow {
    fn parse(self) -> Result<Frozen, Fault> {
        let n = length(self.n)?;
        if self.keys.len() != n {
            return Err(corrupt(format!("a chunk of {n} recipients has {} keys", self.keys.len())));
        }
        Ok(Frozen {
            no: self.chunk_no,
            keys: self.keys.into_iter().map(DeviceKey).collect(),
            state: ChunkState::from_code(self.state)?,
            unclean: self.unclean,
            done: Bitmap::from_text(&self.done, n)?,
            ok: Bitmap::from_text(&self.ok, n)?,
            maybe: Bitmap::from_text(&self.maybe, n)?,
            rest: self.rest_outcome.map(Outcome::from_code).transpose()?,
            failures: BTreeMap::new(),
        })
    }
}

pub(super) async fn kin(conn: &mut PgConnection, id: FanoutId) -> Result<Vec<FanoutId>, Fault> {
    let ids: Vec<i64> = sqlx::query_scalar(KIN).bind(id.0).fetch_all(conn).await?;
    Ok(ids.into_iter().map(FanoutId).collect())
}

impl ReadFrozen for PgConnection {
    type Fault = Fault;

    async fn frozen_chunks(&mut self, of: FanoutId) -> Result<i32, Fault> {
        let chunks: Option<i32> = sqlx::query_scalar(FREEZE_CHUNKS).bind(of.0).fetch_optional(self).await?;
        Ok(chunks.unwrap_or(0))
    }

    async fn chunk_of(&mut self, of: FanoutId, key: DeviceKey, end: i32) -> Result<Option<i32>, Fault> {
        first_chunk(self, of, key, end).await
    }

    async fn chunks(&mut self, of: FanoutId, from: i32, to: i32) -> Result<Vec<Frozen>, Fault> {
        let rows: Vec<ChunkRow> = sqlx::query_as(CHUNKS).bind(of.0).bind(from).bind(to).fetch_all(self).await?;
        rows.into_iter().map(ChunkRow::parse).collect()
    }

    async fn failures(&mut self, of: FanoutId, from: i32, to: i32) -> Result<Vec<(i32, usize, Outcome)>, Fault> {
        let rows: Vec<(i32, i16, i16)> =
            sqlx::query_as(FAILURES).bind(of.0).bind(from).bind(to).fetch_all(self).await?;
        rows.into_iter().map(|(no, at, outcome)| Ok((no, length(at)?, Outcome::from_code(outcome)?))).collect()
    }

    async fn replays(&mut self, of: FanoutId) -> Result<Vec<FanoutId>, Fault> {
        let ids: Vec<i64> = sqlx::query_scalar(REPLAYS).bind(of.0).fetch_all(self).await?;
        Ok(ids.into_iter().map(FanoutId).collect())
    }

    async fn live(&mut self, keys: &[DeviceKey]) -> Result<HashSet<DeviceKey>, Fault> {
        let asked: Vec<i64> = keys.iter().map(|key| key.0).collect();
        let live: Vec<i64> = sqlx::query_scalar(LIVE).bind(asked).fetch_all(self).await?;
        Ok(live.into_iter().map(DeviceKey).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::batch::FanoutKind;

    #[test]
    fn the_code_of_a_replay_written_out_here_is_that_of_the_domain() {
        assert_eq!(FanoutKind::Replay.code(), 2);
    }
}
