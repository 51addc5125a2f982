//! Owns one recipient's way through the dispatcher: bound to an attempt, answered, and ended or kept.
//! Must never know: how a decision is made (that is [`decide`](super::decide)), or how outcomes are written.

use bytes::Bytes;

use crate::breaker::Mark;
use crate::domain::batch::{ChunkEnd, FailureRecord, Flushed, OutcomeRecord, RestOutcome};
use crate::domain::outcome::{Cause, CredentialFault, Outcome, Verdict};
use crate::fcm::attempted::Attempted;

use super::decide::{Delivery, Facts, Next, at_deadline, decide};
use super::dispatch::{Block, Dispatcher, Landing};
use super::fan::{VariantNo, millis};
use super::flight::{AttemptId, Flying};
use super::gates::Credit;
use super::hand::{Chunk, Ending, HandKey, Spot};

impl Dispatcher {
    /// The next recipient that nothing of its own holds back.
    pub(super) fn pick(&mut self) -> Option<Spot> {
        while let Some(spot) = self.hand.pick() {
            let Some(recipient) = self.hand.get(spot.key).and_then(|c| c.recipient(spot.ordinal)) else {
                continue;
            };
            let platform = recipient.platform;
            let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) else {
                continue;
            };
            let no = fan.variant_for(recipient, &self.wiring.catalogue);
            if fan.variant(no).stopped() {
                self.shelve(spot);
            } else if let Some(until) = self.gates.platform_shut(platform, self.now) {
                self.delay(spot, until);
            } else if self.delivery(spot).is_some_and(|d| d.retry_due) && !self.budget.allows(self.now) {
                self.delay(spot, self.now + self.pacing.retry_delay);
            } else {
                return Some(spot);
            }
        }
        None
    }

    fn shelve(&mut self, spot: Spot) {
        if self.delivery(spot).is_some() {
            self.exposure.take();
            self.finish(spot, Outcome::Payload, Cause::None);
        } else if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.shelved += 1;
        }
        self.close_if_over(spot.key);
    }

    pub(super) fn put_back(&mut self, spot: Spot) {
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.put_back(spot.ordinal);
        }
    }

    pub(super) fn delivery(&self, spot: Spot) -> Option<&Delivery> {
        self.hand.get(spot.key).and_then(|c| c.deliveries.get(&spot.ordinal))
    }

    /// The request body; a recipient without one ends as `internal`.
    pub(super) fn body(&mut self, spot: Spot) -> Option<Bytes> {
        let now_ms = self.wiring.clock.now_ms();
        let body = self.hand.get(spot.key).and_then(|chunk| {
            let recipient = chunk.recipient(spot.ordinal)?;
            let fan = self.fans.get_mut(&spot.key.chunk.fanout)?;
            let no = fan.variant_for(recipient, &self.wiring.catalogue);
            let left_s = u64::try_from((chunk.job.deadline_ms - now_ms) / 1000).unwrap_or(0);
            fan.variant(no).template.as_ref().map(|t| t.body(&recipient.address, left_s, now_ms / 1000))
        });
        if body.is_none() {
            self.exposure.take();
            self.finish(spot, Outcome::Internal, Cause::None);
            self.close_if_over(spot.key);
        }
        body
    }

    /// Binds a recipient to an attempt: it is exposed from here on.
    pub(super) fn bind(&mut self, spot: Spot, generation: u64) -> AttemptId {
        self.exposure.take();
        let now_ms = self.wiring.clock.now_ms();
        let (mut platform, mut retry) = (crate::domain::recipient::Platform::Android, false);
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.flying += 1;
            platform = chunk.recipient(spot.ordinal).map_or(platform, |r| r.platform);
            let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
            delivery.attempts += 1;
            retry = std::mem::take(&mut delivery.retry_due);
        }
        if let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) {
            fan.dirty = true;
            fan.counters.attempts += 1;
            fan.counters.retried += u64::from(retry);
            if fan.counters.first_send_ms == 0 {
                fan.counters.first_send_ms = now_ms;
            }
        }
        self.budget.attempted(retry, self.now);
        let ticket = self.gates.launched(platform, self.now);
        self.flight.launch(spot, self.now, ticket, (generation, platform))
    }

    /// An attempt ended.
    pub(super) fn landed(&mut self, (id, result): Landing) {
        let Some(flying) = self.flight.land(id) else {
            return;
        };
        let spot = flying.spot;
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.flying -= 1;
        }
        match result {
            Ok(answer) => self.answered(flying, &answer),
            Err(_panic) => {
                tracing::error!(target: "fanfare::fanout", fanout_id = %spot.key.chunk.fanout, ordinal = spot.ordinal, "an attempt panicked");
                self.gates.breaker.finish(flying.ticket, Mark::Neutral, self.now);
                self.gates.note(Credit::Silent, flying.platform, self.now);
                self.finish(spot, Outcome::Internal, Cause::None);
            }
        }
        self.close_if_over(spot.key);
    }

    fn answered(&mut self, flying: Flying, answer: &Attempted) {
        let spot = flying.spot;
        let probe = flying.ticket.is_probe();
        let facts = self.facts(&flying, answer, probe);
        self.count(spot, answer);
        let no = self.note_variant(spot, answer.verdict);
        self.gates.breaker.finish(flying.ticket, mark(answer.verdict), self.now);
        self.gates.note(credit(answer.verdict), flying.platform, self.now);
        self.note_throttle(spot, answer.verdict);
        if answer.verdict.meaningful() {
            self.last_meaningful = Some(self.now);
        }
        if answer.verdict == Verdict::Credential(CredentialFault::AccessToken) {
            self.gates.reject(flying.generation, self.now);
            self.wiring.tokens.reject(flying.generation);
        }
        let Some(next) = self.remember(spot, answer, facts) else {
            self.exposure.give(1);
            return;
        };
        self.carry_out(spot, next, no);
    }

    /// What bears on the decision, as of before this answer changed it.
    fn facts(&mut self, flying: &Flying, answer: &Attempted, probe: bool) -> Facts {
        let fan = self.fans.get_mut(&flying.spot.key.chunk.fanout);
        let recipient = self.hand.get(flying.spot.key).and_then(|c| c.recipient(flying.spot.ordinal));
        let variant_accepted = fan.zip(recipient).is_some_and(|(fan, recipient)| {
            let no = fan.variant_for(recipient, &self.wiring.catalogue);
            fan.variant(no).accepted()
        });
        let credential_works = match answer.verdict {
            Verdict::Credential(fault) => self.gates.works(fault, flying.platform, self.now),
            _ => false,
        };
        Facts {
            now: self.now,
            last_meaningful: self.last_meaningful,
            variant_accepted,
            probe,
            credential_works,
            retry_delay: self.pacing.retry_delay,
        }
    }

    fn count(&mut self, spot: Spot, answer: &Attempted) {
        let now_ms = self.wiring.clock.now_ms();
        let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) else {
            return;
        };
        fan.dirty = true;
        let occurred_ms = fan.job.event.occurred_ms;
        let c = &mut fan.counters;
        match answer.verdict {
            Verdict::Throttled(_) => c.throttled += 1,
            Verdict::Unprocessed => c.unprocessed += 1,
            Verdict::Unsent => c.unsent += 1,
            _ => {}
        }
        if answer.status != 0 {
            c.send.record(millis(answer.took));
        }
        if answer.verdict == Verdict::Accepted {
            c.behind_pitch.record(u64::try_from(now_ms - occurred_ms).unwrap_or(0));
        }
    }

    /// Tells the variant what was answered; returns it.
    fn note_variant(&mut self, spot: Spot, verdict: Verdict) -> Option<VariantNo> {
        let fan = self.fans.get_mut(&spot.key.chunk.fanout)?;
        let recipient = self.hand.get(spot.key)?.recipient(spot.ordinal)?;
        let no = fan.variant_for(recipient, &self.wiring.catalogue);
        let variant = fan.variant_mut(no);
        let judge = match verdict {
            Verdict::Accepted => variant.note_accepted().then_some(Outcome::TokenInvalid),
            Verdict::Payload | Verdict::TokenSuspect => {
                variant.note_refused();
                variant.stopped().then_some(Outcome::Payload)
            }
            _ => {
                if verdict.meaningful() {
                    variant.note_other();
                }
                None
            }
        };
        if let Some(outcome) = judge {
            for suspect in fan.take_suspects(no) {
                self.acquit(suspect, outcome);
            }
        }
        Some(no)
    }

    /// A suspect's variant has shown whose fault it was.
    fn acquit(&mut self, spot: Spot, outcome: Outcome) {
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.suspects = chunk.suspects.saturating_sub(1);
        }
        self.exposure.take();
        self.finish(spot, outcome, Cause::None);
        self.close_if_over(spot.key);
    }

    fn note_throttle(&mut self, spot: Spot, verdict: Verdict) {
        self.scope.answered(self.now);
        let Verdict::Throttled(after) = verdict else {
            return;
        };
        let key = self.hand.get(spot.key).map(|c| c.key(spot.ordinal));
        if key.is_some_and(|key| self.scope.throttled(key, self.now)) {
            let pause = after.unwrap_or(crate::domain::retry::DEFAULT_THROTTLE_PAUSE);
            self.gates.pause(self.now + pause);
            self.wiring.ceiling.throttled(after);
            let lost = self.stock.clear();
            self.wiring.ceiling.forfeited(lost);
        }
    }

    /// Notes the attempt with the recipient and decides. `None`: the chunk is out of hand.
    fn remember(&mut self, spot: Spot, answer: &Attempted, facts: Facts) -> Option<Next> {
        let chunk = self.hand.get_mut(spot.key)?;
        let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
        delivery.status = answer.status;
        delivery.text.clone_from(&answer.text);
        delivery.maybe |= answer.maybe;
        delivery.cause = cause(answer.verdict).or(delivery.cause);
        let next = decide(answer.verdict, delivery, &facts);
        if let Some(failure) = failure(answer.verdict) {
            delivery.unconfirmed |= failure == crate::domain::outcome::Failure::Unconfirmed;
            delivery.first_failure.get_or_insert((failure, facts.now));
            delivery.avoid = Some(answer.connection);
        }
        match next {
            Next::Retry(_) => delivery.retry_due = true,
            Next::Resend(_) => delivery.resends = delivery.resends.saturating_add(1),
            Next::Reauth => delivery.reauthed = true,
            _ => {}
        }
        Some(next)
    }

    fn carry_out(&mut self, spot: Spot, next: Next, no: Option<VariantNo>) {
        if let Next::Finish(outcome) = next {
            self.finish(spot, outcome, Cause::None);
            return;
        }
        self.exposure.give(1);
        self.flush_maybe(spot);
        if let Some(ending) = self.hand.get(spot.key).and_then(|c| c.ending) {
            self.left_behind(spot, ending);
            return;
        }
        match next {
            Next::Retry(at) | Next::Resend(at) | Next::Pending(at) => self.delay(spot, at),
            Next::Reauth => {
                if let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) {
                    fan.counters.reauthed += 1;
                }
                self.delay(spot, self.now);
            }
            Next::Suspect => self.suspect(spot, no),
            Next::Finish(_) => {}
        }
    }

    fn suspect(&mut self, spot: Spot, no: Option<VariantNo>) {
        let fan = self.fans.get_mut(&spot.key.chunk.fanout);
        let Some((fan, no)) = fan.zip(no) else {
            return;
        };
        if fan.variant(no).stopped() {
            self.exposure.take();
            self.finish(spot, Outcome::Payload, Cause::None);
            return;
        }
        fan.suspects.push((spot, no));
        self.suspected.insert(spot.key.chunk.fanout);
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.suspects += 1;
        }
    }

    fn flush_maybe(&mut self, spot: Spot) {
        if let Some(chunk) = self.hand.get(spot.key)
            && chunk.deliveries.get(&spot.ordinal).is_some_and(|d| d.maybe)
        {
            self.outbox.maybe(chunk.meta, spot.ordinal, self.now);
        }
    }

    /// A recipient without verdict in a chunk of which nothing more is launched.
    fn left_behind(&mut self, spot: Spot, ending: Ending) {
        if let Ending::Rest(rest) = ending {
            let (outcome, cause) = at_deadline(self.delivery(spot), rest.cause);
            self.exposure.take();
            self.finish(spot, outcome, cause);
        }
    }

    /// Ends a recipient. The exposure it holds is given back when the outcome is on disk.
    pub(super) fn finish(&mut self, spot: Spot, outcome: Outcome, cause: Cause) {
        let Some(chunk) = self.hand.get_mut(spot.key) else {
            self.exposure.give(1);
            return;
        };
        let delivery = chunk.deliveries.get(&spot.ordinal).cloned().unwrap_or_default();
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
        let record = OutcomeRecord { chunk: chunk_ref, ordinal, key, outcome, maybe: delivery.maybe, failure };
        self.outbox.outcome(meta, record, self.now);
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
        let over: Vec<HandKey> = self.hand.iter().filter(|(_, c)| due(c)).map(|(key, _)| key).collect();
        for key in over {
            let (outcome, cause) = at_deadline(None, self.held_by());
            self.stop(key, Ending::Rest(RestOutcome { outcome, cause }));
            self.close_if_over(key);
        }
    }

    /// Forgets fan-outs whose deadline is long past: another instance settled them.
    pub(super) fn forget(&mut self) {
        let long_ago = self.wiring.clock.now_ms() - 600_000;
        let hand = &self.hand;
        self.fans.retain(|id, fan| fan.job.deadline_ms > long_ago || hand.holds(*id));
    }

    fn held_by(&self) -> Cause {
        match self.block {
            Block::Gate(shut) => shut.cause,
            _ => Cause::Queue,
        }
    }

    /// Suspects whose variant has nobody left that could show whose fault it was: no proof against the device.
    pub(super) fn settle_suspects(&mut self) {
        for id in self.suspected.clone() {
            let busy =
                self.hand.iter().any(|(key, c)| key.chunk.fanout == id && c.flying + c.delayed + c.launchable() > 0);
            if busy {
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
                self.releasing.push((chunk.meta.chunk, chunk.meta.epoch));
                return;
            }
            Some(Ending::Rest(rest)) => Some(rest),
            None => Some(shelved(&chunk)),
        };
        let rest = rest.filter(|_| chunk.open() > 0);
        self.outbox.end(chunk.meta, ChunkEnd { chunk: chunk.meta.chunk, rest }, self.now);
    }

    /// Outcomes are on disk: their exposure is free, and ownership may have changed.
    pub(super) fn flushed(&mut self, flushed: Flushed) {
        self.exposure.give(flushed.outcomes as usize);
        for ack in flushed.acks {
            let Some(key) = self.hand.find(ack.chunk) else {
                continue;
            };
            if let Some(chunk) = self.hand.get_mut(key) {
                chunk.merge_done(&ack.done);
            }
            if !ack.owned {
                self.stop(key, Ending::Lost);
            }
            self.close_if_over(key);
        }
    }
}

