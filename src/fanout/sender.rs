//! Owns the sender thread: one `current_thread` runtime that holds connections, dispatcher, grant stock and outbox.
//! Must never know: what the dispatcher decides.
//!
//! A multi-threaded runtime for senders, or a message per recipient across threads, costs more than the limiter and
//! the database together; more than one core of sending is more instances.

use std::thread::JoinHandle;

use tokio::task::LocalSet;

use crate::breaker::{Breaker, BreakerSettings};
use crate::fcm::connections::{Connections, Settings};
use crate::fcm::error::FcmError;

use super::dispatch::Dispatcher;
use super::gates::Gates;
use super::wiring::{Pacing, Wiring};

/// The thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// The operating system refused a thread or a runtime.
    #[error("sender thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The FCM client could not be built.
    #[error(transparent)]
    Fcm(#[from] FcmError),
}

/// Starts the thread. It ends when drained; join it to know that everything was handed over.
///
/// # Errors
/// [`SenderError`] when thread, runtime or FCM client cannot be made.
pub fn start(settings: Settings, pacing: Pacing, wiring: Wiring) -> Result<JoinHandle<()>, SenderError> {
    // Built here once so that a bad CA file or endpoint is an error of the start, not of a thread.
    drop(Connections::new(&settings)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(settings, pacing, wiring));
    };
    Ok(std::thread::Builder::new().name("sender".to_owned()).spawn(body)?)
}

async fn run(settings: Settings, pacing: Pacing, wiring: Wiring) {
    let connections = match Connections::new(&settings) {
        Ok(connections) => connections,
        Err(error) => {
            tracing::error!(target: "fanfare::fanout", %error, "the FCM client could not be built");
            return;
        }
    };
    let gates = Gates::new(Breaker::new(BreakerSettings::default()));
    Dispatcher::new(wiring, pacing, connections, gates).run().await;
}
