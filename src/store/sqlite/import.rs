//! Owns importing devices in bulk, a fixed number of statements for a batch: each one alone would cost more on its way
//! to SQLite's thread and back than in the database.
//! Must never know: the format the lines came in.

use std::collections::HashMap;

use serde_json::json;
use sqlx::{FromRow, SqliteConnection, query, query_as};

use super::fault::Answer;
use super::rows::{address, address_columns, code, keys_to_json, now_ms, to_json};
use super::sql;
use crate::domain::ids::DeviceKey;
use crate::domain::recipient::DeviceState;
use crate::store::import::{Decision, Held, Taken, decide};
use crate::store::{ImportRow, Imported};

#[derive(FromRow)]
struct HeldRow {
    device_key: i64,
    id: String,
    token: Option<String>,
    fid: Option<String>,
    state: i64,
}

impl From<HeldRow> for Held {
    fn from(row: HeldRow) -> Self {
        let state = code(row.state, DeviceState::from_code).ok();
        Self { key: row.device_key, id: row.id, address: address(row.token, row.fid).ok(), state }
    }
}

/// Imports one batch.
pub(super) async fn import(conn: &mut SqliteConnection, rows: Vec<ImportRow>, revive: bool) -> Answer<Imported> {
    let held = held(conn, &rows).await?;
    let Decision { taken, rivals, answer } = decide(&rows, &held, revive)?;
    let moving: Vec<i64> = taken.iter().filter_map(Taken::lets_go).collect();
    for (statements, keys) in
        [(&[sql::DROP_FOLLOWS_OF, sql::DROP_DEVICES][..], rivals), (&[sql::PARK_ADDRESSES], moving)]
    {
        each(conn, statements, keys).await?;
    }
    let keys = write(conn, &taken).await?;
    write_follows(conn, &taken, &keys).await?;
    Ok(answer)
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

async fn held(conn: &mut SqliteConnection, rows: &[ImportRow]) -> Answer<Vec<Held>> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| address_columns(&row.device.address)).unzip();
    let found: Vec<HeldRow> = query_as(sql::HELD_DEVICES)
        .bind(to_json(&ids)?)
        .bind(to_json(&tokens)?)
        .bind(to_json(&fids)?)
        .fetch_all(conn)
        .await?;
    Ok(found.into_iter().map(Held::from).collect())
}

/// Writes the devices; their keys by id.
async fn write(conn: &mut SqliteConnection, taken: &[Taken<'_>]) -> Answer<HashMap<String, i64>> {
    let row = |taken: &Taken<'_>| {
        let device = &taken.row.device;
        let (token, fid) = address_columns(&device.address);
        let (platform, state) = (device.platform.code(), taken.state.code());
        json!([
            device.id,
            device.user,
            token,
            fid,
            platform,
            device.locale.as_str(),
            state,
            taken.row.follows.is_some()
        ])
    };
    let rows: Vec<serde_json::Value> = taken.iter().map(row).collect();
    let keys: Vec<(String, i64)> =
        query_as(sql::IMPORT_DEVICES).bind(to_json(&rows)?).bind(now_ms()).fetch_all(conn).await?;
    Ok(keys.into_iter().collect())
}

async fn write_follows(conn: &mut SqliteConnection, taken: &[Taken<'_>], keys: &HashMap<String, i64>) -> Answer<()> {
    let (mut muted, mut replaced, mut revived) = (Vec::new(), Vec::new(), Vec::new());
    let mut wanted = Vec::new();
    for one in taken {
        let Some(key) = keys.get(one.row.id().as_str()) else { continue };
        let Some(follows) = &one.row.follows else {
            revived.extend(one.revives().then_some(*key));
            continue;
        };
        muted.push((*key, follows.muted.0));
        replaced.extend(one.held.map(|_| *key));
        let follow = |(subject, mask): &(String, _)| (subject.clone(), *key, *mask, follows.kinds(*mask, one.state));
        wanted.extend(follows.subjects.iter().map(follow));
    }
    // In the order of the table, which is that of its primary key.
    wanted.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let wanted: Vec<_> =
        wanted.into_iter().map(|(subject, key, wanted, kinds)| json!([subject, key, wanted.0, kinds.0])).collect();
    query(sql::IMPORT_MUTES).bind(to_json(&muted)?).execute(&mut *conn).await?;
    each(conn, &[sql::DROP_FOLLOWS_OF], replaced).await?;
    query(sql::IMPORT_FOLLOWS).bind(to_json(&wanted)?).execute(&mut *conn).await?;
    each(conn, &[sql::WAKE_FOLLOWS_OF], revived).await
}