/// How those end who were left when their variant stopped.
fn shelved(chunk: &Chunk) -> RestOutcome {
    let outcome = if chunk.shelved > 0 || chunk.open() == 0 {
        Outcome::Payload
    } else {
        let left = chunk.open();
        tracing::error!(target: "fanfare::fanout", fanout_id = %chunk.meta.chunk.fanout, chunk = chunk.meta.chunk.no, left, "recipients were lost sight of");
        Outcome::Internal
    };
    RestOutcome { outcome, cause: Cause::None }
}

const fn mark(verdict: Verdict) -> Mark {
    match verdict {
        Verdict::Accepted
        | Verdict::TokenDead
        | Verdict::TokenInvalid
        | Verdict::TokenSuspect
        | Verdict::TokenForeign
        | Verdict::Payload => Mark::Success,
        Verdict::Failed(..) | Verdict::Unsent => Mark::Failure,
        Verdict::Credential(_) | Verdict::Throttled(_) | Verdict::Unprocessed => Mark::Neutral,
    }
}

const fn credit(verdict: Verdict) -> Credit {
    match verdict {
        Verdict::Credential(fault) => Credit::Refused(fault),
        _ if verdict.meaningful() => Credit::Worked,
        _ => Credit::Silent,
    }
}

const fn failure(verdict: Verdict) -> Option<crate::domain::outcome::Failure> {
    match verdict {
        Verdict::Failed(failure, _) => Some(failure),
        Verdict::Unsent => Some(crate::domain::outcome::Failure::Transient),
        _ => None,
    }
}

const fn cause(verdict: Verdict) -> Option<Cause> {
    match verdict {
        Verdict::Failed(failure, _) => Some(failure.cause()),
        Verdict::Unsent => Some(Cause::Transient),
        Verdict::Throttled(_) => Some(Cause::Throttle),
        Verdict::Credential(_) => Some(Cause::Credential),
        _ => None,
    }
}
