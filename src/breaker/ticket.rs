//! Owns the proof that an attempt was launched, and the count of those alive.
//! Must never know: what states there are.

use std::cell::Cell;
use std::rc::Rc;

use crate::mutant;

/// Counts of tickets alive, shared between the breaker and its tickets on one thread.
#[derive(Debug, Default)]
pub(super) struct Book {
    generation: Cell<u64>,
    current: Cell<u32>,
    stale: Cell<u32>,
}

impl Book {
    /// Tickets of the state in force.
    pub(super) fn current(&self) -> u32 {
        self.current.get()
    }

    /// Tickets of states that are over.
    pub(super) fn stale(&self) -> u32 {
        self.stale.get()
    }

    /// The state changed.
    pub(super) fn next_generation(&self) {
        self.generation.set(self.generation.get() + 1);
        self.stale.set(self.stale.get() + self.current.replace(0));
    }

    fn release(&self, generation: u64) {
        let count = if generation == self.generation.get() { &self.current } else { &self.stale };
        count.set(count.get().saturating_sub(1));
    }
}

/// One launched attempt. Dropping it without `Breaker::finish` is a neutral end.
#[derive(Debug)]
#[must_use = "an attempt without its ticket counts as ended"]
pub struct Ticket {
    generation: u64,
    probe: bool,
    book: Rc<Book>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !mutant::on("probe_slot_leaked") {
            self.book.release(self.generation);
        }
    }
}

impl Ticket {
    pub(super) fn new(book: &Rc<Book>, probe: bool) -> Self {
        book.current.set(book.current.get() + 1);
        Self { generation: book.generation.get(), probe, book: Rc::clone(book) }
    }

    /// Whether the state it was launched in is over.
    pub(super) fn is_stale(&self) -> bool {
        self.generation != self.book.generation.get()
    }

    /// Whether this is the one attempt of a half-open breaker. A failed probe says nothing final about its
    /// recipient, who goes back to pending.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}
