//! Owns the chunks in hand: who can be launched, who waits, and when a chunk has nobody left.
//! Must never know: connections, grants, or why a recipient waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::domain::batch::{ChunkMeta, ClaimedChunk, Class, FailureRecord, FanoutJob, OutcomeRecord, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::{ChunkRef, DeviceKey, FanoutId};
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::Recipient;

use super::decide::Delivery;

/// Order of chunks: the most urgent class first, then rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandKey {
    /// Urgency.
    pub class: Class,
    /// Order inside the class.
    pub rank: i64,
    /// Which chunk.
    pub chunk: ChunkRef,
    /// Owned under this epoch: a chunk that was lost and claimed anew is another one in hand.
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

/// Why nothing more is launched of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everyone left ends together.
    Rest(RestOutcome),
    /// It is handed back.
    Release,
    /// Another instance owns it.
    Lost,
}

/// A chunk in hand.
#[derive(Debug)]
pub struct Chunk {
    /// Its size and epoch.
    pub meta: ChunkMeta,
    /// What is sent.
    pub job: Arc<FanoutJob>,
    /// What is remembered of recipients that had an attempt.
    pub deliveries: HashMap<u16, Delivery>,
    /// Attempts in flight.
    pub flying: usize,
    /// Recipients waiting for a time.
    pub delayed: usize,
    /// Recipients whose refusal may be about them or about the message.
    pub suspects: usize,
    /// Recipients of a variant that stopped.
    pub shelved: usize,
    /// Nothing more is launched of it.
    pub ending: Option<Ending>,
    recipients: Vec<Option<Recipient>>,
    keys: Vec<DeviceKey>,
    done: Bitmap,
    /// Those from here up to `fresh_end` had no attempt here.
    fresh: usize,
    fresh_end: usize,
    ready: VecDeque<u16>,
}

impl Chunk {
    fn new(claimed: ClaimedChunk, job: Arc<FanoutJob>) -> Self {
        let n = u16::try_from(claimed.keys.len()).unwrap_or(u16::MAX);
        let meta = ChunkMeta { chunk: claimed.chunk, epoch: claimed.epoch, n };
        Self {
            meta,
            job,
            deliveries: HashMap::new(),
            flying: 0,
            delayed: 0,
            suspects: 0,
            shelved: 0,
            ending: None,
            recipients: claimed.recipients,
            keys: claimed.keys,
            done: claimed.done,
            fresh: 0,
            fresh_end: usize::from(n),
            ready: VecDeque::new(),
        }
    }

    /// The recipient at a position, unless it is gone.
    #[must_use]
    pub fn recipient(&self, ordinal: u16) -> Option<&Recipient> {
        self.recipients.get(usize::from(ordinal)).and_then(Option::as_ref)
    }

    /// The frozen key at a position.
    #[must_use]
    pub fn key(&self, ordinal: u16) -> DeviceKey {
        self.keys.get(usize::from(ordinal)).copied().unwrap_or(DeviceKey(0))
    }

    /// Marks an outcome; `false` when there was one already.
    pub fn finish(&mut self, ordinal: u16) -> bool {
        self.deliveries.remove(&ordinal);
        self.done.set(usize::from(ordinal))
    }

    /// Takes over outcomes an earlier owner wrote late.
    pub fn merge_done(&mut self, done: &Bitmap) {
        let fits = self.done.union(done).is_ok();
        debug_assert!(fits, "an acknowledgement of another size");
    }

    /// Makes a recipient launchable again, behind the others.
    pub fn make_ready(&mut self, ordinal: u16) {
        self.ready.push_back(ordinal);
    }

    /// Puts a picked recipient back in front: something was missing to launch it.
    pub fn put_back(&mut self, ordinal: u16) {
        self.ready.push_front(ordinal);
    }

    /// How many can be launched now, as far as the chunk knows.
    #[must_use]
    pub fn launchable(&self) -> usize {
        if self.ending.is_some() { 0 } else { self.ready.len() + (self.fresh_end - self.fresh) }
    }

