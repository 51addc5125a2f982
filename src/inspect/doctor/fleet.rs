//! Owns the check of Redis, and of doing without.
//! Must never know: the conversation with it.

use std::time::Duration;

use super::{Finding, Trouble};
use crate::ceiling::{RedisAway, RedisFacts, RedisRefused, RedisServer};

const REDIS: &str = "redis";

/// A service gives up on Redis after 100 ms; a quarter of that leaves little for a bad moment.
const SLOW: Duration = Duration::from_millis(25);

/// Where the ceiling of the fleet is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fleet {
    /// No Redis is configured.
    Alone {
        /// Other instances may work on the same database.
        shared_database: bool,
        /// Instances that live, where they are counted.
        live: u32,
    },
    /// Redis was asked.
    Redis(Result<RedisFacts, RedisRefused>),
}

/// Redis, or doing without.
#[must_use]
pub fn fleet(fleet: &Fleet) -> Finding {
    match fleet {
        Fleet::Alone { shared_database: false, .. } => Finding::ok(
            REDIS,
            "none configured, and none needed: SQLite serves one instance, which has the whole ceiling",
        ),
        Fleet::Alone { live: 0 | 1, .. } => {
            Finding::ok(REDIS, "none configured; one instance has the whole ceiling, several would each have a share")
        }
        Fleet::Alone { live, .. } => {
            let found =
                format!("none configured; {live} instances live, so each has 1/{live} of the ceiling, used or not");
            Finding::warn(REDIS, found, "set redis.url (REDIS_URL)")
        }
        Fleet::Redis(Err(RedisRefused::Connect(away))) => {
            let fix =
                "check redis.url (REDIS_URL), and that it runs; until then each instance has a share of the ceiling";
            Finding::fail(REDIS, trouble(away), away.to_string(), fix)
        }
        Fleet::Redis(Err(RedisRefused::Script(away))) => Finding::fail(
            REDIS,
            trouble(away),
            format!("the script of the ceiling was refused: {away}"),
            script_fix(away),
        ),
        Fleet::Redis(Ok(facts)) => answered(facts),
    }
}

const fn trouble(away: &RedisAway) -> Trouble {
    match away {
        RedisAway::BadUrl => Trouble::Config,
        _ => Trouble::Unavailable,
    }
}

fn script_fix(away: &RedisAway) -> &'static str {
    match away {
        RedisAway::Answered(code) if code == "READONLY" => "name the primary in redis.url, not a replica",
        RedisAway::Answered(code) if code == "OOM" => "raise maxmemory, or take out what else is kept there",
        RedisAway::Answered(code) if code == "NOPERM" => {
            "allow its user EVALSHA, SCRIPT LOAD, TIME, HMGET, HSET and PEXPIRE on the keys {fanfare:*"
        }
        _ => "allow scripts that write: EVALSHA, SCRIPT LOAD, TIME, HMGET, HSET, PEXPIRE",
    }
}

fn answered(facts: &RedisFacts) -> Finding {
    let (middle, slowest) = facts.answers_in;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let silent = match facts.silent {
        0 => String::new(),
        n => format!(", after {n} tries without an answer in 100 ms"),
    };
    let times =
        format!("the script runs, answers in {:.1} ms, the slowest of 9 in {:.1} ms{silent}", ms(middle), ms(slowest));
    let Some(server) = &facts.server else {
        let fix = "allow its user INFO, or see to it that maxmemory-policy is noeviction";
        return Finding::warn(REDIS, format!("{times}; it may not be asked how it evicts"), fix);
    };
    let found = format!("Redis {} ({}), {times}; {}", server.version, server.role, memory(server));
    if server.policy != "noeviction" {
        let fix = "CONFIG SET maxmemory-policy noeviction: an evicted key forgets what was sent and a pause in force";
        return Finding::warn(REDIS, found, fix);
    }
    if middle > SLOW || facts.silent > 0 {
        let fix = "put Redis nearer: one that takes over 100 ms counts as away";
        return Finding::warn(REDIS, found, fix);
    }
    Finding::ok(REDIS, found)
}

fn memory(server: &RedisServer) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let limit = match server.max_bytes {
        0 => "no limit".to_owned(),
        bytes => format!("{:.0} MiB", mib(bytes)),
    };
    format!("{:.1} MiB used of {limit}, maxmemory-policy {}", mib(server.used_bytes), server.policy)
}
