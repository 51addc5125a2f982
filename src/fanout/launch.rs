//! Owns the launch: a recipient is bound to an attempt only when gate, slot, stream and grant are all at hand.
//! Must never know: what an answer means.

use std::cmp::Reverse;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::Instant;

use crate::breaker::BreakerState;
use crate::domain::derived::PauseReason;
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::Platform;
use crate::fcm::bearer::Bearer;
use crate::fcm::oauth::TokenState;
use crate::mutant;

use super::decide::Delivery;
use super::dispatch::{Block, Dispatcher};
use super::flight::AttemptId;
use super::gates::Shut;
use super::hand::{Hand, HandKey, Spot};
use super::stock::Take;

/// Least wait of a retry the budget does not allow yet.
const OVER_BUDGET: Duration = Duration::from_millis(50);
/// Launches between two looks at what came in.
const BURST: usize = 64;

impl Dispatcher {
    pub(super) fn launch(&mut self) {
        for _ in 0..BURST {
            if let Err(block) = self.launch_one() {
                self.block = block;
                return;
            }
        }
        // More may be launched, after a look at what came in.
        self.block = Block::Grant(Some(self.now));
    }

    /// Gate, slot, grant at hand, then a recipient, then its stream; only then is the grant used.
    fn launch_one(&mut self) -> Result<(), Block> {
        let bearer = self.check()?;
        let spot = self.pick().ok_or(Block::Nobody)?;
        let avoid = self.delivery(spot).and_then(|d| d.avoid);
        let Some(stream) = self.connections.try_stream(avoid) else {
            self.put_back(spot);
            return Err(Block::Stream);
        };
        let Some(body) = self.body(spot) else {
            return Ok(());
        };
        if !(mutant::on("retry_uncharged") && self.delivery(spot).is_some_and(|d| d.retry_due)) {
            self.stock.take(self.now);
            self.wiring.ceiling.used(1);
        }
        let id = self.bind(spot, bearer.1);
        let attempt = self.connections.attempt(stream, &bearer.0, body);
        self.landings.push(Box::pin(AssertUnwindSafe(attempt).catch_unwind().map(move |result| (id, result))));
        Ok(())
    }

    /// The access token, when nothing holds every launch.
    fn check(&mut self) -> Result<(Bearer, u64), Block> {
        if self.hand.launchable() == 0 {
            return Err(Block::Nobody);
        }
        let token = self.token();
        if let Some(shut) = self.gates.shut(self.now, token.as_ref().map(|t| t.1)) {
            return Err(Block::Gate(shut));
        }
        let in_flight = u32::try_from(self.flight.len()).unwrap_or(u32::MAX);
        if self.gates.breaker.allowance(self.now, in_flight) == 0 {
            let until = self.gates.breaker.next_change(self.now);
            return Err(Block::Gate(Shut { cause: Cause::Breaker, until }));
        }
        if self.flight.free() == 0 || self.exposure.free() == 0 {
            return Err(Block::Slot);
        }
        if self.connections.room() == 0 {
            return Err(Block::Stream);
        }
        match self.stock.peek(self.now) {
            Take::Granted => token.ok_or(Block::Nobody),
            Take::At(at) => Err(Block::Grant(Some(at))),
            Take::Empty => Err(Block::Grant(None)),
        }
    }

    /// The access token and its generation, unless it has run out.
    pub(super) fn token(&self) -> Option<(Bearer, u64)> {
        match &*self.token.borrow() {
            TokenState::Ready { bearer, generation, expires } if *expires > self.now => {
                Some((bearer.clone(), *generation))
            }
            _ => None,
        }
    }

