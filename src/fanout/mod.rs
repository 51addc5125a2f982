//! Owns the way of an event from accepted to sent: freeze, claim, dispatch, deliver.
//! Must never know: SQL, Redis commands, HTTP headers, or how outcomes are written down.
//!
//! Two sides. On the service's runtime, [`freeze`] fixes recipients into chunks and [`claim`] takes chunks.
//! On the sender thread ([`sender`]), the [`dispatch`] loop owns chunks in [`hand`], attempts in [`flight`],
//! the grant [`stock`], the [`gates`] and the [`outbox`], without a lock. Only batches cross: chunks and runs of
//! grants in, outcomes out.

pub mod budget;
mod cancel;
pub mod claim;
pub mod decide;
mod deliver;
pub mod dispatch;
pub mod fan;
mod finish;
pub mod flight;
pub mod freeze;
pub mod gates;
pub mod hand;
mod intake;
mod launch;
pub mod lease;
pub mod outbox;
mod pause;
mod rank;
pub mod sender;
pub mod show;
mod source;
pub mod stock;
pub mod throttle;
pub mod totals;
pub mod variant;
mod waiting;
pub mod wiring;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicI16, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::breaker::BreakerState;
use crate::clock::Boot;
use crate::domain::batch::{ClaimedChunk, Class, FanoutJob, Flushed};
use crate::domain::ids::FanoutId;

use show::Refused;
use totals::Totals;

/// What crosses to the sender thread.
#[derive(Debug)]
pub enum ToSender {
    /// Chunks this instance owns now, with what must be known to send them.
    Chunks(Vec<(ClaimedChunk, Arc<FanoutJob>)>),
    /// A flush is on disk.
    Flushed(Flushed),
    /// The instance lease is trusted until then.
    Lease(Boot),
    /// Fan-outs that are settled: what is remembered of them can go.
    Settled(FanoutId),
    /// A fan-out is cancelled: launch nothing more of it.
    Cancelled(FanoutId),
    /// Start nothing new; end when nothing is in flight and everything is handed over.
    Drain,
    /// The time of the drain is nearly over: give up what is in flight.
    Abandon,
}

/// What the dispatcher shows of its hands, so that the claimer knows when to fill them.
#[derive(Debug)]
pub struct Hands {
    enough: usize,
    launchable: Arc<AtomicU64>,
    open: AtomicUsize,
    in_flight: AtomicUsize,
    breaker: AtomicU8,
    refused: AtomicU8,
    totals: Totals,
    least_urgent: AtomicI16,
    place: Mutex<Option<(Class, i64)>>,
    low: Notify,
    thin: Notify,
    fresh: Notify,
    doubt: Notify,
}

/// Most recipients in hand without an outcome, about 50 MB: those who wait do not keep others from finding their way into the
/// hands, but not all of a fan-out may find it into memory. From half of it on those who wait leave.
const MOST_OPEN: usize = 100_000;

/// Stands for "no chunk in hand".
const NO_CLASS: i16 = -1;

impl Hands {
    /// Hands are full at twice the slots.
    #[must_use]
    pub fn new(slots: u32, totals: Totals) -> Self {
        Self {
            enough: usize::try_from(slots).map_or(usize::MAX, |slots| slots.saturating_mul(2)),
            launchable: Arc::new(AtomicU64::new(0)),
            open: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            breaker: AtomicU8::new(0),
            refused: AtomicU8::new(0),
            totals,
            least_urgent: AtomicI16::new(NO_CLASS),
            place: Mutex::new(None),
            low: Notify::new(),
            thin: Notify::new(),
            fresh: Notify::new(),
            doubt: Notify::new(),
        }
    }

    fn show(&self, hand: &hand::Hand, in_flight: usize, (breaker, refused): (BreakerState, Refused)) {
        let launchable = hand.launchable();
        self.launchable.store(launchable as u64, Ordering::Relaxed);
        self.open.store(hand.open(), Ordering::Relaxed);
        self.in_flight.store(in_flight, Ordering::Relaxed);
        self.breaker.store(breaker as u8, Ordering::Relaxed);
        self.refused.store(refused.bits(), Ordering::Relaxed);
        self.least_urgent.store(hand.least_urgent().map_or(NO_CLASS, Class::code), Ordering::Relaxed);
        let place = hand.place_of(self.enough);
        let before = std::mem::replace(&mut *self.place(), place);
        if launchable < self.enough {
            self.low.notify_one();
        } else if before.is_some() && place > before {
            self.thin.notify_one();
        }
    }

    /// Recipients that can be launched now.
    #[must_use]
    pub fn launchable(&self) -> usize {
        usize::try_from(self.launchable.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// The same, to be read elsewhere.
    #[must_use]
    pub fn load(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.launchable)
    }

    /// Attempts in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// State of the breaker, by its field's word.
    #[must_use]
    pub fn breaker(&self) -> &'static str {
        self.breaker_state().map_or("unknown", BreakerState::as_str)
    }

    fn breaker_state(&self) -> Option<BreakerState> {
        let now = self.breaker.load(Ordering::Relaxed);
        BreakerState::ALL.into_iter().find(|state| *state as u8 == now)
    }

    /// Credentials that are refused and serve nobody.
    #[must_use]
    pub fn refused(&self) -> Refused {
        Refused::of_bits(self.refused.load(Ordering::Relaxed))
    }

    /// This instance's ledger over all fan-outs.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// How many more recipients the hands want. None beyond 100,000 in hand, however few of them can be launched.
    #[must_use]
    pub fn room(&self) -> usize {
        let most = MOST_OPEN.saturating_sub(self.open.load(Ordering::Relaxed));
        self.enough.saturating_sub(self.launchable()).min(most)
    }

    /// With full hands: the place of the chunk up to which they are full. What is ahead of it goes first, and must not wait
    /// until the hands have room: at a low ceiling a chunk takes minutes. Each chunk that is claimed so fills the hands up
    /// to an earlier place, so they never hold much more than they should.
    #[must_use]
    pub fn displaced(&self) -> Option<(Class, i64)> {
        self.place().filter(|_| self.open.load(Ordering::Relaxed) < MOST_OPEN)
    }

    fn place(&self) -> MutexGuard<'_, Option<(Class, i64)>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the breaker lets nothing or only a probe through, and there is room for somebody else to probe with.
    #[must_use]
    pub fn held_by_breaker(&self) -> bool {
        self.breaker_state().is_some_and(BreakerState::holds) && self.open.load(Ordering::Relaxed) < MOST_OPEN
    }

    /// With chunks in hand and none of them of the least urgent class there is: the least urgent in hand.
    #[must_use]
    pub fn without_bulk(&self) -> Option<Class> {
        let room = self.open.load(Ordering::Relaxed) < MOST_OPEN;
        Class::from_code(self.least_urgent.load(Ordering::Relaxed)).ok().filter(|class| room && *class != Class::Bulk)
    }

    /// An answer of the store was lost: this instance may own chunks it does not know of.
    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Open chunks were made just now.
    pub fn announce(&self) {
        self.fresh.notify_one();
    }
}
