//! Owns filling the hands: it claims open chunks so that there are always twice as many launchable recipients as slots.
//! Must never know: how chunks are sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::DbClock;
use crate::domain::batch::{ClaimedChunk, FanoutJob};
use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::ids::{BootId, ChunkRef, FanoutId};
use crate::store::{ClaimRequest, Open, Store, StoreError};
use crate::telemetry::Outage;

use super::{Hands, ToSender};

/// Open chunks of other instances are looked for this often.
const POLL: Duration = Duration::from_millis(250);
/// Wait after a failed claim.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A chunk that cannot be read is not claimed for this long, ms.
const UNREADABLE_FOR_MS: i64 = 10_000;
/// For this long after an answer was lost, chunks may turn out to be ours: a statement whose client has gone may still
/// run for as long as statements may, 10 s, and commit.
const DOUBT: Duration = Duration::from_secs(12);
/// While in doubt, what is ours is looked up this often.
const RECOLLECT_EVERY: Duration = Duration::from_secs(3);
/// How often chunks are claimed beside those whose turn it is. Of the least urgent class one lasts for 10,000 launches, at its
/// one in twenty: seconds, at any rate.
const SELDOM: Duration = Duration::from_secs(1);
/// Overdue chunks claimed at once: they leave the hands in the next turn.
const OVERDUE_AT_ONCE: u32 = 16;
/// And so often in a second: 64,000 recipients, which is what memory has room for beside those in hand.
const OVERDUE_ROUNDS: u32 = 8;
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
    /// Whether chunks may be ours that nobody here knows of.
    pub doubt: Doubt,
    /// When to look for something that is not urgent.
    pub floor: EverySecond,
    /// When to look for those whose time is over, who do not wait for room.
    pub overdue: EverySecond,
}

/// When to claim chunks whose turn by urgency may never come: less urgent than all in hand, or overdue.
#[derive(Debug, Default)]
pub struct EverySecond(Option<Instant>);

impl EverySecond {
    fn due(&mut self, now: Instant) -> bool {
        let due = self.0.is_none_or(|at| at <= now);
        if due {
            self.0 = Some(now + SELDOM);
        }
        due
    }
}

/// When to look for chunks that are ours because of an answer that was lost.
#[derive(Debug, Default)]
pub struct Doubt(Option<(Instant, Instant)>);

impl Doubt {
    /// An answer was lost just now. A look that is due already stays so.
    fn rise(&mut self, now: Instant) {
        let next = self.0.map_or(now, |(next, _)| next);
        self.0 = Some((next, now + DOUBT));
    }

