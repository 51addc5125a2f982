//! Owns what is read of fan-outs: jobs, views with their tally, lists, the backlog, the sweep.
//! Must never know: who asks.

use sqlx::{FromRow, PgConnection};

use super::fault::{Fault, corrupt, count};
use super::rows::{JobRow, job_columns};
use super::settle;
use crate::domain::batch::{Class, FanoutJob, FanoutKind, FanoutState};
use crate::domain::derived::PauseReason;
use crate::domain::ids::{EventId, FanoutId, MatchId};
use crate::domain::outcome::Outcome;
use crate::domain::tally::{PartCounters, Tally};
use crate::store::damaged::warn_of_fanouts;
use crate::store::facts::{Facts, Snapshot, judgement_of};
use crate::store::{FanoutQuery, FanoutView, Kin, Settled, StoreError, Swept, Waiting};

pub(super) const JOB: &str =
    concat!("SELECT ", job_columns!(), " FROM fanout f JOIN event e ON e.event_id = f.event_id WHERE f.id = $1");

macro_rules! view {
    ($tail:literal) => {
        concat!(
            "SELECT id, event_id, event_type, match_id, kind, parent, state, class, occurred_ms, accepted_ms, ",
            "deadline_ms, settled_ms, settled, interrupted, superseded_by, never_saw, paused, max_attempts FROM fanout ",
            $tail
        )
    };
}

pub(super) const VIEW: &str = view!("WHERE id = $1");

/// For settling. Locked first, tested after: two instances that close the last two chunks at once would otherwise each
/// see the other's chunk open, and nobody would settle.
pub(super) const LOCKED: &str = view!("WHERE id = $1 FOR UPDATE");

pub(super) const LIST: &str = view!(
    "WHERE ($1::smallint IS NULL OR CASE WHEN paused <> 0 AND state IN (0, 1, 4) THEN 5 ELSE state END = $1) AND ($2::bigint IS NULL OR id < $2)
       AND ($4::bigint IS NULL OR accepted_ms >= $4) AND ($5::bigint IS NULL OR accepted_ms < $5)
     ORDER BY id DESC LIMIT $3"
);

/// All facts of one fan-out in one statement, so from one snapshot: read one after the other they could disagree.
pub(super) const FACTS: &str = "
WITH k AS (
    SELECT chunk_no, n, state, done, ok, rest_outcome FROM chunk WHERE fanout_id = $1)
SELECT 'recipients' AS fact, NULL::smallint AS outcome, recipients AS n FROM fanout WHERE id = $1
UNION ALL SELECT 'frozen', NULL, coalesce(sum(n), 0) FROM k
UNION ALL SELECT 'delivered', NULL, coalesce(sum(bit_count(ok)), 0)::bigint FROM k
UNION ALL SELECT 'failed', NULL, coalesce(sum(bit_count(done & ~ok)), 0)::bigint FROM k
UNION ALL SELECT 'rest', rest_outcome, sum(n - bit_count(done))::bigint FROM k
          WHERE state = 2 AND bit_count(done) < n GROUP BY rest_outcome
UNION ALL SELECT 'failure', x.outcome, count(*) FROM failure x JOIN k ON k.chunk_no = x.chunk_no
          WHERE x.fanout_id = $1 AND get_bit(k.done, x.ordinal) = 1 AND get_bit(k.ok, x.ordinal) = 0
          GROUP BY x.outcome";

pub(super) const PARTS: &str = "SELECT counters FROM fanout_part WHERE fanout_id = $1 ORDER BY boot_id";

pub(super) const BACKLOG: &str = "
SELECT class, count(*) FROM fanout
WHERE settled_ms IS NULL AND (paused = 0 OR deadline_ms <= fanfare_now_ms()) GROUP BY class";
/// What nobody may claim goes before nothing: a paused fan-out waits until it is resumed or over.
pub(super) const OPEN_SINCE: &str =
    "SELECT fanfare_now_ms(), (SELECT min(accepted_ms) FROM fanout WHERE settled_ms IS NULL)";

pub(super) const OPEN_CHUNKS: &str = "
SELECT class, count(*) FROM chunk
WHERE state = 0 AND fanout_id NOT IN (
    SELECT id FROM fanout WHERE settled_ms IS NULL AND paused <> 0 AND deadline_ms > fanfare_now_ms())
GROUP BY class";

/// Both sweeps take the oldest 100: a caller sweeps again. Of a cancelled fan-out only what is in hand is waited for.
pub(super) const COMPLETE: &str = "
SELECT f.id FROM fanout f
WHERE f.settled_ms IS NULL AND f.state <> 0
  AND NOT EXISTS (SELECT 1 FROM chunk k
                  WHERE k.fanout_id = f.id AND k.state <> 2 AND (f.state <> 3 OR k.state = 1))
ORDER BY f.id LIMIT 100";

