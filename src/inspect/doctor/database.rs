//! Owns the checks of the database: that it answers, that its schema is this build's, that its connections suffice.
//! Must never know: SQL.

use super::{Finding, Trouble};
use crate::store::{ConnectionFacts, FileLock, PostgresFacts, SchemaState, SqliteFacts, StoreError};

/// The three checks, in the order they are told.
const DATABASE: &str = "database";
const SCHEMA: &str = "migrations";
const CONNECTIONS: &str = "connections";

/// Less free disk than this is told, bytes: 1 GiB, eight times what the write-ahead log is cut back to.
const LITTLE_DISK: u64 = 1 << 30;

/// A PostgreSQL server; each instance opens `each` connections.
#[must_use]
pub fn postgres(asked: &Result<PostgresFacts, StoreError>, each: u32) -> Vec<Finding> {
    let facts = match asked {
        Ok(facts) => facts,
        Err(error) => return unreachable(error),
    };
    let found = format!(
        "PostgreSQL {} at {}, answers in {:.1} ms",
        facts.version,
        facts.place,
        facts.answers_in.as_secs_f64() * 1e3
    );
    let database = if facts.read_only {
        let fix = "name the primary in database.url (DATABASE_URL)";
        Finding::fail(DATABASE, Trouble::Unavailable, format!("{found}, but it is read-only"), fix)
    } else {
        Finding::ok(DATABASE, found)
    };
    let live = facts.live.unwrap_or(0);
    vec![database, postgres_schema(&facts.schema), connections(&facts.connections, live, each)]
}

fn unreachable(error: &StoreError) -> Vec<Finding> {
    let (trouble, fix) = match error {
        StoreError::Unavailable(_) => (Trouble::Unavailable, "check database.url (DATABASE_URL), and that it runs"),
        _ => (Trouble::Config, "write postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH as database.url"),
    };
    let unchecked = |check| Finding::unchecked(check, "the database cannot be asked");
    vec![Finding::fail(DATABASE, trouble, error.to_string(), fix), unchecked(SCHEMA), unchecked(CONNECTIONS)]
}

fn postgres_schema(schema: &SchemaState) -> Finding {
    match schema {
        SchemaState::Current(n) => Finding::ok(SCHEMA, format!("{n} of {n} applied")),
        SchemaState::Behind { applied, brought } => Finding::fail(
            SCHEMA,
            Trouble::Unavailable,
            format!("{applied} of {brought} applied"),
            "run `fanfare migrate`",
        ),
        SchemaState::Foreign(why) => foreign(why),
    }
}

fn foreign(why: &str) -> Finding {
    Finding::fail(SCHEMA, Trouble::Unavailable, why, "run the build that made this schema, or one newer than it")
}

/// What the instances that live and one more need, against what the server allows.
fn connections(facts: &ConnectionFacts, live: u32, each: u32) -> Finding {
    let ConnectionFacts { allowed, limit, others, ours } = facts;
    let running = live.max(1);
    let need = running.saturating_mul(each);
    let room = allowed.saturating_sub(*others).saturating_sub(need) / each.max(1);
    let instances = if live == 1 { "instance lives".to_owned() } else { "instances live".to_owned() };
    let found = format!(
        "{allowed} allowed ({limit}); {ours} in use by Fanfare and {others} by others; {live} {instances}, each opens up to \
         {each} connections; room for {room} more instances"
    );
    let fix = "raise the limit of the server, or lower database.max_connections";
    if need > *allowed {
        return Finding::fail(
            CONNECTIONS,
            Trouble::Config,
            format!("{found}; {running} x {each} = {need} do not fit"),
            fix,
        );
    }
    if need > allowed.saturating_sub(*others) {
        return Finding::warn(
            CONNECTIONS,
            format!("{found}; {running} x {each} = {need} do not fit beside the others"),
            fix,
        );
    }
    if live > 0 && room == 0 {
        return Finding::warn(
            CONNECTIONS,
            format!("{found}: a deploy that starts one before it ends one has none"),
            fix,
        );
    }
    Finding::ok(CONNECTIONS, found)
}

/// An SQLite file.
#[must_use]
pub fn sqlite(looked: &Result<SqliteFacts, StoreError>) -> Vec<Finding> {
    match looked {
        Err(error) => {
            let fix = "create the directory, or name another place in database.url (DATABASE_URL)";
            let unchecked = Finding::unchecked(SCHEMA, "there is no place for the database");
            vec![Finding::fail(DATABASE, Trouble::Unavailable, error.to_string(), fix), unchecked]
        }
        Ok(facts) => vec![file(facts), file_schema(facts)],
    }
}

fn file(facts: &SqliteFacts) -> Finding {
    let size = facts.bytes.map_or("not there yet, serve makes it".to_owned(), |bytes| format!("{:.1} MiB", mib(bytes)));
    let lock = match facts.lock {
        FileLock::Held => "a running service has it open, so a second one would be refused",
        FileLock::Free => "no service has it open",
    };
    let path = facts.path.display();
    let found = format!("SQLite file {path}, {size}; {lock}; {:.0} MiB free on its disk", mib(facts.free_bytes));
    if let Some(why) = &facts.unwritable {
        let fix = "give the user that serves the right to write the file and its directory";
        return Finding::fail(DATABASE, Trouble::Unavailable, format!("{found}; not writable: {why}"), fix);
    }
    if facts.free_bytes < LITTLE_DISK {
        return Finding::warn(DATABASE, found, "make room: a full disk answers every event 503");
    }
    Finding::ok(DATABASE, found)
}

fn file_schema(facts: &SqliteFacts) -> Finding {
    match &facts.schema {
        None => Finding::ok(SCHEMA, "serve applies them when it makes the file"),
        Some(Ok(SchemaState::Current(n))) => Finding::ok(SCHEMA, format!("{n} of {n} applied")),
        Some(Ok(SchemaState::Behind { applied, brought })) => {
            Finding::ok(SCHEMA, format!("{applied} of {brought} applied; serve applies the others when it starts"))
        }
        Some(Ok(SchemaState::Foreign(why))) => foreign(why),
        Some(Err(error)) => {
            let fix = "name another file in database.url (DATABASE_URL), or put a copy back";
            Finding::fail(SCHEMA, Trouble::Unavailable, error.to_string(), fix)
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
