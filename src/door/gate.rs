//! Owns the limit on requests in flight.
//! Must never know: what is asked for, or how a refusal is written.
//!
//! A count of requests, not a queue: a caller who is told at once can turn to another instance, and a queue in front
//! of an overloaded service only grows old. One atomic operation, before body, key and database.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limit.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

/// More requests than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("as many requests in flight as this instance serves at once")]
pub struct Shed;

impl Gate {
    /// Lets `max_in_flight` requests in at once.
    #[must_use]
    pub fn new(max_in_flight: u32) -> Self {
        let most = usize::try_from(max_in_flight).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))))
    }

    /// Lets one request in, or refuses it at once.
    ///
    /// # Errors
    /// [`Shed`] when the limit is reached.
    pub fn enter(&self) -> Result<Pass, Shed> {
        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| Shed)?;
        Ok(Pass { gate: self.clone(), permit: Arc::new(Mutex::new(Some(permit))) })
    }

    /// How many more requests would be let in now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.available_permits()
    }
}

/// A request's leave to be served. Clones share it; the last one to go gives it back.
#[derive(Debug, Clone)]
pub struct Pass {
    gate: Gate,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Pass {
    /// Gives the place to others while this request only waits.
    pub fn step_out(&self) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Takes a place again before working on. Waits for it: the request was let in once, so it is not shed now.
    pub async fn step_in(&self) {
        // An error would mean a closed semaphore, and this one is never closed.
        let again = Arc::clone(&self.gate.0).acquire_owned().await.ok();
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = again;
    }
}

/// When a shed caller should come back, seconds: 1 to 3, so that those shed together do not return together.
#[must_use]
pub fn retry_after_s() -> u64 {
    rand::random_range(1..=3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_a_place_comes_back() {
        let gate = Gate::new(2);
        let first = gate.enter().unwrap();
        let second = gate.enter().unwrap();
        assert_eq!(gate.enter().unwrap_err(), Shed);
        let clone = first.clone();
        drop(first);
        assert_eq!(gate.free(), 0, "a clone still holds the place");
        drop((clone, second));
        assert_eq!(gate.free(), 2);
    }

    #[tokio::test]
    async fn a_request_that_only_waits_gives_its_place_away() {
        let gate = Gate::new(1);
        let sleeper = gate.enter().unwrap();
        sleeper.step_out();
        let other = gate.enter().unwrap();
        let mut back = Box::pin(sleeper.step_in());
        assert!(futures_util::poll!(&mut back).is_pending(), "no place while the other has it");
        drop(other);
        back.await;
        assert_eq!(gate.enter().unwrap_err(), Shed);
        drop(sleeper);
        assert_eq!(gate.free(), 1);
    }

    #[test]
    fn those_shed_together_come_back_apart() {
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| retry_after_s()).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
