//! Owns the attempts in flight: slots, and the lending of a slot by an attempt that has stalled (law 12).
//! Must never know: what an attempt sends.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::Ticket;
use crate::domain::recipient::Platform;
use crate::mutant;

use super::hand::{HandKey, Spot};

/// Names one attempt in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(u64);

/// One attempt in flight.
#[derive(Debug)]
pub struct Flying {
    /// Whom it is for.
    pub spot: Spot,
    /// When it was launched.
    pub started: Instant,
    /// What the breaker wants to know of it.
    pub ticket: Ticket,
    /// Generation of the access token it carries.
    pub generation: u64,
    /// Platform of its recipient.
    pub platform: Platform,
    old: bool,
    lent: bool,
}

/// How many may be in flight.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// Attempts in flight.
    pub slots: usize,
    /// Of these, how many stalled ones may lend their slot out.
    pub lent: usize,
    /// Age at which an attempt has stalled.
    pub stall_after: Duration,
}

/// All attempts in flight.
#[derive(Debug)]
pub struct Flight {
    slots: Slots,
    next: u64,
    flying: HashMap<AttemptId, Flying>,
    by_age: VecDeque<(Instant, AttemptId)>,
    old: Vec<AttemptId>,
    lent: usize,
}

impl Flight {
    /// No attempt in flight.
    #[must_use]
    pub fn new(slots: Slots) -> Self {
        Self { slots, next: 0, flying: HashMap::new(), by_age: VecDeque::new(), old: Vec::new(), lent: 0 }
    }

    /// Slots free now.
    #[must_use]
    pub fn free(&self) -> usize {
        (self.slots.slots + self.lent).saturating_sub(self.flying.len())
    }