pub(super) const UNREPORTED: &str = view!(
    "WHERE settled_ms IS NOT NULL AND reported_ms IS NULL AND settled_ms <= fanfare_now_ms() - $1
     ORDER BY id LIMIT 100"
);

pub(super) const MARK_REPORTED: &str =
    "UPDATE fanout SET reported_ms = fanfare_now_ms() WHERE id = $1 AND settled_ms IS NOT NULL AND reported_ms IS NULL";

/// A fan-out as its row has it; the tally comes from the snapshot or from the facts.
#[derive(Debug, FromRow)]
pub(super) struct ViewRow {
    pub(super) id: i64,
    event_id: String,
    event_type: String,
    match_id: String,
    pub(super) kind: i16,
    parent: Option<i64>,
    pub(super) state: i16,
    class: i16,
    occurred_ms: i64,
    accepted_ms: i64,
    deadline_ms: i64,
    pub(super) settled_ms: Option<i64>,
    settled: Option<String>,
    interrupted: i32,
    superseded_by: Option<i64>,
    never_saw: Option<i64>,
    paused: i16,
    max_attempts: Option<i64>,
}

impl ViewRow {
    pub(super) fn state(&self) -> Result<FanoutState, Fault> {
        Ok(FanoutState::from_code(self.state)?)
    }

    /// The snapshot of a settled fan-out; `None` while it is not settled.
    fn snapshot(&self) -> Result<Option<(Tally, PartCounters, u32)>, Fault> {
        match (self.settled_ms, &self.settled) {
            (None, None) => Ok(None),
            (Some(_), Some(json)) => {
                let snapshot: Snapshot = serde_json::from_str(json)
                    .map_err(|_| corrupt(format!("the snapshot of fan-out {} does not parse", self.id)))?;
                Ok(Some((snapshot.tally, snapshot.counters, snapshot.instances)))
            }
            _ => Err(corrupt(format!("fan-out {} is settled by half", self.id))),
        }
    }

    pub(super) fn view(self, tally: Tally, counters: PartCounters, instances: u32) -> Result<FanoutView, Fault> {
        let kin = self.kin()?;
        Ok(FanoutView {
            id: FanoutId(self.id),
            event_id: EventId::parse(&self.event_id)?,
            match_id: MatchId::parse(&self.match_id)?,
            kind: FanoutKind::from_code(self.kind)?,
            parent: self.parent.map(FanoutId),
            state: kin.shown(FanoutState::from_code(self.state)?),
            class: Class::from_code(self.class)?,
            occurred_ms: self.occurred_ms,
            accepted_ms: self.accepted_ms,
            deadline_ms: self.deadline_ms,
            settled_ms: self.settled_ms,
            interrupted: count("interrupted", i64::from(self.interrupted))?,
            event_type: self.event_type,
            tally,
            counters,
            instances,
            kin,
        })
    }

    fn kin(&self) -> Result<Kin, Fault> {
        Ok(Kin {
            superseded_by: self.superseded_by.map(FanoutId),
            never_saw: self.never_saw.map(|n| count("who never saw it", n)).transpose()?,
            paused: (self.paused != 0).then(|| PauseReason::from_code(self.paused)).transpose()?,
            max_attempts: self.max_attempts.map(|n| count("most attempts", n)).transpose()?,
        })
    }
}

pub(super) async fn job(conn: &mut PgConnection, id: FanoutId) -> Result<Option<FanoutJob>, Fault> {
    let row: Option<JobRow> = sqlx::query_as(JOB).bind(id.0).fetch_optional(&mut *conn).await?;
    row.map(JobRow::parse).transpose()
}

pub(super) async fn fanout(conn: &mut PgConnection, id: FanoutId) -> Result<Option<FanoutView>, Fault> {
    let row: Option<ViewRow> = sqlx::query_as(VIEW).bind(id.0).fetch_optional(&mut *conn).await?;
    match row {
        Some(row) => Ok(Some(complete(conn, row).await?)),
        None => Ok(None),
    }
}

pub(super) async fn fanouts(conn: &mut PgConnection, query: FanoutQuery) -> Result<Vec<FanoutView>, Fault> {
    let rows: Vec<ViewRow> = sqlx::query_as(LIST)
        .bind(query.state.map(FanoutState::code))
        .bind(query.before.map(|id| id.0))
        .bind(i64::from(query.limit))
        .bind(query.accepted.map(|(from, _)| from))
        .bind(query.accepted.map(|(_, to)| to))
        .fetch_all(&mut *conn)
        .await?;
    all_complete(conn, rows).await
}

async fn all_complete(conn: &mut PgConnection, rows: Vec<ViewRow>) -> Result<Vec<FanoutView>, Fault> {
    let mut views = Vec::with_capacity(rows.len());
    for row in rows {
        views.push(complete(conn, row).await?);
    }
    Ok(views)
}

