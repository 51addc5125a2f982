//! Owns a database of its own for each test, on the PostgreSQL that `tests/run` starts.
//! Must never know: what the test does with it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

/// A fresh, empty database, dropped with this value.
pub struct TestDatabase {
    /// Its URL.
    pub url: String,
    name: String,
    server: String,
    /// Not when its server goes with the test.
    dropped: bool,
}

impl TestDatabase {
    /// Creates a database with a name nobody else has.
    pub async fn create() -> Self {
        let server = std::env::var("FANFARE_TEST_POSTGRES_URL").unwrap_or_else(|_| {
            panic!("FANFARE_TEST_POSTGRES_URL is not set: run tests/run, which starts a throwaway PostgreSQL")
        });
        let mut database = Self::create_on(server).await;
        database.dropped = true;
        database
    }

    /// The same on a server that ends with its test.
    pub async fn create_on(server: String) -> Self {
        let name = format!("fanfare_test_{}", uuid::Uuid::new_v4().simple());
        administer(&server, format!("CREATE DATABASE {name}")).await;
        Self { url: with_database(&server, &name), name, server, dropped: false }
    }

    /// A connection beside the store, to look at what it left.
    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("the test database accepts connections")
    }
}

impl Drop for TestDatabase {
    /// In a thread with a runtime of its own: a test's runtime may not be blocked, and may be ending.
    fn drop(&mut self) {
        if !self.dropped {
            return;
        }
        let (server, sql) = (self.server.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let drop = async { tokio::time::timeout(Duration::from_secs(20), administer(&server, sql)).await };
            runtime.block_on(drop).expect("dropping a database takes less than 20 s");
        });
        let dropped = thread.join().is_ok();
        assert!(dropped || std::thread::panicking(), "the database {} could not be dropped", self.name);
    }
}

async fn administer(server: &str, sql: String) {
    let options: sqlx::postgres::PgConnectOptions = server.parse().expect("FANFARE_TEST_POSTGRES_URL is a URL");
    let mut connection = options.connect().await.expect("the server of FANFARE_TEST_POSTGRES_URL answers");
    sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.expect("a superuser may create and drop databases");
    connection.close().await.expect("the connection closes");
}

/// The URL of another database on the same server: the path is replaced, the query stays.
fn with_database(server: &str, name: &str) -> String {
    let (base, query) = server.split_once('?').map_or((server, None), |(base, query)| (base, Some(query)));
    let authority = base.find("://").map_or(0, |i| i + 3);
    let end = base[authority..].find('/').map_or(base.len(), |i| authority + i);
    match query {
        Some(query) => format!("{}/{name}?{query}", &base[..end]),
        None => format!("{}/{name}", &base[..end]),
    }
}
