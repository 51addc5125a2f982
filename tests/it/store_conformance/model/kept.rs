//! What the store should hold of one fan-out, kept in memory: the chunks, who owns them, and what was found.
//! Must never know: who sends, or which engine is asked.

use std::collections::{BTreeMap, BTreeSet};

use fanfare::domain::batch::{ChunkAck, ChunkFlush, FlushBatch};
use fanfare::domain::ids::{BootId, ChunkRef, DeviceKey};
use fanfare::domain::outcome::Outcome;
use fanfare::domain::tally::Tally;
use fanfare::store::{FanoutView, MAX_TAKEOVERS};

use crate::store_conformance::world::bits;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Open,
    Owned(BootId),
    Closed,
    SetAside,
}

#[derive(Debug)]
pub struct Chunk {
    pub keys: Vec<DeviceKey>,
    pub state: State,
    pub epoch: i32,
    pub done: BTreeSet<usize>,
    ok: BTreeSet<usize>,
    maybe: BTreeSet<usize>,
    failed: BTreeMap<usize, Outcome>,
    rest: Option<Outcome>,
    takeovers: i16,
    mark: usize,
    unclean: bool,
}

impl Chunk {
    fn new(keys: Vec<DeviceKey>, owner: Option<BootId>) -> Self {
        let (done, ok, maybe, failed) = Default::default();
        let (state, epoch) = owner.map_or((State::Open, 0), |boot| (State::Owned(boot), 1));
        Self { keys, state, epoch, done, ok, maybe, failed, rest: None, takeovers: 0, mark: 0, unclean: false }
    }

    /// Who may have been reached before, as a claim must tell it.
    pub fn maybe(&self) -> BTreeSet<usize> {
        (0..self.keys.len()).filter(|i| self.maybe.contains(i) || (self.unclean && !self.done.contains(i))).collect()
    }

    /// How a recipient ended.
    pub fn outcome(&self, i: usize) -> Option<Outcome> {
        match (self.ok.contains(&i), self.done.contains(&i)) {
            (true, _) => Some(Outcome::Delivered),
            (_, true) => Some(self.failed[&i]),
            _ => self.rest,
        }
    }

    fn flush(&mut self, flush: &ChunkFlush, failures: &[(usize, Outcome)]) {
        let n = self.keys.len();
        self.done.extend((0..n).filter(|i| flush.done.get(*i)));
        self.ok.extend((0..n).filter(|i| flush.ok.get(*i)));
        self.maybe.extend((0..n).filter(|i| flush.maybe.get(*i)));
        for (i, outcome) in failures {
            self.failed.entry(*i).or_insert(*outcome);
        }
        if self.done.len() == n {
            self.state = State::Closed;
        } else if let (Some(rest), State::Owned(_), true) = (flush.rest, self.state, self.epoch == flush.epoch) {
            self.state = State::Closed;
            self.rest = Some(rest.outcome);
        }
    }

    fn take_over(&mut self) {
        let progress = self.done.len() > self.mark;
        self.takeovers = if progress { 0 } else { self.takeovers + 1 };
        self.mark = self.done.len();
        self.epoch += 1;
        self.unclean = true;
        self.state = if self.takeovers >= MAX_TAKEOVERS { State::SetAside } else { State::Open };
    }
}

/// Who freezes, and how far it is.
#[derive(Debug)]
pub struct Freeze {
    pub owner: BootId,
    pub epoch: i32,
    /// The owner's lease had ended at somebody's heartbeat: it may or may not have been freed by that.
    pub doubtful: bool,
    pub over: bool,
}

#[derive(Debug)]
pub struct Kept {
    pub chunks: BTreeMap<ChunkRef, Chunk>,
    pub freeze: Freeze,
    pub cancelled: bool,
    pub interrupted: u32,
    /// Attempts, as each instance wrote them last.
    pub parts: BTreeMap<BootId, u64>,
    /// Instances whose lease has ended by the database's clock.
    pub lapsed: BTreeSet<BootId>,
    pub settled: Option<FanoutView>,
}

