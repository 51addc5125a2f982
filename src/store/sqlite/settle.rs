//! Owns the end of a fan-out: its tally for good, the verdicts against devices, and which lines are still to be written.
//! Must never know: what the line looks like.

use sqlx::{SqliteConnection, query, query_as, query_scalar};

use super::cancel;
use super::fault::{Answer, Fault, corrupt};
use super::rows::{code, count, now_ms, to_json};
use super::sql;
use super::view::{Counts, FanoutRow, count_facts, fanout};
use crate::domain::batch::{Class, FanoutKind, FanoutState};
use crate::domain::ids::FanoutId;
use crate::domain::recipient::Platform;
use crate::store::damaged::warn_of_fanouts;
use crate::store::facts::{Snapshot, judgement_of};
use crate::store::verdicts::{self, ByPlatform, Lesson, Record, Rulings};
use crate::store::{Leap, SettleReply, Settled, StoreError, Swept, Waiting};

/// Most fan-outs of each kind one sweep answers.
const SWEEP_LIMIT: i64 = 100;

/// Whether a fan-out has anything left to do. Settling is asked for once for every chunk that closes, of which all but
/// the last find others open: that is answered by a reader, without a commit. It is safe because whoever asks has
/// committed its own closing before, and a snapshot taken now sees all that is committed: of two that close the last
/// two chunks at once, the one that committed later sees both closed and goes on to the writer. A closed chunk never
/// opens again.
pub(super) async fn busy(conn: &mut SqliteConnection, id: FanoutId) -> Answer<bool> {
    Ok(query_scalar(sql::BUSY).bind(id.0).fetch_one(conn).await?)
}

/// Settles a fan-out if it is frozen and every chunk is closed. The writer runs one job at a time, so one caller gets it.
pub(super) async fn settle(conn: &mut SqliteConnection, id: FanoutId) -> Answer<SettleReply> {
    let Some(row) = FanoutRow::read(conn, id).await? else { return Ok(SettleReply::NotOurs) };
    if row.settled_ms.is_some() {
        return Ok(SettleReply::NotOurs);
    }
    // What was handed back, or taken from a dead owner, since the cancel.
    if row.state == i64::from(FanoutState::Cancelled.code()) {
        cancel::close(conn, id).await?;
    }
    let chunks_left: bool = query_scalar(sql::OPEN_CHUNK_LEFT).bind(id.0).fetch_one(&mut *conn).await?;
    if row.state == i64::from(FanoutState::Freezing.code()) || chunks_left {
        return Ok(SettleReply::Open);
    }
    let counts = count_facts(conn, &row).await?;
    if counts.tally.pending() > 0 {
        return Err(corrupt(format!(
            "fan-out {id}: {} recipients of closed chunks are pending",
            counts.tally.pending()
        )));
    }
    let known = known(conn).await?;
    let rulings = rule(conn, (id, row.kind), &counts, &known).await?;
    let (now, withheld) = (now_ms(), rulings.withheld());
    let judged = judge(conn, id, &rulings, now).await?;
    learn(conn, &rulings.lessons(id, &known)).await?;
    let snapshot = Snapshot {
        tally: counts.tally,
        counters: counts.counters,
        instances: counts.instances,
        judged,
        judgement_withheld: !withheld.is_empty(),
        withheld: withheld.clone(),
    };
    query(sql::SETTLE).bind(id.0).bind(now).bind(to_json(&snapshot)?).execute(&mut *conn).await?;
    let view = fanout(conn, id).await?.ok_or_else(|| corrupt(format!("fan-out {id} is gone")))?;
    Ok(SettleReply::Settled(Box::new(Settled { view, judged, withheld })))
}

/// Tombstones and suspends the devices FCM gave proof against, if they are still as they were at the send; how many.
async fn judge(conn: &mut SqliteConnection, id: FanoutId, rulings: &Rulings, now: i64) -> Answer<u64> {
    let platforms: Vec<i16> = rulings.judged().map(Platform::code).collect();
    if platforms.is_empty() {
        return Ok(0);
    }
    let judging = query(sql::JUDGE_DEVICES).bind(id.0).bind(now).bind(to_json(&platforms)?);
    let judged = judging.execute(&mut *conn).await?.rows_affected();
    if judged > 0 {
        query(sql::SILENCE_JUDGED).bind(id.0).execute(conn).await?;
    }
    Ok(judged)
}

