//! Owns endings: of a recipient, of a chunk whose deadline came, of a chunk in which nobody is left.
//! Must never know: how outcomes are written.

use crate::domain::batch::{ChunkEnd, FailureRecord, OutcomeRecord, RestOutcome};
use crate::domain::outcome::{Cause, Outcome};
use crate::fcm::oauth::TokenState;

use super::decide::{at_cancel, at_deadline};
use super::dispatch::Dispatcher;
use super::hand::{Chunk, Ending, HandKey, Spot};

impl Dispatcher {
    /// Ends a recipient. The exposure it holds is given back when the outcome is on disk.
    pub(super) fn finish(&mut self, spot: Spot, outcome: Outcome, cause: Cause) {
        let Some(chunk) = self.hand.get_mut(spot.key) else {
            self.exposure.give(1);
            return;
        };
        let delivery = chunk.deliveries.get(&spot.ordinal).cloned().unwrap_or_default();
        let maybe = chunk.may_have_been_reached(spot.ordinal);
        if !chunk.finish(spot.ordinal) {
            self.exposure.give(1);
            return;
        }
        let chunk_ref = chunk.meta.chunk;
        let (key, meta) = (chunk.key(spot.ordinal), chunk.meta);
        let recipient = chunk.recipient(spot.ordinal).cloned();
        let variant = self.fans.get_mut(&chunk_ref.fanout).zip(recipient.as_ref()).map(|(fan, r)| {
            let no = fan.variant_for(r, &self.wiring.catalogue);
            fan.variant(no).name.clone()
        });
        let failure = (outcome != Outcome::Delivered).then(|| FailureRecord {
            cause,
            status: delivery.status,
            text: delivery.text,
            attempts: delivery.attempts,
            variant: variant.unwrap_or_default(),
            device_version: recipient.map_or(0, |r| r.version),
        });
        let ordinal = spot.ordinal;
        let record = OutcomeRecord { chunk: chunk_ref, ordinal, key, outcome, maybe, failure };
        self.outbox.outcome(meta, record, self.now);
    }

    /// A recipient without verdict in a chunk of which nothing more is launched.
    pub(super) fn left_behind(&mut self, spot: Spot, ending: Ending) {
        if let Ending::Rest(rest) = ending {
            let chunk = self.hand.get(spot.key);
            let aside = chunk.and_then(|c| c.aside.get(&spot.ordinal).copied());
            let before = chunk.is_some_and(|c| c.may_have_it(spot.ordinal)).then_some(Outcome::Unconfirmed);
            let (outcome, cause) = match (self.delivery(spot), aside.or(before)) {
                (delivery, _) if rest.outcome == Outcome::Cancelled => at_cancel(delivery),
                (None, Some(outcome)) => (outcome, Cause::None),
                (delivery, _) => at_deadline(delivery, held(rest)),
            };
            self.exposure.take();
            self.finish(spot, outcome, cause);
        }
    }

