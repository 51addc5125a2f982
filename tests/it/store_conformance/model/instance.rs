//! One simulated instance: the real hand, exposure, outbox, buffer and decision, with a provider that answers as told.
//! It follows the dispatcher's and the flusher's rules; what it must never do is know more than they would.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare::domain::batch::{ChunkAck, ChunkEnd, ClaimedChunk, FailureRecord, FanoutJob, OutcomeRecord, RestOutcome};
use fanfare::domain::ids::{BootId, ChunkRef, DeviceKey, FanoutId};
use fanfare::domain::outcome::{Cause, Failure, Outcome, Verdict};
use fanfare::domain::tally::PartCounters;
use fanfare::fanout::decide::{Facts, Next, at_cancel, at_deadline, decide};
use fanfare::fanout::hand::{Chunk, Ending, Hand, HandKey, Spot};
use fanfare::fanout::outbox::{Exposure, Outbox};
use fanfare::ledger::buffer::{Buffer, Taken};
use fanfare::store::FreezeJob;
use tokio::time::Instant;

/// Recipients one fault may repeat: small, so that it is reached.
pub const EXPOSURE: usize = 4;

/// Attempts a recipient may have under one lease while the provider serves others (law 8).
const ATTEMPTS: u16 = 2;

/// What becomes of a request, decided when it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Accepted, and the answer says so.
    Reached,
    /// Accepted, and the answer is lost.
    Unanswered,
    /// Refused: the provider is down for it.
    Down,
    /// Refused: the app is gone.
    Dead,
}

impl Fate {
    pub const fn accepted(self) -> bool {
        matches!(self, Self::Reached | Self::Unanswered)
    }

    const fn failure(self) -> Option<Failure> {
        match self {
            Self::Unanswered => Some(Failure::Unconfirmed),
            Self::Down => Some(Failure::Transient),
            Self::Reached | Self::Dead => None,
        }
    }
}

pub struct Instance {
    pub boot: BootId,
    /// Whether it believes in its lease.
    pub trusted: bool,
    /// The freeze it believes to own: where it stands.
    pub freeze: Option<FreezeJob>,
    job: Arc<FanoutJob>,
    hand: Hand,
    taken: HashMap<ChunkRef, i32>,
    flying: Vec<(Spot, Fate)>,
    exposure: Exposure,
    outbox: Outbox,
    buffer: Buffer,
    /// What is being written, until it is acknowledged.
    writing: Option<Taken>,
    cancelled: bool,
    attempts: u64,
    now: Instant,
}

impl Instance {
    pub fn new(boot: BootId, job: Arc<FanoutJob>) -> Self {
        Self {
            boot,
            trusted: true,
            freeze: None,
            job,
            hand: Hand::default(),
            taken: HashMap::new(),
            flying: Vec::new(),
            exposure: Exposure::new(EXPOSURE),
            outbox: Outbox::new(EXPOSURE),
            buffer: Buffer::default(),
            writing: None,
            cancelled: false,
            attempts: 0,
            now: Instant::now(),
        }
    }

    /// The next start in its place: it knows nothing.
    pub fn successor(&self, boot: BootId) -> Self {
        Self::new(boot, Arc::clone(&self.job))
    }

    /// Recipients that would be sent to again if it were lost now.
    pub const fn exposed(&self) -> usize {
        self.exposure.used()
    }

    pub fn take(&mut self, claimed: Vec<ClaimedChunk>) {
        for claimed in claimed {
            if self.taken.get(&claimed.chunk).is_some_and(|epoch| *epoch >= claimed.epoch) {
                continue;
            }
            self.taken.insert(claimed.chunk, claimed.epoch);
            if let Some(before) = self.hand.find(claimed.chunk) {
                self.stop(before, Ending::Lost);
            }
            let (key, gone) = self.hand.add(claimed, Arc::clone(&self.job));
            let meta = self.hand.get(key).unwrap().meta;
            for record in gone {
                self.exposure.take();
                self.outbox.outcome(meta, record, self.now);
            }
            if self.cancelled {
                self.stop(key, ended(Outcome::Cancelled));
            }
            self.close_if_over(key);
        }
    }

