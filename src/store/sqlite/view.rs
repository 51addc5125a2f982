//! Owns a fan-out as anyone may see it: its tally from facts while it is open, from its snapshot once it is settled.
//! Must never know: who asks.

use sqlx::{FromRow, SqliteConnection, query_as, query_scalar};

use super::fault::{Answer, corrupt};
use super::rows::{code, count, from_json, now_ms};
use super::sql;
use crate::domain::batch::{Class, FanoutKind, FanoutState};
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::PauseReason;
use crate::domain::ids::{EventId, FanoutId, MatchId};
use crate::domain::outcome::Outcome;
use crate::domain::tally::{PartCounters, Tally};
use crate::store::facts::{Facts, Snapshot};
use crate::store::{FanoutQuery, FanoutView, Kin};

const CLOSED: i64 = 2;

#[derive(FromRow)]
pub(super) struct FanoutRow {
    id: i64,
    event_id: String,
    event_type: String,
    match_id: String,
    pub(super) kind: i64,
    parent: Option<i64>,
    class: i64,
    pub(super) state: i64,
    occurred_ms: i64,
    accepted_ms: i64,
    deadline_ms: i64,
    recipients: i64,
    interrupted: i64,
    pub(super) settled_ms: Option<i64>,
    pub(super) settled: Option<String>,
    superseded_by: Option<i64>,
    never_saw: Option<i64>,
    paused: i64,
    max_attempts: Option<i64>,
}

/// Counts of one fan-out, and counters beside them.
pub(super) struct Counts {
    pub(super) tally: Tally,
    pub(super) counters: PartCounters,
    pub(super) instances: u32,
}

impl FanoutRow {
    pub(super) async fn read(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<Self>> {
        Ok(query_as(sql::VIEW).bind(id.0).fetch_optional(conn).await?)
    }

    fn snapshot(&self) -> Answer<Option<Counts>> {
        if self.settled_ms.is_none() {
            return Ok(None);
        }
        let stored = self.settled.as_deref().ok_or_else(|| corrupt("a settled fan-out has no snapshot"))?;
        let snapshot: Snapshot = from_json("snapshot", stored)?;
        let Snapshot { tally, counters, instances, .. } = snapshot;
        Ok(Some(Counts { tally, counters, instances }))
    }

    pub(super) fn into_view(self, counts: Counts) -> Answer<FanoutView> {
        let kin = self.kin()?;
        Ok(FanoutView {
            id: FanoutId(self.id),
            event_id: EventId::parse(&self.event_id)?,
            event_type: self.event_type,
            match_id: MatchId::parse(&self.match_id)?,
            kind: code(self.kind, FanoutKind::from_code)?,
            parent: self.parent.map(FanoutId),
            state: kin.shown(code(self.state, FanoutState::from_code)?),
            class: code(self.class, Class::from_code)?,
            occurred_ms: self.occurred_ms,
            accepted_ms: self.accepted_ms,
            deadline_ms: self.deadline_ms,
            settled_ms: self.settled_ms,
            tally: counts.tally,
            counters: counts.counters,
            instances: counts.instances,
            interrupted: count("interruptions", self.interrupted)?,
            kin,
        })
    }

    fn kin(&self) -> Answer<Kin> {
        Ok(Kin {
            superseded_by: self.superseded_by.map(FanoutId),
            never_saw: self.never_saw.map(|n| count("who never saw it", n)).transpose()?,
            paused: (self.paused != 0).then(|| code(self.paused, PauseReason::from_code)).transpose()?,
            max_attempts: self.max_attempts.map(|n| count("most attempts", n)).transpose()?,
        })
    }
}

/// One fan-out as it stands.
pub(super) async fn fanout(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<FanoutView>> {
    let Some(row) = FanoutRow::read(conn, id).await? else { return Ok(None) };
    let counts = match row.snapshot()? {
        Some(counts) => counts,
        None => count_facts(conn, &row).await?,
    };
    row.into_view(counts).map(Some)
}

/// Fan-outs, newest first.
pub(super) async fn fanouts(conn: &mut SqliteConnection, wanted: FanoutQuery) -> Answer<Vec<FanoutView>> {
    let ids: Vec<i64> = query_scalar(sql::LIST)
        .bind(wanted.before.map_or(i64::MAX, |id| id.0))
        .bind(wanted.state.map(FanoutState::code))
        .bind(wanted.limit)
        .bind(wanted.accepted.map(|(from, _)| from))
        .bind(wanted.accepted.map(|(_, to)| to))
        .fetch_all(&mut *conn)
        .await?;
    views(conn, ids).await
}

/// Database time, and when the oldest fan-out that is open was accepted.
pub(super) async fn open_since(conn: &mut SqliteConnection) -> Answer<(i64, Option<i64>)> {
    Ok((now_ms(), query_scalar(sql::OPEN_SINCE).fetch_one(conn).await?))
}

async fn views(conn: &mut SqliteConnection, ids: Vec<i64>) -> Answer<Vec<FanoutView>> {
    let mut views = Vec::with_capacity(ids.len());
    for id in ids {
        views.extend(fanout(conn, FanoutId(id)).await?);
    }
    Ok(views)
}

/// Counts an open fan-out from its rows: one pass over its chunks, nothing that was ever incremented.
pub(super) async fn count_facts(conn: &mut SqliteConnection, row: &FanoutRow) -> Answer<Counts> {
    let mut facts = Facts { recipients: count("recipients", row.recipients)?, ..Facts::default() };
    let chunks: Vec<ChunkCounts> = query_as(sql::CHUNK_COUNTS).bind(row.id).fetch_all(&mut *conn).await?;
    for chunk in chunks {
        chunk.add_to(&mut facts)?;
    }
    let failures: Vec<(i64, i64)> = query_as(sql::FAILURE_COUNTS).bind(row.id).fetch_all(&mut *conn).await?;
    for (outcome, rows) in failures {
        facts.failures.push((code(outcome, Outcome::from_code)?, count("failure rows", rows)?));
    }
    let parts: Vec<String> = query_scalar(sql::PARTS).bind(row.id).fetch_all(conn).await?;
    let mut counters = PartCounters::default();
    for part in &parts {
        counters.merge(&from_json("counters", part)?);
    }
    let instances = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    Ok(Counts { tally: facts.tally()?, counters, instances })
}

#[derive(FromRow)]
struct ChunkCounts {
    n: i64,
    state: i64,
    done: Vec<u8>,
    ok: Vec<u8>,
    rest_outcome: Option<i64>,
}

impl ChunkCounts {
    fn add_to(self, facts: &mut Facts) -> Answer<()> {
        let n: usize = count("chunk length", self.n)?;
        let done = Bitmap::from_bytes(&self.done, n)?.count();
        let ok = Bitmap::from_bytes(&self.ok, n)?.count();
        let failed = done.checked_sub(ok).ok_or_else(|| corrupt("more recipients delivered than done"))?;
        facts.frozen += n as u64;
        facts.delivered += ok as u64;
        facts.failed += failed as u64;
        if self.state == CLOSED && done < n {
            let rest = self.rest_outcome.ok_or_else(|| corrupt("the rest of a closed chunk has no outcome"))?;
            facts.rest.push((code(rest, Outcome::from_code)?, (n - done) as u64));
        }
        Ok(())
    }
}
