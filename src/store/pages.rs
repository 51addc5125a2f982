//! Owns reading through the frozen chunks of a fan-out for those derived from it, a few at a time, for both databases.
//! Must never know: SQL, or who of a chunk counts (that is [`super::frozen`]'s).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::FrozenPage;
use super::frozen::{CHUNKS_AT_ONCE, Frozen, Since};
use crate::domain::derived::Source;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::Outcome;

/// What is asked of a database.
pub(super) trait ReadFrozen: Send {
    /// Why it did not answer.
    type Fault: Send;

    /// How many chunks of a fan-out are frozen; 0 when there is no such fan-out.
    fn frozen_chunks(&mut self, of: FanoutId) -> impl Future<Output = Result<i32, Self::Fault>> + Send;

    /// The chunk a key is in, if it is in any of the first `end`; all before it hold smaller keys.
    fn chunk_of(
        &mut self,
        of: FanoutId,
        key: DeviceKey,
        end: i32,
    ) -> impl Future<Output = Result<Option<i32>, Self::Fault>> + Send;

    /// Chunks from one number up to another, in order, without their failures.
    fn chunks(
        &mut self,
        of: FanoutId,
        from: i32,
        to: i32,
    ) -> impl Future<Output = Result<Vec<Frozen>, Self::Fault>> + Send;

    /// Failures of the same chunks, by chunk and position.
    fn failures(
        &mut self,
        of: FanoutId,
        from: i32,
        to: i32,
    ) -> impl Future<Output = Result<Vec<(i32, usize, Outcome)>, Self::Fault>> + Send;

    /// Replays of the same message since, of whichever fan-out of the family, in order: what an earlier one knew, its own
    /// recipients were chosen by.
    fn replays(&mut self, of: FanoutId) -> impl Future<Output = Result<Vec<FanoutId>, Self::Fault>> + Send;

    /// Those of the devices that are live.
    fn live(&mut self, keys: &[DeviceKey]) -> impl Future<Output = Result<HashSet<DeviceKey>, Self::Fault>> + Send;
}

/// [`Store::reached_page`](super::Store::reached_page).
///
/// # Errors
/// Those of the database.
pub(super) async fn reached<R: ReadFrozen>(
    reads: &mut R,
    page: FrozenPage,
) -> Result<Vec<(DeviceKey, bool)>, R::Fault> {
    let mut pages = Pages::from(reads, page).await?;
    let mut found = Vec::new();
    while found.len() < page.limit as usize
        && let Some(chunks) = pages.next(reads).await?
    {
        found.extend(chunks.iter().flat_map(|chunk| chunk.reached(page.after)));
    }
    Ok(found)
}

/// [`Store::failed_page`](super::Store::failed_page).
///
/// # Errors
/// Those of the database.
pub(super) async fn failed<R: ReadFrozen>(
    reads: &mut R,
    page: FrozenPage,
    source: Source,
) -> Result<Vec<DeviceKey>, R::Fault> {
    let replays = reads.replays(page.of).await?;
    let mut pages = Pages::from(reads, page).await?;
    let mut found = Vec::new();
    while found.len() < page.limit as usize
        && let Some(mut chunks) = pages.next(reads).await?
    {
        add_failures(reads, page.of, &mut chunks).await?;
        let mut keys: Vec<DeviceKey> = chunks.iter().flat_map(|chunk| chunk.failed(page.after, source)).collect();
        except_reached(reads, &replays, source, &mut keys).await?;
        let live = reads.live(&keys).await?;
        found.extend(keys.into_iter().filter(|key| live.contains(key)));
    }
    Ok(found)
}

/// Takes out who does not lack it any more, as far as replays since then know.
async fn except_reached<R: ReadFrozen>(
    reads: &mut R,
    replays: &[FanoutId],
    source: Source,
    keys: &mut Vec<DeviceKey>,
) -> Result<(), R::Fault> {
    let (Some(first), Some(last)) = (keys.first().copied(), keys.last().copied()) else { return Ok(()) };
    let mut since = Since::default();
    for replay in replays {
        let page = FrozenPage { of: *replay, after: DeviceKey(first.0 - 1), limit: 0 };
        let mut pages = Pages::from(reads, page).await?;
        while let Some(mut chunks) = pages.next(reads).await? {
            add_failures(reads, page.of, &mut chunks).await?;
            chunks.iter().for_each(|chunk| since.hear(chunk, page.after, source));
            if chunks.last().is_some_and(|chunk| chunk.keys.last().is_some_and(|key| *key >= last)) {
                break;
            }
        }
    }
    keys.retain(|key| !since.keeps_out(*key));
    Ok(())
}

async fn add_failures<R: ReadFrozen>(reads: &mut R, of: FanoutId, chunks: &mut [Frozen]) -> Result<(), R::Fault> {
    let (Some(first), Some(last)) = (chunks.first().map(|c| c.no), chunks.last().map(|c| c.no)) else { return Ok(()) };
    let mut by_chunk: HashMap<i32, BTreeMap<usize, Outcome>> = HashMap::new();
    for (no, ordinal, outcome) in reads.failures(of, first, last + 1).await? {
        by_chunk.entry(no).or_default().insert(ordinal, outcome);
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
    async fn from<R: ReadFrozen>(reads: &mut R, page: FrozenPage) -> Result<Self, R::Fault> {
        let end = reads.frozen_chunks(page.of).await?;
        let next = reads.chunk_of(page.of, page.after, end).await?.unwrap_or(0);
        Ok(Self { of: page.of, next, end })
    }

    async fn next<R: ReadFrozen>(&mut self, reads: &mut R) -> Result<Option<Vec<Frozen>>, R::Fault> {
        if self.next >= self.end {
            return Ok(None);
        }
        let to = (self.next + CHUNKS_AT_ONCE).min(self.end);
        let chunks = reads.chunks(self.of, self.next, to).await?;
        self.next = to;
        Ok(Some(chunks))
    }
}
