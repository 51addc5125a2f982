//! Owns the chunks in hand, the most urgent first, and who of them is launched next.
//! Must never know: connections, grants, or why a recipient waits.

mod chunk;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::domain::batch::{ClaimedChunk, Class, FanoutJob, OutcomeRecord};
use crate::domain::ids::{ChunkRef, FanoutId};

pub use chunk::{Chunk, Ending};

/// Order of chunks: the most urgent class first, then rank. The epoch tells a chunk from the same one owned before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandKey {
    /// Urgency.
    pub class: Class,
    /// Order inside the class.
    pub rank: i64,
    /// Which chunk.
    pub chunk: ChunkRef,
    /// Owned under this epoch.
    pub epoch: i32,
}

/// One recipient of one chunk in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// Its chunk.
    pub key: HandKey,
    /// Its position there.
    pub ordinal: u16,
}

/// Of this many launches one goes to the least urgent class, so that nothing starves: a floor of 5 %.
const FLOOR_ONE_IN: u64 = 20;

/// All chunks in hand, most urgent first.
#[derive(Debug, Default)]
pub struct Hand {
    chunks: BTreeMap<HandKey, Chunk>,
    by_ref: HashMap<ChunkRef, HandKey>,
    picks: u64,
    /// Failures in a row of fan-outs in hand.
    failing: HashMap<FanoutId, u32>,
}

impl Hand {
    /// Takes a chunk in hand; the outcomes of those that are gone come back at once.
    pub fn add(&mut self, claimed: ClaimedChunk, job: Arc<FanoutJob>) -> (HandKey, Vec<OutcomeRecord>) {
        let key = HandKey { class: claimed.class, rank: claimed.rank, chunk: claimed.chunk, epoch: claimed.epoch };
        let mut chunk = Chunk::new(claimed, job);
        let records = chunk.take_gone();
        self.by_ref.insert(chunk.meta.chunk, key);
        self.chunks.insert(key, chunk);
        (key, records)
    }

    /// The next recipient to launch: of the most urgent chunk, and once in twenty of the least urgent class.
    pub fn pick(&mut self) -> Option<Spot> {
        self.picks += 1;
        if self.picks.is_multiple_of(FLOOR_ONE_IN) {
            let class = self.chunks.values().rev().find(|c| c.launchable() > 0).map(|c| c.job.class)?;
            let floor = self.chunks.iter_mut().find(|(k, c)| k.class == class && c.launchable() > 0);
            if let Some(spot) = floor.and_then(|(key, chunk)| spot_of(*key, chunk)) {
                return Some(spot);
            }
        }
        self.chunks.iter_mut().find_map(|(key, chunk)| spot_of(*key, chunk))
    }

    /// The next recipient while the provider is not known to be well: the most urgent one that had no attempt yet, where
    /// there is one, and far from those that had. Recipients that failed, and their neighbours, may fail for a reason of
    /// their own.
    pub fn pick_fresh(&mut self) -> Option<Spot> {
        let fresh = self.chunks.iter_mut().find_map(|(key, chunk)| last_of(*key, chunk));
        fresh.or_else(|| self.pick())
    }

    /// The recipient to probe the provider with, and to try it with after an outage. It comes from the fan-out that has
    /// failed least since it last got through, then from the most urgent one: whole fan-outs may fail for a reason of their
    /// own (a replay to devices that always fail), and would hold a half-open breaker shut for everybody, and open one that
    /// has just closed.
    pub fn pick_probe(&mut self) -> Option<Spot> {
        if let Some(key) = self.calmest(Chunk::has_fresh) {
            return self.chunks.get_mut(&key).and_then(|chunk| last_of(key, chunk));
        }
        let key = self.calmest(|chunk| chunk.launchable() > 0)?;
        self.chunks.get_mut(&key).and_then(|chunk| spot_of(key, chunk))
    }

    fn calmest(&self, wanted: impl Fn(&Chunk) -> bool) -> Option<HandKey> {
        let failing = |key: &HandKey| self.failing.get(&key.chunk.fanout).copied().unwrap_or(0);
        self.chunks
            .iter()
            .filter(|(_, chunk)| wanted(chunk))
            .map(|(key, _)| *key)
            .min_by_key(|key| (failing(key), *key))
    }

    /// The provider failed somebody of a fan-out.
    pub fn failed(&mut self, fanout: FanoutId) {
        let failing = self.failing.entry(fanout).or_default();
        *failing = failing.saturating_add(1);
    }

    /// It served somebody of a fan-out.
    pub fn served(&mut self, fanout: FanoutId) {
        self.failing.remove(&fanout);
    }

    /// A chunk in hand.
    #[must_use]
    pub fn get(&self, key: HandKey) -> Option<&Chunk> {
        self.chunks.get(&key)
    }

    /// A chunk in hand.
    pub fn get_mut(&mut self, key: HandKey) -> Option<&mut Chunk> {
        self.chunks.get_mut(&key)
    }

    /// Where a chunk is in hand, under its latest epoch.
    #[must_use]
    pub fn find(&self, chunk: ChunkRef) -> Option<HandKey> {
        self.by_ref.get(&chunk).copied()
    }

    /// Puts a chunk out of hand.
    pub fn remove(&mut self, key: HandKey) -> Option<Chunk> {
        if self.find(key.chunk) == Some(key) {
            self.by_ref.remove(&key.chunk);
        }
        let chunk = self.chunks.remove(&key);
        if !self.holds(key.chunk.fanout) {
            self.failing.remove(&key.chunk.fanout);
        }
        chunk
    }

    /// Recipients that can be launched now.
    #[must_use]
    pub fn launchable(&self) -> usize {
        self.chunks.values().map(Chunk::launchable).sum()
    }

    /// The place of the chunk whose recipients come at the `n`-th launch from now; `None` with fewer launchable.
    #[must_use]
    pub fn place_of(&self, n: usize) -> Option<(Class, i64)> {
        let mut so_far = 0;
        let mut reaches = self.chunks.iter().skip_while(|(_, chunk)| {
            so_far += chunk.launchable();
            so_far < n
        });
        reaches.next().map(|(key, _)| (key.class, key.rank))
    }

    /// Recipients without an outcome.
    #[must_use]
    pub fn open(&self) -> usize {
        self.chunks.values().map(Chunk::open).sum()
    }

    /// Every chunk in hand.
    pub fn iter(&self) -> impl Iterator<Item = (HandKey, &Chunk)> {
        self.chunks.iter().map(|(key, chunk)| (*key, chunk))
    }

    /// The least urgent class in hand.
    #[must_use]
    pub fn least_urgent(&self) -> Option<Class> {
        self.chunks.last_key_value().map(|(key, _)| key.class)
    }

    /// Whether a fan-out has a chunk in hand.
    #[must_use]
    pub fn holds(&self, fanout: FanoutId) -> bool {
        self.chunks.keys().any(|key| key.chunk.fanout == fanout)
    }

    /// Whether no chunk is in hand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

fn last_of(key: HandKey, chunk: &mut Chunk) -> Option<Spot> {
    chunk.last_fresh().map(|ordinal| Spot { key, ordinal })
}

fn spot_of(key: HandKey, chunk: &mut Chunk) -> Option<Spot> {
    chunk.next().map(|ordinal| Spot { key, ordinal })
}

#[cfg(test)]
mod tests;
