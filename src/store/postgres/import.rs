//! Owns the import of a batch of devices in a fixed number of statements.
//! Must never know: the format of the input.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, FromRow, PgConnection, Postgres, Transaction};

use super::call::Lane;
use super::copy::{self, Places};
use super::devices::remove;
use super::fault::Fault;
use super::rows::{address, columns};
use crate::domain::recipient::{DeviceState, KindMask};
use crate::store::import::{Held, Taken, attach, check, decide, most_follows};
use crate::store::{ImportRow, Imported, StoreError};

/// A batch asks for two thousand known rows. While the table is small the planner would rather read all of it each time,
/// which makes the import of a large file slower with every batch.
pub(super) const BY_INDEX: &str = "SELECT set_config('enable_seqscan', 'off', true)";

/// Without locks: most rows of a batch are new, or say what is there.
pub(super) const SEEN: &str = "
SELECT device_key, id, token, fid, state, user_id, platform, locale, muted FROM device
WHERE id = ANY ($1) OR token = ANY ($2) OR fid = ANY ($3)";

/// The devices that will be written, as they are now; in order of key, so that none waits in a ring.
pub(super) const LOCK: &str = "
SELECT device_key, id, token, fid, state, user_id, platform, locale, muted FROM device
WHERE device_key = ANY ($1) ORDER BY device_key FOR UPDATE";

pub(super) const FOLLOWED: &str = "
SELECT device_key, subject, wanted, kinds FROM follow WHERE device_key = ANY ($1) LIMIT $2";

/// Devices of the batch that change their address let go of the old one first: the unique keys are checked row by
/// row, and two devices may change places.
pub(super) const LET_GO: &str = "
UPDATE device SET token = NULL, fid = 'moving ' || device_key WHERE device_key = ANY ($1)";

/// Mutes are null where the row says nothing new of follows. The version moves only when a verdict on the old row would
/// not hold for the new one.
pub(super) const UPDATE: &str = "
UPDATE device d
SET version = d.version + CASE WHEN (d.user_id, d.token, d.fid, d.platform, d.locale, d.state) IS DISTINCT FROM
            (x.user_id, x.token, x.fid, x.platform, x.locale, x.state) THEN 1 ELSE 0 END,
    user_id = x.user_id, token = x.token, fid = x.fid, platform = x.platform, locale = x.locale,
    registered_ms = now.ms, muted = coalesce(x.muted, d.muted),
    follows_ms = CASE WHEN x.muted IS NULL THEN d.follows_ms ELSE now.ms END,
    state_ms = CASE WHEN d.state = x.state THEN d.state_ms ELSE now.ms END, state = x.state
FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::smallint[], $7::bigint[],
            $8::bigint[]) AS x(token, fid, user_id, platform, locale, state, muted, device_key),
     (SELECT fanfare_now_ms() AS ms) AS now
WHERE d.device_key = x.device_key AND d.device_key = ANY ($8)";

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

/// Devices that live again and whose line says nothing new of follows.
pub(super) const REVIVE: &str = "
UPDATE follow f SET kinds = f.wanted & ~d.muted FROM device d
WHERE d.device_key = ANY ($1) AND f.device_key = d.device_key";

/// Rows of a batch that is worth two transactions.
const WORTH_HALVING: usize = 500;

/// What a look without locks found of some rows.
struct Seen {
    held: Vec<Held>,
    /// For all of the rows, when none of them was there.
    places: Option<Places>,
}

impl Seen {
    /// The same for the rows up to `at`, and for those after; none of them is there.
    fn halved(self, at: usize) -> (Self, Self) {
        let (one, other) = self.places.map(|places| places.halved(at)).unzip();
        (Self { held: Vec::new(), places: one }, Self { held: Vec::new(), places: other })
    }
}

#[derive(Debug, FromRow)]
struct HeldRow {
    device_key: i64,
    id: String,
    token: Option<String>,
    fid: Option<String>,
    state: i16,
    user_id: String,
    platform: i16,
    locale: String,
    muted: i64,
}

impl From<HeldRow> for Held {
    fn from(row: HeldRow) -> Self {
        Self {
            key: row.device_key,
            id: row.id,
            address: address(row.token, row.fid).ok(),
            state: DeviceState::from_code(row.state).ok(),
            user: row.user_id,
            platform: i64::from(row.platform),
            locale: row.locale,
            muted: KindMask(row.muted),
            follows: None,
        }
    }
}

