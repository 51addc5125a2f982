//! Owns one chunk in hand: who of it can be launched, who waits, and when nobody is left.
//! Must never know: other chunks, connections, grants.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::domain::batch::{ChunkMeta, ClaimedChunk, FailureRecord, FanoutJob, OutcomeRecord, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::ids::DeviceKey;
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::{Platform, Recipient};
use crate::fanout::decide::Delivery;

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
    /// Recipients without an attempt that something of their own holds back, and what they end in if their deadline
    /// comes first: `payload` when their variant stopped, `credential` when their platform's credential is refused.
    pub aside: HashMap<u16, Outcome>,
    /// Nothing more is launched of it.
    pub ending: Option<Ending>,
    recipients: Vec<Option<Recipient>>,
    keys: Vec<DeviceKey>,
    done: Bitmap,
    /// Whom an attempt of an earlier owner may have reached.
    maybe: Bitmap,
    /// Those from here up to `fresh_end` had no attempt here.
    fresh: usize,
    fresh_end: usize,
    ready: VecDeque<u16>,
}

impl Chunk {
    pub(super) fn new(claimed: ClaimedChunk, job: Arc<FanoutJob>) -> Self {
        let n = u16::try_from(claimed.keys.len()).unwrap_or(u16::MAX);
        let meta = ChunkMeta { chunk: claimed.chunk, epoch: claimed.epoch, n };
        let mut chunk = Self {
            meta,
            job,
            deliveries: HashMap::new(),
            flying: 0,
            delayed: 0,
            suspects: 0,
            aside: HashMap::new(),
            ending: None,
            recipients: claimed.recipients,
            keys: claimed.keys,
            done: claimed.done,
            maybe: claimed.maybe,
            fresh: 0,
            fresh_end: usize::from(n),
            ready: VecDeque::new(),
        };
        chunk.trim();
        chunk
    }

