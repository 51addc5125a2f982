//! Owns the import of a batch of devices in a fixed number of statements.
//! Must never know: the format of the input.

use std::collections::{BTreeMap, HashMap};

use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::devices::remove;
use super::fault::Fault;
use super::rows::{address, columns};
use crate::domain::recipient::DeviceState;
use crate::store::import::{Decision, Held, Taken, decide};
use crate::store::{ImportRow, Imported};

/// A batch asks for a thousand known rows. While the table is small the planner would rather read all of it each time,
/// which makes the import of a large file slower with every batch.
pub(super) const BY_INDEX: &str = "SELECT set_config('enable_seqscan', 'off', true)";

pub(super) const LOCK: &str = "
SELECT device_key, id, token, fid, state FROM device
WHERE id = ANY ($1) OR token = ANY ($2) OR fid = ANY ($3) ORDER BY device_key FOR UPDATE";

/// Devices of the batch that change their address let go of the old one first: the unique keys are checked row by
/// row, and two devices may change places.
pub(super) const LET_GO: &str = "
UPDATE device SET token = NULL, fid = 'moving ' || device_key WHERE device_key = ANY ($1)";

/// The version moves only when a verdict on the old row would not hold for the new one.
pub(super) const UPSERT: &str = "
INSERT INTO device AS d (id, token, fid, user_id, platform, locale, state, state_ms, registered_ms, follows_ms)
SELECT x.id, x.token, x.fid, x.user_id, x.platform, x.locale, x.state, CASE WHEN x.state = 0 THEN 0 ELSE now.ms END,
       now.ms, CASE WHEN x.follows THEN now.ms ELSE 0 END
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::smallint[],
            $8::boolean[]) AS x(id, token, fid, user_id, platform, locale, state, follows), (SELECT fanfare_now_ms() AS ms) AS now
ON CONFLICT (id) DO UPDATE
SET version = d.version + CASE WHEN (d.user_id, d.token, d.fid, d.platform, d.locale, d.state) IS DISTINCT FROM
            (EXCLUDED.user_id, EXCLUDED.token, EXCLUDED.fid, EXCLUDED.platform, EXCLUDED.locale, EXCLUDED.state)
            THEN 1 ELSE 0 END,
    user_id = EXCLUDED.user_id, token = EXCLUDED.token, fid = EXCLUDED.fid, platform = EXCLUDED.platform,
    locale = EXCLUDED.locale, registered_ms = EXCLUDED.registered_ms, follows_ms = greatest(d.follows_ms, EXCLUDED.follows_ms),
    state_ms = CASE WHEN d.state = EXCLUDED.state THEN d.state_ms ELSE EXCLUDED.registered_ms END,
    state = EXCLUDED.state
RETURNING d.id, d.device_key";

/// Only of devices whose line says what they follow.
pub(super) const MUTE: &str = "
UPDATE device d SET muted = x.muted
FROM unnest($1::bigint[], $2::bigint[]) AS x(device_key, muted)
WHERE d.device_key = x.device_key AND d.muted <> x.muted";

pub(super) const UNFOLLOW: &str = "
DELETE FROM follow f
WHERE f.device_key = ANY ($1)
  AND NOT EXISTS (SELECT 1 FROM unnest($2::text[], $3::bigint[]) AS x(subject, device_key)
                  WHERE x.subject = f.subject AND x.device_key = f.device_key)";

pub(super) const FOLLOW: &str = "
INSERT INTO follow AS f (subject, device_key, wanted, kinds)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
ON CONFLICT (subject, device_key) DO UPDATE SET wanted = EXCLUDED.wanted, kinds = EXCLUDED.kinds
WHERE (f.wanted, f.kinds) <> (EXCLUDED.wanted, EXCLUDED.kinds)";

/// Devices that live again and whose line does not say what they follow.
pub(super) const REVIVE: &str = "
UPDATE follow f SET kinds = f.wanted & ~d.muted FROM device d
WHERE d.device_key = ANY ($1) AND f.device_key = d.device_key";

#[derive(Debug, FromRow)]
struct HeldRow {
    device_key: i64,
    id: String,
    token: Option<String>,
    fid: Option<String>,
    state: i16,
}

