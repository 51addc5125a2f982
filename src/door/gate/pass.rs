//! Owns a request's leave to be served, and the place it stands for.
//! Must never know: who gets one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::{Gate, Pool, Rooms};
use crate::door::shedding::Reason;

/// A place taken, counted as long as it is.
#[derive(Debug)]
pub(super) struct Place {
    pool: Pool,
    rooms: Arc<Rooms>,
    _permit: OwnedSemaphorePermit,
    _borrowed: Option<OwnedSemaphorePermit>,
}

impl Place {
    pub(super) fn new(
        pool: Pool,
        rooms: &Arc<Rooms>,
        permit: OwnedSemaphorePermit,
        borrowed: Option<OwnedSemaphorePermit>,
    ) -> Self {
        rooms.metrics.in_flight.get_or_create(&[("pool", pool.as_str())]).inc();
        rooms.room(pool).moved();
        Self { pool, rooms: Arc::clone(rooms), _permit: permit, _borrowed: borrowed }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.rooms.metrics.in_flight.get_or_create(&[("pool", self.pool.as_str())]).dec();
        self.rooms.room(self.pool).moved();
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
    pub(super) fn new(gate: Gate, pool: Pool, place: Place) -> Self {
        Self { gate, held: Arc::new(Mutex::new(Held { pool, place: Some(place), stayed: true })) }
    }

    /// The pool it is served from.
    #[must_use]
    pub fn pool(&self) -> Pool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).pool
    }

    /// Whether it holds a place now.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).place.is_some()
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
            self.gate.0.room(held.pool).typical.observe(time);
        }
    }

    /// Takes a place of the same pool again before working on, however long that takes: for a request that was served
    /// in part already.
    pub async fn step_in(&self) {
        let pool = self.pool();
        let rooms = &self.gate.0;
        let permit = Arc::clone(&rooms.room(pool).places).acquire_owned().await;
        // An error would mean a closed semaphore, and these are never closed.
        self.hold(pool, permit.ok().map(|permit| Place::new(pool, rooms, permit, None)));
    }

    /// Takes a place of the same pool again if one is free; whether it has one now.
    #[must_use]
    pub fn step_in_if_free(&self) -> bool {
        let pool = self.pool();
        let rooms = &self.gate.0;
        let permit = Arc::clone(&rooms.room(pool).places).try_acquire_owned().ok();
        let free = permit.is_some();
        self.hold(pool, permit.map(|permit| Place::new(pool, rooms, permit, None)));
        free
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
