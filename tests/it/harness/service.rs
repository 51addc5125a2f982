//! Owns a real service in this process: the whole app on free ports, over a real database, against an emulator.
//! Must never know: what a test expects of it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fanfare::api::{Scope, keys};
use fanfare::app::{App, RunError};
use fanfare::client::Client;
use fanfare::config::{Environment, load};
use fanfare::emulator::{Control, Emulator, Settings};
use fanfare::store::Store;
use fanfare::wire::{EventRequest, Fanout};
use secrecy::SecretString;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::sync::CancellationToken;

use super::postgres::TestDatabase;
use super::proxy::Proxy;
use super::redis::RedisServer;

/// Which real parts a service runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
}

/// What outlives a service: database, Redis, emulator.
pub struct World {
    pub emulator: Emulator,
    /// Ends with the world.
    pub redis: Option<RedisServer>,
    pub settings: Environment,
    postgres: Option<TestDatabase>,
    _dir: tempfile::TempDir,
    key: String,
}

impl World {
    /// Everything but a service.
    pub async fn new(database: Database, redis: bool) -> Self {
        Self::with(database, redis, Settings::default()).await
    }

    /// On a PostgreSQL of the test's own, by a superuser's URL.
    pub async fn on(server: String, redis: bool) -> Self {
        Self::made(Some(TestDatabase::create_on(server).await), redis, Settings::default()).await
    }

    /// The same with an emulator of one's own.
    pub async fn with(database: Database, redis: bool, emulator: Settings) -> Self {
        let postgres = if database == Database::Postgres { Some(TestDatabase::create().await) } else { None };
        Self::made(postgres, redis, emulator).await
    }

    async fn made(postgres: Option<TestDatabase>, redis: bool, emulator: Settings) -> Self {
        super::logs::logs();
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let dir = tempfile::tempdir().unwrap();
        let emulator = Emulator::start(emulator).unwrap();
        let redis = if redis { Some(RedisServer::start().await) } else { None };
        let (key, entry) = keys::generate("test", Scope::ALL).unwrap();
        let url = match &postgres {
            Some(postgres) => postgres.url.clone(),
            None => format!("sqlite:{}", dir.path().join("fanfare.db").display()),
        };
        let mut settings: Environment = [
            ("FANFARE__API__LISTEN", "127.0.0.1:0".to_owned()),
            ("FANFARE__OPS__LISTEN", "127.0.0.1:0".to_owned()),
            ("FANFARE__API__KEYS", entry),
            ("FANFARE__DATABASE__URL", url),
            ("FANFARE__FCM__ENDPOINT", emulator.endpoint().to_owned()),
            ("FANFARE__FCM__CREDENTIALS", emulator.key_json()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if let Some(redis) = &redis {
            use secrecy::ExposeSecret;
            settings.insert("FANFARE__REDIS__URL".into(), redis.url().expose_secret().to_owned());
        }
        if let Some(pem) = emulator.ca_pem() {
            let path = dir.path().join("ca.pem");
            std::fs::write(&path, pem).unwrap();
            settings.insert("FANFARE__FCM__CA_FILE".into(), path.display().to_string());
        }
        let world = Self { emulator, redis, settings, postgres, _dir: dir, key };
        if world.postgres.is_some() {
            world.store().await.migrate().await.unwrap();
        }
        world
    }

    /// Sets a setting of services started from now on.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.insert(format!("FANFARE__{name}"), value.to_string());
    }

    /// Changes how the emulator behaves.
    pub fn emulate(&self, change: Control) {
        self.emulator.control(&change).unwrap();
    }

    /// The database beside the service. Not for SQLite while a service has it.
    pub async fn store(&self) -> Arc<dyn Store> {
        fanfare::app::open_store(&load(None, &self.settings).unwrap().config).await.unwrap()
    }

    /// A connection beside the service. Only on Postgres.
    pub async fn connection(&self) -> sqlx::PgConnection {
        self.postgres.as_ref().expect("a world on Postgres").connection().await
    }

    /// Puts a proxy between services started from now on and Postgres.
    pub async fn proxy_postgres(&mut self) -> Proxy {
        let url = self.postgres.as_ref().expect("a world on Postgres").url.clone();
        let server = url.parse::<sqlx::postgres::PgConnectOptions>().unwrap();
        let proxy = Proxy::start(&format!("{}:{}", server.get_host(), server.get_port())).await;
        let mut through = reqwest::Url::parse(&url).unwrap();
        through.set_ip_host(proxy.addr.ip()).unwrap();
        through.set_port(Some(proxy.addr.port())).unwrap();
        self.set("DATABASE__URL", through);
        proxy
    }

    /// Puts a proxy between services started from now on and the emulator's sends.
    pub async fn proxy_provider(&mut self) -> Proxy {
        let proxy = Proxy::start(&self.emulator.addr().to_string()).await;
        self.set("FCM__ENDPOINT", format!("http://{}", proxy.addr));
        proxy
    }

    /// A caller of the service at `url`.
    pub fn caller(&self, url: &str) -> Caller {
        Caller { client: Client::new(url, SecretString::from(self.key.clone())).unwrap(), key: self.key.clone() }
    }

    /// Starts a service.
    pub async fn serve(&self) -> Service {
        let config = load(None, &self.settings).unwrap().serving().unwrap();
        let app = App::build(config).await.unwrap_or_else(|error| panic!("{error}"));
        let drain = CancellationToken::new();
        let caller = self.caller(&format!("http://{}", app.api_addr()));
        let task = tokio::spawn(app.run(drain.clone()));
        Service { caller, drain, task }
    }
}

/// A running service.
pub struct Service {
    caller: Caller,
    drain: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), RunError>>,
}

