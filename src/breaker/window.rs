//! Owns the count of marks in the recent past.
//! Must never know: what follows from them.

use tokio::time::Instant;

use super::Mark;

/// Seconds the failure rate looks back.
const WINDOW: usize = 10;

/// Marks per second of the last [`WINDOW`] seconds.
#[derive(Debug, Default)]
pub(super) struct Window {
    origin: Option<Instant>,
    /// Second since the origin, marks, failures.
    slots: [(u64, u32, u32); WINDOW],
}

impl Window {
    fn second(&self, now: Instant) -> u64 {
        self.origin.map_or(0, |origin| now.saturating_duration_since(origin).as_secs())
    }

    /// One more mark.
    pub(super) fn count(&mut self, mark: Mark, now: Instant) {
        self.origin.get_or_insert(now);
        let second = self.second(now);
        let slot = &mut self.slots[usize::try_from(second).unwrap_or(0) % WINDOW];
        if slot.0 != second {
            *slot = (second, 0, 0);
        }
        slot.1 += 1;
        slot.2 += u32::from(mark == Mark::Failure);
    }

    /// Marks and failures within the window.
    pub(super) fn sums(&self, now: Instant) -> (u32, u32) {
        let second = self.second(now);
        let recent = self.slots.iter().filter(|slot| slot.0 + WINDOW as u64 > second);
        recent.fold((0, 0), |(marks, failures), slot| (marks + slot.1, failures + slot.2))
    }
}
