//! Owns the composition: it builds every room from the configuration, runs them, and drains them in order.
//! Must never know: what any room decides.
//!
//! The order of a drain: readiness goes red and waiting polls are answered; no new requests, claims or freezes; the
//! sender thread lets what is in flight end; outcomes are flushed and chunks handed back; complete fan-outs are settled;
//! the lease ends; the database closes.

mod bridge;
mod build;
mod credentials;
pub mod doctor;
mod limits;
mod open;
mod reload;
pub mod shadow;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use open::{check, open_catalogue, open_store, unavailable};
pub use reload::Reload;

use crate::api;
use crate::domain::batch::Outbound;
use crate::domain::ids::{BootId, FanoutId};
use crate::door;
use crate::fanout::ToSender;
use crate::fanout::claim::Claimer;
use crate::fanout::freeze::Freezer;
use crate::fanout::lease::Lease;
use crate::fcm::oauth::{TokenState, Tokens};
use crate::ledger::flush::Flusher;
use crate::ledger::retention::Retention;
use crate::ledger::settle::Settler;
use crate::store::{FreezeJob, Store};

/// The end of a drain that is kept for writing down: five flushes of a database that answers within a second.
const WRITING: Duration = Duration::from_secs(5);

/// Why the app was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting that only building shows to be wrong: exit 78.
    #[error("bad configuration: {what}")]
    Config {
        /// Key, fault and fix.
        what: String,
    },
    /// A dependency is not there: exit 69.
    #[error("{what}")]
    Unavailable {
        /// What, and what to do.
        what: String,
    },
}

/// Why the app ended otherwise than by a clean drain.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The grace period ended first.
    #[error("the drain did not finish within {0} ms (drain.grace_ms); what was in flight may be sent again")]
    Grace(u128),
    /// A part ended by itself.
    #[error("{0} ended by itself")]
    Part(&'static str),
}

/// Everything built, nothing running but the sender thread, which has nothing to send yet.
pub struct App {
    api: TcpListener,
    ops: TcpListener,
    addrs: (SocketAddr, SocketAddr),
    limits: door::Limits,
    state: api::State,
    ops_state: api::OpsState,
    store: Arc<dyn Store>,
    boot: BootId,
    tokens: Tokens,
    workers: Workers,
    grace: Duration,
}

/// What runs beside the API.
struct Workers {
    lease: Lease,
    claimer: Claimer,
    freezer: Freezer,
    accepted: mpsc::Receiver<FreezeJob>,
    flusher: Flusher,
    outbound: mpsc::UnboundedReceiver<Outbound>,
    settler: Settler,
    retention: Retention,
    complete: mpsc::UnboundedReceiver<FanoutId>,
    sender: JoinHandle<()>,
    to_sender: mpsc::UnboundedSender<ToSender>,
    /// Ends the ceiling's feeder.
    ceiling: CancellationToken,
}

impl App {
    /// The API's address; the port is the real one when the configuration says 0.
    #[must_use]
    pub const fn api_addr(&self) -> SocketAddr {
        self.addrs.0
    }

    /// The operations listener's address.
    #[must_use]
    pub const fn ops_addr(&self) -> SocketAddr {
        self.addrs.1
    }

    /// Reads the event types of this app anew from `file` when asked, and its key, as long as the app runs; an empty path is
    /// none.
    #[must_use]
    pub fn reload(&self, file: PathBuf) -> Reload {
        Reload { file, catalogue: self.state.catalogue.clone(), tokens: self.tokens.clone() }
    }

    /// Ends when the first request for an access token was answered, well or badly: an event accepted before waits for
    /// it. Can be awaited while the app runs.
    pub fn first_token(&self) -> impl Future<Output = ()> + use<> {
        let mut token = self.tokens.subscribe();
        async move {
            // The sender of it ends with the app, and then nobody waits any more.
            let _ = token.wait_for(|token| !matches!(token, TokenState::Waiting)).await;
        }
    }

