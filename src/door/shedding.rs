//! Owns what is said of requests that are sent away: a count by reason, one line while it goes on, and one when it is over.
//! Must never know: what was asked for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::gate::Pool;
use super::metrics::DoorMetrics;
use crate::metrics::Counter;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Why a request was sent away unserved.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $name,)+ }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Every place is taken, and as many wait as may wait.
    Full = "full",
    /// It waited as long as anybody may.
    Waited = "waited",
    /// As many of its key wait inside already, for the rest of a body or for a fan-out: more instances are no cure.
    Parked = "parked",
    /// Its caller will have given up before it could be answered.
    Deadline = "deadline",
    /// Too much is accepted and not sent yet.
    Backlog = "backlog",
    /// The database had no connection, or gave no answer.
    Database = "database",
}

/// While requests are sent away, one line in this time: the moment of overload is the worst one to fill a disk. When none
/// was sent away for as long, it is over.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Counts and tells.
#[derive(Debug)]
pub struct Shedding {
    /// By pool and reason, looked up once: counting is most of what a refusal costs.
    counts: [[Counter; Reason::ALL.len()]; Pool::ALL.len()],
    now: Mutex<Option<Burst>>,
}

/// Requests being sent away, one soon after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Burst {
    began: Instant,
    last: Instant,
    requests: u64,
    said_at: Instant,
    unsaid: u64,
}

impl Shedding {
    /// Counts into `metrics`.
    #[must_use]
    pub fn new(metrics: &DoorMetrics) -> Self {
        let of = |pool: Pool, reason: Reason| {
            metrics.shed.get_or_create(&[("pool", pool.as_str()), ("reason", reason.as_str())]).clone()
        };
        let counts = std::array::from_fn(|p| std::array::from_fn(|r| of(Pool::ALL[p], Reason::ALL[r])));
        Self { counts, now: Mutex::default() }
    }

    /// One request was sent away.
    pub fn note(&self, pool: Pool, reason: Reason) {
        self.note_because(pool, reason, "");
    }

    /// The same, when more is known of why.
    pub fn note_because(&self, pool: Pool, reason: Reason, error: &str) {
        self.counts[pool as usize][reason as usize].inc();
        let (pool, reason) = (pool.as_str(), reason.as_str());
        let error = Some(error).filter(|error| !error.is_empty());
        if let Some(requests) = self.due(Instant::now()) {
            tracing::warn!(target: "fanfare::door", requests, pool, reason, error, "requests are shed");
        }
    }

    /// To be called about once a second: tells that it is over, when it is.
    pub fn look(&self) {
        if let Some(burst) = self.over(Instant::now()) {
            let duration_ms = u64::try_from((burst.last - burst.began).as_millis()).unwrap_or(u64::MAX);
            let requests = burst.requests;
            tracing::info!(target: "fanfare::door", requests, duration_ms, "requests are no longer shed");
        }
    }

    /// How many were sent away since the last line, when one is due.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut burst = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(burst) = &mut *burst else {
            *burst = Some(Burst { began: now, last: now, requests: 1, said_at: now, unsaid: 0 });
            return Some(1);
        };
        (burst.last, burst.requests, burst.unsaid) = (now, burst.requests + 1, burst.unsaid + 1);
        if now.saturating_duration_since(burst.said_at) < SAY_EVERY {
            return None;
        }
        burst.said_at = now;
        Some(std::mem::take(&mut burst.unsaid))
    }

    fn over(&self, now: Instant) -> Option<Burst> {
        let mut burst = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        burst.take_if(|burst| now.saturating_duration_since(burst.last) >= SAY_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn while_shedding_goes_on_one_line_in_ten_seconds_says_how_many() {
        let mut registry = Metrics::new();
        let shedding = Shedding::new(&DoorMetrics::register(&mut registry));
        let start = Instant::now();
        assert_eq!(shedding.due(start), Some(1), "the first is said at once");
        for ms in 0..9_999 {
            assert_eq!(shedding.due(start + Duration::from_millis(ms)), None);
        }
        assert_eq!(shedding.due(start + SAY_EVERY), Some(10_000));
        assert_eq!(shedding.over(start + 2 * SAY_EVERY - Duration::from_millis(1)), None);
        let over = shedding.over(start + 2 * SAY_EVERY).unwrap();
        assert_eq!((over.requests, over.last - over.began), (10_001, SAY_EVERY), "the end says how many in all");
        assert_eq!(shedding.over(start + 9 * SAY_EVERY), None, "once");
        assert_eq!(shedding.due(start + 9 * SAY_EVERY), Some(1), "the next burst begins anew");
        shedding.note(Pool::Bulk, Reason::Full);
        let text = registry.render();
        assert!(text.contains("fanfare_requests_shed_total{pool=\"bulk\",reason=\"full\"} 1"), "{text}");
        assert!(text.contains("fanfare_requests_shed_total{pool=\"interactive\",reason=\"waited\"} 0"), "{text}");
    }
}
