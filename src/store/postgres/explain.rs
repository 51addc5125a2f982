//! Owns the reading of everything kept about one device in one fan-out, in one snapshot.
//! Must never know: what the facts mean.

use sqlx::{Connection, FromRow, PgConnection};
use uuid::Uuid;

use super::fault::{Fault, corrupt};
use super::rows::{JobRow, chunk_ref, length};
use super::{devices, now_ms, reads};
use crate::domain::batch::{FanoutState, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::PauseReason;
use crate::domain::ids::{BootId, DeviceId, DeviceKey, FanoutId};
use crate::domain::outcome::{Cause, Outcome};
use crate::store::explained::{
    ChunkSearch, ChunkState, Explained, FormerDevice, KeptFailure, KnownDevice, MOST_FORMER, Place,
};

pub(super) const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";

pub(super) const FREEZE: &str =
    "SELECT state, freeze_cursor, freeze_chunks, freeze_owner IS NULL AS ownerless, superseded_by, paused
FROM fanout WHERE id = $1";

pub(super) const TIMES: &str = "SELECT created_ms, follows_ms, state_ms FROM device WHERE device_key = $1";

pub(super) const FORMER: &str =
    "SELECT device_key, deleted_ms FROM former_device WHERE id = $1 ORDER BY deleted_ms DESC LIMIT $2";

pub(super) const FIRST_KEY: &str = "SELECT keys[1] FROM chunk_ids WHERE fanout_id = $1 AND chunk_no = $2";

pub(super) const PLACE: &str = "
SELECT k.chunk_no, k.n, k.epoch, k.state, k.owner, coalesce(i.lease_until_ms > fanfare_now_ms(), false) AS owner_lives,
       k.not_before_ms, k.done::text AS done, k.ok::text AS ok, k.maybe::text AS maybe, k.unclean,
       k.rest_outcome, k.rest_cause, c.keys
FROM chunk k JOIN chunk_ids c ON c.fanout_id = k.fanout_id AND c.chunk_no = k.chunk_no
LEFT JOIN instance i ON i.boot_id = k.owner
WHERE k.fanout_id = $1 AND k.chunk_no = $2";

pub(super) const FAILURE: &str = "
SELECT outcome, cause, status, detail, attempts, variant, device_version, at_ms
FROM failure WHERE fanout_id = $1 AND chunk_no = $2 AND ordinal = $3";

#[derive(Debug, FromRow)]
struct FreezeRow {
    state: i16,
    freeze_cursor: i64,
    freeze_chunks: i32,
    ownerless: bool,
    superseded_by: Option<i64>,
    paused: i16,
}

#[derive(Debug, FromRow)]
struct PlaceRow {
    chunk_no: i32,
    n: i16,
    epoch: i32,
    state: i16,
    owner: Option<Uuid>,
    owner_lives: bool,
    not_before_ms: i64,
    done: String,
    ok: String,
    maybe: String,
    unclean: bool,
    rest_outcome: Option<i16>,
    rest_cause: Option<i16>,
    keys: Vec<i64>,
}

#[derive(Debug, FromRow)]
struct FailureRow {
    outcome: i16,
    cause: i16,
    status: i16,
    detail: String,
    attempts: i16,
    variant: String,
    device_version: i64,
    at_ms: i64,
}

pub(super) async fn explain(
    conn: &mut PgConnection,
    id: FanoutId,
    device: &DeviceId,
) -> Result<Option<Explained>, Fault> {
    let mut tx = conn.begin().await?;
    sqlx::query(SNAPSHOT).execute(&mut *tx).await?;
    let freeze: Option<FreezeRow> = sqlx::query_as(FREEZE).bind(id.0).fetch_optional(&mut *tx).await?;
    let job: Option<JobRow> = sqlx::query_as(reads::JOB).bind(id.0).fetch_optional(&mut *tx).await?;
    let Some((freeze, job)) = freeze.zip(job) else { return Ok(None) };
    let known = known(&mut tx, device).await?;
    let former = former(&mut tx, device).await?;
    let keys = known.iter().map(|known| known.view.key).chain(former.iter().map(|former| former.key));
    let mut place = None;
    for key in keys {
        place = find(&mut tx, id, key, freeze.freeze_chunks).await?;
        if place.is_some() {
            break;
        }
    }
    let state = FanoutState::from_code(freeze.state)?;
    Ok(Some(Explained {
        job: job.parse()?,
        state,
        superseded_by: freeze.superseded_by.map(FanoutId),
        paused: (freeze.paused != 0).then(|| PauseReason::from_code(freeze.paused)).transpose()?,
        cursor: DeviceKey(freeze.freeze_cursor),
        cut: state == FanoutState::Cancelled && freeze.ownerless,
        now_ms: now_ms(&mut tx).await?,
        device: known,
        former,
        place,
    }))
}

async fn known(conn: &mut PgConnection, id: &DeviceId) -> Result<Option<KnownDevice>, Fault> {
    let Some(view) = devices::get(conn, id).await? else { return Ok(None) };
    let (created_ms, follows_ms, state_ms) = sqlx::query_as(TIMES).bind(view.key.0).fetch_one(conn).await?;
    Ok(Some(KnownDevice { view, created_ms, follows_ms, state_ms }))
}

async fn former(conn: &mut PgConnection, id: &DeviceId) -> Result<Vec<FormerDevice>, Fault> {
    let rows: Vec<(i64, i64)> = sqlx::query_as(FORMER).bind(id.as_str()).bind(MOST_FORMER).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(key, deleted_ms)| FormerDevice { key: DeviceKey(key), deleted_ms }).collect())
}

