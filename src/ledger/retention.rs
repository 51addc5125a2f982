//! Owns when what is old is deleted: in steps, at a pace of its own, by whichever instance has the lease on it.
//! Must never know: what a step deletes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::ids::BootId;
use crate::store::{Purge, Store};
use crate::telemetry::Outage;

/// Nothing is old, or another instance sees to it: look again then.
const IDLE: Duration = Duration::from_secs(600);
/// Least pause between two steps.
const PAUSE: Duration = Duration::from_millis(200);
/// A step is followed by a pause of so many times what it took, so that the database has most of its time for others.
const SHARE: u32 = 4;
/// Wait after a failure.
const AFTER_ERROR: Duration = Duration::from_secs(30);

/// Deletes what is old.
pub struct Retention {
    /// The store.
    pub store: Arc<dyn Store>,
    /// This instance.
    pub boot: BootId,
    /// What was settled longer ago than this goes.
    pub keep: Duration,
}

impl Retention {
    /// Goes on until cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let keep_ms = i64::try_from(self.keep.as_millis()).unwrap_or(i64::MAX);
        let (mut rows, mut outage) = (0_u64, Outage::default());
        loop {
            let begun = Instant::now();
            let wait = match self.store.purge(self.boot, keep_ms).await {
                Ok(Purge::Deleted(n)) if n > 0 => {
                    outage.over();
                    rows += n;
                    (begun.elapsed() * SHARE).max(PAUSE)
                }
                Ok(Purge::Deleted(_) | Purge::Elsewhere) => {
                    outage.over();
                    if rows > 0 {
                        let keep_days = self.keep.as_secs() / 86_400;
                        tracing::info!(target: "fanfare::ledger", rows, keep_days, "deleted what is older than it is kept");
                    }
                    rows = 0;
                    IDLE
                }
                Err(error) => {
                    if outage.begins() {
                        tracing::warn!(target: "fanfare::ledger", %error, "deleting what is old failed; it is tried again");
                    }
                    AFTER_ERROR
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Environment, load};
    use crate::domain::event::USEFUL_RANGE_S;

    #[test]
    fn nothing_is_kept_for_less_than_twice_the_longest_usefulness() {
        let keep = |days: &str| {
            let settings: Environment = [("FANFARE__RETENTION__KEEP_DAYS".to_owned(), days.to_owned())].into();
            load(None, &settings).map(|loaded| loaded.config.retention.keep_days)
        };
        let least = (2 * USEFUL_RANGE_S.end()).div_ceil(86_400);
        assert_eq!(keep(&least.to_string()).unwrap(), least);
        let refused = keep(&(least - 1).to_string()).unwrap_err().to_string();
        assert!(refused.contains("retention.keep_days") && refused.contains("days"), "{refused}");
    }
}
