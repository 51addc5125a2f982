//! Owns the callers' quotas that all instances share, in Redis: one round trip for each request that has a quota.
//! Must never know: keys, requests, or what becomes of one that is refused.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};
use secrecy::SecretString;
use tokio::time::{Instant, timeout};

use super::redis::{RedisAway, SILENCE, client};
use crate::domain::quota::{NotShared, SharedQuota};

/// After a failure nobody asks for this long: a request must not wait for a Redis that is away.
const AWAY: Duration = Duration::from_secs(1);

/// The quotas of a fleet.
pub struct Quotas {
    client: Client,
    /// All instances of this project share them.
    project: String,
    script: Script,
    link: Mutex<Link>,
}

enum Link {
    Up(MultiplexedConnection),
    Away { until: Instant },
}

impl Quotas {
    /// Quotas in the Redis at `url`; connects when first asked.
    ///
    /// # Errors
    /// [`RedisAway::BadUrl`].
    pub fn new(url: &SecretString, project: &str) -> Result<Self, RedisAway> {
        let script = Script::new(include_str!("quotas.lua"));
        let link = Mutex::new(Link::Away { until: Instant::now() });
        Ok(Self { client: client(url)?, project: project.to_owned(), script, link })
    }

    /// The connection, made when it is time to try again. Others go on without while one tries, and after a try that
    /// was dropped or failed.
    async fn connection(&self) -> Result<MultiplexedConnection, NotShared> {
        if let Some(connection) = self.known()? {
            return Ok(connection);
        }
        let limits =
            AsyncConnectionConfig::new().set_connection_timeout(Some(SILENCE)).set_response_timeout(Some(SILENCE));
        let made = timeout(SILENCE, self.client.get_multiplexed_async_connection_with_config(&limits)).await;
        let Ok(Ok(connection)) = made else { return Err(NotShared) };
        *self.link() = Link::Up(connection.clone());
        Ok(connection)
    }

    /// The connection there is; `None` when the caller is the one to make it.
    fn known(&self) -> Result<Option<MultiplexedConnection>, NotShared> {
        let mut link = self.link();
        let now = Instant::now();
        match &*link {
            Link::Up(connection) => Ok(Some(connection.clone())),
            Link::Away { until } if *until > now => Err(NotShared),
            Link::Away { .. } => {
                *link = Link::Away { until: now + AWAY };
                Ok(None)
            }
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl SharedQuota for Quotas {
    async fn take(&self, name: &str, per_s: u32) -> Result<Option<Duration>, NotShared> {
        let mut connection = self.connection().await?;
        let every = 1_000_000 / u64::from(per_s.max(1));
        let mut call = self.script.prepare_invoke();
        call.key(format!("{{fanfare:{}}}:quota:{name}", self.project)).arg(every).arg(1_000_000 - every);
        let answer: Result<Result<u64, _>, _> = timeout(SILENCE, call.invoke_async(&mut connection)).await;
        if let Ok(Ok(wait_us)) = answer {
            return Ok((wait_us > 0).then(|| Duration::from_micros(wait_us)));
        }
        *self.link() = Link::Away { until: Instant::now() + AWAY };
        tracing::debug!(target: "fanfare::ceiling", away_ms = AWAY.as_millis() as u64, "redis keeps no quotas");
        Err(NotShared)
    }
}