/// Imports a batch. One of new devices only, as most are of a first import, goes in two halves side by side, for neither can
/// bear on the other: a server has more than one core, and one half works while the other waits for the disk.
pub(super) async fn import(lane: Lane, rows: Vec<ImportRow>, revive: bool) -> Result<Imported, StoreError> {
    check(&rows)?;
    let (all, half) = (rows.len(), rows.len() / 2);
    let rows = Arc::new(rows);
    let part = |which, seen| Part { rows: Arc::clone(&rows), which, revive }.import(lane.clone(), seen);
    if all < WORTH_HALVING || !lane.has_room() {
        return part(0..all, None).await;
    }
    let looked_at = Arc::clone(&rows);
    let seen = lane.clone().call("import", async move |conn: &mut PgConnection| look(conn, &looked_at).await).await?;
    if !seen.held.is_empty() {
        return part(0..all, Some(seen)).await;
    }
    let (one, other) = seen.halved(half);
    let halves = tokio::join!(part(0..half, Some(one)), part(half..all, Some(other)));
    Ok(halves.0?.and(halves.1?))
}

/// Rows of a batch that are imported in one transaction.
struct Part {
    rows: Arc<Vec<ImportRow>>,
    which: Range<usize>,
    revive: bool,
}

impl Part {
    /// What was seen of the rows serves for the first try, the next looks again.
    async fn import(self, lane: Lane, mut seen: Option<Seen>) -> Result<Imported, StoreError> {
        let ask = async move |conn: &mut PgConnection| {
            let rows = &self.rows[self.which.clone()];
            let seen = match seen.take() {
                Some(seen) => seen,
                None => look(conn, rows).await?,
            };
            write(conn, rows, self.revive, seen).await
        };
        lane.call("import", ask).await
    }
}

async fn look(conn: &mut PgConnection, rows: &[ImportRow]) -> Result<Seen, Fault> {
    let mut tx = conn.begin().await?;
    sqlx::query(BY_INDEX).execute(&mut *tx).await?;
    let held = seen(&mut tx, rows).await?;
    let places = if held.is_empty() { Some(copy::places(&mut tx, rows.len()).await?) } else { None };
    tx.commit().await?;
    Ok(Seen { held, places })
}

async fn write(conn: &mut PgConnection, rows: &[ImportRow], revive: bool, seen: Seen) -> Result<Imported, Fault> {
    let Seen { mut held, places } = seen;
    let mut tx = conn.begin().await?;
    if !held.is_empty() {
        sqlx::query(BY_INDEX).execute(&mut *tx).await?;
        lock(&mut tx, rows, &mut held, revive).await?;
    }
    let decision = decide(rows, &held, revive)?;
    let moving: Vec<i64> = decision.taken.iter().filter_map(Taken::lets_go).collect();
    let (new, changed) = (decision.new_ones(), decision.changed());
    if !decision.rivals.is_empty() {
        remove(&mut tx, decision.rivals.clone()).await?;
    }
    if !moving.is_empty() {
        sqlx::query(LET_GO).bind(moving).execute(&mut *tx).await?;
    }
    if !new.is_empty() {
        let places = match places {
            Some(places) => places,
            None => copy::places(&mut tx, new.len()).await?,
        };
        copy::write(&mut tx, &new, &places).await?;
    }
    update(&mut tx, &changed).await?;
    follow_anew(&mut tx, &changed).await?;
    tx.commit().await?;
    Ok(decision.answer)
}

/// What is there of the batch, with follows where the batch says some.
async fn seen(tx: &mut Transaction<'_, Postgres>, rows: &[ImportRow]) -> Result<Vec<Held>, Fault> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id().as_str()).collect();
    let (tokens, fids): (Vec<_>, Vec<_>) = rows.iter().map(|row| columns(&row.device.address)).unzip();
    let (tokens, fids): (Vec<&str>, Vec<&str>) =
        (tokens.into_iter().flatten().collect(), fids.into_iter().flatten().collect());
    let query = sqlx::query_as(SEEN).bind(ids).bind(tokens).bind(fids);
    let found: Vec<HeldRow> = query.fetch_all(&mut **tx).await?;
    with_follows(tx, rows, found).await
}

async fn with_follows(
    tx: &mut Transaction<'_, Postgres>,
    rows: &[ImportRow],
    found: Vec<HeldRow>,
) -> Result<Vec<Held>, Fault> {
    let mut held: Vec<Held> = found.into_iter().map(Held::from).collect();
    if !held.is_empty() && rows.iter().any(|row| row.follows.is_some()) {
        let most = most_follows(rows);
        let keys: Vec<i64> = held.iter().map(|held| held.key).collect();
        let follows = sqlx::query_as(FOLLOWED).bind(keys).bind(most + 1).fetch_all(&mut **tx).await?;
        attach(&mut held, follows, most);
    }
    Ok(held)
}