    /// Keeps both ends of the fresh ones at somebody who waits, so that none left means nobody left.
    fn trim(&mut self) {
        while self.fresh < self.fresh_end && !self.waits(self.fresh) {
            self.fresh += 1;
        }
        while self.fresh < self.fresh_end && !self.waits(self.fresh_end - 1) {
            self.fresh_end -= 1;
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
        self.aside.remove(&ordinal);
        let first = self.done.set(usize::from(ordinal));
        self.trim();
        first
    }

    /// Takes over outcomes an earlier owner wrote late.
    pub fn merge_done(&mut self, done: &Bitmap) {
        let fits = self.done.union(done).is_ok();
        debug_assert!(fits, "an acknowledgement of another size");
        let done = &self.done;
        self.ready.retain(|ordinal| !done.get(usize::from(*ordinal)));
        self.trim();
    }

    /// Makes a recipient launchable again, behind the others; one that has an outcome by now is left alone.
    pub fn make_ready(&mut self, ordinal: u16) {
        if !self.done.get(usize::from(ordinal)) {
            self.ready.push_back(ordinal);
        }
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
    pub(super) fn next(&mut self) -> Option<u16> {
        if self.ending.is_some() {
            return None;
        }
        if let Some(ordinal) = self.ready.pop_front() {
            return Some(ordinal);
        }
        let first = (self.fresh < self.fresh_end).then_some(self.fresh)?;
        self.fresh += 1;
        self.trim();
        u16::try_from(first).ok()
    }

    /// Whether somebody had no attempt here, and may have one.
    #[must_use]
    pub fn has_fresh(&self) -> bool {
        self.ending.is_none() && self.fresh < self.fresh_end
    }

    /// The last recipient that had no attempt here: as far as possible from those that failed.
    pub(super) fn last_fresh(&mut self) -> Option<u16> {
        if !self.has_fresh() {
            return None;
        }
        self.fresh_end -= 1;
        let last = self.fresh_end;
        self.trim();
        u16::try_from(last).ok()
    }

    fn waits(&self, i: usize) -> bool {
        let tried = u16::try_from(i).is_ok_and(|ordinal| self.deliveries.contains_key(&ordinal));
        !tried && !self.done.get(i) && self.recipients.get(i).is_some_and(Option::is_some)
    }

    /// Stops launching; the positions that have neither an outcome nor an attempt in flight, and more to tell than that
    /// they waited: they had an attempt, here or possibly before, or were set aside. Of a cancelled chunk only those that
    /// had an attempt here: the others end together, and its bits tell who may have been reached before.
    pub fn stop(&mut self, ending: Ending, flying: &[u16]) -> Vec<u16> {
        self.ending = Some(ending);
        self.ready.clear();
        (self.delayed, self.suspects) = (0, 0);
        let cancelled = matches!(ending, Ending::Rest(rest) if rest.outcome == Outcome::Cancelled);
        let held = |o: &u16| !cancelled && (self.aside.contains_key(o) || self.may_have_it(*o));
        let known = |o: &u16| self.deliveries.contains_key(o) || held(o);
        let open = |o: &u16| !self.done.get(usize::from(*o)) && !flying.contains(o);
        (0..self.meta.n).filter(|o| open(o) && known(o)).collect()
    }

    /// Whether an attempt of an earlier owner may have reached it.
    #[must_use]
    pub fn may_have_it(&self, ordinal: u16) -> bool {
        self.maybe.get(usize::from(ordinal))
    }

    /// Whether an attempt may have reached it, of whichever owner: what a retraction asks, whatever it ends as.
    #[must_use]
    pub fn may_have_been_reached(&self, ordinal: u16) -> bool {
        self.may_have_it(ordinal) || self.deliveries.get(&ordinal).is_some_and(|delivery| delivery.maybe)
    }

    /// Whether somebody was left when their variant stopped.
    #[must_use]
    pub fn has_shelved(&self) -> bool {
        self.aside.values().any(|outcome| *outcome == Outcome::Payload)
    }

    /// Whether everybody left waits for a time.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        let busy = self.ending.is_some() || self.flying + self.suspects + self.launchable() > 0;
        !busy && self.delayed > 0
    }

    /// Takes over what is remembered of somebody who had an attempt here before, and is no fresh one any more; `false` when
    /// there is nothing left to wait for.
    pub fn remember(&mut self, ordinal: u16, delivery: Delivery) -> bool {
        let waits = self.waits(usize::from(ordinal));
        if waits {
            self.deliveries.insert(ordinal, delivery);
            self.trim();
        }
        waits
    }

    /// Platforms whose credential somebody without an attempt waits for.
    pub fn held_platforms(&self) -> impl Iterator<Item = Platform> {
        let held = self.aside.iter().filter(|(_, outcome)| **outcome == Outcome::Credential);
        held.filter_map(|(ordinal, _)| self.recipient(*ordinal)).map(|recipient| recipient.platform)
    }

    /// Sets those without an attempt aside whose platform's credential holds them. When that is everybody without one they
    /// end together, for `true`; but for those whom an earlier owner may have reached.
    pub fn hold(&mut self, holds: impl Fn(Platform) -> bool) -> bool {
        let mut all = true;
        for ordinal in (0..self.meta.n).filter(|o| !self.done.get(usize::from(*o))) {
            if self.deliveries.contains_key(&ordinal) {
                continue;
            }
            if self.recipient(ordinal).is_some_and(|r| holds(r.platform)) {
                self.aside.entry(ordinal).or_insert(Outcome::Credential);
            }
            all &= self.aside.get(&ordinal) == Some(&Outcome::Credential);
        }
        if all {
            let maybe = &self.maybe;
            self.aside.retain(|ordinal, _| maybe.get(usize::from(*ordinal)));
        }
        all
    }

    /// Ends those whose device is gone.
    pub(super) fn take_gone(&mut self) -> Vec<OutcomeRecord> {
        let gone = |o: &u16| !self.done.get(usize::from(*o)) && self.recipient(*o).is_none();
        let gone: Vec<u16> = (0..self.meta.n).filter(gone).collect();
        gone.into_iter().map(|ordinal| self.end_gone(ordinal)).collect()
    }

    fn end_gone(&mut self, ordinal: u16) -> OutcomeRecord {
        let maybe = self.may_have_been_reached(ordinal);
        self.finish(ordinal);
        let failure = FailureRecord {
            cause: Cause::None,
            status: 0,
            text: String::new(),
            attempts: 0,
            variant: self.job.event.kind.clone(),
            device_version: 0,
        };
        OutcomeRecord {
            chunk: self.meta.chunk,
            ordinal,
            key: self.key(ordinal),
            outcome: Outcome::Gone,
            maybe,
            failure: Some(failure),
        }
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
