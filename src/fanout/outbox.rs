//! Owns outcomes on their way to the ledger, and the exposure: how many recipients a kill could repeat.
//! Must never know: how the ledger writes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::batch::{ChunkEnd, ChunkMeta, Outbound, OutcomeRecord, PutOff};
use crate::domain::derived::Pause;
use crate::domain::ids::{ChunkRef, FanoutId};
use crate::domain::tally::PartCounters;
use crate::mutant;

/// Longest time an outcome waits here for company.
const LINGER: Duration = Duration::from_millis(10);

/// Most outcomes in one message.
const BATCH: usize = 100;

/// One semaphore of slots + lent + unflushed: taken at launch, given back when the flush is on disk, or at the end
/// of an attempt that gave no outcome.
#[derive(Debug)]
pub struct Exposure {
    used: usize,
    most: usize,
}

impl Exposure {
    /// Nothing exposed yet.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { used: 0, most }
    }

    /// How many more may be launched.
    #[must_use]
    pub fn free(&self) -> usize {
        let most = if mutant::on("exposure_unbounded") { usize::MAX } else { self.most };
        most.saturating_sub(self.used)
    }

    /// Takes one.
    pub const fn take(&mut self) {
        self.used += 1;
    }

    /// Gives some back.
    pub fn give(&mut self, n: usize) {
        debug_assert!(n <= self.used, "exposure given back twice");
        self.used = self.used.saturating_sub(n);
    }

    /// Recipients exposed now.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.used
    }
}

/// What waits to be handed over.
#[derive(Debug, Default)]
pub struct Outbox {
    pending: Outbound,
    metas: HashMap<ChunkRef, ChunkMeta>,
    since: Option<Instant>,
    /// A message is due at this many outcomes.
    batch: usize,
}

impl Outbox {
    /// `unflushed` = outcomes the exposure allows to wait; a message never waits for more than that.
    #[must_use]
    pub fn new(unflushed: usize) -> Self {
        Self { batch: unflushed.clamp(1, BATCH), ..Self::default() }
    }

    /// Adds an outcome.
    pub fn outcome(&mut self, meta: ChunkMeta, record: OutcomeRecord, now: Instant) {
        self.touch(meta, now);
        self.pending.outcomes.push(record);
    }

    /// Adds a recipient that may have been reached, without an outcome.
    pub fn maybe(&mut self, meta: ChunkMeta, ordinal: u16, now: Instant) {
        self.touch(meta, now);
        self.pending.maybes.push((meta.chunk, ordinal));
    }

    /// Adds the end of a chunk.
    pub fn end(&mut self, meta: ChunkMeta, end: ChunkEnd, now: Instant) {
        self.touch(meta, now);
        self.pending.ends.push(end);
    }

    /// Hands a chunk back, behind the outcomes that are here already.
    pub fn release(&mut self, held: (ChunkRef, i32), now: Instant) {
        self.since.get_or_insert(now);
        self.pending.released.push(held);
    }

    /// Hands chunks back until later.
    pub fn put_off(&mut self, put_off: PutOff, now: Instant) {
        self.since.get_or_insert(now);
        self.pending.put_off.push(put_off);
    }

    /// Lets chunks that were put off be claimed.
    pub fn recall(&mut self, chunks: Vec<(ChunkRef, i32)>, now: Instant) {
        self.since.get_or_insert(now);
        self.pending.recalled.extend(chunks);
    }

    /// Says that a fan-out is paused.
    pub fn pause(&mut self, pause: Pause, now: Instant) {
        self.since.get_or_insert(now);
        self.pending.paused.push(pause);
    }

    /// Adds counters; they alone make no message due.
    pub fn part(&mut self, id: FanoutId, counters: PartCounters) {
        self.pending.parts.retain(|(other, _)| *other != id);
        self.pending.parts.push((id, counters));
    }

    fn touch(&mut self, meta: ChunkMeta, now: Instant) {
        let known = self.metas.entry(meta.chunk).or_insert(meta);
        known.epoch = known.epoch.max(meta.epoch);
        self.since.get_or_insert(now);
    }

