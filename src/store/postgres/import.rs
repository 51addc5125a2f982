//! Owns the import of a batch of devices in a fixed number of statements.
//! Must never know: the format of the input.

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::devices::remove;
use super::fault::Fault;
use super::rows::{address, columns};
use crate::domain::recipient::{Address, DeviceState};
use crate::store::import::{latest, refusal};
use crate::store::{ImportRow, Imported};

pub(super) const LOCK: &str = "
SELECT device_key, id, token, fid, state FROM device
WHERE id = ANY ($1) OR token = ANY ($2) OR fid = ANY ($3) ORDER BY device_key FOR UPDATE";

/// Devices of the batch that change their address let go of the old one first: the unique keys are checked row by
/// row, and two devices may change places.
pub(super) const LET_GO: &str = "
UPDATE device d SET token = NULL, fid = 'moving ' || d.device_key
FROM unnest($1::text[], $2::text[], $3::text[]) AS x(id, token, fid)
WHERE d.id = x.id AND (d.token, d.fid) IS DISTINCT FROM (x.token, x.fid)";

pub(super) const UPSERT: &str = "
INSERT INTO device AS d (id, token, fid, user_id, platform, locale, registered_ms)
SELECT x.*, fanfare_now_ms()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[])
     AS x(id, token, fid, user_id, platform, locale)
ON CONFLICT (id) DO UPDATE
SET version = d.version + CASE WHEN (d.user_id, d.token, d.fid, d.platform, d.locale) IS DISTINCT FROM
            (EXCLUDED.user_id, EXCLUDED.token, EXCLUDED.fid, EXCLUDED.platform, EXCLUDED.locale) THEN 1 ELSE 0 END,
    user_id = EXCLUDED.user_id, token = EXCLUDED.token, fid = EXCLUDED.fid, platform = EXCLUDED.platform,
    locale = EXCLUDED.locale, registered_ms = EXCLUDED.registered_ms
RETURNING d.id, d.device_key";

/// Only of devices whose line says what they follow.
pub(super) const MUTE: &str = "
UPDATE device d SET muted = x.muted, follows_ms = fanfare_now_ms()
FROM unnest($1::bigint[], $2::bigint[]) AS x(device_key, muted) WHERE d.device_key = x.device_key";

pub(super) const UNFOLLOW: &str = "
DELETE FROM follow f
WHERE f.device_key = ANY ($1)
  AND NOT EXISTS (SELECT 1 FROM unnest($2::text[], $3::bigint[]) AS x(subject, device_key)
                  WHERE x.subject = f.subject AND x.device_key = f.device_key)";

pub(super) const FOLLOW: &str = "
INSERT INTO follow (subject, device_key, wanted, kinds)
SELECT x.subject, d.device_key, x.wanted, x.wanted & ~d.muted
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS x(subject, device_key, wanted)
JOIN device d ON d.device_key = x.device_key
ON CONFLICT (subject, device_key) DO UPDATE SET wanted = EXCLUDED.wanted, kinds = EXCLUDED.kinds";

#[derive(Debug, FromRow)]
struct Held {
    device_key: i64,
    id: String,
    token: Option<String>,
    fid: Option<String>,
    state: i16,
}

pub(super) async fn import(conn: &mut PgConnection, rows: &[ImportRow]) -> Result<Imported, Fault> {
    let latest = latest(rows)?;
    let mut tx = conn.begin().await?;
    let held = lock(&mut tx, &latest).await?;
    let states = states(&held);
    let (mut taken, mut rejected) = (Vec::with_capacity(latest.len()), Vec::new());
    for row in latest {
        match states.get(row.id().as_str()).and_then(|state| refusal(row, *state)) {
            Some(refused) => rejected.push(refused),
            None => taken.push(row),
        }
    }
    remove(&mut tx, rivals(&held, &taken)?).await?;
    let keys = write(&mut tx, &taken).await?;
    write_follows(&mut tx, &taken, &keys).await?;
    tx.commit().await?;
    let updated = taken.iter().filter(|row| states.contains_key(row.id().as_str())).count();
    Ok(Imported { imported: (taken.len() - updated) as u64, updated: updated as u64, rejected })
}

async fn lock(tx: &mut Transaction<'_, Postgres>, rows: &[&ImportRow]) -> Result<Vec<Held>, Fault> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| columns(&row.device.address)).unzip();
    let query = sqlx::query_as(LOCK).bind(ids).bind(tokens).bind(fids);
    Ok(query.fetch_all(&mut **tx).await?)
}

/// What is known of the devices that are there; `None` for a state this build does not know.
fn states(held: &[Held]) -> HashMap<&str, Option<DeviceState>> {
    held.iter().map(|row| (row.id.as_str(), DeviceState::from_code(row.state).ok())).collect()
}

/// Devices outside the batch whose address goes to a device of the batch.
fn rivals(held: &[Held], taken: &[&ImportRow]) -> Result<Vec<i64>, Fault> {
    let ids: HashSet<&str> = taken.iter().map(|row| row.id().as_str()).collect();
    let addresses: HashSet<&Address> = taken.iter().map(|row| &row.device.address).collect();
    let mut rivals = Vec::new();
    for row in held.iter().filter(|row| !ids.contains(row.id.as_str())) {
        if addresses.contains(&address(row.token.clone(), row.fid.clone())?) {
            rivals.push(row.device_key);
        }
    }
    Ok(rivals)
}

/// Writes the devices; their keys by id.
async fn write(tx: &mut Transaction<'_, Postgres>, rows: &[&ImportRow]) -> Result<HashMap<String, i64>, Fault> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| columns(&row.device.address)).unzip();
    sqlx::query(LET_GO).bind(&ids).bind(&tokens).bind(&fids).execute(&mut **tx).await?;
    let keys: Vec<(String, i64)> = sqlx::query_as(UPSERT)
        .bind(ids)
        .bind(tokens)
        .bind(fids)
        .bind(rows.iter().map(|row| row.device.user.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.device.platform.code()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.device.locale.as_str()).collect::<Vec<_>>())
        .fetch_all(&mut **tx)
        .await?;
    Ok(keys.into_iter().collect())
}

async fn write_follows(
    tx: &mut Transaction<'_, Postgres>,
    rows: &[&ImportRow],
    keys: &HashMap<String, i64>,
) -> Result<(), Fault> {
    let (mut devices, mut muted) = (Vec::new(), Vec::new());
    let mut wanted = BTreeMap::new();
    for row in rows {
        let (Some(follows), Some(key)) = (&row.follows, keys.get(row.id().as_str())) else { continue };
        devices.push(*key);
        muted.push(follows.muted.0);
        wanted.extend(follows.subjects.iter().map(|(subject, mask)| ((subject.as_str(), *key), mask.0)));
    }
    let (pairs, masks): (Vec<(&str, i64)>, Vec<i64>) = wanted.into_iter().unzip();
    let (subjects, of): (Vec<&str>, Vec<i64>) = pairs.into_iter().unzip();
    sqlx::query(MUTE).bind(&devices).bind(muted).execute(&mut **tx).await?;
    sqlx::query(UNFOLLOW).bind(devices).bind(&subjects).bind(&of).execute(&mut **tx).await?;
    sqlx::query(FOLLOW).bind(subjects).bind(of).bind(masks).execute(&mut **tx).await?;
    Ok(())
}
