//! Owns one room: its places, who may wait for one, and whether waiting is any use.
//! Must never know: what the room is for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::LONGEST_WAIT;
use crate::door::cap::size;
use crate::door::metrics::DoorMetrics;
use crate::door::shedding::Reason;
use crate::door::typical::Typical;

/// A full room in which no place changed hands for so long stands still: whoever waited then would wait for nothing.
const STANDSTILL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Room {
    pub(super) places: Arc<Semaphore>,
    pub(super) size: usize,
    waiting: AtomicUsize,
    pub(super) typical: Typical,
    opened: Instant,
    /// When a place was taken or given back last, ms since `opened`.
    moved_ms: AtomicU64,
    /// Whoever waited last got no place.
    in_vain: AtomicBool,
}

/// One of those who wait, until it waits no more or its caller hangs up.
struct Waiter<'a>(&'a AtomicUsize);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    pub(super) fn new(places: u32) -> Self {
        let size = size(places);
        Self {
            places: Arc::new(Semaphore::new(size)),
            size,
            waiting: AtomicUsize::new(0),
            typical: Typical::default(),
            opened: Instant::now(),
            moved_ms: AtomicU64::new(0),
            in_vain: AtomicBool::new(false),
        }
    }

    /// A place was taken or given back.
    pub(super) fn moved(&self) {
        self.moved_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn stands_still(&self) -> bool {
        let still_ms = self.now_ms().saturating_sub(self.moved_ms.load(Ordering::Relaxed));
        u128::from(still_ms) > STANDSTILL.as_millis()
    }

    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// As many may wait as are served in half of [`LONGEST_WAIT`], so that whoever waits is served unless something goes
    /// wrong; and one at any time, so that a place that becomes free has somebody to take it. When something went wrong, no
    /// more than this one, until it is served; nobody, while nothing moves.
    pub(super) fn most_waiting(&self) -> usize {
        if self.stands_still() {
            return 0;
        }
        if self.in_vain.load(Ordering::Relaxed) {
            return 1;
        }
        let p50 = usize::try_from(self.typical.p50().as_micros()).unwrap_or(usize::MAX);
        if p50 == 0 {
            return 2 * self.size;
        }
        let half = usize::try_from(LONGEST_WAIT.as_micros() / 2).unwrap_or(usize::MAX);
        (self.size * half / p50).clamp(1, 16 * self.size.max(1))
    }

    fn waiter(&self) -> Option<Waiter<'_>> {
        let most = self.most_waiting();
        let more = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Waiter(&self.waiting))
    }

    /// No place, and as many wait as may wait.
    pub(super) fn is_full(&self) -> bool {
        self.places.available_permits() == 0 && self.waiting.load(Ordering::Relaxed) >= self.most_waiting()
    }

    pub(super) async fn queue(&self, metrics: &DoorMetrics) -> Result<OwnedSemaphorePermit, Reason> {
        if let Some(permit) = self.take() {
            return Ok(permit);
        }
        let _waiter = self.waiter().ok_or(Reason::Full)?;
        let arrived = Instant::now();
        let place = timeout(LONGEST_WAIT, Arc::clone(&self.places).acquire_owned()).await;
        let waited = arrived.elapsed();
        metrics.waited.observe(waited.as_secs_f64());
        let served = place.ok().and_then(Result::ok).filter(|_| waited <= LONGEST_WAIT);
        self.in_vain.store(served.is_none(), Ordering::Relaxed);
        served.ok_or(Reason::Waited)
    }
}