    /// The next recipient that nothing of its own holds back.
    pub(super) fn pick(&mut self) -> Option<Spot> {
        // While a message is under suspicion too: neighbours often share their fault (one bad import), and a variant
        // must not be given up because its first twenty recipients happen to.
        let healthy = !self.gates.refused() && self.suspected.is_empty();
        let next = match self.gates.breaker.state() {
            BreakerState::Closed if healthy => Hand::pick,
            BreakerState::HalfOpen | BreakerState::Ramping => Hand::pick_probe,
            _ => Hand::pick_fresh,
        };
        while let Some(spot) = next(&mut self.hand) {
            let Some(recipient) = self.hand.get(spot.key).and_then(|c| c.recipient(spot.ordinal)) else {
                continue;
            };
            let platform = recipient.platform;
            let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) else {
                continue;
            };
            if fan.spent() {
                self.pause(spot.key.chunk.fanout, PauseReason::Budget);
                continue;
            }
            let no = fan.variant_for(recipient, &self.wiring.catalogue);
            if fan.variant(no).stopped() {
                self.shelve(spot);
            } else if let Some(until) = self.gates.platform_shut(platform, self.now) {
                self.set_aside(spot, Outcome::Credential);
                self.delay(spot, until);
            } else if self.delivery(spot).is_some_and(|d| d.retry_due) && !self.budget.allows(self.now) {
                self.delay(spot, self.now + self.pacing.retry_delay.max(OVER_BUDGET));
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
        } else {
            self.set_aside(spot, Outcome::Payload);
        }
        self.close_if_over(spot.key);
    }

    /// A platform's credential serves again: nobody waits out the back-off it was refused with.
    pub(super) fn call_back(&mut self, platform: Platform) {
        let (hand, now) = (&self.hand, self.now);
        let waits_for_it = |spot: &Spot| {
            let chunk =
                hand.get(spot.key).filter(|c| c.recipient(spot.ordinal).is_some_and(|r| r.platform == platform));
            chunk.is_some_and(|c| match c.deliveries.get(&spot.ordinal) {
                Some(delivery) => delivery.cause == Some(Cause::Credential),
                None => c.aside.get(&spot.ordinal) == Some(&Outcome::Credential),
            })
        };
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        let due = |at: Instant, spot: &Spot| if waits_for_it(spot) { at.min(now) } else { at };
        self.delayed = delayed.map(|Reverse((at, spot))| Reverse((due(at, &spot), spot))).collect();
        self.forgive(platform);
        self.recall_for(platform);
    }

    /// Nobody of a platform is set aside for its credential any more: whatever they wait for from now on, it is not that.
    fn forgive(&mut self, platform: Platform) {
        let keys: Vec<HandKey> = self.hand.iter().filter(|(_, c)| !c.aside.is_empty()).map(|(key, _)| key).collect();
        for key in keys {
            let Some(chunk) = self.hand.get_mut(key) else { continue };
            let mut aside = std::mem::take(&mut chunk.aside);
            let of_it = |o: u16| chunk.recipient(o).is_some_and(|r| r.platform == platform);
            aside.retain(|ordinal, outcome| *outcome != Outcome::Credential || !of_it(*ordinal));
            chunk.aside = aside;
        }
    }

    /// Notes what a recipient without an attempt ends in if its deadline comes first.
    fn set_aside(&mut self, spot: Spot, outcome: Outcome) {
        if let Some(chunk) = self.hand.get_mut(spot.key)
            && !chunk.deliveries.contains_key(&spot.ordinal)
        {
            chunk.aside.insert(spot.ordinal, outcome);
        }
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
            let template = fan.variant(no).template.as_ref()?;
            let body = || {
                mutant::panic_at("body", recipient.address.value().as_bytes());
                template.body(&recipient.address, chunk.job.deadline_ms, now_ms)
            };
            let made = std::panic::catch_unwind(AssertUnwindSafe(body));
            if made.is_err() {
                tracing::error!(target: "fanfare::fanout", fanout_id = %spot.key.chunk.fanout, ordinal = spot.ordinal, "an attempt panicked");
            }
            made.ok()
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
        let (mut platform, mut retry) = (Platform::Android, false);
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.flying += 1;
            chunk.aside.remove(&spot.ordinal);
            platform = chunk.recipient(spot.ordinal).map_or(platform, |r| r.platform);
            let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
            delivery.attempts += 1;
            retry = std::mem::take(&mut delivery.retry_due);
        }
        let totals = self.wiring.hands.totals();
        totals.attempts.inc();
        totals.retried.inc_by(u64::from(retry));
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
}
