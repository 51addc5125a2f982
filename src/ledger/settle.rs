//! Owns settling: a complete fan-out's tally is fixed for good and its line is written, once.
//! Must never know: how outcomes came about.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::ids::FanoutId;
use crate::store::{FanoutView, SettleReply, Settled, Store, StoreError};
use crate::telemetry::Outage;

use super::judgement::Judgements;
use super::line;

/// The sweeper looks this often for what nobody settled or reported.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// A settled fan-out without a mark for this long has its line written again.
const UNREPORTED_AFTER_MS: i64 = 10_000;

/// What fails every few seconds while the database is away, and is told once.
#[derive(Debug, Default)]
struct Outages {
    ending: Outage,
    finding: Outage,
}

/// Settles fan-outs.
pub struct Settler {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Told of every fan-out settled here.
    pub settled: Box<dyn Fn(FanoutId) + Send + Sync>,
    /// Tells what became of devices.
    pub judgements: Judgements,
}

impl Settler {
    /// Settles what it is told of and what the sweep finds, until cancelled and nothing is left in the inbox.
    pub async fn run(self, mut inbox: mpsc::UnboundedReceiver<FanoutId>, stop: CancellationToken) {
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut outages = Outages::default();
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                id = inbox.recv() => match id {
                    Some(id) => self.settle_all(id, &mut inbox).await,
                    None => return,
                },
                _ = sweep.tick(), if !stop.is_cancelled() => self.sweep(&mut outages).await,
            }
        }
    }

    /// Several chunks of one fan-out close close together: ask once.
    async fn settle_all(&self, first: FanoutId, inbox: &mut mpsc::UnboundedReceiver<FanoutId>) {
        let mut ids = HashSet::from([first]);
        while let Ok(more) = inbox.try_recv() {
            ids.insert(more);
        }
        for id in ids {
            self.settle(id).await;
        }
    }

    async fn settle(&self, id: FanoutId) {
        match self.store.settle(id).await {
            Ok(SettleReply::Settled(settled)) => self.report(&settled).await,
            Ok(SettleReply::Open | SettleReply::NotOurs) => {}
            Err(error) => {
                tracing::warn!(target: "fanfare::ledger", fanout_id = %id, %error, "settling failed; the sweeper tries again");
            }
        }
    }

    async fn report(&self, settled: &Settled) {
        let view = &settled.view;
        line::write(view, false);
        self.judgements.tell(settled);
        self.mark(view).await;
        (self.settled)(view.id);
    }

    async fn mark(&self, view: &FanoutView) {
        if let Err(error) = self.store.mark_reported(view.id).await {
            tracing::warn!(target: "fanfare::ledger", fanout_id = %view.id, %error, "the line is written but not marked; it may be repeated");
        }
    }

    async fn sweep(&self, outages: &mut Outages) {
        match self.store.end_paused_sweeps().await {
            Ok(ended) => {
                outages.ending.over();
                if ended > 0 {
                    tracing::info!(target: "fanfare::ledger", ended, "a paused sweep ends; it is resumed as another one");
                }
            }
            // Fan-outs are settled all the same.
            Err(error) => {
                if outages.ending.begins() {
                    tracing::warn!(target: "fanfare::ledger", %error, "ending paused sweeps failed; it is tried again");
                }
            }
        }
        match self.settle_found().await {
            Ok(complete) => {
                if outages.finding.over() {
                    tracing::info!(target: "fanfare::ledger", complete, "what is complete is found again");
                }
            }
            Err(error) => {
                if outages.finding.begins() {
                    tracing::warn!(target: "fanfare::ledger", %error, "looking for what is complete failed; it is tried again");
                }
            }
        }
    }

    async fn settle_found(&self) -> Result<usize, StoreError> {
        let found = self.store.sweep(UNREPORTED_AFTER_MS).await?;
        // Another instance may have seen a leap, or the end of one. What is settled below may leap anew.
        self.judgements.stand(&found.leaps);
        let complete = found.complete.len();
        for id in found.complete {
            self.settle(id).await;
        }
        for settled in found.unreported {
            line::write(&settled.view, true);
            // Whoever settled it may have died before the alarm, too.
            self.judgements.repeat(&settled);
            self.mark(&settled.view).await;
            (self.settled)(settled.view.id);
        }
        Ok(complete)
    }
}
