//! Owns a plain limit on how many of something go on at once: taken or refused, never waited for.
//! Must never know: what goes on.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limit.
#[derive(Debug, Clone)]
pub struct Cap(Arc<Semaphore>);

impl Cap {
    /// Allows `most` at once.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self(Arc::new(Semaphore::new(size(most))))
    }

    /// One of them, given back when dropped; `None` when all are taken.
    #[must_use]
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// As many as a semaphore can count.
pub(super) fn size(most: u32) -> usize {
    usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_one_comes_back() {
        let cap = Cap::new(2);
        let (first, _second) = (cap.take().unwrap(), cap.take().unwrap());
        assert!(cap.take().is_none());
        drop(first);
        assert!(cap.take().is_some());
    }
}