async fn find(conn: &mut PgConnection, id: FanoutId, key: DeviceKey, chunks: i32) -> Result<Option<Place>, Fault> {
    let Some(chunk) = first_chunk(conn, id, key, chunks).await? else { return Ok(None) };
    let row: PlaceRow = sqlx::query_as(PLACE).bind(id.0).bind(chunk).fetch_one(&mut *conn).await?;
    let Ok(at) = row.keys.binary_search(&key.0) else { return Ok(None) };
    let ordinal = i16::try_from(at).unwrap_or(i16::MAX);
    let failure: Option<FailureRow> =
        sqlx::query_as(FAILURE).bind(id.0).bind(chunk).bind(ordinal).fetch_optional(conn).await?;
    row.place(id, key, at, failure).map(Some)
}

/// The chunk a key is in, if it is in any; all before it hold smaller keys.
pub(super) async fn first_chunk(
    conn: &mut PgConnection,
    id: FanoutId,
    key: DeviceKey,
    chunks: i32,
) -> Result<Option<i32>, Fault> {
    let mut search = ChunkSearch::new(key, chunks);
    while let Some(chunk) = search.probe() {
        let first: Option<i64> = sqlx::query_scalar(FIRST_KEY).bind(id.0).bind(chunk).fetch_one(&mut *conn).await?;
        search.saw(chunk, first.ok_or_else(|| corrupt(format!("chunk {chunk} of fan-out {id} has no keys")))?);
    }
    Ok(search.chunk())
}

impl PlaceRow {
    fn place(self, id: FanoutId, key: DeviceKey, at: usize, failure: Option<FailureRow>) -> Result<Place, Fault> {
        let n = length(self.n)?;
        let bit = |text: &str| Ok::<_, Fault>(Bitmap::from_text(text, n)?.get(at));
        let (done, ok) = (bit(&self.done)?, bit(&self.ok)?);
        let rest = self.rest_outcome.zip(self.rest_cause);
        let rest = rest.map(|(outcome, cause)| {
            Ok::<_, Fault>(RestOutcome { outcome: Outcome::from_code(outcome)?, cause: Cause::from_code(cause)? })
        });
        Ok(Place {
            key,
            chunk: chunk_ref(id.0, self.chunk_no),
            epoch: self.epoch,
            state: ChunkState::from_code(self.state)?,
            owner: self.owner.map(|boot| (BootId(boot), self.owner_lives)),
            not_before_ms: self.not_before_ms,
            done,
            ok,
            maybe: bit(&self.maybe)? || (self.unclean && !done),
            rest: rest.transpose()?,
            failure: failure.filter(|_| done && !ok).map(FailureRow::parse).transpose()?,
        })
    }
}

impl FailureRow {
    fn parse(self) -> Result<KeptFailure, Fault> {
        let positive = |n: i16| u16::try_from(n).map_err(|_| corrupt(format!("a failure counts {n}")));
        Ok(KeptFailure {
            outcome: Outcome::from_code(self.outcome)?,
            cause: Cause::from_code(self.cause)?,
            status: positive(self.status)?,
            text: self.detail,
            attempts: positive(self.attempts)?,
            variant: self.variant,
            device_version: self.device_version,
            at_ms: self.at_ms,
        })
    }
}
