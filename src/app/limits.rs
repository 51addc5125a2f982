//! Owns how much is let in: what the settings and the database behind them come to.
//! Must never know: how a limit is kept.

use std::sync::Arc;

use secrecy::ExposeSecret;

use super::BuildError;
use crate::api;
use crate::ceiling::{Quotas, RedisAway};
use crate::config::{Config, Engine};
use crate::domain::quota::SharedQuota;
use crate::door;

/// Limits of the API.
pub(super) fn of_api(config: &Config) -> api::Limits {
    api::Limits {
        places: places(config),
        requests_per_s_per_key: config.api.requests_per_s_per_key,
        max_backlog: api::MaxBacklog {
            fanouts: config.api.max_backlog,
            recipients: config.api.max_backlog_recipients,
            seconds: config.api.max_backlog_s,
        },
    }
}

/// Limits of the API's listener, whose connections are counted.
pub(super) fn of_listener(config: &Config, measured: &api::Measured) -> door::Limits {
    let connections = measured.door.connections.clone();
    door::Limits { max_connections: config.api.max_connections, connections, ..door::Limits::default() }
}

/// Where the callers' quotas are kept for the whole fleet.
pub(super) fn quotas(config: &Config, project: &str) -> Result<Option<Arc<dyn SharedQuota>>, BuildError> {
    if config.redis.url.expose_secret().is_empty() || config.api.requests_per_s_per_key == 0 {
        return Ok(None);
    }
    let bad = |error: RedisAway| BuildError::Config { what: format!("redis.url: {error}") };
    Ok(Some(Arc::new(Quotas::new(&config.redis.url, project).map_err(bad)?)))
}

/// Jobs that SQLite's one writer commits together.
const SQLITE_COMMIT: u32 = 64;

/// Places at the gate: a quarter more than what is behind it does at once.
fn places(config: &Config) -> door::Places {
    let quarter_more = |n: u32| n.saturating_add(n.div_ceil(4));
    let database = &config.database;
    let (events, rest, borrowed) = match database.engine() {
        Some(Engine::Postgres) => {
            let events = database.for_events();
            (events, database.max_connections.saturating_sub(events).max(1), 4)
        }
        // More imports would only stand in line for the same writer, and events behind them.
        _ => (SQLITE_COMMIT, SQLITE_COMMIT, 0),
    };
    let interactive = if config.api.max_in_flight == 0 { quarter_more(events) } else { config.api.max_in_flight };
    door::Places { interactive, read: quarter_more(rest), bulk: 2, borrowed }
}
