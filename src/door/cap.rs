//! Owns a plain limit on how many of something go on at once, and how much of that one caller may have: taken or refused,
//! never waited for.
//! Must never know: what goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// The limit. A caller gets one more while it has fewer than are left: alone it may have half of them, two callers a third
/// each. However many one asks for, others find some.
#[derive(Debug, Clone)]
pub struct Cap(Arc<Shares>);

#[derive(Debug)]
struct Shares {
    most: usize,
    /// By caller; who has none is not in it.
    taken: Mutex<HashMap<String, usize>>,
}

/// One of them, given back when dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    caller: String,
}

impl Cap {
    /// Allows `most` at once.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self(Arc::new(Shares { most: size(most), taken: Mutex::default() }))
    }

    /// One of them for `caller`; `None` when it has its share.
    #[must_use]
    pub fn take(&self, caller: &str) -> Option<Share> {
        let mut taken = self.0.taken();
        let left = self.0.most.saturating_sub(taken.values().sum());
        let own = taken.get(caller).copied().unwrap_or(0);
        if own >= left {
            return None;
        }
        taken.insert(caller.to_owned(), own + 1);
        Some(Share { shares: Arc::clone(&self.0), caller: caller.to_owned() })
    }
}

impl Shares {
    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken();
        match taken.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.caller)),
        }
    }
}

/// As many as a semaphore can count.
pub(super) fn size(most: u32) -> usize {
    usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(cap: &Cap, caller: &str) -> Vec<Share> {
        std::iter::from_fn(|| cap.take(caller)).collect()
    }

    #[test]
    fn one_caller_has_half_at_most_and_others_always_find_some() {
        let cap = Cap::new(100);
        let greedy = all(&cap, "greedy");
        assert_eq!(greedy.len(), 50);
        let other = all(&cap, "other");
        assert_eq!(other.len(), 25, "half of what is left");
        assert_eq!(all(&cap, "third").len(), 13);
        assert!(cap.take("fourth").is_some());
        drop((greedy, other));
        assert_eq!(cap.0.taken().len(), 0, "nothing is kept of who has none");
    }

    #[test]
    fn one_that_is_given_back_can_be_taken_again() {
        let cap = Cap::new(2);
        let only = cap.take("a").unwrap();
        assert!(cap.take("a").is_none());
        let _other = cap.take("b").unwrap();
        drop(only);
        assert!(cap.take("a").is_some());
        assert!(Cap::new(0).take("a").is_none());
    }
}
