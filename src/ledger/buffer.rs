//! Owns outcomes between the sender and the store: many chunks' bits folded into one idempotent batch.
//! Must never know: when a batch is written.

use std::collections::HashMap;

use crate::domain::batch::{ChunkFlush, ChunkMeta, FlushBatch, Outbound, OutcomeRecord, PutOff};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Pause;
use crate::domain::ids::{ChunkRef, FanoutId};
use crate::domain::outcome::Outcome;
use crate::domain::tally::PartCounters;

/// Facts not on disk yet.
#[derive(Debug, Default)]
pub struct Buffer {
    chunks: HashMap<ChunkRef, ChunkFlush>,
    failures: Vec<OutcomeRecord>,
    parts: HashMap<FanoutId, PartCounters>,
    paused: Vec<Pause>,
    back: Back,
    outcomes: u32,
    ended: bool,
}

/// Chunks on their way back to the store.
#[derive(Debug, Clone, Default)]
pub struct Back {
    /// To be claimed by anybody.
    pub released: Vec<(ChunkRef, i32)>,
    /// Not before a time.
    pub put_off: Vec<PutOff>,
    /// No longer put off.
    pub recalled: Vec<(ChunkRef, i32)>,
}

impl Back {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.released.is_empty() && self.put_off.is_empty() && self.recalled.is_empty()
    }

    fn add(&mut self, more: Self) {
        self.released.extend(more.released);
        self.put_off.extend(more.put_off);
        self.recalled.extend(more.recalled);
    }
}

/// What one flush writes.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The facts.
    pub batch: FlushBatch,
    /// Counters.
    pub parts: Vec<(FanoutId, PartCounters)>,
    /// Fan-outs to pause before anything of them is handed back.
    pub paused: Vec<Pause>,
    /// Chunks to hand back once the facts are written.
    pub back: Back,
    /// Outcomes among the facts.
    pub outcomes: u32,
}

impl Taken {
    /// One part per chunk; counters and chunks to hand back go with the first.
    #[must_use]
    pub fn split(self) -> Vec<Self> {
        let Self { batch, mut parts, mut paused, mut back, .. } = self;
        let mut failures = batch.failures;
        let mut out = Vec::with_capacity(batch.chunks.len());
        for flush in batch.chunks {
            let (own, rest) = failures.into_iter().partition(|record| record.chunk == flush.chunk);
            failures = rest;
            let outcomes = u32::try_from(flush.done.count()).unwrap_or(u32::MAX);
            out.push(Self {
                batch: FlushBatch { chunks: vec![flush], failures: own },
                parts: std::mem::take(&mut parts),
                paused: std::mem::take(&mut paused),
                back: std::mem::take(&mut back),
                outcomes,
            });
        }
        out
    }
}

impl Buffer {
    /// Folds a message in.
    pub fn add(&mut self, out: Outbound) {
        let metas: HashMap<ChunkRef, ChunkMeta> = out.chunks.iter().map(|m| (m.chunk, *m)).collect();
        for record in out.outcomes {
            let Some(flush) = self.chunk(metas.get(&record.chunk)) else { continue };
            let i = usize::from(record.ordinal);
            flush.done.set(i);
            if record.outcome == Outcome::Delivered {
                flush.ok.set(i);
            }
            if record.maybe {
                flush.maybe.set(i);
            }
            self.outcomes += 1;
            if record.failure.is_some() {
                self.failures.push(record);
            }
        }
        for (chunk, ordinal) in out.maybes {
            if let Some(flush) = self.chunk(metas.get(&chunk)) {
                flush.maybe.set(usize::from(ordinal));
            }
        }
        for end in out.ends {
            self.ended = true;
            if let Some(flush) = self.chunk(metas.get(&end.chunk)) {
                flush.rest = end.rest;
            }
        }
        let back = Back { released: out.released, put_off: out.put_off, recalled: out.recalled };
        self.ended |= !back.is_empty() || !out.paused.is_empty();
        self.paused.extend(out.paused);
        self.back.add(back);
        self.parts.extend(out.parts);
    }

    fn chunk(&mut self, meta: Option<&ChunkMeta>) -> Option<&mut ChunkFlush> {
        let meta = meta?;
        let n = usize::from(meta.n);
        let flush = self.chunks.entry(meta.chunk).or_insert_with(|| ChunkFlush {
            chunk: meta.chunk,
            epoch: meta.epoch,
            done: Bitmap::new(n),
            ok: Bitmap::new(n),
            maybe: Bitmap::new(n),
            rest: None,
        });
        flush.epoch = flush.epoch.max(meta.epoch);
        Some(flush)
    }

    /// Outcomes waiting.
    #[must_use]
    pub const fn outcomes(&self) -> u32 {
        self.outcomes
    }

