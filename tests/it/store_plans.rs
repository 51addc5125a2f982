//! Owns the plans of the statements that must stay cheap, and that every statement of both databases prepares.
//! Must never know: what the statements answer (that is the conformance suite's).

/// Rows of the follow table, and how many subjects share them.
const FOLLOWS: i64 = 2_000_000;
const SUBJECTS: i64 = 4;
/// One page of a freeze, from the middle of a subject.
const PAGE: i64 = 10_000;
const SUBJECT: &str = "team:2";
const AFTER: i64 = 1_000_000;
/// The type that is asked for; every second follower wants it.
const KIND: i64 = 2;

fn named(statements: &'static [(&'static str, &'static str)], name: &str) -> &'static str {
    statements.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no statement {name}")).1
}

mod sqlite {
    use fanfare::store::Store;
    use fanfare::store::sqlite::{STATEMENTS, SqliteStore};
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
    use sqlx::{AssertSqlSafe, Connection, Executor, SqlSafeStr, SqliteConnection};
    use tempfile::TempDir;

    use super::{AFTER, FOLLOWS, KIND, PAGE, SUBJECT, SUBJECTS, named};

    async fn migrated() -> (TempDir, SqliteConnection) {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("plans.db");
        let store = SqliteStore::open(&path).await.expect("the file opens");
        store.migrate().await.expect("an empty database takes the schema");
        store.close().await;
        // No journal: this file is thrown away.
        let options = SqliteConnectOptions::new().filename(path).journal_mode(SqliteJournalMode::Off);
        (directory, SqliteConnection::connect_with(&options).await.expect("the file opens again"))
    }

    async fn plan(conn: &mut SqliteConnection, statement: &str) -> Vec<String> {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
        let rows: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(conn).await.expect("it prepares");
        rows.into_iter().map(|(_, _, _, step)| step).collect()
    }

    #[tokio::test]
    async fn every_statement_prepares() {
        let (_directory, mut conn) = migrated().await;
        for (name, statement) in STATEMENTS {
            if let Err(error) = conn.prepare(statement.into_sql_str()).await {
                panic!("{name}: {error}");
            }
        }
    }

    /// Scans of what stays small: instances, migrations, a row per table, a bound array, and partial indexes of what is unfinished.
    fn is_small(step: &str) -> bool {
        const SMALL: [&str; 8] = [
            "SCAN CONSTANT ROW",
            "SCAN doomed",
            "SCAN d",
            "SCAN instance",
            "SCAN sqlite_schema",
            "SCAN _sqlx_migrations",
            "SCAN json_each",
            "SCAN sqlite_sequence",
        ];
        const PARTIAL: [&str; 5] = [
            "INDEX chunk_open",
            "INDEX chunk_owned",
            "INDEX fanout_live_sweep",
            "INDEX fanout_open",
            "INDEX fanout_unreported",
        ];
        SMALL.iter().any(|table| step.starts_with(table)) || PARTIAL.iter().any(|index| step.ends_with(index))
    }

    #[tokio::test]
    async fn no_statement_scans_what_grows() {
        let (_directory, mut conn) = migrated().await;
        for (name, statement) in STATEMENTS {
            for step in plan(&mut conn, statement).await {
                assert!(!step.starts_with("SCAN") || is_small(&step), "{name}: {step}");
            }
        }
    }

    #[tokio::test]
    async fn a_page_of_followers_is_one_range_of_the_primary_key() {
        let (_directory, mut conn) = migrated().await;
        let fill =
            "WITH RECURSIVE s (subject) AS (SELECT 0 UNION ALL SELECT subject + 1 FROM s WHERE subject + 1 < ?1),
            d (device) AS (SELECT 1 UNION ALL SELECT device + 1 FROM d WHERE device < ?2)
            INSERT INTO follow SELECT 'team:' || subject, device * ?1, 3, 1 + device % 2 FROM s, d ORDER BY 1, 2";
        conn.execute("DROP INDEX follow_device").await.unwrap();
        sqlx::query(fill).bind(SUBJECTS).bind(FOLLOWS / SUBJECTS).execute(&mut conn).await.unwrap();
        conn.execute("CREATE INDEX follow_device ON follow (device_key); ANALYZE").await.unwrap();

        let page = named(STATEMENTS, "FOLLOWER_PAGE");
        assert_eq!(
            plan(&mut conn, page).await,
            ["SEARCH follow USING PRIMARY KEY (subject=? AND device_key>?)"],
            "one range, in order: no scan, no sorting"
        );
        let keys: Vec<i64> = sqlx::query_scalar(page)
            .bind(SUBJECT)
            .bind(AFTER)
            .bind(KIND)
            .bind(PAGE)
            .fetch_all(&mut conn)
            .await
            .unwrap();
        assert_eq!(keys.len() as i64, PAGE);
        assert!(keys.is_sorted() && keys[0] > AFTER);
    }

    #[tokio::test]
    async fn a_flush_reads_a_chunk_and_its_fanout_once_each() {
        let (_directory, mut conn) = migrated().await;
        let steps = plan(&mut conn, named(STATEMENTS, "CHUNK_BITS")).await;
        let reads = |table: &str| steps.iter().filter(|step| step.starts_with(&format!("SEARCH {table} "))).count();
        assert_eq!((steps.len(), reads("c"), reads("f")), (2, 1, 1), "{steps:?}");
    }
}

mod postgres {
    use fanfare::store::Store;
    use fanfare::store::postgres::{PostgresStore, STATEMENTS};
    use serde_json::Value;
    use sqlx::{AssertSqlSafe, Executor, PgConnection, Row, SqlSafeStr};

    use super::{AFTER, FOLLOWS, KIND, PAGE, SUBJECT, SUBJECTS, named};
    use crate::harness::postgres::TestDatabase;

    async fn migrated() -> (TestDatabase, PgConnection) {
        let database = TestDatabase::create().await;
        let store = PostgresStore::connect(&database.url.clone().into(), 2).expect("the URL parses");
        store.migrate().await.expect("an empty database takes the schema");
        store.close().await;
        let conn = database.connection().await;
        (database, conn)
    }

    #[tokio::test]
    async fn every_statement_prepares() {
        let (_database, mut conn) = migrated().await;
        for (name, statement) in STATEMENTS {
            if let Err(error) = conn.prepare(statement.into_sql_str()).await {
                panic!("{name}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn a_page_of_followers_is_one_range_of_the_primary_key() {
        let (_database, mut conn) = migrated().await;
        conn.execute("DROP INDEX follow_device; ALTER TABLE follow SET UNLOGGED").await.unwrap();
        let fill = "INSERT INTO follow SELECT 'team:' || s, d * $1, 3, 1 + d % 2
            FROM generate_series(0, $1 - 1) AS s, generate_series(1, $2) AS d";
        sqlx::query(fill).bind(SUBJECTS).bind(FOLLOWS / SUBJECTS).execute(&mut conn).await.unwrap();
        conn.execute("CREATE INDEX follow_device ON follow (device_key)").await.unwrap();
        conn.execute("VACUUM (ANALYZE) follow").await.unwrap();

        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}", named(STATEMENTS, "freeze.FOLLOWERS"));
        let query = sqlx::query(AssertSqlSafe(explain)).bind(SUBJECT).bind(AFTER).bind(KIND).bind(PAGE);
        let row = query.fetch_one(&mut conn).await.unwrap();
        let shown: Value = serde_json::from_str(row.get_unchecked(0)).unwrap();
        let limit = &shown[0]["Plan"];
        assert_eq!(limit["Node Type"], "Limit", "{shown:#}");
        let range = &limit["Plans"][0];
        assert_eq!(range["Node Type"], "Index Only Scan", "{shown:#}");
        assert_eq!(range["Index Name"], "follow_pkey", "{shown:#}");
        assert!(range["Plans"].is_null(), "one range and nothing below it: {shown:#}");
        let condition = range["Index Cond"].as_str().unwrap_or_default();
        assert!(condition.contains("subject = ") && condition.contains("device_key > "), "{shown:#}");
        let rows = |what: &str| range[what].as_i64().unwrap_or_default();
        assert_eq!(rows("Actual Rows"), PAGE, "{shown:#}");
        // Every second follower wants the type: twice a page is read, and not a row more than that.
        assert!(rows("Rows Removed by Filter") <= PAGE, "{shown:#}");
        assert_eq!(rows("Heap Fetches"), 0, "{shown:#}");
    }

    /// The nodes of a plan that read something, as `<relation> by <index>`.
    fn reads(plan: &Value, found: &mut Vec<String>) {
        let text = |key: &str| plan[key].as_str().unwrap_or("nothing").to_owned();
        if !plan["Index Name"].is_null() || text("Node Type").contains("Scan") {
            found.push(format!("{} by {}", text("Relation Name"), text("Index Name")));
        }
        for below in plan["Plans"].as_array().into_iter().flatten() {
            reads(below, found);
        }
    }

    #[tokio::test]
    async fn owned_chunks_are_found_by_the_index_of_the_owned_however_many_are_closed() {
        let (_database, mut conn) = migrated().await;
        let fill = "INSERT INTO chunk (fanout_id, chunk_no, n, class, rank, state, owner, done, ok, maybe)
            SELECT f, c, 1, 0, 0, CASE WHEN c < $1 THEN 2 ELSE 1 END, $2, B'0', B'0', B'0'
            FROM generate_series(1, 100) AS f, generate_series(1, 1000) AS c";
        let owner = uuid::Uuid::new_v4();
        sqlx::query(fill).bind(999).bind(owner).execute(&mut conn).await.unwrap();
        conn.execute("VACUUM (ANALYZE) chunk").await.unwrap();
        let explain = |name| AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) {}", named(STATEMENTS, name)));
        let owned = sqlx::query(explain("claim.OWNED")).bind(owner);
        let shown: Value = serde_json::from_str(owned.fetch_one(&mut conn).await.unwrap().get_unchecked(0)).unwrap();
        let mut found = Vec::new();
        reads(&shown[0]["Plan"], &mut found);
        assert!(found.iter().any(|read| read == "chunk by chunk_owned"), "{shown:#}");

        let busy = sqlx::query(explain("settle.BUSY")).bind(50_i64);
        let shown: Value = serde_json::from_str(busy.fetch_one(&mut conn).await.unwrap().get_unchecked(0)).unwrap();
        let mut found = Vec::new();
        reads(&shown[0]["Plan"], &mut found);
        assert_eq!(found[0], "chunk by chunk_owned", "what answers while it is sent is looked at first: {shown:#}");
        assert!(found.iter().all(|read| !read.ends_with("nothing")), "no table is read as a whole: {shown:#}");
    }

    #[tokio::test]
    async fn a_flush_reads_the_fanout_once_and_the_chunk_again_only_where_it_is_settled() {
        let (_database, mut conn) = migrated().await;
        conn.execute("SET plan_cache_mode = force_generic_plan").await.unwrap();
        conn.execute(AssertSqlSafe(format!("PREPARE flush AS {}", named(STATEMENTS, "flush.FLUSH")))).await.unwrap();
        let nothing = vec!["NULL"; 20].join(", ");
        let explain = AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) EXECUTE flush({nothing})"));
        let row = sqlx::raw_sql(explain).fetch_one(&mut conn).await.unwrap();
        let shown: Value = serde_json::from_str(row.get_unchecked(0)).unwrap();
        let mut found = Vec::new();
        reads(&shown[0]["Plan"], &mut found);
        let of = |table: &str| found.iter().filter(|read| read.starts_with(&format!("{table} by"))).count();
        assert_eq!(of("fanout"), 1, "{shown:#}");
        assert_eq!(of("chunk"), 2, "what is written, and the row as it was: {shown:#}");
    }
}