    /// Whether to look now. The last look comes after the doubt has ended.
    fn due(&mut self, now: Instant) -> bool {
        let Some((_, until)) = self.0.filter(|(next, _)| *next <= now) else { return false };
        self.0 = (now < until).then_some((now + RECOLLECT_EVERY, until));
        true
    }
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
                () = self.hands.thin.notified() => {}
                () = self.hands.doubt.notified() => self.doubt.rise(Instant::now()),
                () = tokio::time::sleep(POLL) => {}
            }
            if self.doubt.due(Instant::now()) {
                self.recollect().await;
            }
            match self.fill().await {
                Ok(None) => {}
                Ok(Some((of, taken))) => {
                    // That nothing goes before what is in hand does not say that nothing comes after it.
                    dry = if of == Open::All { taken == 0 } else { dry };
                    if outage.over() {
                        tracing::info!(target: "fanfare::fanout", taken, "claims are back");
                    }
                }
                Err(error) => {
                    if outage.begins() {
                        tracing::warn!(target: "fanfare::fanout", %error, "claim failed; it is tried again");
                    }
                    self.doubt.rise(Instant::now());
                    dry = true;
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// What to ask for: chunks to fill the hands, or, with full hands, one that goes before what fills them.
    fn request(&self) -> Option<ClaimRequest> {
        let room = self.hands.room();
        if room > 0 {
            let want = u32::try_from(room.div_ceil(CHUNK_SIZE)).unwrap_or(u32::MAX);
            return Some(ClaimRequest { boot: self.boot, want, of: Open::All });
        }
        let (class, rank) = self.hands.displaced()?;
        Some(ClaimRequest { boot: self.boot, want: 1, of: Open::AheadOf(class, rank) })
    }

    /// Chunks taken, and of which; `None` when the hands want none. Claims go by urgency, so that while there is always
    /// something urgent they would never come to the least urgent class, and its floor in the hands would be a floor of
    /// nothing.
    async fn fill(&mut self) -> Result<Option<(Open, usize)>, StoreError> {
        if let Some(than) = self.hands.without_bulk().filter(|_| self.floor.due(Instant::now())) {
            let claimed = self.store.claim_floor(self.boot, than).await?;
            self.keep(claimed).await?;
        }
        if self.overdue.due(Instant::now()) {
            self.claim_overdue().await?;
        }
        let Some(request) = self.request() else { return Ok(None) };
        self.claim(request.want, request.of).await.map(|taken| Some((request.of, taken)))
    }

    /// A gate may keep the hands full for minutes. Whoever waits for a fan-out whose time is over must not wait for it; and
    /// when the breaker is the gate, it must not be probed only with those that are in hand: they may be what opened it.
    ///
    /// With room in the hands too: many that were put off end together, and one by one they would hold up others.
    async fn claim_overdue(&mut self) -> Result<(), StoreError> {
        for _ in 0..OVERDUE_ROUNDS {
            if self.claim(OVERDUE_AT_ONCE, Open::Overdue).await? < OVERDUE_AT_ONCE as usize {
                break;
            }
        }
        if self.hands.room() == 0 && self.hands.held_by_breaker() {
            self.claim(1, Open::Others).await?;
        }
        Ok(())
    }

    async fn claim(&mut self, want: u32, of: Open) -> Result<usize, StoreError> {
        let claimed = self.store.claim(ClaimRequest { boot: self.boot, want, of }).await?;
        self.keep(claimed).await
    }

    async fn keep(&mut self, claimed: Vec<ClaimedChunk>) -> Result<usize, StoreError> {
        let taken = claimed.len();
        let back = self.hand_on(claimed).await;
        if !back.is_empty() {
            // Not at once: the next claim would take the same chunks again, and nobody would get past them.
            self.store.release(self.boot, back, self.clock.now_ms() + UNREADABLE_FOR_MS).await?;
        }
        Ok(taken)
    }

    /// The dispatcher leaves alone what it has taken before, so that everything that is ours can be handed on again.
    async fn recollect(&mut self) {
        match self.store.owned(self.boot).await {
            // One whose job cannot be read stays: it may be in hand.
            Ok(owned) => drop(self.hand_on(owned).await),
            Err(error) => {
                self.doubt.rise(Instant::now());
                tracing::warn!(target: "fanfare::fanout", %error, "looking for chunks of lost answers failed");
            }
        }
    }

    /// Gives chunks to the dispatcher; returns those it cannot be told how to send.
    async fn hand_on(&mut self, claimed: Vec<ClaimedChunk>) -> Vec<(ChunkRef, i32)> {
        let mut batch: Vec<(ClaimedChunk, Arc<FanoutJob>)> = Vec::with_capacity(claimed.len());
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
        let chunks = batch.len();
        if !batch.is_empty() && self.sender.send(ToSender::Chunks(batch)).is_err() {
            tracing::debug!(target: "fanfare::fanout", chunks, "the sender thread has ended; the lease hands the chunks on");
        }
        back
    }

    async fn job(&mut self, id: FanoutId) -> Result<Arc<FanoutJob>, StoreError> {
        // What a capped one may still do changes when it is resumed.
        if let Some(job) = self.jobs.get(&id).filter(|job| job.origin.cap.is_none()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_not_urgent_is_looked_after_once_a_second() {
        let t = Instant::now();
        let mut floor = EverySecond::default();
        let looks: Vec<u64> = (0..30).filter(|i| floor.due(t + Duration::from_millis(i * 100))).collect();
        assert_eq!(looks, [0, 10, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn in_doubt_it_looks_at_once_and_a_last_time_after_the_doubt() {
        let t = Instant::now();
        let mut doubt = Doubt::default();
        assert!(!doubt.due(t), "no doubt, no look");
        doubt.rise(t);
        let looks: Vec<u64> = (0..60).filter(|s| doubt.due(t + Duration::from_secs(*s))).collect();
        assert_eq!(looks, [0, 3, 6, 9, 12]);
        doubt.rise(t + Duration::from_secs(60));
        assert!(doubt.due(t + Duration::from_secs(60)));
        doubt.rise(t + Duration::from_secs(61));
        assert!(!doubt.due(t + Duration::from_secs(61)), "a storm of errors makes no storm of looks");
    }
}