    /// Whether a chunk ended or is handed back: somebody waits for it.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.parts.is_empty() && self.back.is_empty() && self.paused.is_empty()
    }

    /// Takes everything out.
    pub fn take(&mut self) -> Taken {
        let mut chunks: Vec<ChunkFlush> = std::mem::take(&mut self.chunks).into_values().collect();
        // In one order everywhere, so that two instances flushing the same chunks cannot deadlock.
        chunks.sort_unstable_by_key(|flush| flush.chunk);
        self.ended = false;
        Taken {
            batch: FlushBatch { chunks, failures: std::mem::take(&mut self.failures) },
            parts: std::mem::take(&mut self.parts).into_iter().collect(),
            paused: std::mem::take(&mut self.paused),
            back: std::mem::take(&mut self.back),
            outcomes: std::mem::take(&mut self.outcomes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::batch::{ChunkEnd, FailureRecord, RestOutcome};
    use crate::domain::ids::DeviceKey;
    use crate::domain::outcome::Cause;

    const A: ChunkRef = ChunkRef { fanout: FanoutId(2), no: 0 };
    const B: ChunkRef = ChunkRef { fanout: FanoutId(1), no: 3 };

    fn record(chunk: ChunkRef, ordinal: u16, outcome: Outcome) -> OutcomeRecord {
        let failure = (outcome != Outcome::Delivered).then(|| FailureRecord {
            cause: Cause::None,
            status: 404,
            text: String::new(),
            attempts: 1,
            variant: "goal/en/android".into(),
            device_version: 1,
        });
        OutcomeRecord { chunk, ordinal, key: DeviceKey(9), outcome, maybe: false, failure }
    }

    fn out(outcomes: Vec<OutcomeRecord>) -> Outbound {
        let meta = |chunk| ChunkMeta { chunk, epoch: 4, n: 10 };
        Outbound { outcomes, chunks: vec![meta(A), meta(B)], ..Outbound::default() }
    }

    #[test]
    fn messages_fold_into_one_batch_in_chunk_order() {
        let mut buffer = Buffer::default();
        buffer.add(out(vec![record(A, 1, Outcome::Delivered), record(B, 0, Outcome::TokenDead)]));
        buffer.add(out(vec![record(A, 2, Outcome::Delivered)]));
        assert_eq!((buffer.outcomes(), buffer.ended()), (3, false));
        let taken = buffer.take();
        assert_eq!(taken.outcomes, 3);
        assert_eq!(taken.batch.chunks.iter().map(|c| c.chunk).collect::<Vec<_>>(), [B, A]);
        assert_eq!(taken.batch.chunks[1].ok.to_text(), "0110000000");
        assert_eq!((taken.batch.chunks[0].done.count(), taken.batch.chunks[0].ok.count()), (1, 0));
        assert_eq!(taken.batch.failures.len(), 1);
        assert!(buffer.is_empty() && buffer.outcomes() == 0);
    }

    #[test]
    fn a_split_keeps_every_fact_once() {
        let mut buffer = Buffer::default();
        let released = vec![(A, 4)];
        let both = vec![record(A, 1, Outcome::Delivered), record(B, 0, Outcome::TokenDead)];
        buffer.add(Outbound { released: released.clone(), ..out(both) });
        assert!(buffer.ended(), "somebody waits for the chunk");
        let whole = buffer.take();
        let parts = whole.clone().split();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts.iter().map(|p| p.outcomes).sum::<u32>(), whole.outcomes);
        assert_eq!((parts[0].batch.failures.len(), parts[1].batch.failures.len()), (1, 0), "B comes first");
        assert_eq!((parts[0].back.released.as_slice(), parts[1].back.released.len()), (released.as_slice(), 0));
    }

    #[test]
    fn a_chunk_handed_back_makes_a_flush_due_and_goes_with_what_is_known_of_it() {
        let mut buffer = Buffer::default();
        buffer.add(out(vec![record(A, 1, Outcome::Delivered)]));
        buffer.add(Outbound { released: vec![(A, 4)], ..Outbound::default() });
        assert!(buffer.ended() && !buffer.is_empty());
        let taken = buffer.take();
        assert_eq!((taken.back.released.as_slice(), taken.batch.chunks.len()), ([(A, 4)].as_slice(), 1));
        assert!(buffer.is_empty() && !buffer.ended());
    }

    #[test]
    fn a_chunk_claimed_anew_is_written_under_its_latest_epoch() {
        let mut buffer = Buffer::default();
        let under = |epoch, ordinal| Outbound {
            chunks: vec![ChunkMeta { chunk: A, epoch, n: 10 }],
            ..out(vec![record(A, ordinal, Outcome::Delivered)])
        };
        buffer.add(under(6, 1));
        buffer.add(under(4, 2));
        let flush = buffer.take().batch.chunks.remove(0);
        assert_eq!((flush.epoch, flush.done.count()), (6, 2));
    }

    #[test]
    fn an_end_is_written_with_its_rest() {
        let mut buffer = Buffer::default();
        let rest = Some(RestOutcome { outcome: Outcome::Expired, cause: Cause::Queue });
        buffer.add(Outbound { ends: vec![ChunkEnd { chunk: A, rest }], ..out(Vec::new()) });
        assert!(buffer.ended());
        assert_eq!(buffer.take().batch.chunks[0].rest, rest);
        assert!(!buffer.ended());
    }
}
