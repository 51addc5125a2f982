//! Owns `GET /v1/stats`.
//! Must never know: how the totals are counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::problem::Refusal;
use super::query::{self, Given};
use super::{Api, shown};
use crate::domain::span;
use crate::inspect::stats::{Group, MOST_FANOUTS, Stats, complete_through, stats};
use crate::wire;

/// An hour, ms.
const USUAL_MS: i64 = 3_600_000;
/// 31 days, ms.
const LONGEST_MS: i64 = 31 * 86_400_000;

/// Totals of what was accepted in a window of time.
///
/// A window that ended before `complete_through` is `exact`: asked again, it is answered the same. Any other is a
/// `lower_bound`.
#[utoipa::path(get, path = "/v1/stats", operation_id = "getStats", tag = "operations",
    params(
        ("window" = Option<String>, Query, description = "Its length: a whole number and s, m, h or d, up to 31d; 1h when absent.", example = "15m"),
        ("to" = Option<String>, Query, description = "First time after it, RFC 3339; now when absent.", example = "2026-11-30T17:00:00Z"),
    ),
    responses(
        (status = 200, description = "The totals.", body = wire::Stats),
        (status = 422, description = "`invalid`: a parameter is unknown, given twice or out of range, or the window holds more than 100,000 fan-outs."),
    ),
    security(("key" = ["ops"])))]
pub(super) async fn show(State(api): State<Arc<Api>>, given: Given) -> Result<Json<wire::Stats>, Refusal> {
    let [window, to] = query::read(given, ["window", "to"])?;
    let length = window.as_deref().map(length_ms).transpose()?.unwrap_or(USUAL_MS);
    let to = to.as_deref().map(time_ms).transpose()?;
    let store = api.state.store.as_ref();
    let (complete, now_ms) = complete_through(store).await?;
    let to = to.unwrap_or(now_ms);
    let found = stats(store, (to - length, to), complete).await?;
    let too_many =
        || Refusal::field("window", format!("holds more than {MOST_FANOUTS} fan-outs; ask for a shorter one"));
    Ok(Json(shown(&found.ok_or_else(too_many)?)?))
}

fn length_ms(text: &str) -> Result<i64, Refusal> {
    let wrong = "must be a whole number and s, m, h or d, from 1s to 31d";
    let ms = span::parse(text).and_then(|span| i64::try_from(span.as_millis()).ok());
    ms.filter(|ms| (1..=LONGEST_MS).contains(ms)).ok_or_else(|| Refusal::field("window", wrong))
}

fn time_ms(text: &str) -> Result<i64, Refusal> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok().filter(|at| (1970..=9999).contains(&at.year()));
    let at = at.ok_or_else(|| Refusal::field("to", "must be a time like 2026-11-30T17:00:00Z"))?;
    Ok((at.unix_timestamp_nanos() / 1_000_000) as i64)
}

fn shown(stats: &Stats) -> Result<wire::Stats, Refusal> {
    let (from, to) = stats.window;
    let seconds = (to - from) as f64 / 1000.0;
    let groups = |groups: Vec<(String, &Group)>| -> BTreeMap<String, wire::StatsGroup> {
        groups.into_iter().map(|(name, group)| (name, shown_group(group, seconds))).collect()
    };
    Ok(wire::Stats {
        from: shown::rfc3339(from)?,
        to: shown::rfc3339(to)?,
        complete_through: shown::rfc3339(stats.complete_through)?,
        counts: if stats.is_complete() { "exact" } else { "lower_bound" }.to_owned(),
        total: shown_group(&stats.total, seconds),
        classes: groups(stats.classes.iter().map(|(class, group)| (class.to_string(), group)).collect()),
        types: groups(stats.types.iter().map(|(name, group)| (name.clone(), group)).collect()),
        sweeps: shown_group(&stats.sweeps, seconds),
    })
}

fn shown_group(group: &Group, seconds: f64) -> wire::StatsGroup {
    let counters = &group.counters;
    // To a thousandth: more is noise to who reads it.
    let per_s = |n: u64| (n as f64 / seconds * 1000.0).round() / 1000.0;
    let outcomes = group.outcomes.iter().filter(|(_, n)| **n > 0);
    wire::StatsGroup {
        fanouts: group.fanouts,
        open: group.open,
        interrupted: group.lower_bounds,
        recipients: group.recipients,
        delivered: group.delivered(),
        failed: group.failed(),
        pending: group.pending(),
        outcomes: outcomes.map(|(outcome, n)| (outcome.as_str().to_owned(), *n)).collect(),
        attempts: counters.attempts,
        retried: counters.retried,
        throttled: counters.throttled,
        unprocessed: counters.unprocessed,
        unsent: counters.unsent,
        reauthed: counters.reauthed,
        stalled: counters.stalled,
        delivered_per_s: per_s(group.delivered()),
        attempts_per_s: per_s(counters.attempts),
        mean_duration_ms: group.mean_duration_ms(),
        p50_send_ms: counters.send.percentile(500),
        p99_send_ms: counters.send.percentile(990),
        slowest_send_ms: counters.send.max_ms(),
        behind_pitch_p50_ms: counters.behind_pitch.percentile(500),
        behind_pitch_p99_ms: counters.behind_pitch.percentile(990),
    }
}
