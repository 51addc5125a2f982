//! Owns the loop of the sender thread: it launches what may be launched and waits for what can change that.
//! Must never know: SQL, Redis, HTTP. Nothing here waits while it holds a slot, a stream or a grant: a recipient is
//! bound to an attempt only when gate, slot, stream and grant are all at hand.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::batch::Outbound;
use crate::domain::ids::FanoutId;
use crate::fcm::attempted::Attempted;
use crate::fcm::connections::Connections;
use crate::fcm::oauth::TokenState;

use super::budget::RetryBudget;
use super::fan::Fan;
use super::flight::{AttemptId, Flight, Slots};
use super::gates::{Gates, Shut, Spell};
use super::hand::{Hand, Spot};
use super::outbox::{Exposure, Outbox};
use super::show::Shown;
use super::stock::Stock;
use super::throttle::ThrottleScope;
use super::waiting::Waiting;
use super::wiring::{Pacing, Wiring};

/// Counters are handed over this often.
const PART_EVERY: Duration = Duration::from_secs(1);
/// A connection is used at least this often: Google closes one that was idle for about three minutes
/// (firebase-admin-java issue 1028).
const WARM_EVERY: Duration = Duration::from_secs(60);
/// Longest sleep: gates and deadlines in database time are looked at again.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// One answer, or the panic that took its place.
pub(super) type Landing = (AttemptId, std::thread::Result<Attempted>);

/// Why nothing more is launched now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// Nobody is launchable.
    Nobody,
    /// A gate is shut.
    Gate(Shut),
    /// Every slot is taken, or the exposure is full.
    Slot,
    /// No connection has a stream free.
    Stream,
    /// No grant; the next may be used then.
    Grant(Option<Instant>),
}

/// The dispatcher: everything it owns is touched by this one task only.
pub struct Dispatcher {
    pub(super) wiring: Wiring,
    pub(super) pacing: Pacing,
    pub(super) connections: Connections,
    pub(super) hand: Hand,
    pub(super) fans: HashMap<FanoutId, Fan>,
    pub(super) flight: Flight,
    pub(super) landings: FuturesUnordered<Pin<Box<dyn Future<Output = Landing>>>>,
    pub(super) stock: Stock,
    pub(super) gates: Gates,
    pub(super) spell: Spell,
    pub(super) budget: RetryBudget,
    pub(super) scope: ThrottleScope,
    pub(super) outbox: Outbox,
    pub(super) exposure: Exposure,
    pub(super) delayed: BinaryHeap<Reverse<(Instant, Spot)>>,
    pub(super) last_meaningful: Option<Instant>,
    pub(super) waiting: Waiting,
    pub(super) suspected: BTreeSet<FanoutId>,
    pub(super) block: Block,
    pub(super) now: Instant,
    turned: Instant,
    /// There was somebody in hand at the last turn.
    works: bool,
    part_due: Instant,
    warm_due: Instant,
    pub(super) shown: Shown,
    pub(super) token: watch::Receiver<TokenState>,
}

impl Dispatcher {
    /// Nothing in hand yet.
    #[must_use]
    pub fn new(wiring: Wiring, pacing: Pacing, connections: Connections, gates: Gates) -> Self {
        let now = Instant::now();
        let Slots { slots, lent, .. } = pacing.slots;
        let token = wiring.tokens.subscribe();
        Self {
            flight: Flight::new(pacing.slots),
            outbox: Outbox::new(pacing.unflushed),
            exposure: Exposure::new(slots + lent + pacing.unflushed),
            wiring,
            pacing,
            connections,
            gates,
            spell: Spell::default(),
            now,
            hand: Hand::default(),
            fans: HashMap::new(),
            landings: FuturesUnordered::new(),
            stock: Stock::default(),
            budget: RetryBudget::default(),
            scope: ThrottleScope::default(),
            delayed: BinaryHeap::new(),
            last_meaningful: None,
            waiting: Waiting::default(),
            suspected: BTreeSet::new(),
            block: Block::Nobody,
            turned: now,
            works: false,
            part_due: now + PART_EVERY,
            warm_due: now,
            shown: Shown::default(),
            token,
        }
    }

    /// Runs until drained: nothing in flight, everything handed over and acknowledged.
    pub async fn run(mut self) {
        loop {
            self.turn();
            if self.gates.draining && self.settled() {
                return;
            }
            let wake = self.wake_at();
            tokio::select! {
                message = self.wiring.inbox.recv() => match message {
                    Some(message) => self.at_once(|this| this.receive(message)),
                    None => self.drain(),
                },
                Some(run) = self.wiring.grants.recv() => self.stock.add(run),
                Some(landing) = self.landings.next(), if !self.landings.is_empty() => self.at_once(|this| this.landed(landing)),
                Ok(()) = self.token.changed() => {}
                () = tokio::time::sleep_until(wake) => self.now = Instant::now(),
            }
            self.receive_the_rest();
        }
    }

    /// Handles something as of now, not as of when the wait for it began.
    fn at_once(&mut self, handle: impl FnOnce(&mut Self)) {
        self.now = Instant::now();
        handle(self);
    }