    /// Attempts in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flying.len()
    }

    /// Whether none is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// Slots lent out now.
    #[must_use]
    pub const fn lent(&self) -> usize {
        self.lent
    }

    /// Takes a slot.
    pub fn launch(&mut self, spot: Spot, started: Instant, ticket: Ticket, by: (u64, Platform)) -> AttemptId {
        let id = AttemptId(self.next);
        self.next += 1;
        let (generation, platform) = by;
        self.flying.insert(id, Flying { spot, started, ticket, generation, platform, old: false, lent: false });
        self.by_age.push_back((started, id));
        id
    }

    /// Gives the slot back.
    pub fn land(&mut self, id: AttemptId) -> Option<Flying> {
        let flying = self.flying.remove(&id)?;
        if flying.old {
            self.old.retain(|x| *x != id);
        }
        if flying.lent {
            self.lent -= 1;
        }
        Some(flying)
    }

    /// Takes all down; whom they are for.
    pub fn clear(&mut self) -> Vec<Spot> {
        self.by_age.clear();
        self.old.clear();
        self.lent = 0;
        self.flying.drain().map(|(_, flying)| flying.spot).collect()
    }

    /// Notes attempts that have become old and lends their slots out while that helps; returns whom they are for.
    ///
    /// When more than a quarter of those that may be in flight are old, the provider is slow, and lending would add load.
    /// Not of those that are: with exactly a quarter stalled, somebody has always just landed. But when nothing else is in
    /// flight, nobody can tell a slow provider from devices that hang: then one slot is lent to find out, and if it is
    /// answered, it goes on being used, so that some dozens of devices never stop a goal altogether.
    pub fn age(&mut self, now: Instant) -> Vec<Spot> {
        let mut fresh = Vec::new();
        while let Some((started, id)) = self.by_age.front().copied() {
            if started + self.slots.stall_after > now {
                break;
            }
            self.by_age.pop_front();
            if let Some(flying) = self.flying.get_mut(&id) {
                flying.old = true;
                self.old.push(id);
                fresh.push(flying.spot);
            }
        }
        self.lend();
        fresh
    }

    fn lend(&mut self) {
        for i in 0..self.old.len() {
            let slow = self.old.len() * 4 > self.slots.slots + self.lent;
            let asks = self.old.len() == self.flying.len() && self.free() == 0;
            if self.lent >= self.slots.lent || (slow && !asks) || mutant::on("slots_not_lent") {
                return;
            }
            if let Some(flying) = self.flying.get_mut(&self.old[i]).filter(|f| !f.lent) {
                flying.lent = true;
                self.lent += 1;
            }
        }
    }

    /// Positions of one chunk that have an attempt in flight.
    #[must_use]
    pub fn ordinals(&self, key: HandKey) -> Vec<u16> {
        self.flying.values().filter(|f| f.spot.key == key).map(|f| f.spot.ordinal).collect()
    }

    /// When the next attempt becomes old.
    #[must_use]
    pub fn next_change(&self) -> Option<Instant> {
        self.by_age.front().map(|(started, _)| *started + self.slots.stall_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::{Breaker, BreakerSettings};
    use crate::domain::batch::Class;
    use crate::domain::ids::{ChunkRef, FanoutId};

    fn flight(slots: usize, lent: usize) -> Flight {
        Flight::new(Slots { slots, lent, stall_after: Duration::from_secs(1) })
    }

    fn launch(flight: &mut Flight, now: Instant) -> AttemptId {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let key = HandKey { class: Class::Urgent, rank: 0, chunk: ChunkRef { fanout: FanoutId(1), no: 0 }, epoch: 1 };
        flight.launch(Spot { key, ordinal: 0 }, now, breaker.launch(now), (0, Platform::Android))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_attempt_lends_its_slot_until_it_lands() {
        let t = Instant::now();
        let mut flight = flight(8, 4);
        let stalled = launch(&mut flight, t);
        let later = t + Duration::from_secs(2);
        for _ in 0..7 {
            launch(&mut flight, later);
        }
        assert_eq!(flight.free(), 0);
        assert_eq!(flight.age(later).len(), 1);
        assert_eq!((flight.free(), flight.lent()), (1, 1));
        flight.land(stalled).unwrap();
        assert_eq!((flight.free(), flight.lent(), flight.len()), (1, 0, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_provider_is_lent_nothing() {
        let t = Instant::now();
        let mut flight = flight(8, 4);
        for _ in 0..3 {
            launch(&mut flight, t);
        }
        let later = t + Duration::from_secs(2);
        for _ in 0..5 {
            launch(&mut flight, later);
        }
        assert_eq!(flight.age(later).len(), 3);
        assert_eq!(flight.lent(), 0, "3 of 8 are over a quarter");
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_have_stalled_one_more_asks_whether_it_is_the_provider() {
        let t = Instant::now();
        let mut flight = flight(4, 3);
        for _ in 0..4 {
            launch(&mut flight, t);
        }
        for (second, lent) in [(1, 1), (2, 2), (3, 3), (4, 3)] {
            let now = t + Duration::from_secs(second);
            flight.age(now);
            flight.age(now);
            assert_eq!((flight.lent(), flight.free()), (lent, usize::from(second < 4)), "after {second} s");
            if second < 4 {
                launch(&mut flight, now);
                flight.age(now);
                assert_eq!(flight.lent(), lent, "while it has not stalled too, nobody else asks");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_down_leaves_every_slot_free() {
        let t = Instant::now();
        let mut flight = flight(8, 4);
        launch(&mut flight, t);
        launch(&mut flight, t);
        flight.age(t + Duration::from_secs(2));
        assert_eq!(flight.clear().len(), 2);
        assert_eq!((flight.free(), flight.lent(), flight.is_empty()), (8, 0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quarter_lends_although_others_have_just_landed() {
        let t = Instant::now();
        let mut flight = flight(8, 4);
        for _ in 0..2 {
            launch(&mut flight, t);
        }
        let later = t + Duration::from_secs(2);
        launch(&mut flight, later);
        assert_eq!(flight.age(later).len(), 2);
        assert_eq!((flight.lent(), flight.free()), (2, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn lending_never_exceeds_its_cap() {
        let t = Instant::now();
        let mut flight = flight(100, 2);
        for _ in 0..10 {
            launch(&mut flight, t);
        }
        let later = t + Duration::from_secs(2);
        for _ in 0..90 {
            launch(&mut flight, later);
        }
        flight.age(later);
        assert_eq!(flight.lent(), 2);
        assert_eq!(flight.age(later).len(), 0, "each is reported once");
    }
}
