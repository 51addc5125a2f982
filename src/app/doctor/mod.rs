//! Owns gathering what `fanfare doctor` judges: every check, although others failed, each within a short time.
//! Must never know: which answer is well and which is not.

mod provider;

use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;

use self::provider::Provider;
use super::credentials;
use super::open::open_catalogue;
use crate::api::Keys;
use crate::ceiling::{self, RedisFacts, RedisRefused};
use crate::config::{self, Config, Engine, Environment, Fault, Loaded};
use crate::inspect::doctor::{self, Clocks, Descriptors, Finding, Fleet, Types};
use crate::store::{PostgresFacts, SqliteFacts, StoreError, postgres, sqlite};

/// Longest wait for a database, which answers in milliseconds.
const DATABASE_WITHIN: Duration = Duration::from_secs(5);

/// Connections for facts and heartbeats beside `database.max_connections`.
const FACT_CONNECTIONS: u32 = 2;

/// Names that stand for a file as a whole.
const WHOLE_FILE: [&str; 2] = ["--config", "syntax"];

/// Checks with the settings `serve` would use; `send` = FCM may be asked to look at one message.
pub async fn diagnose(file: Option<&Path>, env: &Environment, send: bool) -> Vec<Finding> {
    let (loaded, faults) = config::examine(file, env);
    let mut findings = doctor::configuration(&faults, loaded.as_ref().map_or((0, 0), Loaded::counts));
    if let Some(Loaded { config, .. }) = loaded {
        findings.extend(Patient { config, faults }.examined(send).await);
    }
    findings
}

/// What is checked: settings, those at fault replaced by what they would be otherwise.
struct Patient {
    config: Config,
    faults: Vec<Fault>,
}

/// What was found of the database.
enum Database {
    Unasked(String),
    Postgres(Box<Result<PostgresFacts, StoreError>>),
    Sqlite(Box<Result<SqliteFacts, StoreError>>),
}

/// What was found of Redis.
enum Redis {
    Unasked(String),
    None,
    Asked(Result<RedisFacts, RedisRefused>),
}

impl Patient {
    async fn examined(&self, send: bool) -> Vec<Finding> {
        let config = &self.config;
        let read = credentials::read(config);
        let project = match (config.fcm.project_id.as_str(), &read) {
            ("", Ok(read)) => read.project_id().unwrap_or("unknown").to_owned(),
            ("", Err(_)) => "unknown".to_owned(),
            (set, _) => set.to_owned(),
        };
        let (database, redis, provider) =
            tokio::join!(self.database(), self.redis(&project), Provider::asked(self, read, send));
        let mut findings = self.written();
        findings.extend(self.of_database(&database));
        findings.push(of_redis(redis, &database));
        findings.push(doctor::clocks(Clocks { database: database.ahead_ms(), ..provider.clocks() }));
        findings.extend(provider.findings(config));
        let at = findings.len().saturating_sub(1);
        findings.insert(at, doctor::descriptors(self.descriptors()));
        findings
    }

    /// Why nothing can be asked with these settings: one of them, or the file they may be in, is at fault.
    fn blocked(&self, keys: &[&str]) -> Option<String> {
        let at_fault = |fault: &&Fault| WHOLE_FILE.contains(&fault.key.as_str()) || keys.contains(&fault.key.as_str());
        let fault = self.faults.iter().find(at_fault)?;
        Some(match WHOLE_FILE.contains(&fault.key.as_str()) {
            true => "the settings cannot be read".to_owned(),
            false => format!("{} is at fault", fault.key),
        })
    }

    /// What needs nobody else.
    fn written(&self) -> Vec<Finding> {
        let config = &self.config;
        let unless = |check, keys: &[&str], finding: &dyn Fn() -> Finding| match self.blocked(keys) {
            Some(why) => Finding::unchecked(check, why),
            None => finding(),
        };
        let ceiling = &config.ceiling;
        vec![
            unless("types", &["types.file"], &|| doctor::types(&types(config))),
            unless("keys", &["api.keys"], &|| doctor::keys(&keys(config))),
            unless("quota", &[], &|| doctor::quota(ceiling.rate_per_s, ceiling.burst(), ceiling.quota_per_minute)),
        ]
    }