    /// Serves until `shutdown`, then drains.
    ///
    /// # Errors
    /// [`RunError`] when a part ends by itself or the drain takes longer than `drain.grace_ms`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        let grace = self.grace;
        let draining = self.state.draining.clone();
        let ops_stop = CancellationToken::new();
        let ops_limits = door::Limits { connections: Default::default(), ..self.limits.clone() };
        let ops = tokio::spawn(door::serve(self.ops, api::ops_router(self.ops_state), ops_limits, ops_stop.clone()));
        let front = api::router(self.state);
        let tended = tokio::spawn(front.tend());
        let api = tokio::spawn(door::serve(self.api, front, self.limits, draining.clone()));
        let mut running = Running::start(self.workers, Arc::clone(&self.store));
        let early = running.until(&shutdown).await;
        draining.cancel();
        tended.abort();
        let drain = running.drain(api, (&self.store, self.boot), grace);
        let drained = tokio::time::timeout(grace, drain).await;
        ops_stop.cancel();
        log_end(ops.await, "operations listener");
        match (early, drained) {
            (Some(part), _) => Err(RunError::Part(part)),
            (None, Err(_)) => Err(RunError::Grace(grace.as_millis())),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// The workers as running tasks.
struct Running {
    /// Ends heartbeat, claims and freezes.
    stop: CancellationToken,
    /// Ends the heartbeat, which goes on until chunks are handed back.
    stop_lease: CancellationToken,
    takers: JoinSet<&'static str>,
    lease: tokio::task::JoinHandle<()>,
    flusher: tokio::task::JoinHandle<()>,
    settler: tokio::task::JoinHandle<()>,
    sender: JoinHandle<()>,
    to_sender: mpsc::UnboundedSender<ToSender>,
    ceiling: CancellationToken,
}

impl Running {
    fn start(w: Workers, store: Arc<dyn Store>) -> Self {
        let (stop, stop_lease) = (CancellationToken::new(), CancellationToken::new());
        let mut takers = JoinSet::new();
        let (claimer, freezer, accepted) = (w.claimer, w.freezer, w.accepted);
        let (claims, freezes, purges, retention) = (stop.clone(), stop.clone(), stop.clone(), w.retention);
        takers.spawn(async move {
            claimer.run(claims).await;
            "claimer"
        });
        takers.spawn(async move {
            freezer.run(accepted, freezes).await;
            "freezer"
        });
        takers.spawn(async move {
            retention.run(purges).await;
            "retention"
        });
        Self {
            lease: tokio::spawn(w.lease.run(store, stop_lease.clone())),
            flusher: tokio::spawn(w.flusher.run(w.outbound)),
            settler: tokio::spawn(w.settler.run(w.complete, stop.clone())),
            sender: w.sender,
            to_sender: w.to_sender,
            ceiling: w.ceiling,
            stop,
            stop_lease,
            takers,
        }
    }

    /// Waits for the signal; names a part that ended before it.
    async fn until(&mut self, shutdown: &CancellationToken) -> Option<&'static str> {
        let mut look = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return None,
                _ = look.tick() => {}
            }
            let taker = self.takers.try_join_next().map(|end| end.unwrap_or("claimer, freezer or retention"));
            let ended = [
                (taker.is_some(), taker.unwrap_or_default()),
                (self.sender.is_finished(), "sender thread"),
                (self.flusher.is_finished(), "flusher"),
                (self.settler.is_finished(), "settler"),
                (self.lease.is_finished(), "heartbeat"),
            ];
            if let Some((_, part)) = ended.into_iter().find(|(over, _)| *over) {
                tracing::error!(target: "fanfare::app", part, "a part ended by itself; draining");
                return Some(part);
            }
        }
    }

    async fn drain<T: Send + 'static>(
        mut self,
        api: tokio::task::JoinHandle<Result<T, door::Cut>>,
        (store, boot): (&Arc<dyn Store>, BootId),
        grace: Duration,
    ) {
        tracing::info!(target: "fanfare::app", boot_id = %boot, "draining");
        self.stop.cancel();
        // A slow request of the API must not hold up the sender, nor the other way round.
        let told = self.to_sender.send(ToSender::Drain).is_ok();
        let abandon = tokio::spawn(abandon_after(patience(grace), self.to_sender.clone()));
        let sender = tokio::task::spawn_blocking(move || self.sender.join().is_ok());
        let (api, sender) = tokio::join!(api, sender);
        abandon.abort();
        log_end(api, "API listener");
        let sender = sender.unwrap_or(false);
        while self.takers.join_next().await.is_some() {}
        // The sender dropped its ends of the channels: the flusher writes what is left, hands chunks back and ends.
        let flushed = self.flusher.await.is_ok();
        drop(self.to_sender);
        let settled = self.settler.await.is_ok();
        self.stop_lease.cancel();
        let lease = self.lease.await.is_ok();
        self.ceiling.cancel();
        if let Err(error) = store.leave(boot).await {
            tracing::warn!(target: "fanfare::app", %error, "the lease could not be ended; it ends by itself");
        }
        store.close().await;
        let clean = told && sender && flushed && settled && lease;
        tracing::info!(target: "fanfare::app", boot_id = %boot, clean, "drained");
    }
}

/// How long a drain waits for what is in flight.
fn patience(grace: Duration) -> Duration {
    grace.saturating_sub(WRITING).max(grace / 2)
}

/// What hangs for longer is given up, so that there is time to write down what is known.
async fn abandon_after(patience: Duration, sender: mpsc::UnboundedSender<ToSender>) {
    tokio::time::sleep(patience).await;
    if sender.send(ToSender::Abandon).is_err() {
        tracing::debug!(target: "fanfare::app", patience_ms = patience.as_millis(), "the sender thread has ended");
    }
}

fn log_end<T>(end: Result<Result<T, door::Cut>, tokio::task::JoinError>, part: &'static str) {
    match end {
        Ok(Ok(_)) => {}
        Ok(Err(cut)) => tracing::warn!(target: "fanfare::app", part, error = %cut, "requests were cut off"),
        Err(error) => tracing::error!(target: "fanfare::app", part, %error, "ended badly"),
    }
}
