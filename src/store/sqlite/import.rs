//! Owns importing devices in bulk, a fixed number of statements for a batch: each one alone would cost more on its way
//! to SQLite's thread and back than in the database.
//! Must never know: the format the lines came in.

use serde_json::json;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, FromRow, Sqlite, SqliteConnection, query, query_as, query_scalar};

use super::fault::Answer;
use super::rows::{address, address_columns, code, keys_to_json, now_ms, to_json};
use super::sql;
use crate::domain::ids::DeviceKey;
use crate::domain::recipient::{DeviceState, KindMask};
use crate::store::import::{Held, Taken, attach, decide, most_follows};
use crate::store::{ImportRow, Imported};

/// Rows of one statement that inserts: with more there is nothing left to save.
const ROWS_AT_ONCE: usize = 100;

/// Batches of one import in the writer's queue: as many as may share a transaction with two follows a device, and no more memory than that.
pub(super) const AT_ONCE: usize = 10;

#[derive(FromRow)]
struct HeldRow {
    device_key: i64,
    id: String,
    token: Option<String>,
    fid: Option<String>,
    state: i64,
    user_id: String,
    platform: i64,
    locale: String,
    muted: i64,
}

impl From<HeldRow> for Held {
    fn from(row: HeldRow) -> Self {
        Self {
            key: row.device_key,
            id: row.id,
            address: address(row.token, row.fid).ok(),
            state: code(row.state, DeviceState::from_code).ok(),
            user: row.user_id,
            platform: row.platform,
            locale: row.locale,
            muted: KindMask(row.muted),
            follows: None,
        }
    }
}

/// Imports one batch.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>, revive: bool) -> Answer<Imported> {
    let held = held(conn, &rows).await?;
    let decision = decide(&rows, &held, revive)?;
    let moving: Vec<i64> = decision.taken.iter().filter_map(Taken::lets_go).collect();
    let (new, changed) = (decision.new_ones(), decision.changed());
    let replaced = changed.iter().filter(|taken| taken.follows.is_some()).filter_map(|taken| Some(taken.held?.key));
    let silent = changed.iter().filter(|taken| taken.follows.is_none() && taken.revives());
    let revived = silent.filter_map(|taken| Some(taken.held?.key)).collect();
    each(conn, &[sql::DROP_FOLLOWS_OF, sql::DROP_DEVICES], decision.rivals.clone()).await?;
    each(conn, &[sql::PARK_ADDRESSES], moving).await?;
    each(conn, &[sql::DROP_FOLLOWS_OF], replaced.collect()).await?;
    update(conn, &changed).await?;
    let first = insert(conn, &new).await?;
    let keyed = new.iter().zip(first..).chain(changed.iter().filter_map(|taken| Some((taken, taken.held?.key))));
    follow(conn, wanted(keyed)).await?;
    each(conn, &[sql::WAKE_FOLLOWS_OF], revived).await?;
    Ok(decision.answer)
}

/// Runs statements that take a list of keys, unless there is none.
async fn each(conn: &mut SqliteConnection, statements: &[&'static str], keys: Vec<i64>) -> Answer<()> {
    let keys: Vec<DeviceKey> = keys.into_iter().map(DeviceKey).collect();
    if !keys.is_empty() {
        for statement in statements {
            query(*statement).bind(keys_to_json(&keys)).execute(&mut *conn).await?;
        }
    }
    Ok(())
}

/// What is there of the batch, with follows where the batch says some.
async fn held(conn: &mut SqliteConnection, rows: &[ImportRow]) -> Answer<Vec<Held>> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| address_columns(&row.device.address)).unzip();
    let (tokens, fids): (Vec<&str>, Vec<&str>) =
        (tokens.into_iter().flatten().collect(), fids.into_iter().flatten().collect());
    let found: Vec<HeldRow> = query_as(sql::HELD_DEVICES)
        .bind(to_json(&ids)?)
        .bind(to_json(&tokens)?)
        .bind(to_json(&fids)?)
        .fetch_all(&mut *conn)
        .await?;
    let mut held: Vec<Held> = found.into_iter().map(Held::from).collect();
    if !held.is_empty() && rows.iter().any(|row| row.follows.is_some()) {
        let most = most_follows(rows);
        let keys: Vec<DeviceKey> = held.iter().map(|held| DeviceKey(held.key)).collect();
        let follows = query_as(sql::HELD_FOLLOWS).bind(keys_to_json(&keys)).bind(most + 1).fetch_all(conn).await?;
        attach(&mut held, follows, most);
    }
    Ok(held)
}

