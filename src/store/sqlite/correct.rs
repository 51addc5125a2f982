//! Owns accepting an event: a new one, a repeat, the same news again, a correction, one whose correction came first.
//! Must never know: what is to be done (`store::accepting` decides it).

use sqlx::{SqliteConnection, query, query_as, query_scalar};

use super::cancel;
use super::fault::{Answer, Fault};
use super::rows::{boot_bytes, now_ms, to_json};
use super::sql;
use crate::domain::batch::{FanoutJob, FanoutState};
use crate::domain::derived::{Origin, hold_ms};
use crate::domain::ids::{BootId, DeviceKey, EventId, FanoutId};
use crate::store::accepting::{Facts, Known, KnownRow, Plan, Tip, Write, decide};
use crate::store::{Accepted, FreezeJob, NewFanout};

/// Commits an event and its fan-out, or says which fan-out it is already.
pub(super) async fn accept(conn: &mut SqliteConnection, boot: BootId, new: NewFanout) -> Answer<Accepted> {
    match decide(&new, &facts(conn, &new).await?) {
        Plan::Answer(accepted) => Ok(*accepted),
        Plan::Join(fanout, of) => {
            add_event(conn, (&new.event.id, &new.content_hash), fanout, ("", now_ms())).await?;
            Ok(Accepted::Duplicate { fanout, of })
        }
        Plan::Write(write) => self::write(conn, boot, new, write).await,
    }
}

async fn facts(conn: &mut SqliteConnection, new: &NewFanout) -> Answer<Facts> {
    let own = known(conn, &new.event.id).await?;
    let target = match &new.event.supersedes {
        Some(correction) => known(conn, &correction.event_id).await?,
        None => None,
    };
    let news: Option<(i64, String)> =
        query_as(sql::SAME_NEWS).bind(new.news_hash().as_slice()).bind(now_ms()).fetch_optional(&mut *conn).await?;
    let same_news = news.map(|(id, event)| Ok::<_, Fault>((FanoutId(id), EventId::parse(&event)?))).transpose()?;
    let family = |of: &Option<Known>| of.as_ref().and_then(Known::family);
    let (own_tip, target_tip) = (tip(conn, family(&own)).await?, tip(conn, family(&target)).await?);
    let corrected: Option<i64> = query_scalar(sql::CORRECTED_NEWS)
        .bind(new.news_hash().as_slice())
        .bind(now_ms())
        .fetch_optional(&mut *conn)
        .await?;
    let corrected = corrected.map(FanoutId);
    let corrected_news = corrected.zip(tip(conn, corrected).await?);
    Ok(Facts { own, target, own_tip, target_tip, same_news, corrected_news })
}

async fn known(conn: &mut SqliteConnection, id: &EventId) -> Answer<Option<Known>> {
    let row: Option<KnownRow> = query_as(sql::EVENT_KNOWN).bind(id.as_str()).fetch_optional(conn).await?;
    Ok(row.map(KnownRow::parse).transpose()?)
}

async fn tip(conn: &mut SqliteConnection, family: Option<FanoutId>) -> Answer<Option<Tip>> {
    let Some(family) = family else { return Ok(None) };
    let row: Option<(i64, String, Option<String>, bool)> =
        query_as(sql::TIP).bind(family.0).fetch_optional(conn).await?;
    Ok(row.map(Tip::parse).transpose()?)
}

async fn add_event(
    conn: &mut SqliteConnection,
    (id, hash): (&EventId, &[u8]),
    fanout: FanoutId,
    (body, now_ms): (&str, i64),
) -> Answer<()> {
    query(sql::ADD_EVENT).bind(id.as_str()).bind(hash).bind(fanout.0).bind(body).bind(now_ms).execute(conn).await?;
    Ok(())
}