    async fn database(&self) -> Database {
        if let Some(why) = self.blocked(&["database.url"]) {
            return Database::Unasked(why);
        }
        match self.config.database.engine() {
            Some(Engine::Postgres) => {
                Database::Postgres(Box::new(postgres::probe(&self.config.database.url, DATABASE_WITHIN).await))
            }
            Some(Engine::Sqlite(path)) => Database::Sqlite(Box::new(sqlite::probe(&path, DATABASE_WITHIN).await)),
            None => Database::Unasked("database.url names no database".to_owned()),
        }
    }

    async fn redis(&self, project: &str) -> Redis {
        if let Some(why) = self.blocked(&["redis.url"]) {
            return Redis::Unasked(why);
        }
        let url = &self.config.redis.url;
        if url.expose_secret().is_empty() {
            return Redis::None;
        }
        Redis::Asked(ceiling::probe(url, project).await)
    }

    fn of_database(&self, database: &Database) -> Vec<Finding> {
        match database {
            Database::Unasked(why) => vec![Finding::unchecked("database", why)],
            Database::Postgres(asked) => {
                doctor::postgres(asked, self.config.database.max_connections + FACT_CONNECTIONS)
            }
            Database::Sqlite(looked) => doctor::sqlite(looked),
        }
    }

    fn descriptors(&self) -> Descriptors {
        let (fcm, database) = (&self.config.fcm, &self.config.database);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let to_fcm = (fcm.slots + fcm.lent()).div_ceil(fcm.streams_per_connection.max(1));
        // A connection to a file is the file, its log and the index of that: one that writes, three that read.
        let to_database = match database.engine() {
            Some(Engine::Postgres) => database.max_connections + FACT_CONNECTIONS,
            _ => 12,
        };
        let to_redis = if self.config.redis.url.expose_secret().is_empty() { 0 } else { 2 };
        Descriptors {
            soft: limit.current,
            hard: limit.maximum,
            api: u64::from(self.config.api.max_connections),
            others: u64::from(to_fcm + to_database + to_redis),
        }
    }
}

impl Database {
    fn ahead_ms(&self) -> Option<i64> {
        match self {
            Self::Postgres(asked) => asked.as_ref().as_ref().ok().map(|facts| facts.ahead_ms),
            Self::Unasked(_) | Self::Sqlite(_) => None,
        }
    }

    /// Whether several instances may work on it, and how many do.
    fn shared(&self) -> (bool, u32) {
        match self {
            Self::Postgres(asked) => (true, asked.as_ref().as_ref().ok().and_then(|facts| facts.live).unwrap_or(0)),
            Self::Unasked(_) | Self::Sqlite(_) => (false, 0),
        }
    }
}

fn of_redis(redis: Redis, database: &Database) -> Finding {
    let (shared_database, live) = database.shared();
    match redis {
        Redis::Unasked(why) => Finding::unchecked("redis", why),
        Redis::None => doctor::fleet(&Fleet::Alone { shared_database, live }),
        Redis::Asked(asked) => doctor::fleet(&Fleet::Redis(asked)),
    }
}

fn types(config: &Config) -> Result<Types, String> {
    let catalogue = open_catalogue(config).map_err(|error| error.to_string())?;
    Ok(Types { types: catalogue.types.len(), file: config.types.file.display().to_string() })
}

fn keys(config: &Config) -> Result<Vec<(String, Vec<&'static str>)>, String> {
    let keys = Keys::parse(config.api.keys.expose_secret()).map_err(|error| error.to_string())?;
    Ok(keys.each().map(|key| (key.name.clone(), key.scopes.iter().map(|scope| scope.as_str()).collect())).collect())
}
