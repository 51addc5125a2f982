//! Owns the service that is measured: the real binary in a process of its own, over a real PostgreSQL whose commits of
//! events take a fixed time.

use std::process::Stdio;
use std::time::Duration;

use fanfare::api::{Scope, keys};
use fanfare::emulator::{Emulator, Settings};
use fanfare::store::Store;
use fanfare::store::postgres::PostgresStore;
use sqlx::{AssertSqlSafe, Executor};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

#[allow(dead_code)]
#[path = "../../tests/it/harness/own_postgres.rs"]
pub mod own_postgres;
#[allow(dead_code)]
#[path = "../../tests/it/harness/postgres.rs"]
pub mod postgres;

use own_postgres::OwnPostgres;

/// Connections for events: as many commits go on at once.
pub const AT_ONCE: u32 = 8;

/// Which kind of service.
pub struct Wanted {
    /// How long the commit of an event takes beyond what it takes anyway.
    pub commit: Duration,
    /// `api.max_in_flight`.
    pub places: u32,
}

/// What a load is offered to.
pub struct Target {
    pub api: String,
    pub ops: Option<String>,
    pub key: String,
    pub pid: u32,
}

/// A service, and what it stands on.
pub struct Service {
    _child: Child,
    pub target: Target,
    pub database: postgres::TestDatabase,
    _emulator: Emulator,
}

/// A PostgreSQL for this run, on the core of the generator where it is pinned: started from there.
pub async fn postgres() -> OwnPostgres {
    OwnPostgres::start(&["max_connections=100", "shared_buffers=512MB", "max_wal_size=4GB"]).await
}

impl Service {
    pub async fn start(wanted: Wanted, server: &OwnPostgres) -> Self {
        let database = postgres::TestDatabase::create_on(server.url()).await;
        PostgresStore::connect(&database.url.clone().into(), 1).unwrap().migrate().await.unwrap();
        if !wanted.commit.is_zero() {
            let slow = format!(
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_sleep({}); RETURN NEW; END $$;
                 CREATE TRIGGER slow BEFORE INSERT ON event FOR EACH ROW EXECUTE FUNCTION slow()",
                wanted.commit.as_secs_f64()
            );
            database.connection().await.execute(AssertSqlSafe(slow)).await.unwrap();
        }
        let emulator = Emulator::start(Settings::default()).unwrap();
        let (key, entry) = keys::generate("bench", &[Scope::Events, Scope::Devices]).unwrap();
        let settings = [
            ("API__LISTEN", "127.0.0.1:0".to_owned()),
            ("OPS__LISTEN", "127.0.0.1:0".to_owned()),
            ("API__KEYS", entry),
            ("API__MAX_IN_FLIGHT", wanted.places.to_string()),
            ("API__MAX_BACKLOG", "10000000".to_owned()),
            ("DATABASE__URL", database.url.clone()),
            ("DATABASE__MAX_CONNECTIONS", (2 * AT_ONCE).to_string()),
            ("DATABASE__INGEST_CONNECTIONS", AT_ONCE.to_string()),
            ("FCM__ENDPOINT", emulator.endpoint().to_owned()),
            ("FCM__CREDENTIALS", emulator.key_json()),
            ("LOG__FORMAT", "json".to_owned()),
        ];
        let mut command = pinned(0);
        command.args([env!("CARGO_BIN_EXE_fanfare"), "serve"]).stdout(Stdio::piped()).kill_on_drop(true);
        for (name, value) in settings {
            command.env(format!("FANFARE__{name}"), value);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = loop {
            let line = lines.next_line().await.unwrap().expect("it serves");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "serving" {
                break line;
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let addr = |field: &str| said[field].as_str().unwrap().to_owned();
        let target = Target { api: addr("api"), ops: Some(addr("ops")), key, pid: child.id().unwrap() };
        Self { _child: child, target, database, _emulator: emulator }
    }

    /// How many of `ids` the database does not have.
    pub async fn lost(&self, ids: &[u64]) -> usize {
        let kept: Vec<(String,)> = sqlx::query_as("SELECT event_id FROM event")
            .fetch_all(&mut self.database.connection().await)
            .await
            .unwrap();
        let kept: std::collections::HashSet<String> = kept.into_iter().map(|(id,)| id).collect();
        ids.iter().filter(|id| !kept.contains(&format!("evt-{id}"))).count()
    }
}

/// Resident memory of a process, KiB.
pub fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A command on one core, where that can be had.
pub fn pinned(core: u32) -> Command {
    let there = std::process::Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    let mut command = Command::new(if there { "taskset" } else { "env" });
    if there {
        command.args(["-c", &core.to_string()]);
    }
    command
}

/// Gives this process the other core; whether that could be done.
pub async fn pin_generator() -> bool {
    let own = std::process::id().to_string();
    let pinned = Command::new("taskset").args(["-c", "-p", "1", &own]).stdout(Stdio::null()).status().await;
    pinned.is_ok_and(|status| status.success())
}
