//! Owns the limit on requests in flight: a room with places for each kind of work, and who may wait for a place.
//! Must never know: what is asked for, or how a refusal is written.
//!
//! The queue in front of a full room is bounded twice: by number, so that whoever has no chance is told at once and turns
//! to another instance, and by time, so that nobody is served who was kept too long. That is done before body, key and
//! database, for the price of an atomic operation.

mod pass;
mod room;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::pass::Pass;
use self::pass::Place;
use self::room::Room;
use super::cap::size;
use super::metrics::DoorMetrics;
use super::shedding::Reason;

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
        Ok(Pass::new(self.clone(), pool, place))
    }

    async fn place(&self, pool: Pool) -> Result<Place, Reason> {
        let rooms = &self.0;
        let (permit, borrowed) = match pool {
            Pool::Interactive => (rooms.interactive.queue(&rooms.metrics).await?, None),
            Pool::Read => (rooms.read.queue(&rooms.metrics).await?, None),
            Pool::Bulk => rooms.bulk_place().ok_or(Reason::Full)?,
        };
        Ok(Place::new(pool, rooms, permit, borrowed))
    }

    /// Half of the requests served from `pool` take longer, or less of it while that is in doubt; zero while nothing is
    /// known.
    #[must_use]
    pub fn typical(&self, pool: Pool) -> Duration {
        self.0.room(pool).typical.doubted()
    }

    /// Whether a request of `pool` that came now would be sent away at once: a look, which takes and changes nothing.
    #[must_use]
    pub fn is_full(&self, pool: Pool) -> bool {
        let rooms = &self.0;
        match pool {
            Pool::Interactive => rooms.interactive.is_full(),
            Pool::Read => rooms.read.is_full(),
            Pool::Bulk => rooms.bulk.places.available_permits() == 0 && !rooms.can_lend(),
        }
    }

    /// A request was refused because it would take that long.
    pub fn doubt(&self, pool: Pool) {
        self.0.room(pool).typical.doubt();
    }

    /// How many more requests of `pool` would be let in at once now, what bulk may borrow not counted.
    #[must_use]
    pub fn free(&self, pool: Pool) -> usize {
        self.0.room(pool).places.available_permits()
    }
}

impl Rooms {
    fn room(&self, pool: Pool) -> &Room {
        match pool {
            Pool::Interactive => &self.interactive,
            Pool::Read => &self.read,
            Pool::Bulk => &self.bulk,
        }
    }

    /// Whether the readings have a place for bulk.
    fn can_lend(&self) -> bool {
        self.read.places.available_permits() > self.read.size / 2 && self.lent.available_permits() > 0
    }

    /// Bulk takes a place of its own, or an idle one of the readings', and never waits: it can be sent again any time.
    fn bulk_place(&self) -> Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)> {
        if let Some(own) = self.bulk.take() {
            return Some((own, None));
        }
        if !self.can_lend() {
            return None;
        }
        let lent = Arc::clone(&self.lent).try_acquire_owned().ok()?;
        Some((self.read.take()?, Some(lent)))
    }
}

/// The latest time at which a shed caller is asked back, seconds.
pub const LATEST_RETURN_S: u64 = 3;

/// When a shed caller should come back, seconds: from 1, so that those shed together do not return together.
#[must_use]
pub fn retry_after_s() -> u64 {
    rand::random_range(1..=LATEST_RETURN_S)
}

#[cfg(test)]
mod tests;