impl Deref for Service {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Service {
    /// Drains it.
    pub async fn stop(self) -> Result<(), RunError> {
        self.drain.cancel();
        self.task.await.unwrap()
    }
}

/// What a caller of a service does.
#[derive(Clone)]
pub struct Caller {
    pub client: Client,
    pub key: String,
}

impl Caller {
    /// Registers followers of `match:{match_id}` by their device tokens, in this order.
    pub async fn follow(&self, match_id: &str, tokens: &[String]) {
        let rows: Vec<String> = tokens.iter().enumerate().map(|(i, token)| row(match_id, i, token)).collect();
        let rows: Vec<_> = rows.into_iter().map(|line| Ok(bytes::Bytes::from(line))).collect();
        let answer = self.client.import(futures_util::stream::iter(rows)).await.unwrap();
        assert_eq!((answer.imported, answer.rejected_total), (tokens.len() as u64, 0), "{:?}", answer.rejected);
    }

    /// Posts a goal and gives its fan-out's id.
    pub async fn goal(&self, id: &str, match_id: &str, useful_for_s: u32) -> String {
        self.client.post_event(&goal(id, match_id, useful_for_s)).await.unwrap().0.fanout_id
    }

    /// Waits until a fan-out is settled.
    pub async fn settled(&self, id: &str) -> Fanout {
        let begun = tokio::time::Instant::now();
        loop {
            let fanout = self.client.fanout(id, Duration::from_secs(5)).await.unwrap();
            if fanout.settled_at.is_some() {
                return fanout;
            }
            assert!(begun.elapsed() < Duration::from_secs(100), "not settled: {fanout:?}");
        }
    }
}

/// The device id of the `i`-th follower of a match.
pub fn device_id(match_id: &str, i: usize) -> String {
    format!("{match_id}-{i}")
}

fn row(match_id: &str, i: usize, token: &str) -> String {
    let platform = ["android", "ios", "web"][i % 3];
    let locale = ["en", "pt-BR", "tr"][i / 3 % 3];
    let device = serde_json::json!({
        "id": device_id(match_id, i), "user_id": format!("user-{i}"), "token": token, "platform": platform,
        "locale": locale, "follows": [format!("match:{match_id}")],
    });
    format!("{device}\n")
}

/// A goal.
pub fn goal(id: &str, match_id: &str, useful_for_s: u32) -> EventRequest {
    // Another scorer makes each goal other news than the one before.
    let fields = serde_json::json!({
        "home": "Arsenal", "away": "Chelsea", "score": "2-1", "minute": 67, "player": id,
    });
    EventRequest {
        id: id.to_owned(),
        kind: "goal".to_owned(),
        match_id: match_id.to_owned(),
        occurred_at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap(),
        subjects: vec![format!("match:{match_id}"), "team:ars".to_owned()],
        fields: serde_json::from_value(fields).unwrap(),
        data: [("deeplink".to_owned(), "app://match".into())].into(),
        supersedes: None,
        useful_for_s: Some(useful_for_s),
    }
}
