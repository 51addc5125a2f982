//! Owns the numbers the dispatcher's thread and the feeder leave for each other, without a lock.
//! Must never know: what either does with them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Written by one side, read by the other.
#[derive(Debug)]
pub(super) struct Board {
    origin: Instant,
    wanted: AtomicU64,
    used: AtomicU64,
    forfeited: AtomicU64,
    /// Microseconds in which the ceiling had nothing left, and in which the provider's pause was in force.
    held_us: AtomicU64,
    throttled_us: AtomicU64,
    /// The feeder sleeps until somebody wants something; while it is awake, nobody pays for waking it.
    asleep: AtomicBool,
    /// Ends of pauses, nanoseconds since the origin: as the dispatcher told, as the feeder knows.
    throttled_until: AtomicU64,
    paused_until: AtomicU64,
    wake: Notify,
}

impl Board {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            wanted: AtomicU64::new(0),
            used: AtomicU64::new(0),
            forfeited: AtomicU64::new(0),
            held_us: AtomicU64::new(0),
            throttled_us: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            throttled_until: AtomicU64::new(0),
            paused_until: AtomicU64::new(0),
            wake: Notify::new(),
        }
    }

    pub(super) fn want(&self, n: u64) {
        self.wanted.store(n, SeqCst);
        if n > 0 && self.asleep.swap(false, SeqCst) {
            self.wake.notify_one();
        }
    }

    pub(super) fn wanted(&self) -> u64 {
        self.wanted.load(SeqCst)
    }

    /// `n` grants are on their way, so that many fewer are wanted until the dispatcher says otherwise.
    pub(super) fn granted(&self, n: u32) {
        let _ = self.wanted.fetch_update(SeqCst, SeqCst, |wanted| Some(wanted.saturating_sub(u64::from(n))));
    }

    /// Whether the feeder may sleep until [`Board::woken`]. Asks once more after saying so: a want between the two
    /// would wake nobody.
    pub(super) fn may_sleep(&self) -> bool {
        self.asleep.store(true, SeqCst);
        let may = self.wanted() == 0;
        self.asleep.store(may, SeqCst);
        may
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn count_used(&self, n: u64) {
        self.used.fetch_add(n, SeqCst);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    pub(super) fn count_forfeited(&self, n: u64) {
        self.forfeited.fetch_add(n, SeqCst);
    }

    pub(super) fn forfeited(&self) -> u64 {
        self.forfeited.load(SeqCst)
    }

    /// Grants were wanted for so long while the ceiling had none left.
    pub(super) fn count_held(&self, time: Duration) {
        self.held_us.fetch_add(time.as_micros() as u64, SeqCst);
    }

    pub(super) fn held(&self) -> Duration {
        Duration::from_micros(self.held_us.load(SeqCst))
    }

    /// A pause of the provider was in force for so long.
    pub(super) fn count_throttled(&self, time: Duration) {
        self.throttled_us.fetch_add(time.as_micros() as u64, SeqCst);
    }

    pub(super) fn throttled(&self) -> Duration {
        Duration::from_micros(self.throttled_us.load(SeqCst))
    }

    pub(super) fn throttle(&self, until: Instant) {
        self.throttled_until.fetch_max(self.nanos(until), SeqCst);
        self.wake.notify_one();
    }

    /// The latest end of a throttle the dispatcher told of.
    pub(super) fn throttled_until(&self) -> Instant {
        self.instant(&self.throttled_until)
    }

    /// What the feeder knows of pauses, its own and the fleet's.
    pub(super) fn pause(&self, until: Instant) {
        self.paused_until.fetch_max(self.nanos(until), SeqCst);
    }

    pub(super) fn paused_until(&self) -> Instant {
        self.instant(&self.paused_until).max(self.throttled_until())
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    fn instant(&self, nanos: &AtomicU64) -> Instant {
        self.origin + Duration::from_nanos(nanos.load(SeqCst))
    }
}