    /// The next message, when one is due: enough outcomes, or waited long enough, or nothing more will come (`idle`).
    pub fn due(&mut self, now: Instant, idle: bool) -> Option<Outbound> {
        let full = self.pending.outcomes.len() >= self.batch || self.pending.is_waited_for();
        let late = self.since.is_some_and(|t| now >= t + LINGER);
        let any = self.since.is_some() || !self.pending.parts.is_empty();
        (full || late || (idle && any) || self.only_parts()).then(|| self.drain(idle))
    }

    fn only_parts(&self) -> bool {
        self.since.is_none() && !self.pending.parts.is_empty()
    }

    fn drain(&mut self, idle: bool) -> Outbound {
        self.since = None;
        let mut out = std::mem::take(&mut self.pending);
        out.chunks = self.metas.drain().map(|(_, meta)| meta).collect();
        out.idle = idle;
        out
    }

    /// When a message becomes due by waiting.
    #[must_use]
    pub fn next_change(&self) -> Option<Instant> {
        self.since.map(|t| t + LINGER)
    }

    /// Whether nothing waits here.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.since.is_none() && self.pending.parts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::DeviceKey;
    use crate::domain::outcome::Outcome;

    const CHUNK: ChunkRef = ChunkRef { fanout: FanoutId(1), no: 0 };
    const META: ChunkMeta = ChunkMeta { chunk: CHUNK, epoch: 1, n: 500 };

    fn record(ordinal: u16) -> OutcomeRecord {
        let outcome = Outcome::Delivered;
        OutcomeRecord { chunk: CHUNK, ordinal, key: DeviceKey(1), outcome, maybe: true, failure: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_waits_for_company_but_not_for_long() {
        let t = Instant::now();
        let mut outbox = Outbox::new(16);
        outbox.outcome(META, record(0), t);
        assert!(outbox.due(t, false).is_none());
        let late = outbox.due(t + LINGER, false).unwrap();
        assert_eq!((late.outcomes.len(), late.chunks.as_slice()), (1, [META].as_slice()));
        assert!(outbox.is_empty() && outbox.due(t + LINGER, true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_at_once_when_the_exposure_would_fill_or_nothing_else_comes() {
        let t = Instant::now();
        let mut outbox = Outbox::new(16);
        for i in 0..16 {
            assert!(outbox.due(t, false).is_none());
            outbox.outcome(META, record(i), t);
        }
        assert_eq!(outbox.due(t, false).unwrap().outcomes.len(), 16);
        outbox.outcome(META, record(20), t);
        assert!(outbox.due(t, true).unwrap().idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_to_hand_back_goes_at_once_with_what_is_known_of_it() {
        let t = Instant::now();
        let mut outbox = Outbox::new(16);
        outbox.outcome(ChunkMeta { epoch: 2, ..META }, record(0), t);
        outbox.outcome(META, record(1), t);
        outbox.release((CHUNK, 2), t);
        let out = outbox.due(t, false).unwrap();
        assert_eq!((out.outcomes.len(), out.released.as_slice()), (2, [(CHUNK, 2)].as_slice()));
        assert_eq!(out.chunks[0].epoch, 2, "the latest epoch");
        assert!(outbox.is_empty());
        let put_off = PutOff { not_before_ms: 9, chunks: vec![(CHUNK, 2)] };
        outbox.put_off(put_off.clone(), t);
        assert_eq!(outbox.due(t, false).unwrap().put_off, [put_off]);
        outbox.recall(vec![(CHUNK, 2)], t);
        assert_eq!(outbox.due(t, false).unwrap().recalled, [(CHUNK, 2)]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn exposure_counts_both_ways() {
        let mut exposure = Exposure::new(2);
        exposure.take();
        exposure.take();
        assert_eq!((exposure.free(), exposure.used()), (0, 2));
        exposure.give(1);
        assert_eq!(exposure.free(), 1);
    }
}
