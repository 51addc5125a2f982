//! Owns reading who is frozen in the chunks of a fan-out, for those derived from it.
//! Must never know: who of them counts (that is `store::frozen`'s), or what for.

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};

use super::explain::first_chunk;
use super::fault::Answer;
use super::rows::{code, count, keys_from_bytes, keys_to_json};
use super::sql;
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Source;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::Outcome;
use crate::store::frozen::{CHUNKS_AT_ONCE, Frozen, Since};
use crate::store::{ChunkState, FrozenPage};

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

pub(super) async fn reached(conn: &mut SqliteConnection, page: FrozenPage) -> Answer<Vec<(DeviceKey, bool)>> {
    let mut pages = Pages::from(conn, page).await?;
    let mut found = Vec::new();
    while found.len() < page.limit as usize
        && let Some(chunks) = pages.next(conn).await?
    {
        found.extend(chunks.iter().flat_map(|chunk| chunk.reached(page.after)));
    }
    Ok(found)
}

pub(super) async fn failed(conn: &mut SqliteConnection, page: FrozenPage, source: Source) -> Answer<Vec<DeviceKey>> {
    let replays: Vec<i64> = query_scalar(sql::REPLAYS_OF).bind(page.of.0).fetch_all(&mut *conn).await?;
    let mut pages = Pages::from(conn, page).await?;
    let mut found = Vec::new();
    while found.len() < page.limit as usize
        && let Some(mut chunks) = pages.next(conn).await?
    {
        failures(conn, page.of, &mut chunks).await?;
        let mut keys: Vec<DeviceKey> = chunks.iter().flat_map(|chunk| chunk.failed(page.after, source)).collect();
        except_reached(conn, &replays, source, &mut keys).await?;
        found.extend(live(conn, keys).await?);
    }
    Ok(found)
}

/// Takes out who does not lack it any more, as far as replays since then know.
async fn except_reached(
    conn: &mut SqliteConnection,
    replays: &[i64],
    source: Source,
    keys: &mut Vec<DeviceKey>,
) -> Answer<()> {
    let (Some(first), Some(last)) = (keys.first().copied(), keys.last().copied()) else { return Ok(()) };
    let mut since = Since::default();
    for replay in replays {
        let page = FrozenPage { of: FanoutId(*replay), after: DeviceKey(first.0 - 1), limit: 0 };
        let mut pages = Pages::from(conn, page).await?;
        while let Some(mut chunks) = pages.next(conn).await? {
            failures(conn, page.of, &mut chunks).await?;
            chunks.iter().for_each(|chunk| since.hear(chunk, page.after, source));
            if chunks.last().is_some_and(|chunk| chunk.keys.last().is_some_and(|key| *key >= last)) {
                break;
            }
        }
    }
    keys.retain(|key| !since.keeps_out(*key));
    Ok(())
}

async fn live(conn: &mut SqliteConnection, mut keys: Vec<DeviceKey>) -> Answer<Vec<DeviceKey>> {
    let live: Vec<i64> = query_scalar(sql::LIVE_OF).bind(keys_to_json(&keys)).fetch_all(conn).await?;
    let live: HashSet<i64> = live.into_iter().collect();
    keys.retain(|key| live.contains(&key.0));
    Ok(keys)
}

async fn failures(conn: &mut SqliteConnection, of: FanoutId, chunks: &mut [Frozen]) -> Answer<()> {
    let (Some(first), Some(last)) = (chunks.first().map(|c| c.no), chunks.last().map(|c| c.no)) else { return Ok(()) };
    let rows: Vec<(i32, i64, i64)> =
        query_as(sql::FAILURES_OF).bind(of.0).bind(first).bind(last + 1).fetch_all(conn).await?;
    let mut by_chunk: HashMap<i32, BTreeMap<usize, Outcome>> = HashMap::new();
    for (no, ordinal, outcome) in rows {
        by_chunk.entry(no).or_default().insert(count("ordinal", ordinal)?, code(outcome, Outcome::from_code)?);
    }
    for chunk in chunks {
        chunk.failures = by_chunk.remove(&chunk.no).unwrap_or_default();
    }
    Ok(())
}

/// The chunks of a fan-out from the one that a key is in, a few at a time.
struct Pages {
    of: FanoutId,
    next: i32,
    end: i32,
}

impl Pages {
    async fn from(conn: &mut SqliteConnection, page: FrozenPage) -> Answer<Self> {
        let end: Option<i32> = query_scalar(sql::FREEZE_CHUNKS).bind(page.of.0).fetch_optional(&mut *conn).await?;
        let end = end.unwrap_or(0);
        let next = first_chunk(conn, page.of, page.after, end).await?.unwrap_or(0);
        Ok(Self { of: page.of, next, end })
    }

    async fn next(&mut self, conn: &mut SqliteConnection) -> Answer<Option<Vec<Frozen>>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let to = (self.next + CHUNKS_AT_ONCE).min(self.end);
        let rows: Vec<ChunkRow> =
            query_as(sql::FROZEN_CHUNKS).bind(self.of.0).bind(self.next).bind(to).fetch_all(conn).await?;
        self.next = to;
        rows.into_iter().map(ChunkRow::parse).collect::<Answer<Vec<_>>>().map(Some)
    }
}