async fn write(conn: &mut SqliteConnection, boot: BootId, new: NewFanout, write: Write) -> Answer<Accepted> {
    let accepted_ms = now_ms();
    let hold_ms = if write.held { hold_ms(accepted_ms, new.deadline_ms) } else { 0 };
    let id = add_fanout(conn, boot, &new, &write, (accepted_ms, accepted_ms + hold_ms)).await?;
    if write.opens_window {
        let window = query(sql::OPEN_WINDOW).bind(new.news_hash().to_vec()).bind(id.0).bind(new.deadline_ms);
        window.execute(&mut *conn).await?;
    }
    keep_event(conn, &new, &write, (id, accepted_ms)).await?;
    let stopped = stop(conn, &write, id).await?;
    if let (Some(joins), Some(family)) = (write.joins, write.family) {
        let root = write.root.as_ref().map(EventId::as_str);
        query(sql::JOIN_FAMILY).bind(joins.0).bind(family.0).bind(root).bind(&write.key).execute(&mut *conn).await?;
    }
    let (by, held) = (write.superseded_by, write.held);
    let freeze = freeze(new, write, (id, accepted_ms, hold_ms));
    Ok(match by {
        Some(by) => Accepted::Superseded { fanout: id, by, stopped },
        None if held => Accepted::Correction { freeze, stopped },
        None => Accepted::New(freeze),
    })
}

/// Keeps the event under its id, and the id of one that has not come.
async fn keep_event(
    conn: &mut SqliteConnection,
    new: &NewFanout,
    write: &Write,
    (id, now_ms): (FanoutId, i64),
) -> Answer<()> {
    let body = to_json(&new.event)?;
    if write.takes_its_place {
        query(sql::DROP_EVENT).bind(new.event.id.as_str()).execute(&mut *conn).await?;
    }
    add_event(conn, (&new.event.id, &new.content_hash), id, (&body, now_ms)).await?;
    if let Some(named) = &write.names {
        add_event(conn, (named, &[]), id, ("", now_ms)).await?;
    }
    Ok(())
}

/// Stops a family. Those that were under way; what nobody has in hand of them has ended.
async fn stop(conn: &mut SqliteConnection, write: &Write, by: FanoutId) -> Answer<Vec<FanoutId>> {
    let Some(family) = write.stops else { return Ok(Vec::new()) };
    let rows: Vec<(i64, bool)> = query_as(sql::STOP_FAMILY).bind(family.0).bind(by.0).fetch_all(&mut *conn).await?;
    let stopped: Vec<FanoutId> = rows.into_iter().filter(|(_, open)| *open).map(|(id, _)| FanoutId(id)).collect();
    for id in &stopped {
        cancel::close(conn, *id).await?;
    }
    Ok(stopped)
}

async fn add_fanout(
    conn: &mut SqliteConnection,
    boot: BootId,
    new: &NewFanout,
    write: &Write,
    (accepted_ms, hold_until_ms): (i64, i64),
) -> Answer<FanoutId> {
    let event = &new.event;
    let state = if write.superseded_by.is_some() { FanoutState::Cancelled } else { FanoutState::Freezing };
    let id: i64 = query_scalar(sql::ADD_FANOUT)
        .bind(event.id.as_str())
        .bind(&event.kind)
        .bind(event.match_id.as_str())
        .bind(new.class.code())
        .bind(event.occurred_ms)
        .bind(accepted_ms)
        .bind(new.deadline_ms)
        .bind(write.superseded_by.is_none().then(|| boot_bytes(boot)))
        .bind(write.kind.code())
        .bind(write.parent.map(|id| id.0))
        .bind(state.code())
        .bind(write.source.code())
        .bind(write.family.map(|id| id.0))
        .bind(write.root.as_ref().map(EventId::as_str))
        .bind(hold_until_ms)
        .bind(write.superseded_by.map(|id| id.0))
        .bind(&write.key)
        .fetch_one(conn)
        .await?;
    Ok(FanoutId(id))
}

fn freeze(new: NewFanout, write: Write, (id, accepted_ms, hold_ms): (FanoutId, i64, i64)) -> FreezeJob {
    let origin = Origin { source: write.source, parent: write.parent, root: write.root, key: write.key, cap: None };
    let (class, deadline_ms) = (new.class, new.deadline_ms);
    let job = FanoutJob { id, event: new.event, class, accepted_ms, deadline_ms, origin };
    FreezeJob { job, epoch: 1, cursor: DeviceKey(0), next_chunk: 0, hold_ms }
}
