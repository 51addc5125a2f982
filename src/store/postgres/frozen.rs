//! Owns reading who is frozen in the chunks of a fan-out, for those derived from it.
//! Must never know: who of them counts (that is `store::frozen`'s), or what for.

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::{FromRow, PgConnection};

use super::explain::first_chunk;
use super::fault::{Fault, corrupt};
use super::rows::length;
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Source;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::Outcome;
use crate::store::frozen::{CHUNKS_AT_ONCE, Frozen, Since};
use crate::store::{ChunkState, FrozenPage};

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

/// Replays of the same message since, of whichever fan-out of the family: what an earlier one knew, its own recipients
/// were chosen by.
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

pub(super) async fn reached(conn: &mut PgConnection, page: FrozenPage) -> Result<Vec<(DeviceKey, bool)>, Fault> {
    let mut pages = Pages::from(conn, page).await?;
    let mut found = Vec::new();
    while found.len() < page.limit as usize
        && let Some(chunks) = pages.next(conn).await?
    {
        found.extend(chunks.iter().flat_map(|chunk| chunk.reached(page.after)));
    }
    Ok(found)
}

pub(super) async fn failed(conn: &mut PgConnection, page: FrozenPage, source: Source) -> Result<Vec<DeviceKey>, Fault> {
    let replays: Vec<i64> = sqlx::query_scalar(REPLAYS).bind(page.of.0).fetch_all(&mut *conn).await?;
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
    conn: &mut PgConnection,
    replays: &[i64],
    source: Source,
    keys: &mut Vec<DeviceKey>,
) -> Result<(), Fault> {
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

async fn live(conn: &mut PgConnection, mut keys: Vec<DeviceKey>) -> Result<Vec<DeviceKey>, Fault> {
    let asked: Vec<i64> = keys.iter().map(|key| key.0).collect();
    let live: Vec<i64> = sqlx::query_scalar(LIVE).bind(asked).fetch_all(conn).await?;
    let live: HashSet<i64> = live.into_iter().collect();
    keys.retain(|key| live.contains(&key.0));
    Ok(keys)
}

async fn failures(conn: &mut PgConnection, of: FanoutId, chunks: &mut [Frozen]) -> Result<(), Fault> {
    let (Some(first), Some(last)) = (chunks.first().map(|c| c.no), chunks.last().map(|c| c.no)) else { return Ok(()) };
    let rows: Vec<(i32, i16, i16)> =
        sqlx::query_as(FAILURES).bind(of.0).bind(first).bind(last + 1).fetch_all(conn).await?;
    let mut by_chunk: HashMap<i32, BTreeMap<usize, Outcome>> = HashMap::new();
    for (no, ordinal, outcome) in rows {
        by_chunk.entry(no).or_default().insert(length(ordinal)?, Outcome::from_code(outcome)?);
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
    async fn from(conn: &mut PgConnection, page: FrozenPage) -> Result<Self, Fault> {
        let end: Option<i32> = sqlx::query_scalar(FREEZE_CHUNKS).bind(page.of.0).fetch_optional(&mut *conn).await?;
        let end = end.unwrap_or(0);
        let next = first_chunk(conn, page.of, page.after, end).await?.unwrap_or(0);
        Ok(Self { of: page.of, next, end })
    }

    async fn next(&mut self, conn: &mut PgConnection) -> Result<Option<Vec<Frozen>>, Fault> {
        if self.next >= self.end {
            return Ok(None);
        }
        let to = (self.next + CHUNKS_AT_ONCE).min(self.end);
        let rows: Vec<ChunkRow> =
            sqlx::query_as(CHUNKS).bind(self.of.0).bind(self.next).bind(to).fetch_all(conn).await?;
        self.next = to;
        rows.into_iter().map(ChunkRow::parse).collect::<Result<Vec<_>, Fault>>().map(Some)
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
