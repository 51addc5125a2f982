//! Owns filling the hands: it claims open chunks so that there are always twice as many launchable recipients as slots.
//! Must never know: how chunks are sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::DbClock;
use crate::domain::batch::{ClaimedChunk, FanoutJob};
use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::ids::{BootId, FanoutId};
use crate::store::{ClaimRequest, Store, StoreError};
use crate::telemetry::Outage;

use super::{Hands, ToSender};

/// Open chunks of other instances are looked for this often.
const POLL: Duration = Duration::from_millis(250);
/// Wait after a failed claim.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A chunk that cannot be read is not claimed for this long, ms.
const UNREADABLE_FOR_MS: i64 = 10_000;
/// Jobs remembered; beyond that all are forgotten.
const REMEMBERED: usize = 256;

/// Claims chunks for one instance.
pub struct Claimer {
    /// The store.
    pub store: Arc<dyn Store>,
    /// This instance.
    pub boot: BootId,
    /// Database time.
    pub clock: Arc<DbClock>,
    /// What the dispatcher holds.
    pub hands: Arc<Hands>,
    /// Where chunks go.
    pub sender: mpsc::UnboundedSender<ToSender>,
    /// Jobs of chunks seen lately.
    pub jobs: HashMap<FanoutId, Arc<FanoutJob>>,
}

impl Claimer {
    /// Claims until cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut dry = true;
        let mut outage = Outage::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.hands.fresh.notified() => {}
                () = self.hands.low.notified(), if !dry => {}
                () = tokio::time::sleep(POLL) => {}
            }
            let Some(request) = self.request() else { continue };
            match self.claim(request).await {
                Ok(taken) => {
                    dry = taken == 0;
                    if outage.over() {
                        tracing::info!(target: "fanfare::fanout", taken, "claims are back");
                    }
                }
                Err(error) => {
                    if outage.begins() {
                        tracing::warn!(target: "fanfare::fanout", %error, "claim failed; it is tried again");
                    }
                    dry = true;
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// What to ask for: chunks to fill the hands, or, with full hands, one of a more urgent class than the least in hand.
    fn request(&self) -> Option<ClaimRequest> {
        let room = self.hands.room();
        if room > 0 {
            let want = u32::try_from(room.div_ceil(CHUNK_SIZE)).unwrap_or(u32::MAX);
            return Some(ClaimRequest { boot: self.boot, want, more_urgent_than: None });
        }
        let class = self.hands.displaced_by_more_urgent()?;
        Some(ClaimRequest { boot: self.boot, want: 1, more_urgent_than: Some(class) })
    }

    async fn claim(&mut self, request: ClaimRequest) -> Result<usize, StoreError> {
        let claimed = self.store.claim(request).await?;
        let taken = claimed.len();
        let mut batch: Vec<(ClaimedChunk, Arc<FanoutJob>)> = Vec::with_capacity(taken);
        let mut back = Vec::new();
        for chunk in claimed {
            match self.job(chunk.chunk.fanout).await {
                Ok(job) => batch.push((chunk, job)),
                Err(error) => {
                    tracing::error!(target: "fanfare::fanout", fanout_id = %chunk.chunk.fanout, %error, "a claimed chunk's fan-out cannot be read");
                    back.push((chunk.chunk, chunk.epoch));
                }
            }
        }
        if !batch.is_empty() && self.sender.send(ToSender::Chunks(batch)).is_err() {
            tracing::debug!(target: "fanfare::fanout", chunks = taken, "the sender thread has ended; the lease hands the chunks on");
        }
        if !back.is_empty() {
            // Not at once: the next claim would take the same chunks again, and nobody would get past them.
            self.store.release(self.boot, back, self.clock.now_ms() + UNREADABLE_FOR_MS).await?;
        }
        Ok(taken)
    }

    async fn job(&mut self, id: FanoutId) -> Result<Arc<FanoutJob>, StoreError> {
        if let Some(job) = self.jobs.get(&id) {
            return Ok(Arc::clone(job));
        }
        let job = self
            .store
            .job(id)
            .await?
            .ok_or_else(|| StoreError::Corrupt(format!("fan-out {id} has chunks but no row")))?;
        if self.jobs.len() >= REMEMBERED {
            self.jobs.clear();
        }
        let job = Arc::new(job);
        self.jobs.insert(id, Arc::clone(&job));
        Ok(job)
    }
}
