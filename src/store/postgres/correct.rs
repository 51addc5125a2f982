//! Owns the posts that one statement cannot decide: repeats, the same news again, corrections, and events whose correction
//! came first. One transaction each, one at a time of a match: they are rare.
//! Must never know: what is to be done (`store::accepting` decides it).

use sqlx::{Connection, PgConnection, Postgres, Transaction};

use super::cancel;
use super::fault::Fault;
use crate::domain::batch::{FanoutJob, FanoutState};
use crate::domain::derived::{Origin, hold_ms};
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::accepting::{Facts, Known, KnownRow, Plan, Tip, Write, decide};
use crate::store::{Accepted, FreezeJob, NewFanout, StoreError};

/// What is read under it changes only by a plain post, whose one row the unique key of `event` decides about.
/// Families never leave their match.
pub(super) const ALONE: &str = "SELECT pg_advisory_xact_lock(hashtextextended('fanfare corrections ' || $1, 0))";

/// Whoever holds that lock waits no longer for a row, of a fan-out that is being settled say; the caller asks again.
pub(super) const BRIEFLY: &str = "SELECT set_config('lock_timeout', '1500ms', true)";

pub(super) const KNOWN: &str = "
SELECT e.content_hash, e.fanout_id, f.event_id, f.match_id, coalesce(f.family, f.id) AS family
FROM event e LEFT JOIN fanout f ON f.id = e.fanout_id WHERE e.event_id = $1";

/// Locked, so that its freeze does not begin between this and what follows from it.
pub(super) const TIP: &str = "
SELECT id, coalesce(root_event, event_id), collapse_key, state = 0 AND freeze_chunks = 0 FROM fanout
WHERE (id = $1 OR family = $1) AND kind <> 2 AND superseded_by IS NULL ORDER BY id DESC LIMIT 1 FOR UPDATE";

pub(super) const SAME_NEWS: &str = "
SELECT f.id, f.event_id FROM repeat_window w JOIN fanout f ON f.id = w.fanout_id
WHERE w.meaning = $1 AND f.state <> 3 AND f.superseded_by IS NULL AND f.deadline_ms > fanfare_now_ms()";

pub(super) const CORRECTED_NEWS: &str = "
SELECT coalesce(f.family, f.id) FROM repeat_window w JOIN fanout f ON f.id = w.fanout_id
WHERE w.meaning = $1 AND f.superseded_by IS NOT NULL AND w.until_ms > fanfare_now_ms()";

pub(super) const NEXT: &str = "SELECT nextval('fanout_id_seq'), fanfare_now_ms()";

pub(super) const OPEN_WINDOW: &str = "
INSERT INTO repeat_window (meaning, fanout_id, until_ms) VALUES ($1, $2, $3)
ON CONFLICT (meaning) DO UPDATE SET fanout_id = EXCLUDED.fanout_id, until_ms = EXCLUDED.until_ms";

pub(super) const ADD_EVENT: &str = "
INSERT INTO event (event_id, content_hash, fanout_id, body, accepted_ms) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (event_id) DO NOTHING";

pub(super) const TAKE_PLACE: &str = "
UPDATE event SET content_hash = $2, fanout_id = $3, body = $4, accepted_ms = $5
WHERE event_id = $1 AND content_hash = ''";

/// Every fan-out of a family, its replays too. The freeze of one that is cut short has no owner, as with a cancel.
pub(super) const STOP: &str = "
UPDATE fanout SET superseded_by = $2, state = CASE WHEN settled_ms IS NULL THEN 3 ELSE state END,
       freeze_owner = CASE WHEN settled_ms IS NULL AND state = 0 THEN NULL ELSE freeze_owner END
WHERE (id = $1 OR family = $1) AND superseded_by IS NULL
RETURNING id, settled_ms IS NULL";

/// What of it is held yet goes by another name from now on, and reaches more people: the epoch takes its freeze from
/// whoever has read it before, to be read anew.
pub(super) const JOIN: &str = "
UPDATE fanout SET family = $2, root_event = $3, collapse_key = $4, freeze_epoch = freeze_epoch + 1
WHERE id = $1 OR family = $1";

pub(super) const ADD_FANOUT: &str = "
INSERT INTO fanout (id, event_id, event_type, match_id, kind, parent, class, state, occurred_ms, accepted_ms,
                    deadline_ms, freeze_owner, source, family, root_event, hold_until_ms, superseded_by,
                    collapse_key)
OVERRIDING SYSTEM VALUE
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";

/// Tries, when a plain post of an id came in between.
const TRIES: u32 = 5;

