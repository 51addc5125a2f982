//! Owns the one thing a room needs of the ceiling without knowing it: leave to make one outside call.
//! Must never know: how the leave is given.

use async_trait::async_trait;

/// Gives leave for one HTTP request that is charged like any other (law 2): the OAuth call's grant.
#[async_trait]
pub trait Charge: Send + Sync {
    /// Waits until one request may leave now.
    async fn charge(&self);
}
