//! Owns the callers' quotas that all instances share, in Redis: one round trip for each request that has a quota.
//! Must never know: keys, requests, or what becomes of one that is refused.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Longest wait of a request for Redis, which answers in well under 1 ms when it is near: the request holds a place at the
/// gate meanwhile. One that takes longer counts as away.
const PATIENCE: Duration = Duration::from_millis(20);

/// The quotas of a fleet.
pub struct Quotas {
    client: Client,
    /// All instances of this project share them.
    project: String,
    script: Script,
    link: Arc<Mutex<Link>>,
    /// Who was counted elsewhere since Redis was last asked for them. Configured names only: it cannot grow with traffic.
    alone: Mutex<HashSet<String>>,
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
        let link = Arc::new(Mutex::new(Link::Away { until: Instant::now() }));
        Ok(Self { client: client(url)?, project: project.to_owned(), script, link, alone: Mutex::default() })
    }

    /// The connection there is. When there is none and it is time to try, one is made, and nobody waits for it: that takes
    /// several round trips.
    fn connection(&self) -> Result<MultiplexedConnection, NotShared> {
        let mut link = lock(&self.link);
        let now = Instant::now();
        match &*link {
            Link::Up(connection) => return Ok(connection.clone()),
            Link::Away { until } if *until > now => return Err(NotShared),
            Link::Away { .. } => *link = Link::Away { until: now + AWAY },
        }
        tokio::spawn(connect(self.client.clone(), Arc::clone(&self.link)));
        Err(NotShared)
    }
}

async fn connect(client: Client, link: Arc<Mutex<Link>>) {
    let limits = AsyncConnectionConfig::new().set_connection_timeout(Some(SILENCE)).set_response_timeout(Some(SILENCE));
    let made = timeout(SILENCE, client.get_multiplexed_async_connection_with_config(&limits)).await;
    if let Ok(Ok(connection)) = made {
        *lock(&link) = Link::Up(connection);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl SharedQuota for Quotas {
    async fn take(&self, name: &str, per_s: u32) -> Result<Option<Duration>, NotShared> {
        let answer = self.ask(name, per_s).await;
        if answer.is_err() {
            lock(&self.alone).insert(name.to_owned());
        }
        answer
    }
}

impl Quotas {
    async fn ask(&self, name: &str, per_s: u32) -> Result<Option<Duration>, NotShared> {
        let mut connection = self.connection()?;
        let alone = lock(&self.alone).remove(name);
        let every = 1_000_000 / u64::from(per_s.max(1));
        let mut call = self.script.prepare_invoke();
        call.key(format!("{{fanfare:{}}}:quota:{name}", self.project))
            .arg(every)
            .arg(1_000_000 - every)
            .arg(u8::from(alone));
        let answer: Result<Result<u64, _>, _> = timeout(PATIENCE, call.invoke_async(&mut connection)).await;
        if let Ok(Ok(wait_us)) = answer {
            return Ok((wait_us > 0).then(|| Duration::from_micros(wait_us)));
        }
        *lock(&self.link) = Link::Away { until: Instant::now() + AWAY };
        tracing::debug!(target: "fanfare::ceiling", away_ms = AWAY.as_millis() as u64, "redis keeps no quotas");
        Err(NotShared)
    }
}