pub(super) async fn accept(conn: &mut PgConnection, boot: BootId, new: &NewFanout) -> Result<Accepted, Fault> {
    for _ in 0..TRIES {
        let mut tx = conn.begin().await?;
        alone(&mut tx, new.event.match_id.as_str()).await?;
        let done = match decide(new, &facts(&mut tx, new).await?) {
            Plan::Answer(accepted) => Some(*accepted),
            Plan::Join(fanout, of) => join(&mut tx, new, fanout, of).await?,
            Plan::Write(write) => self::write(&mut tx, boot, new, write).await?,
        };
        if let Some(accepted) = done {
            tx.commit().await?;
            return Ok(accepted);
        }
    }
    Err(StoreError::Unavailable("accept: the same ids are posted again and again".to_owned()).into())
}

/// Waits until nobody else decides about the same match.
pub(super) async fn alone(tx: &mut Transaction<'_, Postgres>, of_match: &str) -> Result<(), Fault> {
    sqlx::query(ALONE).bind(of_match).execute(&mut **tx).await?;
    sqlx::query(BRIEFLY).execute(&mut **tx).await?;
    Ok(())
}

async fn facts(tx: &mut Transaction<'_, Postgres>, new: &NewFanout) -> Result<Facts, Fault> {
    let own = known(tx, &new.event.id).await?;
    let target = match &new.event.supersedes {
        Some(correction) => known(tx, &correction.event_id).await?,
        None => None,
    };
    let news: Option<(i64, String)> =
        sqlx::query_as(SAME_NEWS).bind(&new.news_hash()[..]).fetch_optional(&mut **tx).await?;
    let same_news = news.map(|(id, event)| Ok::<_, Fault>((FanoutId(id), EventId::parse(&event)?))).transpose()?;
    let family = |of: &Option<Known>| of.as_ref().and_then(Known::family);
    let (own_tip, target_tip) = (tip(tx, family(&own)).await?, tip(tx, family(&target)).await?);
    let corrected: Option<i64> =
        sqlx::query_scalar(CORRECTED_NEWS).bind(&new.news_hash()[..]).fetch_optional(&mut **tx).await?;
    let corrected = corrected.map(FanoutId);
    let corrected_news = corrected.zip(tip(tx, corrected).await?);
    Ok(Facts { own, target, own_tip, target_tip, same_news, corrected_news })
}

async fn known(tx: &mut Transaction<'_, Postgres>, id: &EventId) -> Result<Option<Known>, Fault> {
    let row: Option<KnownRow> = sqlx::query_as(KNOWN).bind(id.as_str()).fetch_optional(&mut **tx).await?;
    Ok(row.map(KnownRow::parse).transpose()?)
}

async fn tip(tx: &mut Transaction<'_, Postgres>, family: Option<FanoutId>) -> Result<Option<Tip>, Fault> {
    let Some(family) = family else { return Ok(None) };
    let row: Option<(i64, String, Option<String>, bool)> =
        sqlx::query_as(TIP).bind(family.0).fetch_optional(&mut **tx).await?;
    Ok(row.map(Tip::parse).transpose()?)
}

/// `None`: somebody else posted the id meanwhile.
async fn join(
    tx: &mut Transaction<'_, Postgres>,
    new: &NewFanout,
    fanout: FanoutId,
    of: EventId,
) -> Result<Option<Accepted>, Fault> {
    let (_, now_ms): (i64, i64) = sqlx::query_as(NEXT).fetch_one(&mut **tx).await?;
    let added = add_event(tx, (&new.event.id, &new.content_hash), fanout, ("", now_ms)).await?;
    Ok(added.then_some(Accepted::Duplicate { fanout, of }))
}

async fn add_event(
    tx: &mut Transaction<'_, Postgres>,
    (id, hash): (&EventId, &[u8]),
    fanout: FanoutId,
    (body, now_ms): (&str, i64),
) -> Result<bool, Fault> {
    let query = sqlx::query(ADD_EVENT).bind(id.as_str()).bind(hash).bind(fanout.0).bind(body).bind(now_ms);
    Ok(query.execute(&mut **tx).await?.rows_affected() == 1)
}

