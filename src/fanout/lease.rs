//! Owns this instance's lease: it tells the database that it lives, and the others how long that may be trusted.
//! Must never know: what is done under the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::{Boot, DbClock};
use crate::domain::ids::BootId;
use crate::mutant;
use crate::store::{Heartbeat, Store, StoreError};

use super::ToSender;

/// Lease of an instance.
pub const LEASE: Duration = Duration::from_secs(15);
/// Trust ends this much before the lease does.
pub const MARGIN: Duration = Duration::from_secs(3);
/// Time between heartbeats.
pub const EVERY: Duration = Duration::from_secs(3);

/// Beats until cancelled.
#[derive(Debug)]
pub struct Lease {
    /// This start of this instance.
    pub boot: BootId,
    /// Corrected by every answer.
    pub clock: Arc<DbClock>,
    /// Told until when the lease is trusted.
    pub sender: mpsc::UnboundedSender<ToSender>,
    /// Told how many instances live.
    pub live: watch::Sender<u32>,
    /// Told why the last heartbeat failed; `None` = it did not.
    pub trouble: watch::Sender<Option<String>>,
}

impl Lease {
    /// One heartbeat. Trust is counted from before the request left, on the boot-time clock.
    ///
    /// # Errors
    /// The store's, unchanged.
    pub async fn beat(&self, store: &Arc<dyn Store>) -> Result<Heartbeat, StoreError> {
        let asked = Boot::now();
        let lease_ms = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        let beat = store.heartbeat(self.boot, lease_ms).await?;
        self.clock.observe(beat.now_ms, asked, Boot::now());
        let asked = if mutant::on("lease_from_the_answer") { Boot::now() } else { asked };
        self.live.send_replace(beat.live_instances.max(1));
        tell(&beat);
        let until = asked.plus(LEASE.saturating_sub(MARGIN));
        let cancelled = beat.cancelled.iter().map(|id| ToSender::Cancelled(*id));
        let news = std::iter::once(ToSender::Lease(until)).chain(cancelled);
        if news.map(|news| self.sender.send(news)).any(|sent| sent.is_err()) {
            tracing::debug!(target: "fanfare::fanout", boot_id = %self.boot, "the sender thread has ended");
        }
        Ok(beat)
    }

    /// Beats every [`EVERY`], a failure logged once per change.
    pub async fn run(self, store: Arc<dyn Store>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let answer = self.beat(&store).await;
            report(&answer, failing);
            self.trouble.send_replace(answer.as_ref().err().map(ToString::to_string));
            failing = answer.is_err();
        }
    }
}

fn report(answer: &Result<Heartbeat, StoreError>, was_failing: bool) {
    match answer {
        Err(error) if !was_failing => {
            tracing::warn!(target: "fanfare::fanout", %error, "heartbeat failed; sending stops when the lease is over, or before when outcomes cannot be written");
        }
        Ok(beat) if was_failing => {
            tracing::info!(target: "fanfare::fanout", live_instances = beat.live_instances, "heartbeat is back");
        }
        _ => {}
    }
}

/// What a heartbeat did, the first one before anything runs included: after a kill that is the one that takes over.
fn tell(beat: &Heartbeat) {
    if beat.freed_chunks > 0 {
        tracing::warn!(target: "fanfare::fanout", chunks = beat.freed_chunks, "took over chunks of an instance whose lease had expired");
    }
    if beat.set_aside > 0 {
        tracing::warn!(target: "fanfare::fanout", chunks = beat.set_aside, "fan-out set aside");
    }
}
