//! Owns how much the writer has done.
//! Must never know: what it wrote.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted while it goes on.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) jobs: AtomicU64,
    pub(super) commits: AtomicU64,
}

/// Work of the writer since it was opened: jobs per commit say how much group commit saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteCounts {
    /// Jobs run, failed ones too.
    pub jobs: u64,
    /// Transactions committed.
    pub commits: u64,
}

impl Counts {
    pub(super) fn read(&self) -> WriteCounts {
        WriteCounts { jobs: self.jobs.load(Ordering::Relaxed), commits: self.commits.load(Ordering::Relaxed) }
    }
}