async fn write(
    tx: &mut Transaction<'_, Postgres>,
    boot: BootId,
    new: &NewFanout,
    write: Write,
) -> Result<Option<Accepted>, Fault> {
    let (id, accepted_ms): (i64, i64) = sqlx::query_as(NEXT).fetch_one(&mut **tx).await?;
    let id = FanoutId(id);
    if write.opens_window {
        let window = sqlx::query(OPEN_WINDOW).bind(&new.news_hash()[..]).bind(id.0).bind(new.deadline_ms);
        window.execute(&mut **tx).await?;
    }
    if !keep_event(tx, new, &write, (id, accepted_ms)).await? {
        return Ok(None);
    }
    let stopped = stop(tx, &write, id).await?;
    if let (Some(joins), Some(family)) = (write.joins, write.family) {
        let root = write.root.as_ref().map(EventId::as_str);
        sqlx::query(JOIN).bind(joins.0).bind(family.0).bind(root).bind(&write.key).execute(&mut **tx).await?;
    }
    let hold_ms = if write.held { hold_ms(accepted_ms, new.deadline_ms) } else { 0 };
    add_fanout(tx, boot, new, &write, (id, accepted_ms, accepted_ms + hold_ms)).await?;
    let (by, held) = (write.superseded_by, write.held);
    let freeze = freeze(new, write, (id, accepted_ms, hold_ms));
    Ok(Some(match by {
        Some(by) => Accepted::Superseded { fanout: id, by, stopped },
        None if held => Accepted::Correction { freeze, stopped },
        None => Accepted::New(freeze),
    }))
}

/// Keeps the event under its id, and the id of one that has not come. `false`: an id was posted meanwhile.
async fn keep_event(
    tx: &mut Transaction<'_, Postgres>,
    new: &NewFanout,
    write: &Write,
    (id, now_ms): (FanoutId, i64),
) -> Result<bool, Fault> {
    let body = serde_json::to_string(&new.event)
        .map_err(|_| StoreError::Statement("accept: the event does not serialise".to_owned()))?;
    let own = if write.takes_its_place {
        let query = sqlx::query(TAKE_PLACE).bind(new.event.id.as_str()).bind(&new.content_hash[..]).bind(id.0);
        query.bind(body).bind(now_ms).execute(&mut **tx).await?.rows_affected() == 1
    } else {
        add_event(tx, (&new.event.id, &new.content_hash), id, (&body, now_ms)).await?
    };
    match &write.names {
        Some(named) if own => add_event(tx, (named, &[]), id, ("", now_ms)).await,
        _ => Ok(own),
    }
}

/// Stops a family. Those that were under way; what nobody has in hand of them has ended.
async fn stop(tx: &mut Transaction<'_, Postgres>, write: &Write, by: FanoutId) -> Result<Vec<FanoutId>, Fault> {
    let Some(family) = write.stops else { return Ok(Vec::new()) };
    let rows: Vec<(i64, bool)> = sqlx::query_as(STOP).bind(family.0).bind(by.0).fetch_all(&mut **tx).await?;
    let stopped: Vec<FanoutId> = rows.into_iter().filter(|(_, open)| *open).map(|(id, _)| FanoutId(id)).collect();
    for id in &stopped {
        cancel::close(tx, *id).await?;
    }
    Ok(stopped)
}

async fn add_fanout(
    tx: &mut Transaction<'_, Postgres>,
    boot: BootId,
    new: &NewFanout,
    write: &Write,
    (id, accepted_ms, hold_until_ms): (FanoutId, i64, i64),
) -> Result<(), Fault> {
    let event = &new.event;
    let state = if write.superseded_by.is_some() { FanoutState::Cancelled } else { FanoutState::Freezing };
    sqlx::query(ADD_FANOUT)
        .bind(id.0)
        .bind(event.id.as_str())
        .bind(&event.kind)
        .bind(event.match_id.as_str())
        .bind(write.kind.code())
        .bind(write.parent.map(|id| id.0))
        .bind(new.class.code())
        .bind(state.code())
        .bind(event.occurred_ms)
        .bind(accepted_ms)
        .bind(new.deadline_ms)
        .bind(write.superseded_by.is_none().then_some(boot.0))
        .bind(write.source.code())
        .bind(write.family.map(|id| id.0))
        .bind(write.root.as_ref().map(EventId::as_str))
        .bind(hold_until_ms)
        .bind(write.superseded_by.map(|id| id.0))
        .bind(&write.key)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn freeze(new: &NewFanout, write: Write, (id, accepted_ms, hold_ms): (FanoutId, i64, i64)) -> FreezeJob {
    let origin = Origin { source: write.source, parent: write.parent, root: write.root, key: write.key, cap: None };
    let (event, class, deadline_ms) = (new.event.clone(), new.class, new.deadline_ms);
    let job = FanoutJob { id, event, class, accepted_ms, deadline_ms, origin };
    FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0, hold_ms }
}

#[cfg(test)]
mod tests {
    use crate::domain::batch::FanoutKind;

    #[test]
    fn the_code_of_a_replay_written_out_here_is_that_of_the_domain() {
        assert_eq!(FanoutKind::Replay.code(), 2);
    }
}