/// Writes devices that are there. Mutes are null where the row says nothing new of follows.
async fn update(conn: &mut SqliteConnection, changed: &[&Taken<'_>]) -> Answer<()> {
    if changed.is_empty() {
        return Ok(());
    }
    let row = |taken: &&Taken<'_>| {
        let (device, held) = (&taken.row.device, taken.held?);
        let (token, fid) = address_columns(&device.address);
        let (platform, state) = (device.platform.code(), taken.state.code());
        let (locale, muted) = (device.locale.as_str(), taken.follows.map(|follows| follows.muted));
        Some(json!([held.key, device.user, token, fid, platform, locale, state, muted]))
    };
    let rows: Vec<serde_json::Value> = changed.iter().filter_map(row).collect();
    query(sql::UPDATE_DEVICES).bind(to_json(&rows)?).bind(now_ms()).execute(conn).await?;
    Ok(())
}

/// Inserts devices; the key of the first, those of the others follow it. Nobody else gives keys while this writes.
async fn insert(conn: &mut SqliteConnection, new: &[&Taken<'_>]) -> Answer<i64> {
    let last: Option<i64> = query_scalar(sql::LAST_DEVICE_KEY).fetch_optional(&mut *conn).await?;
    let (first, now) = (last.unwrap_or(0) + 1, now_ms());
    let mut keys = first..;
    for rows in new.chunks(ROWS_AT_ONCE) {
        let statement = AssertSqlSafe(many(sql::ADD_DEVICES, rows.len()));
        let mut insert = query(statement).persistent(rows.len() == ROWS_AT_ONCE);
        for (taken, key) in rows.iter().zip(&mut keys) {
            insert = with_device(insert, taken, key, now);
        }
        insert.execute(&mut *conn).await?;
    }
    Ok(first)
}

type Insert<'q> = Query<'q, Sqlite, SqliteArguments>;

fn with_device<'q>(insert: Insert<'q>, taken: &Taken<'_>, key: i64, now: i64) -> Insert<'q> {
    let device = &taken.row.device;
    let (token, fid) = address_columns(&device.address);
    let muted = taken.follows.map(|follows| follows.muted.0);
    insert
        .bind(key)
        .bind(device.id.as_str().to_owned())
        .bind(device.user.as_str().to_owned())
        .bind(token.map(str::to_owned))
        .bind(fid.map(str::to_owned))
        .bind(device.platform.code())
        .bind(device.locale.as_str().to_owned())
        .bind(muted.unwrap_or(0))
        .bind(taken.state.code())
        .bind(if taken.state == DeviceState::Live { 0 } else { now })
        .bind(now)
        .bind(now)
        .bind(if muted.is_some() { now } else { 0 })
}

/// Subject, device, the types wanted and those of them that count.
type Wanted<'a> = (&'a str, i64, KindMask, KindMask);

/// What devices follow afterwards, where their rows say something new of it; in the order of the table, which is that of
/// its primary key.
fn wanted<'t, 'a: 't>(keyed: impl Iterator<Item = (&'t &'t Taken<'a>, i64)>) -> Vec<Wanted<'a>> {
    let mut wanted = Vec::new();
    for (taken, key) in keyed {
        let Some(follows) = taken.follows else { continue };
        let row =
            |(subject, mask): &'a (String, KindMask)| (subject.as_str(), key, *mask, follows.kinds(*mask, taken.state));
        wanted.extend(follows.subjects.iter().map(row));
    }
    wanted.sort_unstable_by_key(|(subject, key, ..)| (*subject, *key));
    wanted
}

async fn follow(conn: &mut SqliteConnection, wanted: Vec<Wanted<'_>>) -> Answer<()> {
    for rows in wanted.chunks(ROWS_AT_ONCE) {
        let statement = AssertSqlSafe(many(sql::ADD_FOLLOWS, rows.len()));
        let mut insert = query(statement).persistent(rows.len() == ROWS_AT_ONCE);
        for (subject, key, mask, kinds) in rows {
            insert = insert.bind((*subject).to_owned()).bind(*key).bind(mask.0).bind(kinds.0);
        }
        insert.execute(&mut *conn).await?;
    }
    Ok(())
}

/// A statement that ends with the values of one row, for so many of them.
fn many(statement: &'static str, rows: usize) -> String {
    let (head, row) = statement.rsplit_once("VALUES ").unwrap_or((statement, ""));
    let rows = vec![row; rows].join(", ");
    format!("{head}VALUES {rows}")
}