    /// Takes what else has come in, without waiting.
    fn receive_the_rest(&mut self) {
        while let Ok(message) = self.wiring.inbox.try_recv() {
            self.receive(message);
        }
        while let Ok(run) = self.wiring.grants.try_recv() {
            self.stock.add(run);
        }
        while let Some(Some(landing)) = self.landings.next().now_or_never() {
            self.landed(landing);
        }
    }

    /// Everything that depends on the time, then launches, then what must be handed over.
    fn turn(&mut self) {
        self.now = Instant::now();
        let before = std::mem::replace(&mut self.turned, self.now);
        self.account(self.now.saturating_duration_since(before));
        self.keep_warm();
        let late = self.stock.forfeit_late(self.now);
        self.wiring.ceiling.forfeited(late);
        self.heed();
        self.ask_for_token();
        self.gates.see_token(self.token().map(|token| token.1), self.now);
        self.gates.breaker.tick(self.now);
        self.age();
        self.expire();
        self.wake_delayed();
        self.launch();
        self.put_off();
        self.settle_suspects();
        self.want();
        self.show();
        self.hand_over();
    }

    /// Another instance may have been told to pause: what was reserved before that is given up.
    fn heed(&mut self) {
        if let Some(until) = self.wiring.ceiling.paused_until().filter(|until| *until > self.now) {
            self.gates.pause(until);
            let lost = self.stock.clear();
            self.wiring.ceiling.forfeited(lost);
        }
    }

    /// Counts the time since the last turn towards what blocked it, once for each fan-out however many chunks it has.
    fn account(&mut self, since: Duration) {
        let held = match self.block {
            Block::Gate(_) => true,
            Block::Grant(_) => false,
            _ => return,
        };
        let launchable = self.hand.iter().filter(|(_, c)| c.launchable() > 0);
        let waiting: BTreeSet<FanoutId> = launchable.map(|(key, _)| key.chunk.fanout).collect();
        for id in waiting {
            match self.fans.get_mut(&id) {
                Some(fan) if held => fan.hold(since),
                Some(fan) => fan.wait(since),
                None => {}
            }
        }
    }

    /// Connects before the first goal needs it, and again before an idle connection is closed.
    fn keep_warm(&mut self) {
        if self.now >= self.warm_due {
            self.warm_due = self.now + WARM_EVERY;
            tokio::task::spawn_local(self.connections.warm());
        }
    }

    /// Whoever keeps the access token fresh is told when there is work again: it may be waiting out a refusal.
    fn ask_for_token(&mut self) {
        let works = !self.hand.is_empty();
        let worked = std::mem::replace(&mut self.works, works);
        if works && !worked {
            self.wiring.tokens.work_waits();
        }
    }

    fn age(&mut self) {
        for spot in self.flight.age(self.now) {
            let lent = self.flight.lent() as u64;
            self.wiring.hands.totals().stalled.inc();
            if let Some(fan) = self.fans.get_mut(&spot.key.chunk.fanout) {
                fan.counters.stalled += 1;
                fan.counters.lent_peak = fan.counters.lent_peak.max(lent);
            }
        }
    }

    pub(super) fn wake_delayed(&mut self) {
        while let Some(Reverse((due, spot))) = self.delayed.peek().copied() {
            if due > self.now {
                return;
            }
            self.delayed.pop();
            if let Some(chunk) = self.hand.get_mut(spot.key).filter(|c| c.ending.is_none()) {
                chunk.delayed = chunk.delayed.saturating_sub(1);
                chunk.make_ready(spot.ordinal);
                self.close_if_over(spot.key);
            }
        }
    }

    /// Makes a recipient wait until then.
    pub(super) fn delay(&mut self, spot: Spot, until: Instant) {
        if let Some(chunk) = self.hand.get_mut(spot.key) {
            chunk.delayed += 1;
            self.delayed.push(Reverse((until, spot)));
        }
    }

    fn hand_over(&mut self) {
        if self.now >= self.part_due {
            self.part_due = self.now + PART_EVERY;
            self.forget();
            let snapshot = self.wiring.ceiling.snapshot();
            for (id, fan) in self.fans.iter_mut().filter(|(_, f)| f.dirty) {
                self.outbox.part(*id, fan.counters(&snapshot));
            }
        }
        let idle = self.flight.is_empty() && self.hand.launchable() == 0;
        if let Some(out) = self.outbox.due(self.now, idle) {
            self.send(out);
        }
    }

    fn send(&mut self, out: Outbound) {
        if let Err(lost) = self.wiring.outbound.send(out) {
            let outcomes = lost.0.outcomes.len();
            tracing::error!(target: "fanfare::fanout", what = "outcomes", outcomes, "nobody takes what the sender hands over");
            self.exposure.give(outcomes);
        }
    }

    fn wake_at(&self) -> Instant {
        let block = match self.block {
            Block::Gate(shut) => shut.until,
            Block::Grant(at) => at,
            _ => None,
        };
        let delayed = self.delayed.peek().map(|Reverse((due, _))| *due);
        let known = [block, delayed, self.flight.next_change(), self.outbox.next_change()];
        let soonest = known.into_iter().flatten().min().unwrap_or(self.now + LONGEST_SLEEP);
        soonest.clamp(self.now, self.now + LONGEST_SLEEP)
    }

    fn settled(&self) -> bool {
        self.flight.is_empty() && self.outbox.is_empty() && self.exposure.used() == 0
    }
}
