//! Owns how a fan-out is shown to callers.
//! Must never know: who asks.

use crate::domain::batch::FanoutState;
use crate::domain::outcome::Outcome;
use crate::store::{FanoutView, StoreError};
use crate::wire;

/// A stored time as RFC 3339, UTC.
pub(super) fn rfc3339(ms: i64) -> Result<String, StoreError> {
    wire::rfc3339(ms).ok_or_else(|| StoreError::Corrupt(format!("{ms} ms is not a time of four-digit years")))
}

/// A fan-out as of `now_ms`.
pub(super) fn fanout(view: &FanoutView, now_ms: i64) -> Result<wire::Fanout, StoreError> {
    let (tally, counters) = (&view.tally, &view.counters);
    let count = |outcome: &Outcome| (outcome.as_str().to_owned(), tally.count(*outcome));
    let ended_ms = view.settled_ms.unwrap_or(now_ms);
    Ok(wire::Fanout {
        id: view.id.to_string(),
        event_id: view.event_id.to_string(),
        event_type: view.event_type.clone(),
        match_id: view.match_id.to_string(),
        kind: view.kind.to_string(),
        state: view.state.to_string(),
        parent: view.parent.map(|id| id.to_string()),
        superseded_by: view.kin.superseded_by.map(|id| id.to_string()),
        never_saw: view.kin.never_saw,
        paused: view.kin.paused.filter(|_| view.state == FanoutState::Paused).map(|why| why.to_string()),
        max_attempts: view.kin.max_attempts,
        recipients: tally.recipients(),
        delivered: tally.delivered(),
        failed: tally.failed(),
        pending: tally.pending(),
        outcomes: Outcome::ALL.iter().map(count).collect(),
        attempts: counters.attempts,
        retried: counters.retried,
        throttled: counters.throttled,
        unprocessed: counters.unprocessed,
        unsent: counters.unsent,
        reauthed: counters.reauthed,
        stalled: counters.stalled,
        accepted_at: rfc3339(view.accepted_ms)?,
        deadline_at: rfc3339(view.deadline_ms)?,
        settled_at: view.settled_ms.map(rfc3339).transpose()?,
        duration_ms: (ended_ms - view.accepted_ms).max(0),
        slowest_send_ms: counters.send.max_ms(),
        ledger: if view.interrupted > 0 { "lower_bound" } else { "exact" }.to_owned(),
        ceiling: wire::FanoutCeiling { mode: counters.mode.clone(), rate: counters.rate, pace: counters.pace },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc_and_damaged_ones_are_not_invented() {
        assert_eq!(rfc3339(1_796_050_992_500).unwrap(), "2026-11-30T15:03:12.5Z");
        assert!(matches!(rfc3339(i64::MAX), Err(StoreError::Corrupt(_))));
        assert!(matches!(rfc3339(-90_000_000_000_000), Err(StoreError::Corrupt(_))));
    }
}
