//! Owns what the door needs of whoever keeps the quotas of a whole fleet, without knowing it.
//! Must never know: how they are kept.

use std::time::Duration;

use async_trait::async_trait;

/// Keeps quotas that all instances share.
#[async_trait]
pub trait SharedQuota: Send + Sync {
    /// Counts one request of `name`, which may make `per_s` a second; `Some(wait)` refuses it, uncounted.
    ///
    /// # Errors
    /// [`NotShared`] when nobody keeps them now.
    async fn take(&self, name: &str, per_s: u32) -> Result<Option<Duration>, NotShared>;
}

/// Nobody keeps the quotas of the fleet now: each instance has a share of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fleet's quotas are not kept anywhere now")]
pub struct NotShared;
