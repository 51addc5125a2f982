//! Owns the limit on requests in flight: a room with places for each kind of work, and who may wait for a place.
//! Must never know: what is asked for, or how a refusal is written.
//!
//! The queue in front of a full room is bounded twice: by number, so that whoever has no chance is told at once and turns
//! to another instance, and by time, so that nobody is served who was kept too long. That is done before body, key and
//! database, for the price of an atomic operation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::cap::size;
use super::metrics::DoorMetrics;
use super::shedding::Reason;
use super::typical::Typical;

/// Longest wait for a place. One that waited longer is refused even when a place is free then: its caller has probably
/// given up, and those behind it have not.
pub const LONGEST_WAIT: Duration = Duration::from_millis(20);

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// A kind of work that has a room of its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Pool { $($(#[$doc])* $name,)+ }

        impl Pool {
            /// Every pool.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

pools! {
    /// Events. It waits for nobody else.
    Interactive = "interactive",
    /// Readings, and writings of single devices.
    Read = "read",
    /// Imports, exports, replays: shed first.
    Bulk = "bulk",
}

/// Places of each room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Of [`Pool::Interactive`].
    pub interactive: u32,
    /// Of [`Pool::Read`].
    pub read: u32,
    /// Of [`Pool::Bulk`].
    pub bulk: u32,
    /// Places of the readings that bulk may use beside its own, while half of them are free.
    pub borrowed: u32,
}

/// The limit.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    interactive: Room,
    read: Room,
    bulk: Room,
    lent: Arc<Semaphore>,
    metrics: DoorMetrics,
}

#[derive(Debug)]
struct Room {
    places: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
    typical: Typical,
}

/// One of those who wait, until it waits no more or its caller hangs up.
struct Waiter<'a>(&'a AtomicUsize);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    fn new(places: u32) -> Self {
        let size = size(places);
        let typical = Typical::default();
        Self { places: Arc::new(Semaphore::new(size)), size, waiting: AtomicUsize::new(0), typical }
    }

    fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// As many may wait as are served in half of [`LONGEST_WAIT`], so that whoever waits is served unless something goes
    /// wrong; and some at any time, so that a place that becomes free has somebody to take it.
    fn most_waiting(&self) -> usize {
        let p50 = usize::try_from(self.typical.p50().as_micros()).unwrap_or(usize::MAX);
        if p50 == 0 {
            return 2 * self.size;
        }
        let half = usize::try_from(LONGEST_WAIT.as_micros() / 2).unwrap_or(usize::MAX);
        (self.size * half / p50).clamp(self.size.div_ceil(2), 16 * self.size)
    }

    fn waiter(&self) -> Option<Waiter<'_>> {
        let most = self.most_waiting();
        let more = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Waiter(&self.waiting))
    }

    async fn queue(&self, metrics: &DoorMetrics) -> Result<OwnedSemaphorePermit, Reason> {
        if let Some(permit) = self.take() {
            return Ok(permit);
        }
        let _waiter = self.waiter().ok_or(Reason::Full)?;
        let arrived = Instant::now();
        let place = timeout(LONGEST_WAIT, Arc::clone(&self.places).acquire_owned()).await;
        let waited = arrived.elapsed();
        metrics.waited.observe(waited.as_secs_f64());
        match place {
            Ok(Ok(permit)) if waited <= LONGEST_WAIT => Ok(permit),
            _ => Err(Reason::Waited),
        }
    }
}

impl Gate {
    /// Lets as many in at once as there are places.
    #[must_use]
    pub fn new(places: Places, metrics: DoorMetrics) -> Self {
        Self(Arc::new(Rooms {
            interactive: Room::new(places.interactive),
            read: Room::new(places.read),
            bulk: Room::new(places.bulk),
            lent: Arc::new(Semaphore::new(size(places.borrowed))),
            metrics,
        }))
    }

    /// Lets one request in, at once or after a wait of [`LONGEST_WAIT`] at most. Dropped while it waits, it has taken
    /// nothing.
    ///
    /// # Errors
    /// [`Reason::Full`] or [`Reason::Waited`].
    pub async fn enter(&self, pool: Pool) -> Result<Pass, Reason> {
        let place = self.place(pool).await?;
        Ok(Pass { gate: self.clone(), held: Arc::new(Mutex::new(Held { pool, place: Some(place), stayed: true })) })
    }

