//! Owns the way to Redis: up, or away with one probe that finds the way back.
//! Must never know: what grants come from meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use redis::Client;
use tokio::time::{Instant, sleep, sleep_until};

use super::redis::{Ask, Connection, RedisAway};

/// Good answers in a row before Redis is trusted again, and their distance.
const GOOD_ANSWERS: u32 = 3;
const ANSWER_DISTANCE: Duration = Duration::from_millis(50);
/// Wait before the next try to reach Redis: doubles from the first to the second.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// Key, rate and burst of the lane that is tried.
pub(super) type Ping = (String, f64, f64);
/// One try to come back to Redis.
type Probe = Pin<Box<dyn Future<Output = Result<Connection, RedisAway>> + Send>>;

/// The way to Redis.
pub(super) enum Link {
    /// No Redis is configured.
    None,
    Up(Connection),
    Away(Box<Away>),
    /// The URL is no URL; trying again will not help.
    Broken(RedisAway),
}

/// A Redis that cannot be used, and the way back to it.
pub(super) struct Away {
    client: Client,
    ping: Ping,
    /// There is one probe, and it is here: nobody else tries.
    probe: Probe,
    /// What Redis last failed with.
    reason: RedisAway,
    /// Wait before the next probe.
    retry: Duration,
}

impl Away {
    /// Redis failed with `reason`; the first probe starts at `then`.
    pub(super) fn new(client: Client, ping: Ping, reason: RedisAway, then: Instant) -> Self {
        let probe = Box::pin(probe(client.clone(), ping.clone(), then));
        Self { client, ping, probe, reason, retry: RETRY_FIRST }
    }

    /// What Redis last failed with.
    pub(super) const fn reason(&self) -> &RedisAway {
        &self.reason
    }

    /// Probes until one succeeds. May be dropped and called again, but not after it gave a connection.
    pub(super) async fn back(&mut self) -> Connection {
        loop {
            match self.probe.as_mut().await {
                Ok(connection) => return connection,
                Err(reason) => {
                    let next = Instant::now() + self.retry;
                    self.probe = Box::pin(probe(self.client.clone(), self.ping.clone(), next));
                    self.retry = (self.retry * 2).min(RETRY_LAST);
                    self.reason = reason;
                }
            }
        }
    }
}

/// One try: connects, and asks once. The script itself is what is tried: a read-only replica or a full memory answers a
/// `PING` as if all were well.
pub(super) async fn reach(client: &Client, ping: &Ping) -> Result<Connection, RedisAway> {
    let mut connection = Connection::open(client).await?;
    answers(&mut connection, ping).await?;
    Ok(connection)
}

async fn answers(connection: &mut Connection, (key, per_s, burst): &Ping) -> Result<(), RedisAway> {
    connection.ask(&Ask::ping(key, *per_s, *burst)).await.map(drop)
}

/// One try, at `then`: three good answers in a row.
async fn probe(client: Client, ping: Ping, then: Instant) -> Result<Connection, RedisAway> {
    sleep_until(then).await;
    let mut connection = reach(&client, &ping).await?;
    for _ in 1..GOOD_ANSWERS {
        sleep(ANSWER_DISTANCE).await;
        answers(&mut connection, &ping).await?;
    }
    Ok(connection)
}
