//! Owns how much of its patience with one caller a connection has used up.
//! Must never know: what lies ready, or what becomes of a caller who takes none of it.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes per second of its answers that a caller has to take to be said to take them. A modem takes seven times as many.
pub(super) const LEAST_PER_S: u32 = 1024;

/// How much of its patience with a caller is used up: time in which answers lay ready, less what was taken of them at
/// [`LEAST_PER_S`], less time in which none did. Neither another request nor one given up changes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    /// While answers lie ready: the instant since which nothing was taken, if it had been nothing. Else how much was used
    /// up when the last one was taken, and when that was.
    since: Result<Instant, (Duration, Instant)>,
}

impl Unread {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: Err((Duration::ZERO, now)) }
    }

    /// While answers lie ready: since when nothing was taken; what is taken too slowly counts in part.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.ok()
    }

    /// Whether answers lie `ready` from now on.
    pub(super) fn lies(&mut self, ready: bool, now: Instant) {
        self.since = match (ready, self.since) {
            (true, Err((used, at))) => {
                let used = used.saturating_sub(now.saturating_duration_since(at));
                Ok(now.checked_sub(used).unwrap_or(now))
            }
            (false, Ok(since)) => Err((now.saturating_duration_since(since), now)),
            (_, as_before) => as_before,
        };
    }

    /// So much of what lay ready was taken.
    pub(super) fn taken(&mut self, bytes: usize, now: Instant) {
        let worth = Duration::from_secs_f64(bytes as f64 / f64::from(LEAST_PER_S));
        if let Ok(since) = &mut self.since {
            *since = (*since + worth).min(now);
        }
    }
}