async fn complete(conn: &mut PgConnection, row: ViewRow) -> Result<FanoutView, Fault> {
    if let Some((tally, counters, instances)) = row.snapshot()? {
        return row.view(tally, counters, instances);
    }
    let tally = facts(conn, FanoutId(row.id)).await?.tally()?;
    let (counters, instances) = parts(conn, FanoutId(row.id)).await?;
    row.view(tally, counters, instances)
}

#[derive(Debug, FromRow)]
struct FactRow {
    fact: String,
    outcome: Option<i16>,
    n: i64,
}

pub(super) async fn facts(conn: &mut PgConnection, id: FanoutId) -> Result<Facts, Fault> {
    let rows: Vec<FactRow> = sqlx::query_as(FACTS).bind(id.0).fetch_all(conn).await?;
    let mut facts = Facts::default();
    for row in rows {
        let n: u64 = count(&row.fact, row.n)?;
        match (row.fact.as_str(), row.outcome) {
            ("recipients", _) => facts.recipients = n,
            ("frozen", _) => facts.frozen = n,
            ("delivered", _) => facts.delivered = n,
            ("failed", _) => facts.failed = n,
            ("rest", Some(code)) => facts.rest.push((Outcome::from_code(code)?, n)),
            ("failure", Some(code)) => facts.failures.push((Outcome::from_code(code)?, n)),
            _ => return Err(corrupt(format!("fan-out {id} has closed chunks whose rest has no outcome"))),
        }
    }
    Ok(facts)
}

/// Counters of all instances, merged, and the number of instances.
pub(super) async fn parts(conn: &mut PgConnection, id: FanoutId) -> Result<(PartCounters, u32), Fault> {
    let texts: Vec<String> = sqlx::query_scalar(PARTS).bind(id.0).fetch_all(conn).await?;
    let mut merged = PartCounters::default();
    for text in &texts {
        let part: PartCounters =
            serde_json::from_str(text).map_err(|_| corrupt(format!("counters of fan-out {id} do not parse")))?;
        merged.merge(&part);
    }
    Ok((merged, count("instances", texts.len() as i64)?))
}

pub(super) async fn backlog(conn: &mut PgConnection) -> Result<Waiting, Fault> {
    let fanouts: Vec<(i16, i64)> = sqlx::query_as(BACKLOG).fetch_all(&mut *conn).await?;
    let chunks: Vec<(i16, i64)> = sqlx::query_as(OPEN_CHUNKS).fetch_all(&mut *conn).await?;
    let open = |(class, n): (i16, i64)| Ok::<_, Fault>((Class::from_code(class)?, count("backlog", n)?));
    Ok(Waiting {
        open_fanouts: fanouts.into_iter().map(open).collect::<Result<_, Fault>>()?,
        open_chunks: chunks.into_iter().map(open).collect::<Result<_, Fault>>()?,
    })
}

pub(super) async fn open_since(conn: &mut PgConnection) -> Result<(i64, Option<i64>), Fault> {
    Ok(sqlx::query_as(OPEN_SINCE).fetch_one(conn).await?)
}

pub(super) async fn sweep(conn: &mut PgConnection, older_than_ms: i64) -> Result<Swept, Fault> {
    let complete: Vec<i64> = sqlx::query_scalar(COMPLETE).fetch_all(&mut *conn).await?;
    let unreported: Vec<ViewRow> = sqlx::query_as(UNREPORTED).bind(older_than_ms).fetch_all(&mut *conn).await?;
    let complete = complete.into_iter().map(FanoutId).collect();
    let unreported = readable(conn, unreported).await?;
    Ok(Swept { complete, unreported, leaps: settle::leaps(conn).await? })
}

/// One that does not parse must not keep all others from being settled and reported.
async fn readable(conn: &mut PgConnection, rows: Vec<ViewRow>) -> Result<Vec<Settled>, Fault> {
    let (mut settled, mut damaged) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let id = FanoutId(row.id);
        match reported(conn, row).await {
            Ok(one) => settled.push(one),
            Err(Fault::Ours(error @ StoreError::Corrupt(_))) => damaged.push((id, error)),
            Err(fault) => return Err(fault),
        }
    }
    warn_of_fanouts("sweep", &damaged);
    Ok(settled)
}

/// A settled fan-out with all that its settling said.
async fn reported(conn: &mut PgConnection, row: ViewRow) -> Result<Settled, Fault> {
    let (judged, withheld) = judgement_of(row.settled.as_deref())?;
    Ok(Settled { view: complete(conn, row).await?, judged, withheld })
}

pub(super) async fn mark_reported(conn: &mut PgConnection, id: FanoutId) -> Result<(), Fault> {
    sqlx::query(MARK_REPORTED).bind(id.0).execute(&mut *conn).await?;
    Ok(())
}