    /// Launches up to `n`, under the gates the dispatcher has; whom.
    pub fn launch(&mut self, n: usize, fate: Fate) -> Vec<DeviceKey> {
        let mut launched = Vec::new();
        while launched.len() < n && self.trusted && self.exposure.free() > 0 {
            let Some(spot) = self.hand.pick() else { break };
            self.exposure.take();
            self.attempts += 1;
            let chunk = self.hand.get_mut(spot.key).unwrap();
            chunk.flying += 1;
            let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
            delivery.attempts += 1;
            assert!(delivery.attempts <= ATTEMPTS, "{spot:?} is asked {} times", delivery.attempts);
            launched.push(chunk.key(spot.ordinal));
            self.flying.push((spot, fate));
        }
        launched
    }

    /// Up to `n` attempts end, the newest or the oldest first; how many of them had been accepted without an answer.
    pub fn land(&mut self, n: usize, newest: bool) -> usize {
        let mut unanswered = 0;
        for _ in 0..n.min(self.flying.len()) {
            let at = if newest { self.flying.len() - 1 } else { 0 };
            let (spot, fate) = self.flying.remove(at);
            unanswered += usize::from(fate == Fate::Unanswered);
            self.landed(spot, fate);
            if let Some(chunk) = self.hand.get_mut(spot.key) {
                chunk.flying -= 1;
            }
            self.close_if_over(spot.key);
        }
        unanswered
    }

    fn landed(&mut self, spot: Spot, fate: Fate) {
        self.now += Duration::from_millis(1);
        let (last_meaningful, retry_delay) = (Some(self.now), Duration::ZERO);
        let facts = Facts {
            now: self.now,
            last_meaningful,
            variant_accepted: true,
            doubt: false,
            probe: false,
            credential_worked: None,
            retry_delay,
        };
        let verdict = match fate {
            Fate::Reached => Verdict::Accepted,
            Fate::Dead => Verdict::TokenDead,
            Fate::Unanswered | Fate::Down => Verdict::Failed(fate.failure().unwrap(), None),
        };
        let chunk = self.hand.get_mut(spot.key).expect("a chunk stays in hand while an attempt of it flies");
        let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
        delivery.maybe |= fate.accepted();
        let next = decide(verdict, delivery, &facts);
        if let Some(failure) = fate.failure() {
            delivery.unconfirmed |= failure == Failure::Unconfirmed;
            delivery.first_failure.get_or_insert((failure, self.now));
        }
        let (maybe, ending, meta) = (delivery.maybe, chunk.ending, chunk.meta);
        if let Next::Finish(outcome) = next {
            self.finish(spot, outcome);
            return;
        }
        self.exposure.give(1);
        if maybe {
            self.outbox.maybe(meta, spot.ordinal, self.now);
        }
        match ending {
            Some(ending) => self.left_behind(spot, ending),
            None => self.hand.get_mut(spot.key).unwrap().make_ready(spot.ordinal),
        }
    }

    fn finish(&mut self, spot: Spot, outcome: Outcome) {
        let chunk = self.hand.get_mut(spot.key).unwrap();
        let delivery = chunk.deliveries.get(&spot.ordinal).cloned().unwrap_or_default();
        if !chunk.finish(spot.ordinal) {
            self.exposure.give(1);
            return;
        }
        let failure = (outcome != Outcome::Delivered).then(|| FailureRecord {
            cause: Cause::None,
            status: 0,
            text: String::new(),
            attempts: delivery.attempts,
            variant: "goal/de/android".to_owned(),
            device_version: 1,
        });
        let (meta, key) = (chunk.meta, chunk.key(spot.ordinal));
        let (ordinal, maybe) = (spot.ordinal, delivery.maybe);
        let record = OutcomeRecord { chunk: meta.chunk, ordinal, key, outcome, maybe, failure };
        self.outbox.outcome(meta, record, self.now);
    }