/// Locks what will be written, and puts it into its place as it is then. A device that took one of the addresses
/// meanwhile is met when the row is written: a unique violation, and all is tried again.
async fn lock(
    tx: &mut Transaction<'_, Postgres>,
    rows: &[ImportRow],
    held: &mut Vec<Held>,
    revive: bool,
) -> Result<(), Fault> {
    let touched: HashSet<i64> = decide(rows, held, revive)?.touched().into_iter().collect();
    if touched.is_empty() {
        return Ok(());
    }
    let keys: Vec<i64> = touched.iter().copied().collect();
    let found: Vec<HeldRow> = sqlx::query_as(LOCK).bind(keys).fetch_all(&mut **tx).await?;
    held.retain(|held| !touched.contains(&held.key));
    held.extend(with_follows(tx, rows, found).await?);
    Ok(())
}

async fn update(tx: &mut Transaction<'_, Postgres>, changed: &[&Taken<'_>]) -> Result<(), Fault> {
    if !changed.is_empty() {
        let keys: Vec<i64> = changed.iter().filter_map(|taken| taken.held).map(|held| held.key).collect();
        with_rows(sqlx::query(UPDATE), changed).bind(keys).execute(&mut **tx).await?;
    }
    Ok(())
}

/// Binds the columns both statements have first, in one order.
fn with_rows<'q>(query: Query<'q, Postgres, PgArguments>, taken: &[&Taken<'_>]) -> Query<'q, Postgres, PgArguments> {
    let (tokens, fids): (Vec<_>, Vec<_>) = taken.iter().map(|taken| columns(&taken.row.device.address)).unzip();
    query
        .bind(tokens)
        .bind(fids)
        .bind(taken.iter().map(|taken| taken.row.device.user.as_str()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.row.device.platform.code()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.row.device.locale.as_str()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.state.code()).collect::<Vec<_>>())
        .bind(taken.iter().map(|taken| taken.follows.map(|follows| follows.muted.0)).collect::<Vec<_>>())
}

/// By subject and device, which is the order of their index: the types wanted and those of them that count.
type Wanted<'a> = BTreeMap<(&'a str, i64), (i64, i64)>;

/// What devices that were there follow afterwards, where their rows say something new of it.
fn wanted<'a>(taken: &[&Taken<'a>]) -> Wanted<'a> {
    let mut wanted = BTreeMap::new();
    for one in taken {
        let (Some(follows), Some(key)) = (one.follows, one.held.map(|held| held.key)) else { continue };
        wanted.extend(follows.subjects.iter().map(|(subject, mask)| {
            let kinds = follows.kinds(*mask, one.state);
            ((subject.as_str(), key), (mask.0, kinds.0))
        }));
    }
    wanted
}

async fn follow(tx: &mut Transaction<'_, Postgres>, wanted: Wanted<'_>) -> Result<(), Fault> {
    if wanted.is_empty() {
        return Ok(());
    }
    let (places, values): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let (subjects, of): (Vec<&str>, Vec<i64>) = places.into_iter().unzip();
    let (masks, kinds): (Vec<i64>, Vec<i64>) = values.into_iter().unzip();
    sqlx::query(FOLLOW).bind(subjects).bind(of).bind(masks).bind(kinds).execute(&mut **tx).await?;
    Ok(())
}

/// Follows of devices that were there: those their row does not name go, and who lives again hears again.
async fn follow_anew(tx: &mut Transaction<'_, Postgres>, changed: &[&Taken<'_>]) -> Result<(), Fault> {
    let (said, silent): (Vec<&Taken<'_>>, Vec<&Taken<'_>>) = changed.iter().partition(|taken| taken.follows.is_some());
    let key = |taken: &&Taken<'_>| Some(taken.held?.key);
    let wanted = wanted(&said);
    if !said.is_empty() {
        let (subjects, of): (Vec<&str>, Vec<i64>) = wanted.keys().copied().unzip();
        let said: Vec<i64> = said.iter().filter_map(key).collect();
        sqlx::query(UNFOLLOW).bind(said).bind(subjects).bind(of).execute(&mut **tx).await?;
    }
    follow(tx, wanted).await?;
    let revived: Vec<i64> = silent.iter().filter(|taken| taken.revives()).filter_map(key).collect();
    if !revived.is_empty() {
        sqlx::query(REVIVE).bind(revived).execute(&mut **tx).await?;
    }
    Ok(())
}
