//! Owns a hand in the database of a service: what only time, or a crash at one point, would do to it otherwise.
//! Must never know: what a test expects of it.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection};

use super::service::World;

/// A connection beside the service. On SQLite for when no service has the file.
pub enum Beside {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Beside {
    /// On the database of this world.
    pub async fn open(world: &World) -> Self {
        let url = &world.settings["FANFARE__DATABASE__URL"];
        match url.strip_prefix("sqlite:") {
            Some(path) => Self::Sqlite(SqliteConnectOptions::new().filename(path).connect().await.unwrap()),
            None => Self::Postgres(PgConnection::connect(url).await.unwrap()),
        }
    }

    /// Runs a statement.
    pub async fn change(&mut self, sql: String) {
        let query = AssertSqlSafe(sql);
        match self {
            Self::Postgres(conn) => drop(sqlx::query(query).execute(conn).await.unwrap()),
            Self::Sqlite(conn) => drop(sqlx::query(query).execute(conn).await.unwrap()),
        }
    }

    /// Reads a number.
    pub async fn number(&mut self, sql: String) -> i64 {
        let query = AssertSqlSafe(sql);
        match self {
            Self::Postgres(conn) => sqlx::query_scalar(query).fetch_one(conn).await.unwrap(),
            Self::Sqlite(conn) => sqlx::query_scalar(query).fetch_one(conn).await.unwrap(),
        }
    }

    /// SQLite's is closed before a service starts.
    pub async fn close(self) {
        match self {
            Self::Postgres(conn) => conn.close().await.unwrap(),
            Self::Sqlite(conn) => conn.close().await.unwrap(),
        }
    }
}