    /// A suspect's variant has shown whose fault it was.
    pub(super) fn acquit(&mut self, spot: Spot, outcome: Outcome) {
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.suspects = chunk.suspects.saturating_sub(1);
        }
        self.exposure.take();
        self.finish(spot, outcome, Cause::None);
        self.close_if_over(spot.key);
    }

    /// Stops launching from a chunk; those that had an attempt end now, each with a row of its own.
    pub(super) fn stop(&mut self, key: HandKey, ending: Ending) {
        let flying = self.flight.ordinals(key);
        let Some(chunk) = self.hand.get_mut(key).filter(|c| c.ending.is_none()) else {
            return;
        };
        let tried = chunk.stop(ending, &flying);
        let held = chunk.meta.chunk.fanout;
        if let Some(fan) = self.fans.get_mut(&held) {
            fan.suspects.retain(|(spot, _)| spot.key != key);
        }
        for ordinal in tried {
            self.left_behind(Spot { key, ordinal }, ending);
        }
    }

    /// Ends chunks whose deadline has come.
    pub(super) fn expire(&mut self) {
        let now_ms = self.wiring.clock.now_ms();
        let due = |c: &Chunk| c.ending.is_none() && c.job.deadline_ms <= now_ms;
        let over = self.hand.iter().filter(|(_, c)| due(c)).map(|(key, c)| (key, c.job.deadline_ms));
        let over: Vec<(HandKey, i64)> = over.collect();
        let held = self.held_by();
        // With nobody in hand nobody is held, and nobody finds out whether the credential is still refused.
        self.spell.note(held == Cause::Credential, !self.hand.is_empty(), now_ms);
        self.note_platforms(now_ms);
        for (key, deadline_ms) in over {
            // What began to be refused only after the deadline did not hold anybody then.
            let held = match held {
                _ if self.held_by_platform(key, deadline_ms) || self.spell.held_at(deadline_ms) => Cause::Credential,
                Cause::Credential => Cause::Queue,
                other => other,
            };
            let (outcome, cause) = at_deadline(None, held);
            self.stop(key, Ending::Rest(RestOutcome { outcome, cause }));
            self.close_if_over(key);
        }
    }

    /// What kept those from being launched who had no attempt. Asked of the gates and not of the last block: a chunk can
    /// be claimed after its deadline, when nobody was left to be blocked. A refused credential goes before all others: it
    /// is what somebody has to mend. That a process has only just begun to ask for its first access token holds nobody.
    fn held_by(&self) -> Cause {
        let begins = matches!(*self.token.borrow(), TokenState::Waiting);
        let generation = self.token().map(|t| t.1);
        match self.gates.shut(self.now, generation) {
            _ if self.gates.refused() => Cause::Credential,
            Some(shut) if !(begins && shut.cause == Cause::Credential) => shut.cause,
            _ if self.gates.breaker.state().holds() => Cause::Breaker,
            _ => Cause::Queue,
        }
    }

    /// Suspects whose variant has nobody left that could show whose fault it was: no proof against the device.
    pub(super) fn settle_suspects(&mut self) {
        let fans = &self.fans;
        self.suspected.retain(|id| fans.get(id).is_some_and(|fan| !fan.suspects.is_empty()));
        for id in self.suspected.clone() {
            let busy =
                self.hand.iter().any(|(key, c)| key.chunk.fanout == id && c.flying + c.delayed + c.launchable() > 0);
            if busy || self.waiting.has(id) {
                continue;
            }
            let suspects = self.fans.get_mut(&id).map(|f| std::mem::take(&mut f.suspects)).unwrap_or_default();
            self.suspected.remove(&id);
            for (spot, _) in suspects {
                self.acquit(spot, Outcome::Payload);
            }
        }
    }

    /// Puts a chunk out of hand when nobody is left in it.
    pub(super) fn close_if_over(&mut self, key: HandKey) {
        if !self.hand.get(key).is_some_and(Chunk::is_over) {
            return;
        }
        let Some(chunk) = self.hand.remove(key) else {
            return;
        };
        let id = chunk.meta.chunk.fanout;
        if let Some(fan) = self.fans.get_mut(&id) {
            self.outbox.part(id, fan.counters(&self.wiring.ceiling.snapshot()));
        }
        let rest = match chunk.ending {
            Some(Ending::Lost) => return,
            Some(Ending::Release) => {
                self.outbox.release((chunk.meta.chunk, chunk.meta.epoch), self.now);
                return;
            }
            Some(Ending::Rest(rest)) => Some(rest),
            None => Some(shelved(&chunk)),
        };
        let rest = rest.filter(|_| chunk.open() > 0);
        self.outbox.end(chunk.meta, ChunkEnd { chunk: chunk.meta.chunk, rest }, self.now);
    }
}

/// What held those whose chunk ends like this. As an outcome `credential` has no cause beside it.
fn held(rest: RestOutcome) -> Cause {
    if rest.outcome == Outcome::Credential { Cause::Credential } else { rest.cause }
}

/// How those end who were left when their variant stopped.
fn shelved(chunk: &Chunk) -> RestOutcome {
    let outcome = if chunk.has_shelved() || chunk.open() == 0 {
        Outcome::Payload
    } else {
        let left = chunk.open();
        tracing::error!(target: "fanfare::fanout", fanout_id = %chunk.meta.chunk.fanout, chunk = chunk.meta.chunk.no, left, "recipients were lost sight of");
        Outcome::Internal
    };
    RestOutcome { outcome, cause: Cause::None }
}