    async fn place(&self, pool: Pool) -> Result<Place, Reason> {
        let rooms = &self.0;
        let (permit, borrowed) = match pool {
            Pool::Interactive => (rooms.interactive.queue(&rooms.metrics).await?, None),
            Pool::Read => (rooms.read.queue(&rooms.metrics).await?, None),
            Pool::Bulk => rooms.bulk_place().ok_or(Reason::Full)?,
        };
        Ok(Place::new(pool, &rooms.metrics, permit, borrowed))
    }

    fn room(&self, pool: Pool) -> &Room {
        match pool {
            Pool::Interactive => &self.0.interactive,
            Pool::Read => &self.0.read,
            Pool::Bulk => &self.0.bulk,
        }
    }

    /// Half of the requests served from `pool` take longer; zero while nothing is known.
    #[must_use]
    pub fn typical(&self, pool: Pool) -> Duration {
        self.room(pool).typical.p50()
    }

    /// A request was refused because it would take that long.
    pub fn doubt(&self, pool: Pool) {
        self.room(pool).typical.doubt();
    }

    /// How many more requests of `pool` would be let in at once now, what bulk may borrow not counted.
    #[must_use]
    pub fn free(&self, pool: Pool) -> usize {
        self.room(pool).places.available_permits()
    }
}

impl Rooms {
    /// Bulk takes a place of its own, or an idle one of the readings', and never waits: it can be sent again any time.
    fn bulk_place(&self) -> Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)> {
        if let Some(own) = self.bulk.take() {
            return Some((own, None));
        }
        if self.read.places.available_permits() <= self.read.size / 2 {
            return None;
        }
        let lent = Arc::clone(&self.lent).try_acquire_owned().ok()?;
        Some((self.read.take()?, Some(lent)))
    }
}

/// A place taken, counted as long as it is.
#[derive(Debug)]
struct Place {
    pool: Pool,
    metrics: DoorMetrics,
    _permit: OwnedSemaphorePermit,
    _borrowed: Option<OwnedSemaphorePermit>,
}

impl Place {
    fn new(
        pool: Pool,
        metrics: &DoorMetrics,
        permit: OwnedSemaphorePermit,
        borrowed: Option<OwnedSemaphorePermit>,
    ) -> Self {
        metrics.in_flight.get_or_create(&[("pool", pool.as_str())]).inc();
        Self { pool, metrics: metrics.clone(), _permit: permit, _borrowed: borrowed }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.in_flight.get_or_create(&[("pool", self.pool.as_str())]).dec();
    }
}

#[derive(Debug)]
struct Held {
    pool: Pool,
    place: Option<Place>,
    /// It never gave its place away to wait for something.
    stayed: bool,
}

/// A request's leave to be served. Clones share it; the last one to go gives the place back.
#[derive(Debug, Clone)]
pub struct Pass {
    gate: Gate,
    held: Arc<Mutex<Held>>,
}

impl Pass {
    /// The pool it is served from.
    #[must_use]
    pub fn pool(&self) -> Pool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).pool
    }

    /// Gives the place to others while this request only waits.
    pub fn step_out(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        (held.place, held.stayed) = (None, false);
    }

    /// The request was served well, and took `time`; one that waited for something else says nothing of its kind.
    pub fn served(&self, time: Duration) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.stayed {
            self.gate.room(held.pool).typical.observe(time);
        }
    }

    /// Takes a place of the same pool again before working on, however long that takes: for a request that was served
    /// in part already.
    pub async fn step_in(&self) {
        let pool = self.pool();
        let rooms = &self.gate.0;
        let permit = Arc::clone(&self.gate.room(pool).places).acquire_owned().await;
        // An error would mean a closed semaphore, and these are never closed.
        self.hold(pool, permit.ok().map(|permit| Place::new(pool, &rooms.metrics, permit, None)));
    }

    /// Queues for a place of the same pool as if it came anew.
    ///
    /// # Errors
    /// As [`Gate::enter`].
    pub async fn queue(&self) -> Result<(), Reason> {
        self.move_to(self.pool()).await
    }

    /// Gives its place back and takes one in another room.
    ///
    /// # Errors
    /// As [`Gate::enter`].
    pub async fn move_to(&self, pool: Pool) -> Result<(), Reason> {
        self.hold(pool, None);
        let place = self.gate.place(pool).await?;
        self.hold(pool, Some(place));
        Ok(())
    }

    fn hold(&self, pool: Pool, place: Option<Place>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        (held.pool, held.place) = (pool, place);
    }
}

/// When a shed caller should come back, seconds: 1 to 3, so that those shed together do not return together.
#[must_use]
pub fn retry_after_s() -> u64 {
    rand::random_range(1..=3)
}

#[cfg(test)]
mod tests;
