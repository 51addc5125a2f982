//! Owns how much bulk work shares a commit: as much as this disk takes while an event can wait.
//! Must never know: what is written.

use std::time::Duration;

/// Longest commit that is meant to be. An event that comes just then waits for it, and is refused after 250 ms.
const COMMIT: Duration = Duration::from_millis(100);

/// Rows at first: two batches of an import with two follows a device.
const AT_FIRST: usize = 12_000;
/// Most rows, on whatever disk: what shares a transaction is told to its callers together.
const MOST: usize = 60_000;

/// Rows after which bulk work commits although nobody waits. Rows of many batches share pages, and a page is written into
/// the log once for a transaction.
pub(super) struct Load {
    rows: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { rows: AT_FIRST }
    }
}

impl Load {
    pub(super) fn is_full(&self, rows: usize) -> bool {
        rows >= self.rows
    }

    /// A commit of so many rows took so long. Goes down at once and up by half at most.
    pub(super) fn committed(&mut self, rows: usize, took: Duration) {
        if rows >= self.rows / 2 {
            let fit = rows as f64 * COMMIT.as_secs_f64() / took.as_secs_f64().max(0.000_1);
            self.rows = (fit as usize).clamp(1, MOST).min(self.rows + self.rows / 2 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_gets_less_at_once_and_a_fast_one_more_step_by_step() {
        let mut load = Load::default();
        load.committed(12_000, Duration::from_millis(400));
        assert!(!load.is_full(2_999) && load.is_full(3_000));
        load.committed(3_000, Duration::from_millis(1));
        assert!(!load.is_full(4_500) && load.is_full(4_501));
        (0..20).for_each(|_| load.committed(load.rows, Duration::ZERO));
        assert!(!load.is_full(MOST - 1) && load.is_full(MOST));
    }

    #[test]
    fn a_small_commit_says_nothing_of_a_large_one() {
        let mut load = Load::default();
        load.committed(3, Duration::from_secs(1));
        assert!(!load.is_full(AT_FIRST - 1));
    }
}
