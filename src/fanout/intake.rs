//! Owns what comes in from the other side: chunks, acknowledgements, the lease, the drain.
//! Must never know: how anything is launched.

use std::sync::Arc;

use crate::clock::Boot;
use crate::domain::batch::{ClaimedChunk, FanoutJob, Flushed};

use super::ToSender;
use super::cancel::CANCELLED;
use super::dispatch::Dispatcher;
use super::fan::Fan;
use super::hand::{Ending, HandKey};

impl Dispatcher {
    pub(super) fn receive(&mut self, message: ToSender) {
        match message {
            ToSender::Chunks(chunks) => chunks.into_iter().for_each(|(chunk, job)| self.take(chunk, job)),
            ToSender::Flushed(flushed) => self.flushed(flushed),
            ToSender::Lease(until) => self.renew(until),
            ToSender::Settled(id) => {
                self.fans.remove(&id);
                self.waiting.settled(id);
            }
            ToSender::Cancelled(id) => self.cancel(id),
            ToSender::Drain => self.drain(),
            ToSender::Abandon => self.abandon(),
        }
    }

    fn take(&mut self, claimed: ClaimedChunk, job: Arc<FanoutJob>) {
        let now_ms = self.wiring.clock.now_ms();
        let id = claimed.chunk.fanout;
        let fan = self.fans.entry(id).or_insert_with(|| Fan::new(Arc::clone(&job), now_ms));
        let paused = fan.renew(job.origin.cap) && fan.job.deadline_ms > now_ms;
        let fresh = fan.take(claimed.chunk.no, claimed.epoch);
        // News of a pause counts whatever brings it: it is told once, and a chunk in hand must not go on.
        if paused {
            self.hand_back(id);
        }
        if !fresh {
            return;
        }
        // Lost and claimed anew while attempts from before are in flight: they land where they were launched.
        if let Some(before) = self.hand.find(claimed.chunk) {
            self.stop(before, Ending::Lost);
            self.close_if_over(before);
        }
        let tried = self.waiting.returns(claimed.chunk);
        let (key, gone) = self.hand.add(claimed, job);
        self.resume(key, tried);
        for record in gone {
            self.exposure.take();
            if let Some(chunk) = self.hand.get(key) {
                self.outbox.outcome(chunk.meta, record, self.now);
            }
        }
        let fan = self.fans.get(&id);
        if fan.is_some_and(|fan| fan.cancelled) {
            self.stop(key, CANCELLED);
        } else if self.gates.draining || fan.is_some_and(|fan| fan.paused && fan.job.deadline_ms > now_ms) {
            self.stop(key, Ending::Release);
        }
        self.close_if_over(key);
    }

    fn renew(&mut self, until: Boot) {
        if !self.gates.leased() {
            self.release_all();
        }
        self.gates.renew(until);
    }

    pub(super) fn drain(&mut self) {
        self.gates.draining = true;
        self.release_all();
        self.recall_all();
    }

    /// Gives up what is in flight. It may have been delivered, and is noted so for whoever owns its chunk next.
    fn abandon(&mut self) {
        self.landings.clear();
        let given_up = self.flight.clear();
        if !given_up.is_empty() {
            let attempts = given_up.len();
            tracing::warn!(target: "fanfare::fanout", attempts, "attempts without an answer are given up; they may be sent again");
        }
        for spot in given_up {
            self.exposure.give(1);
            let Some(chunk) = self.hand.get_mut(spot.key) else { continue };
            chunk.flying = chunk.flying.saturating_sub(1);
            let delivery = chunk.deliveries.entry(spot.ordinal).or_default();
            (delivery.maybe, delivery.unconfirmed) = (true, true);
            let ending = chunk.ending;
            self.flush_maybe(spot);
            if let Some(ending) = ending {
                self.left_behind(spot, ending);
            }
            self.close_if_over(spot.key);
        }
    }

    /// Hands every chunk back: it may be another instance's by now, or soon.
    fn release_all(&mut self) {
        let keys: Vec<HandKey> = self.hand.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.stop(key, Ending::Release);
            self.close_if_over(key);
        }
    }

    /// Outcomes are on disk: their exposure is free, and ownership may have changed.
    pub(super) fn flushed(&mut self, flushed: Flushed) {
        self.exposure.give(flushed.outcomes as usize);
        let mut robbed = false;
        flushed.paused.into_iter().for_each(|paused| self.heard_of_pause(paused));
        for ack in flushed.acks {
            if ack.cancelled {
                self.cancel(ack.chunk.fanout);
            }
            let Some(key) = self.hand.find(ack.chunk) else {
                continue;
            };
            if let Some(chunk) = self.hand.get_mut(key) {
                chunk.merge_done(&ack.done);
            }
            // An older epoch's answer says nothing of a chunk that was claimed anew.
            if !ack.owned && self.hand.get(key).is_some_and(|c| c.meta.epoch <= ack.epoch) {
                robbed |= self.hand.get(key).is_some_and(|c| c.ending.is_none());
                self.stop(key, Ending::Lost);
            }
            self.close_if_over(key);
        }
        if robbed {
            self.distrust();
        }
    }

    /// One chunk was taken from us while we trusted our lease (the database's clock leapt): so were all, and learning it
    /// chunk by chunk would repeat an exposure for each. Nothing is launched until the next heartbeat says what is ours.
    fn distrust(&mut self) {
        let chunks = self.hand.iter().count();
        tracing::warn!(target: "fanfare::fanout", chunks, "a chunk was taken over while the lease was trusted; all are let go");
        self.gates.renew(Boot::now());
        self.release_all();
    }

    /// Forgets fan-outs whose deadline is long past: another instance settled them.
    pub(super) fn forget(&mut self) {
        let long_ago = self.wiring.clock.now_ms() - 3_600_000;
        let hand = &self.hand;
        self.fans.retain(|id, fan| fan.job.deadline_ms > long_ago || hand.holds(*id));
        self.waiting.forget(self.wiring.clock.now_ms());
    }
}