impl From<HeldRow> for Held {
    fn from(row: HeldRow) -> Self {
        let state = DeviceState::from_code(row.state).ok();
        Self { key: row.device_key, id: row.id, address: address(row.token, row.fid).ok(), state }
    }
}

pub(super) async fn import(conn: &mut PgConnection, rows: &[ImportRow], revive: bool) -> Result<Imported, Fault> {
    let mut tx = conn.begin().await?;
    sqlx::query(BY_INDEX).execute(&mut *tx).await?;
    let held = lock(&mut tx, rows).await?;
    let Decision { taken, rivals, answer } = decide(rows, &held, revive)?;
    if !rivals.is_empty() {
        remove(&mut tx, rivals).await?;
    }
    let keys = write(&mut tx, &taken).await?;
    write_follows(&mut tx, &taken, &keys).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Planned for each batch: a plan made while the table was small reads all of it, and would be kept while it grows.
async fn lock(tx: &mut Transaction<'_, Postgres>, rows: &[ImportRow]) -> Result<Vec<Held>, Fault> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| columns(&row.device.address)).unzip();
    let (tokens, fids): (Vec<&str>, Vec<&str>) =
        (tokens.into_iter().flatten().collect(), fids.into_iter().flatten().collect());
    let query = sqlx::query_as(LOCK).persistent(false).bind(ids).bind(tokens).bind(fids);
    let held: Vec<HeldRow> = query.fetch_all(&mut **tx).await?;
    Ok(held.into_iter().map(Held::from).collect())
}

/// Writes the devices; their keys by id.
async fn write(tx: &mut Transaction<'_, Postgres>, taken: &[Taken<'_>]) -> Result<HashMap<String, i64>, Fault> {
    let moving: Vec<i64> = taken.iter().filter_map(Taken::lets_go).collect();
    if !moving.is_empty() {
        sqlx::query(LET_GO).bind(moving).execute(&mut **tx).await?;
    }
    let (tokens, fids): (Vec<_>, Vec<_>) = taken.iter().map(|taken| columns(&taken.row.device.address)).unzip();
    let keys: Vec<(String, i64)> = sqlx::query_as(UPSERT)
        .bind(taken.iter().map(|taken| taken.row.id().as_str()).collect::<Vec<_>>())
        .bind(tokens)
        .bind(fids)
        .bind(taken.iter().map(|taken| taken.row.device.user.as_str()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.row.device.platform.code()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.row.device.locale.as_str()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.state.code()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.row.follows.is_some()).collect::<Vec<_>>())
        .fetch_all(&mut **tx)
        .await?;
    Ok(keys.into_iter().collect())
}

async fn write_follows(
    tx: &mut Transaction<'_, Postgres>,
    taken: &[Taken<'_>],
    keys: &HashMap<String, i64>,
) -> Result<(), Fault> {
    let (mut devices, mut muted, mut stored, mut revived) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut wanted = BTreeMap::new();
    for one in taken {
        let Some(key) = keys.get(one.row.id().as_str()) else { continue };
        let Some(follows) = &one.row.follows else {
            revived.extend(one.revives().then_some(*key));
            continue;
        };
        devices.push(*key);
        muted.push(follows.muted.0);
        stored.extend(one.held.map(|_| *key));
        wanted.extend(follows.subjects.iter().map(|(subject, mask)| {
            let kinds = follows.kinds(*mask, one.state);
            ((subject.as_str(), *key), (mask.0, kinds.0))
        }));
    }
    let (mut subjects, mut of, mut masks, mut kinds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ((subject, key), (mask, kind)) in wanted {
        subjects.push(subject);
        of.push(key);
        masks.push(mask);
        kinds.push(kind);
    }
    sqlx::query(MUTE).bind(&devices).bind(muted).execute(&mut **tx).await?;
    if !stored.is_empty() {
        sqlx::query(UNFOLLOW).bind(stored).bind(&subjects).bind(&of).execute(&mut **tx).await?;
    }
    sqlx::query(FOLLOW).bind(subjects).bind(of).bind(masks).bind(kinds).execute(&mut **tx).await?;
    if !revived.is_empty() {
        sqlx::query(REVIVE).bind(revived).execute(&mut **tx).await?;
    }
    Ok(())
}
