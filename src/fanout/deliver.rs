//! Owns what follows an answer: everybody concerned is told, and the recipient ends or is kept.
//! Must never know: how a decision is made (that is [`decide`]), or how outcomes are written.

use crate::breaker::{Mark, Ticket};
use crate::domain::outcome::{Cause, CredentialFault, Failure, Outcome, Verdict};
use crate::domain::recipient::Platform;
use crate::domain::retry::DEFAULT_THROTTLE_PAUSE;
use crate::fcm::attempted::Attempted;

use super::decide::{Facts, Next, decide};
use super::dispatch::{Dispatcher, Landing};
use super::fan::{VariantNo, millis};
use super::flight::Flying;
use super::gates::Credit;
use super::hand::Spot;
use super::show::named;

impl Dispatcher {
    /// An attempt ended.
    pub(super) fn landed(&mut self, (id, result): Landing) {
        let Some(flying) = self.flight.land(id) else {
            return;
        };
        let spot = flying.spot;
        match result {
            Ok(answer) => self.answered(flying, &answer),
            Err(_panic) => {
                tracing::error!(target: "fanfare::fanout", fanout_id = %spot.key.chunk.fanout, ordinal = spot.ordinal, "an attempt panicked");
                self.gates.breaker.finish(flying.ticket, 0, Mark::Neutral, self.now);
                self.gates.note(Credit::Silent, flying.platform, self.now);
                self.finish(spot, Outcome::Internal, Cause::None);
            }
        }
        // Only now: what the answer shows of others must not close the chunk while this one is being ended.
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.flying = chunk.flying.saturating_sub(1);
        }
        self.close_if_over(spot.key);
    }

    fn answered(&mut self, flying: Flying, answer: &Attempted) {
        let spot = flying.spot;
        let probe = flying.ticket.is_probe();
        let facts = self.facts(&flying, answer, probe);
        self.count(&flying, answer);
        let no = self.note_variant(spot, answer.verdict);
        self.note_provider(spot, flying.ticket, answer);
        self.note_credentials(flying.platform, answer);
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

    /// Tells the breaker, and those who choose whom to probe it with.
    fn note_provider(&mut self, spot: Spot, ticket: Ticket, answer: &Attempted) {
        let mark = mark(answer.verdict);
        let who = self.hand.get(spot.key).map_or(0, |chunk| chunk.key(spot.ordinal).0);
        self.gates.breaker.finish(ticket, who, mark, self.now);
        match mark {
            Mark::Success => self.hand.served(spot.key.chunk.fanout),
            Mark::Failure => {
                self.hand.failed(spot.key.chunk.fanout);
                self.shown.failure = named(answer);
            }
            Mark::Neutral => {}
        }
    }

    fn note_credentials(&mut self, platform: Platform, answer: &Attempted) {
        let refused = self.gates.platform_refused(platform);
        let credit = credit(answer.verdict);
        self.gates.note(credit, platform, self.now);
        if refused && !self.gates.platform_refused(platform) {
            self.call_back(platform);
        }
        if matches!(credit, Credit::Refused(_)) {
            self.shown.refusal = named(answer);
        }
    }

    /// What bears on the decision, as of before this answer changed it.
    fn facts(&mut self, flying: &Flying, answer: &Attempted, probe: bool) -> Facts {
        let fan = self.fans.get_mut(&flying.spot.key.chunk.fanout);
        let recipient = self.hand.get(flying.spot.key).and_then(|c| c.recipient(flying.spot.ordinal));
        let variant_accepted = fan.zip(recipient).is_some_and(|(fan, recipient)| {
            let no = fan.variant_for(recipient, &self.wiring.catalogue);
            fan.variant(no).accepted()
        });
        let credential_worked = match answer.verdict {
            Verdict::Credential(fault) => self.gates.worked(fault, flying.platform),
            _ => None,
        };
        Facts {
            now: self.now,
            last_meaningful: self.last_meaningful,
            doubt: self.gates.breaker.doubts(),
            variant_accepted,
            probe,
            credential_worked,
            retry_delay: self.pacing.retry_delay,
        }
    }

    fn count(&mut self, flying: &Flying, answer: &Attempted) {
        let now_ms = self.wiring.clock.now_ms();
        let totals = self.wiring.hands.totals();
        match answer.verdict {
            Verdict::Throttled(_) => {
                totals.throttled.inc();
            }
            Verdict::Unprocessed => {
                totals.unprocessed.inc();
            }
            Verdict::Unsent | Verdict::Unopened => {
                totals.unsent.inc();
            }
            _ => {}
        }
        let Some(fan) = self.fans.get_mut(&flying.spot.key.chunk.fanout) else {
            return;
        };
        fan.dirty = true;
        let occurred_ms = fan.job.event.occurred_ms;
        let c = &mut fan.counters;
        match answer.verdict {
            Verdict::Throttled(_) => c.throttled += 1,
            Verdict::Unprocessed => c.unprocessed += 1,
            Verdict::Unsent | Verdict::Unopened => c.unsent += 1,
            _ => {}
        }
        if answer.status != 0 {
            c.send.record(millis(answer.took));
        }
        if answer.verdict == Verdict::Accepted {
            c.accepted[flying.platform as usize] += 1;
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

    fn note_throttle(&mut self, spot: Spot, verdict: Verdict) {
        self.scope.answered(self.now);
        let Verdict::Throttled(after) = verdict else {
            return;
        };
        let key = self.hand.get(spot.key).map(|c| c.key(spot.ordinal));
        if key.is_some_and(|key| self.scope.throttled(key, self.now)) {
            let pause = after.unwrap_or(DEFAULT_THROTTLE_PAUSE);
            self.gates.pause(self.now + pause);
            self.wiring.ceiling.throttled(after);
            let lost = self.stock.clear();
            self.wiring.ceiling.forfeited(lost);
            self.pause_capped();
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
        if matches!(answer.verdict, Verdict::Credential(_)) {
            delivery.refused.get_or_insert(facts.now);
        }
        if let Some(failure) = failure(answer.verdict) {
            delivery.failures = delivery.failures.saturating_add(1);
            delivery.unconfirmed |= failure == Failure::Unconfirmed;
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
                self.wiring.hands.totals().reauthed.inc();
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

    pub(super) fn flush_maybe(&mut self, spot: Spot) {
        if let Some(chunk) = self.hand.get(spot.key)
            && chunk.deliveries.get(&spot.ordinal).is_some_and(|d| d.maybe)
        {
            self.outbox.maybe(chunk.meta, spot.ordinal, self.now);
        }
    }
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
        Verdict::Credential(_) | Verdict::Throttled(_) | Verdict::Unprocessed | Verdict::Unopened => Mark::Neutral,
    }
}

const fn credit(verdict: Verdict) -> Credit {
    match verdict {
        Verdict::Credential(fault) => Credit::Refused(fault),
        _ if verdict.meaningful() => Credit::Worked,
        _ => Credit::Silent,
    }
}

const fn failure(verdict: Verdict) -> Option<Failure> {
    match verdict {
        Verdict::Failed(failure, _) => Some(failure),
        Verdict::Unsent => Some(Failure::Transient),
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