impl Kept {
    pub fn new(owner: BootId) -> Self {
        let freeze = Freeze { owner, epoch: 1, doubtful: false, over: false };
        let (chunks, parts, lapsed) = Default::default();
        Self { chunks, freeze, cancelled: false, interrupted: 0, parts, lapsed, settled: None }
    }

    pub fn add(&mut self, chunk: ChunkRef, keys: Vec<DeviceKey>, owner: Option<BootId>) {
        assert!(self.chunks.insert(chunk, Chunk::new(keys, owner)).is_none(), "{chunk:?} is frozen twice");
    }

    /// Recipients frozen so far.
    pub fn frozen(&self) -> usize {
        self.chunks.values().map(|c| c.keys.len()).sum()
    }

    /// A heartbeat: chunks freed and set aside.
    pub fn beat(&mut self, boot: BootId) -> (u32, u32) {
        self.lapsed.remove(&boot);
        let (mut freed, mut set_aside, mut lost) = (0, 0, BTreeSet::new());
        for chunk in self.chunks.values_mut() {
            if let State::Owned(owner) = chunk.state
                && self.lapsed.contains(&owner)
            {
                lost.insert(owner);
                chunk.take_over();
                if chunk.state == State::Open { freed += 1 } else { set_aside += 1 }
            }
        }
        self.interrupted += lost.len() as u32;
        self.freeze.doubtful |= self.lapsed.contains(&self.freeze.owner);
        (freed, set_aside)
    }

    pub fn flush(&mut self, batch: &FlushBatch) -> Vec<ChunkAck> {
        let mut acks = Vec::new();
        for flush in &batch.chunks {
            let mine = batch.failures.iter().filter(|f| f.chunk == flush.chunk);
            let failures: Vec<_> = mine.map(|f| (usize::from(f.ordinal), f.outcome)).collect();
            let chunk = self.chunks.get_mut(&flush.chunk).unwrap();
            let (done, ok) = (chunk.done.clone(), chunk.ok.clone());
            chunk.flush(flush, &failures);
            let news = chunk.ok.difference(&ok).count()
                + chunk.done.difference(&done).filter(|i| !chunk.ok.contains(i)).count();
            acks.push(ChunkAck {
                chunk: flush.chunk,
                epoch: flush.epoch,
                owned: chunk.epoch == flush.epoch && matches!(chunk.state, State::Owned(_) | State::Closed),
                closed: chunk.state == State::Closed,
                cancelled: self.cancelled,
                late: if self.settled.is_some() { news as u32 } else { 0 },
                done: bits(chunk.keys.len(), chunk.done.iter().copied()),
            });
        }
        acks
    }

    pub fn release(&mut self, boot: BootId, held: &[(ChunkRef, i32)]) {
        for (chunk, epoch) in held {
            let chunk = self.chunks.get_mut(chunk).unwrap();
            if chunk.state == State::Owned(boot) && chunk.epoch == *epoch {
                chunk.state = State::Open;
            }
        }
    }

    /// Ends what nobody has in hand.
    pub fn close_cancelled(&mut self) {
        for chunk in self.chunks.values_mut().filter(|c| matches!(c.state, State::Open | State::SetAside)) {
            (chunk.state, chunk.rest) = (State::Closed, Some(Outcome::Cancelled));
        }
    }

    /// Whether a settle must succeed now. It ends what came back to a cancelled fan-out.
    pub fn settles(&mut self) -> bool {
        let owned = self.chunks.values().any(|c| matches!(c.state, State::Owned(_)));
        if self.cancelled && !owned {
            self.close_cancelled();
        }
        let frozen = self.freeze.over || self.cancelled;
        frozen && self.chunks.values().all(|c| c.state == State::Closed)
    }

    pub fn tally(&self) -> Tally {
        let all = self.chunks.values().flat_map(|c| (0..c.keys.len()).filter_map(|i| c.outcome(i)));
        Tally::new(self.frozen() as u64, all.map(|outcome| (outcome, 1))).unwrap()
    }
}
