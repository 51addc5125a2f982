//! Owns the shape of what is accepted and not done yet.
//! Must never know: SQL.

use crate::domain::batch::Class;

/// What is accepted and not done yet, on all instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Fan-outs not yet settled.
    pub fanouts: u64,
    /// Chunks nobody has in hand, by class; a class without one may be absent.
    pub open_chunks: Vec<(Class, u64)>,
}
