//! Owns the freeze: the followers of an event's subjects, read in pages, merged in order, fixed into chunks.
//! Must never know: how chunks are claimed by others, or sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::catalogue::Catalogue;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::domain::merge::Merge;
use crate::domain::recipient::KindMask;
use crate::store::{FollowerPage, FreezeJob, FreezeReply, FreezeStep, Store, StoreError};

use super::{Hands, ToSender};

/// Followers read at once per subject.
const PAGE: u32 = 10_000;
/// Freezes running at once: the others wait their turn in the order they were accepted.
const AT_ONCE: usize = 4;
/// Freezes left behind are looked for this often.
const ORPHANS_EVERY: Duration = Duration::from_secs(2);

/// Freezes fan-outs for one instance.
#[derive(Clone)]
pub struct Freezer {
    /// The store.
    pub store: Arc<dyn Store>,
    /// This instance.
    pub boot: BootId,
    /// Event types, for their bits.
    pub catalogue: Arc<Catalogue>,
    /// How full the hands are.
    pub hands: Arc<Hands>,
    /// Where the first chunks go.
    pub sender: mpsc::UnboundedSender<ToSender>,
    /// Told of every fan-out that is frozen: one without recipients is complete already.
    pub frozen: mpsc::UnboundedSender<FanoutId>,
    /// The ceiling, per second: ranks spread a big fan-out over the time it takes.
    pub rate_per_s: f64,
}

impl Freezer {
    /// Freezes what is handed over, and what others left behind, until cancelled.
    pub async fn run(self, mut accepted: mpsc::Receiver<FreezeJob>, stop: CancellationToken) {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut running: JoinSet<FanoutId> = JoinSet::new();
        let mut busy: Vec<FanoutId> = Vec::new();
        let mut orphans = tokio::time::interval(ORPHANS_EVERY);
        loop {
            let found = tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = running.join_next() => {
                    busy.retain(|id| done.as_ref().ok() != Some(id));
                    continue;
                }
                Some(job) = accepted.recv() => vec![job],
                _ = orphans.tick() => self.orphans(&busy).await,
            };
            for job in found.into_iter().filter(|j| !busy.contains(&j.job.id)).collect::<Vec<_>>() {
                busy.push(job.job.id);
                running.spawn(self.clone().freeze(job, Arc::clone(&turns), stop.clone()));
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn orphans(&self, busy: &[FanoutId]) -> Vec<FreezeJob> {
        match self.store.take_freezes(self.boot, busy.to_vec(), 16).await {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(target: "fanfare::fanout", %error, "looking for freezes left behind failed");
                Vec::new()
            }
        }
    }

    async fn freeze(self, job: FreezeJob, turns: Arc<Semaphore>, stop: CancellationToken) -> FanoutId {
        let id = job.job.id;
        let Ok(_turn) = turns.acquire().await else {
            return id;
        };
        match self.steps(job, stop).await {
            Ok(true) => {
                if self.frozen.send(id).is_err() {
                    tracing::debug!(target: "fanfare::fanout", fanout_id = %id, "nobody settles any more; the sweeper will");
                }
            }
            Ok(false) => {}
            Err(error) => {
                self.hands.doubt();
                tracing::warn!(target: "fanfare::fanout", fanout_id = %id, %error, "freeze interrupted; it is taken up again");
            }
        }
        id
    }

    /// Whether the freeze ended here.
    async fn steps(&self, job: FreezeJob, stop: CancellationToken) -> Result<bool, StoreError> {
        let kinds = self.kinds(&job);
        let mut merge = Merge::new(job.job.event.subjects.len(), job.cursor);
        let (mut from, mut next_chunk) = (job.cursor, job.next_chunk);
        let mut keys: Vec<DeviceKey> = Vec::new();
        loop {
            if stop.is_cancelled() {
                return Ok(false);
            }
            self.fill(&mut merge, &job, kinds).await?;
            keys.extend(merge.take(PAGE as usize));
            let last = merge.finished();
            // Only the last chunk may be short: what does not fill one waits for the next page.
            let rest = keys.split_off(if last { keys.len() } else { keys.len() / CHUNK_SIZE * CHUNK_SIZE });
            let full = std::mem::replace(&mut keys, rest);
            if full.is_empty() && !last {
                continue;
            }
            let step = self.step(&job, (from, next_chunk), full, last);
            if let Some(chunk) = step.chunks.last() {
                from = chunk.last().copied().unwrap_or(from);
            }
            next_chunk += i32::try_from(step.chunks.len()).unwrap_or(i32::MAX);
            if !self.write(step, &job).await? {
                return Ok(false);
            }
            if last {
                return Ok(true);
            }
        }
    }

    /// A type that left the catalogue since it was accepted still reaches those who follow everything.
    fn kinds(&self, job: &FreezeJob) -> KindMask {
        self.catalogue.get(&job.job.event.kind).map_or(KindMask::ALL, |kind| KindMask::only(kind.bit))
    }

    async fn fill(&self, merge: &mut Merge, job: &FreezeJob, kinds: KindMask) -> Result<(), StoreError> {
        while let Some((subject, after)) = merge.needs() {
            let page = FollowerPage { subject: job.job.event.subjects[subject].clone(), kinds, after, limit: PAGE };
            let keys = self.store.follower_page(page).await?;
            let exhausted = keys.len() < PAGE as usize;
            merge.feed(subject, keys, exhausted).map_err(|fault| StoreError::Corrupt(fault.to_string()))?;
        }
        Ok(())
    }

    fn step(&self, job: &FreezeJob, at: (DeviceKey, i32), keys: Vec<DeviceKey>, last: bool) -> FreezeStep {
        let chunks: Vec<Vec<DeviceKey>> = keys.chunks(CHUNK_SIZE).map(<[DeviceKey]>::to_vec).collect();
        let (from, first_chunk) = at;
        let ranks = (0..chunks.len()).map(|i| self.rank(job, first_chunk, i)).collect();
        let claim_first = self.hands.room().div_ceil(CHUNK_SIZE).min(chunks.len());
        FreezeStep {
            boot: self.boot,
            fanout: job.job.id,
            epoch: job.epoch,
            from,
            chunks,
            first_chunk,
            ranks,
            claim_first,
            last,
        }
    }

    /// `accepted_at + chunk_no x 500 / ceiling`, in ms: when the chunk would be sent if it were alone.
    #[expect(clippy::cast_possible_truncation, reason = "far below 2^53 ms")]
    fn rank(&self, job: &FreezeJob, first_chunk: i32, i: usize) -> i64 {
        let position = f64::from(first_chunk) + i as f64;
        job.job.accepted_ms + (position * CHUNK_SIZE as f64 * 1000.0 / self.rate_per_s) as i64
    }

    /// Whether the freeze is still ours.
    async fn write(&self, step: FreezeStep, job: &FreezeJob) -> Result<bool, StoreError> {
        let open = step.chunks.len() > step.claim_first;
        let FreezeReply::Written(claimed) = self.store.freeze_step(step).await? else {
            return Ok(false);
        };
        let shared = Arc::new(job.job.clone());
        let batch: Vec<_> = claimed.into_iter().map(|chunk| (chunk, Arc::clone(&shared))).collect();
        if !batch.is_empty() && self.sender.send(ToSender::Chunks(batch)).is_err() {
            tracing::debug!(target: "fanfare::fanout", fanout_id = %job.job.id, "the sender thread has ended; the lease hands the chunks on");
        }
        if open {
            self.hands.announce();
        }
        Ok(true)
    }
}