    /// The next launchable recipient.
    fn next(&mut self) -> Option<u16> {
        if self.ending.is_some() {
            return None;
        }
        while let Some(ordinal) = self.ready.pop_front() {
            if !self.done.get(usize::from(ordinal)) {
                return Some(ordinal);
            }
        }
        while self.fresh < self.fresh_end {
            let i = self.fresh;
            self.fresh += 1;
            if self.waits(i) {
                return u16::try_from(i).ok();
            }
        }
        None
    }

    /// The last recipient that had no attempt here: as far as possible from those that failed.
    fn last_fresh(&mut self) -> Option<u16> {
        if self.ending.is_some() {
            return None;
        }
        while self.fresh < self.fresh_end {
            self.fresh_end -= 1;
            if self.waits(self.fresh_end) {
                return u16::try_from(self.fresh_end).ok();
            }
        }
        None
    }

    fn waits(&self, i: usize) -> bool {
        !self.done.get(i) && self.recipients.get(i).is_some_and(Option::is_some)
    }

    /// Stops launching; the positions that had an attempt and have neither an outcome nor one in flight.
    pub fn stop(&mut self, ending: Ending, flying: &[u16]) -> Vec<u16> {
        self.ending = Some(ending);
        self.ready.clear();
        (self.delayed, self.suspects, self.shelved) = (0, 0, 0);
        let mut tried: Vec<u16> = self.deliveries.keys().copied().filter(|o| !flying.contains(o)).collect();
        tried.sort_unstable();
        tried
    }

    /// Whether nobody is left to launch, wait for or hear from.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let waiting = self.flying + self.delayed + self.suspects;
        waiting == 0 && self.launchable() == 0
    }

    /// Recipients without an outcome.
    #[must_use]
    pub fn open(&self) -> usize {
        self.keys.len() - self.done.count()
    }
}

/// All chunks in hand, most urgent first.
#[derive(Debug, Default)]
pub struct Hand {
    chunks: BTreeMap<HandKey, Chunk>,
    by_ref: HashMap<ChunkRef, HandKey>,
    picks: u64,
}

impl Hand {
    /// Takes a chunk in hand; the outcomes of those that are gone come back at once.
    pub fn add(&mut self, claimed: ClaimedChunk, job: Arc<FanoutJob>) -> (HandKey, Vec<OutcomeRecord>) {
        let key = HandKey { class: claimed.class, rank: claimed.rank, chunk: claimed.chunk, epoch: claimed.epoch };
        let mut chunk = Chunk::new(claimed, job);
        let gone: Vec<u16> =
            (0..chunk.meta.n).filter(|o| !chunk.done.get(usize::from(*o)) && chunk.recipient(*o).is_none()).collect();
        let records = gone.into_iter().map(|ordinal| gone_record(&mut chunk, ordinal)).collect();
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

    /// The recipient to probe the provider with: one that had no attempt yet, where there is one, and far from those
    /// that had. Recipients that failed, and their neighbours, may fail for a reason of their own; as probes they
    /// would hold a half-open breaker shut for everybody.
    pub fn pick_probe(&mut self) -> Option<Spot> {
        let fresh = self.chunks.iter_mut().find_map(|(key, chunk)| {
            let key = *key;
            chunk.last_fresh().map(|ordinal| Spot { key, ordinal })
        });
        fresh.or_else(|| self.pick())
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
        self.chunks.remove(&key)
    }

    /// Recipients that can be launched now.
    #[must_use]
    pub fn launchable(&self) -> usize {
        self.chunks.values().map(Chunk::launchable).sum()
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

    /// Number of chunks in hand.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether no chunk is in hand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

fn spot_of(key: HandKey, chunk: &mut Chunk) -> Option<Spot> {
    chunk.next().map(|ordinal| Spot { key, ordinal })
}

fn gone_record(chunk: &mut Chunk, ordinal: u16) -> OutcomeRecord {
    chunk.finish(ordinal);
    let failure = FailureRecord {
        cause: Cause::None,
        status: 0,
        text: String::new(),
        attempts: 0,
        variant: chunk.job.event.kind.clone(),
        device_version: 0,
    };
    OutcomeRecord {
        chunk: chunk.meta.chunk,
        ordinal,
        key: chunk.key(ordinal),
        outcome: Outcome::Gone,
        maybe: false,
        failure: Some(failure),
    }
}

#[cfg(test)]
mod tests;
