//! Owns the freeze: the followers of an event's subjects, read in pages, merged in order, fixed into chunks.
//! Must never know: how chunks are claimed by others, or sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::domain::batch::{Class, FanoutJob};
use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::catalogue::LiveCatalogue;
use crate::domain::derived::Source;
use crate::domain::ids::{BootId, DeviceKey, FanoutId};
use crate::domain::recipient::KindMask;
use crate::store::{FreezeJob, FreezeReply, FreezeStep, Store, StoreError};
use crate::telemetry::Outage;

use super::rank::rank;
use super::source::Reading;
use super::{Hands, ToSender};

/// Freezes that are not urgent running at once: the others wait their turn in the order they were accepted.
const AT_ONCE: usize = 4;
/// Times a step is repeated while the database is away; after that the freeze is taken up anew.
const STEP_TRIES: u32 = 20;
/// Wait before a step is repeated.
const AFTER_ERROR: Duration = Duration::from_millis(500);
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
    pub catalogue: LiveCatalogue,
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
        let mut running: JoinSet<()> = JoinSet::new();
        let mut busy: HashMap<task::Id, FanoutId> = HashMap::new();
        let mut orphans = tokio::time::interval(ORPHANS_EVERY);
        let mut outage = Outage::default();
        loop {
            let found = tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = running.join_next_with_id() => {
                    // One that panicked is not running any more either: it is found again as left behind.
                    let id = match &done {
                        Ok((id, ())) => *id,
                        Err(panic) => panic.id(),
                    };
                    busy.remove(&id);
                    continue;
                }
                Some(job) = accepted.recv() => vec![job],
                _ = orphans.tick() => self.orphans(busy.values().copied().collect(), &mut outage).await,
            };
            for job in found {
                let fanout = job.job.id;
                if !busy.values().any(|id| *id == fanout) {
                    let handle = running.spawn(self.clone().freeze(job, Arc::clone(&turns), stop.clone()));
                    busy.insert(handle.id(), fanout);
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn orphans(&self, busy: Vec<FanoutId>, outage: &mut Outage) -> Vec<FreezeJob> {
        match self.store.take_freezes(self.boot, busy, 16).await {
            Ok(jobs) => {
                outage.over();
                jobs
            }
            Err(error) => {
                if outage.begins() {
                    tracing::warn!(target: "fanfare::fanout", %error, "looking for freezes left behind failed; it goes on");
                }
                Vec::new()
            }
        }
    }

    async fn freeze(self, job: FreezeJob, turns: Arc<Semaphore>, stop: CancellationToken) {
        let id = job.job.id;
        if job.hold_ms > 0 {
            let hold = Duration::from_millis(u64::try_from(job.hold_ms).unwrap_or(0));
            // A drain hands it on: whoever takes it waits for the rest of the hold.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(hold) => {}
            }
        }
        // A goal does not wait for the freezes of fan-outs that have an hour.
        let _turn = if job.job.class == Class::Urgent { None } else { turns.acquire().await.ok() };
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
    }

    /// Whether the freeze ended here.
    async fn steps(&self, job: FreezeJob, stop: CancellationToken) -> Result<bool, StoreError> {
        let mut reading = Reading::begin(&job, self.kinds(&job), &*self.store).await?;
        let (mut from, mut next_chunk) = (job.cursor, job.next_chunk);
        let mut keys: Vec<DeviceKey> = Vec::new();
        loop {
            if stop.is_cancelled() {
                return Ok(false);
            }
            reading.fill(&*self.store).await?;
            keys.extend(reading.take());
            let last = reading.finished();
            // Only the last chunk may be short: what does not fill one waits for the next page.
            let rest = keys.split_off(if last { keys.len() } else { keys.len() / CHUNK_SIZE * CHUNK_SIZE });
            let full = std::mem::replace(&mut keys, rest);
            if full.is_empty() && !last {
                continue;
            }
            let mut step = self.step(&job, (from, next_chunk), full, last);
            if let Some(chunk) = step.chunks.last() {
                from = chunk.last().copied().unwrap_or(from);
            }
            step.never_saw = reading.never_saw(if last { DeviceKey(i64::MAX) } else { from });
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
        self.catalogue.now().get(&job.job.event.kind).map_or(KindMask::ALL, |kind| KindMask::only(kind.bit))
    }

    fn step(&self, job: &FreezeJob, at: (DeviceKey, i32), keys: Vec<DeviceKey>, last: bool) -> FreezeStep {
        let chunks: Vec<Vec<DeviceKey>> = keys.chunks(CHUNK_SIZE).map(<[DeviceKey]>::to_vec).collect();
        let (from, first_chunk) = at;
        let before = (usize::try_from(first_chunk).unwrap_or(0)..).map(|no| no * CHUNK_SIZE);
        let ranks = chunks.iter().zip(before).map(|(chunk, before)| self.rank(job, before, chunk.len())).collect();
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
            never_saw: None,
            last,
        }
    }

    /// A fan-out begins when it was accepted; a sweep at its deadline, so that it goes behind whatever of its class is
    /// accepted before that.
    fn rank(&self, job: &FreezeJob, before: usize, n: usize) -> i64 {
        let FanoutJob { origin, accepted_ms, deadline_ms, .. } = &job.job;
        let begin = if origin.source == Source::Devices { *deadline_ms } else { *accepted_ms };
        rank(begin, before, n, self.rate_per_s)
    }

    /// Repeats a step whose answer was lost: it answers again what it did, so that no claimed chunk is forgotten.
    async fn persist(&self, step: FreezeStep) -> Result<FreezeReply, StoreError> {
        let mut tries = 0;
        loop {
            match self.store.freeze_step(step.clone()).await {
                Err(StoreError::Unavailable(_)) if tries < STEP_TRIES => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }

    /// Whether the freeze is still ours.
    async fn write(&self, step: FreezeStep, job: &FreezeJob) -> Result<bool, StoreError> {
        let open = step.chunks.len() > step.claim_first;
        let FreezeReply::Written(claimed) = self.persist(step).await? else {
            // It may have been written all the same, its answer lost, and the fan-out cancelled or taken over before
            // it was repeated: what it claimed is ours.
            self.hands.doubt();
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
