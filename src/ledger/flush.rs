//! Owns the flush: when outcomes are written and chunks handed back, again and again until they are, and who is told.
//! Must never know: how they came about.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::domain::batch::{ChunkAck, Flushed, Outbound, PutOff};
use crate::domain::ids::{BootId, FanoutId};
use crate::store::{Store, StoreError};
use crate::telemetry::Outage;

use super::buffer::{Back, Buffer, Taken};
use super::metrics::LedgerMetrics;

/// Longest time an outcome waits for others.
const LINGER: Duration = Duration::from_millis(500);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(2);

/// Chunks as stored, and the fan-outs that are paused.
type Written = (Vec<ChunkAck>, Vec<(FanoutId, i32)>);

/// Writes outcomes down.
pub struct Flusher {
    /// The store.
    pub store: Arc<dyn Store>,
    /// This instance.
    pub boot: BootId,
    /// Outcomes at which a flush is due: what the exposure allows to be unflushed.
    pub threshold: u32,
    /// Outcomes at which nothing more is launched.
    pub exposure: u32,
    /// Told what is on disk.
    pub flushed: Box<dyn Fn(Flushed) + Send + Sync>,
    /// Told of fan-outs a chunk of which closed.
    pub complete: mpsc::UnboundedSender<FanoutId>,
    /// Counts what passes.
    pub metrics: LedgerMetrics,
}

impl Flusher {
    /// Writes until the sender ends and everything is on disk.
    pub async fn run(self, mut inbox: mpsc::UnboundedReceiver<Outbound>) {
        let mut buffer = Buffer::default();
        while let Some(first) = inbox.recv().await {
            let mut due = self.add(&mut buffer, first);
            let until = Instant::now() + LINGER;
            while !due {
                match tokio::time::timeout_at(until, inbox.recv()).await {
                    Ok(Some(more)) => due = self.add(&mut buffer, more),
                    Ok(None) | Err(_) => due = true,
                }
            }
            // What came in meanwhile rides along: one flush is outstanding at a time, and that is the group commit.
            while let Ok(more) = inbox.try_recv() {
                self.add(&mut buffer, more);
            }
            self.write(buffer.take()).await;
        }
    }

    /// Whether a flush is due now.
    fn add(&self, buffer: &mut Buffer, out: Outbound) -> bool {
        let idle = out.idle;
        out.outcomes.iter().for_each(|record| self.metrics.outcome(record.outcome));
        buffer.add(out);
        idle || buffer.ended() || buffer.outcomes() >= self.threshold
    }

    /// Nothing is lost while the database is away: the exposure stops new launches, and the same batch is tried again.
    /// What the database will never take is split until the chunk at fault stands alone; that one is given up, loudly,
    /// so that it does not stop all others.
    async fn write(&self, taken: Taken) {
        match self.persist(&taken).await {
            Ok((acks, paused)) => self.tell(taken.outcomes, acks, paused),
            Err(error) if taken.batch.chunks.len() > 1 => {
                tracing::warn!(target: "fanfare::ledger", chunks = taken.batch.chunks.len(), %error, "flush refused; each chunk is written by itself");
                for one in taken.split() {
                    Box::pin(self.write(one)).await;
                }
            }
            Err(error) => {
                let chunk = taken.batch.chunks.first().map(|c| c.chunk);
                tracing::error!(target: "fanfare::ledger", ?chunk, outcomes = taken.outcomes, %error, "outcomes cannot be written and are given up; the chunk is sent again when its owner changes");
                self.tell(taken.outcomes, Vec::new(), Vec::new());
            }
        }
    }

    /// Tries until it is written, or until trying again cannot help.
    async fn persist(&self, taken: &Taken) -> Result<Written, StoreError> {
        let (mut backoff, mut outage) = (FIRST_BACKOFF, Outage::default());
        loop {
            let begun = Instant::now();
            match self.try_write(taken).await {
                Ok(written) => {
                    self.metrics.flushed(begun.elapsed());
                    if outage.over() {
                        tracing::info!(target: "fanfare::ledger", outcomes = taken.outcomes, "flush is back");
                    }
                    return Ok(written);
                }
                Err(error @ StoreError::Unavailable(_)) => {
                    self.metrics.flush_failed();
                    if outage.begins() {
                        tracing::warn!(target: "fanfare::ledger", outcomes = taken.outcomes, exposure = self.exposure, %error, "flush failed; it is tried again until it succeeds, and sending stops when `exposure` outcomes wait");
                    }
                }
                Err(terminal) => return Err(terminal),
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    async fn try_write(&self, taken: &Taken) -> Result<Written, StoreError> {
        let mut paused = Vec::new();
        // Counters first: a fan-out is settled as soon as its last chunk is closed.
        if !taken.parts.is_empty() {
            paused = self.store.put_parts(self.boot, taken.parts.clone()).await?;
        }
        if !taken.paused.is_empty() {
            self.store.pause(taken.paused.clone()).await?;
        }
        let acks =
            if taken.batch.chunks.is_empty() { Vec::new() } else { self.store.flush(taken.batch.clone()).await? };
        self.hand_back(&taken.back).await?;
        Ok((acks, paused))
    }

    async fn hand_back(&self, back: &Back) -> Result<(), StoreError> {
        if !back.released.is_empty() {
            self.store.release(self.boot, back.released.clone(), 0).await?;
        }
        for PutOff { not_before_ms, chunks } in &back.put_off {
            self.store.release(self.boot, chunks.clone(), *not_before_ms).await?;
        }
        if !back.recalled.is_empty() {
            self.store.recall(back.recalled.clone()).await?;
        }
        Ok(())
    }

    fn tell(&self, outcomes: u32, acks: Vec<ChunkAck>, paused: Vec<(FanoutId, i32)>) {
        for ack in acks.iter().filter(|ack| ack.late > 0) {
            self.metrics.late(ack.late);
            tracing::warn!(target: "fanfare::ledger", fanout_id = %ack.chunk.fanout, chunk = ack.chunk.no, late_facts = ack.late, "facts came after the tally was settled; they are counted apart");
        }
        let mut closed: Vec<FanoutId> = acks.iter().filter(|a| a.closed).map(|a| a.chunk.fanout).collect();
        (self.flushed)(Flushed { outcomes, acks, paused });
        closed.dedup();
        for id in closed {
            if self.complete.send(id).is_err() {
                tracing::debug!(target: "fanfare::ledger", fanout_id = %id, "nobody settles any more; the sweeper will");
            }
        }
    }
}