    fn left_behind(&mut self, spot: Spot, ending: Ending) {
        let Ending::Rest(rest) = ending else { return };
        let chunk = self.hand.get(spot.key).unwrap();
        let outcome = match chunk.deliveries.get(&spot.ordinal) {
            delivery if rest.outcome == Outcome::Cancelled => at_cancel(delivery).0,
            None if chunk.may_have_it(spot.ordinal) => Outcome::Unconfirmed,
            delivery => at_deadline(delivery, rest.cause).0,
        };
        self.exposure.take();
        self.finish(spot, outcome);
    }

    fn stop(&mut self, key: HandKey, ending: Ending) {
        let flying: Vec<u16> = self.flying.iter().filter(|(s, _)| s.key == key).map(|(s, _)| s.ordinal).collect();
        if let Some(chunk) = self.hand.get_mut(key).filter(|c| c.ending.is_none()) {
            for ordinal in chunk.stop(ending, &flying) {
                self.left_behind(Spot { key, ordinal }, ending);
            }
        }
        self.close_if_over(key);
    }

    fn stop_all(&mut self, ending: Ending) {
        let keys: Vec<HandKey> = self.hand.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.stop(key, ending));
    }

    fn close_if_over(&mut self, key: HandKey) {
        if !self.hand.get(key).is_some_and(Chunk::is_over) {
            return;
        }
        let chunk = self.hand.remove(key).unwrap();
        let rest = match chunk.ending {
            Some(Ending::Lost) => return,
            Some(Ending::Release) => {
                self.outbox.release((chunk.meta.chunk, chunk.meta.epoch), self.now);
                return;
            }
            Some(Ending::Rest(rest)) => Some(rest).filter(|_| chunk.open() > 0),
            None => {
                assert_eq!(chunk.open(), 0, "somebody was lost sight of");
                None
            }
        };
        self.outbox.end(chunk.meta, ChunkEnd { chunk: chunk.meta.chunk, rest }, self.now);
    }

    /// Hands all chunks back in an orderly way, once nothing of them flies.
    pub fn release_all(&mut self) {
        self.stop_all(Ending::Release);
    }

    /// Its clock says that the deadline has come.
    pub fn expire(&mut self) {
        self.stop_all(ended(Outcome::Expired));
    }

    /// Its heartbeat was answered; it hears of the cancel of what it owns.
    pub fn renewed(&mut self, cancelled: bool) {
        if !self.trusted {
            self.release_all();
        }
        self.trusted = true;
        if cancelled {
            self.cancel();
        }
    }

    fn cancel(&mut self) {
        self.cancelled = true;
        self.stop_all(ended(Outcome::Cancelled));
    }

    /// What is to be written now: what was not acknowledged before anything else.
    pub fn writing(&mut self, fanout: FanoutId) -> Option<Taken> {
        if self.writing.is_none() {
            let attempts = self.attempts;
            self.outbox.part(fanout, PartCounters { attempts, ..PartCounters::default() });
            self.outbox.due(self.now, true).into_iter().for_each(|out| self.buffer.add(out));
            self.writing = (!self.buffer.is_empty()).then(|| self.buffer.take());
        }
        self.writing.clone()
    }

    /// What was being written is on disk.
    pub fn written(&mut self, acks: Vec<ChunkAck>) {
        let taken = self.writing.take().expect("something was being written");
        self.exposure.give(taken.outcomes as usize);
        for ack in acks {
            if ack.cancelled {
                self.cancel();
            }
            let Some(key) = self.hand.find(ack.chunk) else { continue };
            self.hand.get_mut(key).unwrap().merge_done(&ack.done);
            if !ack.owned && self.hand.get(key).unwrap().meta.epoch <= ack.epoch {
                self.stop(key, Ending::Lost);
            }
            self.close_if_over(key);
        }
    }

    /// Whether nothing is left to do with what it has.
    pub fn is_idle(&self) -> bool {
        self.hand.is_empty() && self.outbox.is_empty() && self.buffer.is_empty() && self.writing.is_none()
    }
}

const fn ended(outcome: Outcome) -> Ending {
    Ending::Rest(RestOutcome { outcome, cause: Cause::Queue })
}
