//! Owns the look at Redis that `fanfare doctor` asks for: whether the script runs, how soon it answers, and what the server
//! says of itself.
//! Must never know: which answer is well and which is not.

use std::time::Duration;

use redis::Client;
use secrecy::SecretString;
use tokio::time::{Instant, sleep};

use super::redis::{Ask, Connection, RedisAway, client};

/// Answers that are timed.
const ASKS: usize = 9;

/// Tries to find it not silent, and the time between two: a moment in which this machine has no time says nothing of Redis.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(100);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisFacts {
    /// Tries before, each without an answer within 100 ms.
    pub silent: u32,
    /// The middle one of nine answers of the script, and the slowest.
    pub answers_in: (Duration, Duration),
    /// What the server says of itself; none when it may not be asked (`INFO` not allowed).
    pub server: Option<RedisServer>,
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisServer {
    /// `redis_version`.
    pub version: String,
    /// `role`: `master` or `slave`.
    pub role: String,
    /// `maxmemory_policy`.
    pub policy: String,
    /// `maxmemory`, bytes; 0 = no limit.
    pub max_bytes: u64,
    /// `used_memory`, bytes.
    pub used_bytes: u64,
}

/// At which step it failed, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisRefused {
    /// There is no connection.
    Connect(RedisAway),
    /// There is one, and the script cannot run: it may not, or nothing can be written.
    Script(RedisAway),
}

/// Runs the ceiling's own script, for no grant, on a key of its own beside those of `project`.
///
/// # Errors
/// [`RedisRefused`].
pub async fn probe(url: &SecretString, project: &str) -> Result<RedisFacts, RedisRefused> {
    let client = client(url).map_err(RedisRefused::Connect)?;
    let key = format!("{{fanfare:{project}}}:doctor");
    let mut silent = 0;
    loop {
        match once(&client, &key).await {
            Err(RedisRefused::Connect(RedisAway::Silent) | RedisRefused::Script(RedisAway::Silent))
                if silent + 1 < TRIES =>
            {
                silent += 1;
                sleep(BETWEEN).await;
            }
            found => return found.map(|facts| RedisFacts { silent, ..facts }),
        }
    }
}

async fn once(client: &Client, key: &str) -> Result<RedisFacts, RedisRefused> {
    let mut connection = Connection::open(client).await.map_err(RedisRefused::Connect)?;
    let mut times = Vec::with_capacity(ASKS);
    for _ in 0..ASKS {
        let asked = Instant::now();
        connection.ask(&Ask::ping(key, 1.0, 1.0)).await.map_err(RedisRefused::Script)?;
        times.push(asked.elapsed());
    }
    times.sort();
    let slowest = times.last().copied().unwrap_or_default();
    let server = match connection.info().await {
        Err(RedisAway::Silent) => return Err(RedisRefused::Script(RedisAway::Silent)),
        told => told.ok().map(|text| read(&text)),
    };
    connection.forget(key).await;
    Ok(RedisFacts { silent: 0, answers_in: (times[ASKS / 2], slowest), server })
}

fn read(info: &str) -> RedisServer {
    let value = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().chars().filter(|c| c.is_ascii_graphic()).take(40).collect::<String>()
    };
    RedisServer {
        version: value("redis_version"),
        role: value("role"),
        policy: value("maxmemory_policy"),
        max_bytes: value("maxmemory").parse().unwrap_or(0),
        used_bytes: value("used_memory").parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself_is_read_line_by_line() {
        let info = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:900\r\nused_memory_rss:1\r\nmaxmemory:1000\r\n\
                    maxmemory_policy:allkeys-lru\r\n# Replication\r\nrole:master\r\n";
        let found = read(info);
        assert_eq!((found.version.as_str(), found.role.as_str()), ("7.0.15", "master"));
        assert_eq!((found.policy.as_str(), found.max_bytes, found.used_bytes), ("allkeys-lru", 1000, 900));
        assert_eq!(read("nothing of it"), RedisServer::default());
    }
}