/// Which verdicts are carried out, by what was seen of late.
async fn rule(
    conn: &mut SqliteConnection,
    (id, kind): (FanoutId, i64),
    counts: &Counts,
    known: &ByPlatform<Record>,
) -> Answer<Rulings> {
    let rows: Vec<(String, i64)> = query_as(sql::AGAINST).bind(id.0).fetch_all(&mut *conn).await?;
    let mut against = Vec::with_capacity(rows.len());
    for (variant, n) in rows {
        against.push((variant, count("verdicts", n)?));
    }
    let answers = verdicts::answers(&counts.tally, &counts.counters, &against)?;
    if kind != i64::from(FanoutKind::Sweep.code()) {
        return Ok(Rulings::new(answers, known));
    }
    let accepted: Option<i64> = query_scalar(sql::ACCEPTED_SHARE).bind(id.0).fetch_one(conn).await?;
    Ok(Rulings::of_sweep(answers, known, accepted.map(|n| count("share", n)).transpose()?))
}

async fn known(conn: &mut SqliteConnection) -> Answer<ByPlatform<Record>> {
    let rows: Vec<(i64, i64, i64, i64)> = query_as(sql::KNOWN).fetch_all(conn).await?;
    let mut known = ByPlatform::<Record>::default();
    for (platform, answered, against, excess) in rows {
        let (answered, against) = (count("answered", answered)?, count("against", against)?);
        known[verdicts::index(code(platform, Platform::from_code)?)] = Record { answered, against, excess };
    }
    Ok(known)
}

async fn learn(conn: &mut SqliteConnection, lessons: &[Lesson]) -> Answer<()> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for lesson in lessons {
        query(sql::LEARN)
            .bind(lesson.platform.code())
            .bind(number(lesson.record.answered))
            .bind(number(lesson.record.against))
            .bind(lesson.record.excess)
            .bind(lesson.stored_leap()?)
            .bind(lesson.well)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

async fn leaps(conn: &mut SqliteConnection) -> Answer<Vec<Leap>> {
    let stored: Vec<String> = query_scalar(sql::LEAPS).fetch_all(conn).await?;
    Ok(Leap::read_all(&stored))
}

/// Notes that the line of a settled fan-out was written.
pub(super) async fn mark_reported(conn: &mut SqliteConnection, id: FanoutId) -> Answer<()> {
    query(sql::MARK_REPORTED).bind(id.0).bind(now_ms()).execute(conn).await?;
    Ok(())
}

/// What was left undone: complete but not settled, settled but not reported for `older_than_ms`.
pub(super) async fn sweep(conn: &mut SqliteConnection, older_than_ms: i64) -> Answer<Swept> {
    let complete: Vec<i64> = query_scalar(sql::COMPLETE).bind(SWEEP_LIMIT).fetch_all(&mut *conn).await?;
    let unreported: Vec<i64> = query_scalar(sql::UNREPORTED)
        .bind(now_ms().saturating_sub(older_than_ms))
        .bind(SWEEP_LIMIT)
        .fetch_all(&mut *conn)
        .await?;
    let complete = complete.into_iter().map(FanoutId).collect();
    let unreported = readable(conn, unreported).await?;
    Ok(Swept { complete, unreported, leaps: leaps(conn).await? })
}

/// One that does not parse must not keep all others from being settled and reported.
async fn readable(conn: &mut SqliteConnection, ids: Vec<i64>) -> Answer<Vec<Settled>> {
    let (mut settled, mut damaged) = (Vec::with_capacity(ids.len()), Vec::new());
    for id in ids.into_iter().map(FanoutId) {
        match reported(conn, id).await {
            Ok(one) => settled.extend(one),
            Err(Fault(error @ StoreError::Corrupt(_))) => damaged.push((id, error)),
            Err(fault) => return Err(fault),
        }
    }
    warn_of_fanouts("sweep", &damaged);
    Ok(settled)
}

/// A settled fan-out with all that its settling said.
async fn reported(conn: &mut SqliteConnection, id: FanoutId) -> Answer<Option<Settled>> {
    let Some(row) = FanoutRow::read(conn, id).await? else { return Ok(None) };
    let (judged, withheld) = judgement_of(row.settled.as_deref())?;
    Ok(fanout(conn, id).await?.map(|view| Settled { view, judged, withheld }))
}

/// What is accepted and not done yet.
pub(super) async fn backlog(conn: &mut SqliteConnection) -> Answer<Waiting> {
    let now = now_ms();
    let fanouts: Vec<(i64, i64)> = query_as(sql::BACKLOG).bind(now).fetch_all(&mut *conn).await?;
    let chunks: Vec<(i64, i64)> = query_as(sql::OPEN_CHUNKS_BY_CLASS).bind(now).fetch_all(conn).await?;
    let open = |(class, n): (i64, i64)| Ok::<_, Fault>((code(class, Class::from_code)?, count("backlog", n)?));
    let open_fanouts = fanouts.into_iter().map(open).collect::<Answer<_>>()?;
    Ok(Waiting { open_fanouts, open_chunks: chunks.into_iter().map(open).collect::<Answer<_>>()? })
}
