//! Owns the reading of everything kept about one device in one fan-out, in one snapshot.
//! Must never know: what the facts mean.

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};
use uuid::Uuid;

use super::fault::{Answer, corrupt};
use super::rows::{code, count, keys_from_bytes, now_ms};
use super::{accept, device, sql};
use crate::domain::batch::{FanoutState, RestOutcome};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::PauseReason;
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, FanoutId};
use crate::domain::outcome::{Cause, Outcome};
use crate::store::explained::{
    ChunkSearch, ChunkState, Explained, FormerDevice, KeptFailure, KnownDevice, MOST_FORMER, Place,
};

#[derive(FromRow)]
struct FreezeRow {
    state: i64,
    freeze_cursor: i64,
    freeze_chunks: i32,
    ownerless: bool,
    superseded_by: Option<i64>,
    paused: i64,
}

#[derive(FromRow)]
struct PlaceRow {
    chunk_no: i32,
    n: i64,
    epoch: i32,
    state: i64,
    owner: Option<Vec<u8>>,
    lease_until_ms: Option<i64>,
    not_before_ms: i64,
    done: Vec<u8>,
    ok: Vec<u8>,
    maybe: Vec<u8>,
    unclean: bool,
    rest_outcome: Option<i64>,
    rest_cause: Option<i64>,
    keys: Vec<u8>,
}

#[derive(FromRow)]
struct FailureRow {
    outcome: i64,
    cause: i64,
    status: i64,
    detail: String,
    attempts: i64,
    variant: String,
    device_version: i64,
    at_ms: i64,
}

/// Everything kept that bears on it; `None` when there is no such fan-out.
pub(super) async fn explain(conn: &mut SqliteConnection, id: FanoutId, asked: DeviceId) -> Answer<Option<Explained>> {
    let freeze: Option<FreezeRow> = query_as(sql::FREEZE_STANDS).bind(id.0).fetch_optional(&mut *conn).await?;
    let Some((freeze, job)) = freeze.zip(accept::job(conn, id).await?) else { return Ok(None) };
    let former = former(conn, &asked).await?;
    let known = known(conn, asked).await?;
    let keys = known.iter().map(|known| known.view.key).chain(former.iter().map(|former| former.key));
    let mut place = None;
    for key in keys {
        place = find(conn, id, key, freeze.freeze_chunks).await?;
        if place.is_some() {
            break;
        }
    }
    let state = code(freeze.state, FanoutState::from_code)?;
    Ok(Some(Explained {
        job,
        state,
        superseded_by: freeze.superseded_by.map(FanoutId),
        paused: (freeze.paused != 0).then(|| code(freeze.paused, PauseReason::from_code)).transpose()?,
        cursor: DeviceKey(freeze.freeze_cursor),
        cut: state == FanoutState::Cancelled && freeze.ownerless,
        now_ms: now_ms(),
        device: known,
        former,
        place,
    }))
}

async fn known(conn: &mut SqliteConnection, id: DeviceId) -> Answer<Option<KnownDevice>> {
    let Some(view) = device::device(conn, id).await? else { return Ok(None) };
    let (created_ms, follows_ms, state_ms) = query_as(sql::DEVICE_TIMES).bind(view.key.0).fetch_one(conn).await?;
    Ok(Some(KnownDevice { view, created_ms, follows_ms, state_ms }))
}

async fn former(conn: &mut SqliteConnection, id: &DeviceId) -> Answer<Vec<FormerDevice>> {
    let rows: Vec<(i64, i64)> =
        query_as(sql::FORMER_DEVICES).bind(id.as_str()).bind(MOST_FORMER).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(key, deleted_ms)| FormerDevice { key: DeviceKey(key), deleted_ms }).collect())
}

async fn find(conn: &mut SqliteConnection, id: FanoutId, key: DeviceKey, chunks: i32) -> Answer<Option<Place>> {
    let Some(chunk) = first_chunk(conn, id, key, chunks).await? else { return Ok(None) };
    let row: PlaceRow = query_as(sql::PLACE).bind(id.0).bind(chunk).fetch_one(&mut *conn).await?;
    let keys = keys_from_bytes(&row.keys, count("chunk length", row.n)?)?;
    let Ok(at) = keys.binary_search(&key) else { return Ok(None) };
    let ordinal = i64::try_from(at).unwrap_or(i64::MAX);
    let failure: Option<FailureRow> =
        query_as(sql::FAILURE).bind(id.0).bind(chunk).bind(ordinal).fetch_optional(conn).await?;
    row.place(id, key, at, failure).map(Some)
}

/// The chunk a key is in, if it is in any; all before it hold smaller keys.
pub(super) async fn first_chunk(
    conn: &mut SqliteConnection,
    id: FanoutId,
    key: DeviceKey,
    chunks: i32,
) -> Answer<Option<i32>> {
    let mut search = ChunkSearch::new(key, chunks);
    while let Some(chunk) = search.probe() {
        let first: Vec<u8> = query_scalar(sql::FIRST_KEY).bind(id.0).bind(chunk).fetch_one(&mut *conn).await?;
        let first = keys_from_bytes(&first, 1)?;
        search.saw(chunk, first.first().map_or(i64::MAX, |key| key.0));
    }
    Ok(search.chunk())
}

impl PlaceRow {
    fn place(self, id: FanoutId, key: DeviceKey, at: usize, failure: Option<FailureRow>) -> Answer<Place> {
        let n: usize = count("chunk length", self.n)?;
        let bit = |stored: &[u8]| Answer::Ok(Bitmap::from_bytes(stored, n)?.get(at));
        let (done, ok) = (bit(&self.done)?, bit(&self.ok)?);
        let lives = self.lease_until_ms.is_some_and(|until| until > now_ms());
        let owner = self.owner.as_deref().map(|boot| Uuid::from_slice(boot).map(|boot| (BootId(boot), lives)));
        let rest = self.rest_outcome.zip(self.rest_cause).map(|(outcome, cause)| {
            let outcome = code(outcome, Outcome::from_code)?;
            Answer::Ok(RestOutcome { outcome, cause: code(cause, Cause::from_code)? })
        });
        Ok(Place {
            key,
            chunk: ChunkRef { fanout: id, no: self.chunk_no },
            epoch: self.epoch,
            state: code(self.state, ChunkState::from_code)?,
            owner: owner.transpose().map_err(|_| corrupt("an owner that is no boot id"))?,
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
    fn parse(self) -> Answer<KeptFailure> {
        Ok(KeptFailure {
            outcome: code(self.outcome, Outcome::from_code)?,
            cause: code(self.cause, Cause::from_code)?,
            status: count("status", self.status)?,
            text: self.detail,
            attempts: count("attempts", self.attempts)?,
            variant: self.variant,
            device_version: self.device_version,
            at_ms: self.at_ms,
        })
    }
}
