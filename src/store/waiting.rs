//! Owns the shape of what is accepted and not done yet.
//! Must never know: SQL.

use crate::domain::batch::Class;

/// What is accepted and not done yet, on all instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Fan-outs not yet settled, by class; a class without one may be absent. A paused one waits for an operator, and
    /// keeps nobody waiting.
    pub open_fanouts: Vec<(Class, u64)>,
    /// Chunks nobody has in hand, by class; a class without one may be absent.
    pub open_chunks: Vec<(Class, u64)>,
}

impl Waiting {
    /// Fan-outs of all classes.
    #[must_use]
    pub fn fanouts(&self) -> u64 {
        self.open_fanouts.iter().map(|(_, n)| n).sum()
    }
}
