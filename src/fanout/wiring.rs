//! Owns what the dispatcher is tied to and sized by, handed over once at its start.
//! Must never know: what the dispatcher does with it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::ceiling::{Ceiling, GrantRun};
use crate::clock::DbClock;
use crate::domain::batch::Outbound;
use crate::domain::catalogue::LiveCatalogue;
use crate::fcm::oauth::Tokens;

use super::flight::Slots;
use super::{Hands, ToSender};

/// What ties the dispatcher to the other rooms.
#[derive(Debug)]
pub struct Wiring {
    /// Chunks and acknowledgements in.
    pub inbox: mpsc::UnboundedReceiver<ToSender>,
    /// Runs of grants in.
    pub grants: mpsc::Receiver<GrantRun>,
    /// Outcomes out; bounded by the exposure.
    pub outbound: mpsc::UnboundedSender<Outbound>,
    /// The access token.
    pub tokens: Tokens,
    /// The ceiling.
    pub ceiling: Ceiling,
    /// Database time.
    pub clock: Arc<DbClock>,
    /// Event types.
    pub catalogue: LiveCatalogue,
    /// What the claimer looks at.
    pub hands: Arc<Hands>,
}

/// Sizes and waits.
#[derive(Debug, Clone, Copy)]
pub struct Pacing {
    /// Slots and their lending.
    pub slots: Slots,
    /// Outcomes that may wait to be written.
    pub unflushed: usize,
    /// Wait before the one retry.
    pub retry_delay: Duration,
}
