//! Owns the line: one per fan-out, the whole story of it in named fields.
//! Must never know: who reads it.

use crate::domain::outcome::Outcome;
use crate::store::FanoutView;

/// What the line says beside what is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// From acceptance to settling, ms.
    pub duration_ms: i64,
    /// From acceptance to the first claim, ms.
    pub queue_wait_ms: i64,
    /// From acceptance to the first attempt, ms.
    pub first_send_ms: i64,
    /// `duration_ms` per recipient.
    pub ms_per_device: f64,
    /// Attempts per second between the first attempt and settling.
    pub used_per_s: f64,
}

impl Figures {
    /// Computes them from the stored view.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn of(view: &FanoutView) -> Self {
        let settled = view.settled_ms.unwrap_or(view.accepted_ms);
        let since = |ms: i64| if ms == 0 { 0 } else { (ms - view.accepted_ms).max(0) };
        let duration_ms = (settled - view.accepted_ms).max(0);
        let sending_ms = if view.counters.first_send_ms == 0 { 0 } else { settled - view.counters.first_send_ms };
        let recipients = view.tally.recipients().max(1);
        Self {
            duration_ms,
            queue_wait_ms: since(view.counters.first_claim_ms),
            first_send_ms: since(view.counters.first_send_ms),
            ms_per_device: round(duration_ms as f64 / recipients as f64),
            used_per_s: round(view.counters.attempts as f64 * 1000.0 / sending_ms.max(1) as f64),
        }
    }
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// `exact`, or `lower_bound` when an instance was lost with counters it had not written.
#[must_use]
pub const fn ledger_word(view: &FanoutView) -> &'static str {
    if view.interrupted == 0 { "exact" } else { "lower_bound" }
}

/// Writes the line. `repeated`: it may have been written before, the mark was not.
pub fn write(view: &FanoutView, repeated: bool) {
    let (t, c, f) = (&view.tally, &view.counters, Figures::of(view));
    let n = |outcome| t.count(outcome);
    tracing::info!(
        target: "fanfare::fanout",
        fanout_id = %view.id,
        event_id = %view.event_id,
        r#type = %view.event_type,
        match_id = %view.match_id,
        kind = %view.kind,
        parent = view.parent.map(tracing::field::display),
        superseded_by = view.kin.superseded_by.map(tracing::field::display),
        never_saw = view.kin.never_saw,
        recipients = t.recipients(),
        delivered = t.delivered(),
        failed = t.failed(),
        token_dead = n(Outcome::TokenDead),
        token_invalid = n(Outcome::TokenInvalid),
        token_foreign = n(Outcome::TokenForeign),
        payload = n(Outcome::Payload),
        credential = n(Outcome::Credential),
        transient = n(Outcome::Transient),
        unconfirmed = n(Outcome::Unconfirmed),
        protocol = n(Outcome::Protocol),
        expired = n(Outcome::Expired),
        cancelled = n(Outcome::Cancelled),
        gone = n(Outcome::Gone),
        internal = n(Outcome::Internal),
        attempts = c.attempts,
        retried = c.retried,
        throttled = c.throttled,
        unprocessed = c.unprocessed,
        unsent = c.unsent,
        reauthed = c.reauthed,
        stalled = c.stalled,
        lent_peak = c.lent_peak,
        duration_ms = f.duration_ms,
        held_ms = c.held_ms,
        queue_wait_ms = f.queue_wait_ms,
        first_send_ms = f.first_send_ms,
        p50_send_ms = c.send.percentile(500),
        p99_send_ms = c.send.percentile(990),
        slowest_send_ms = c.send.max_ms(),
        ms_per_device = f.ms_per_device,
        behind_pitch_p50_ms = c.behind_pitch.percentile(500),
        behind_pitch_p99_ms = c.behind_pitch.percentile(990),
        ceiling_mode = %c.mode,
        ceiling_rate = c.rate,
        ceiling_pace = c.pace,
        used_per_s = f.used_per_s,
        grants_waited_ms = c.grants_waited_ms,
        instances = view.instances,
        interrupted = view.interrupted,
        ledger = ledger_word(view),
        repeated,
        "fan-out finished"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::batch::{Class, FanoutKind, FanoutState};
    use crate::domain::ids::{EventId, FanoutId, MatchId};
    use crate::domain::tally::{PartCounters, Tally};
    use crate::store::Kin;

    fn view() -> FanoutView {
        FanoutView {
            id: FanoutId(1),
            event_id: EventId::parse("e").unwrap(),
            event_type: "goal".into(),
            match_id: MatchId::parse("m").unwrap(),
            kind: FanoutKind::Original,
            parent: None,
            state: FanoutState::Done,
            class: Class::Urgent,
            occurred_ms: 900,
            accepted_ms: 1_000,
            deadline_ms: 121_000,
            settled_ms: Some(3_000),
            tally: Tally::new(1_000, [(Outcome::Delivered, 1_000)]).unwrap(),
            counters: PartCounters {
                attempts: 1_500,
                first_claim_ms: 1_010,
                first_send_ms: 1_500,
                ..PartCounters::default()
            },
            instances: 1,
            interrupted: 0,
            kin: Kin::default(),
        }
    }

    #[test]
    fn figures_count_from_acceptance() {
        let figures = Figures::of(&view());
        let expected = Figures {
            duration_ms: 2_000,
            queue_wait_ms: 10,
            first_send_ms: 500,
            ms_per_device: 2.0,
            used_per_s: 1_000.0,
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn a_fan_out_to_nobody_has_finite_figures() {
        let empty = FanoutView { tally: Tally::default(), counters: PartCounters::default(), ..view() };
        let figures = Figures::of(&empty);
        assert_eq!((figures.first_send_ms, figures.ms_per_device, figures.used_per_s), (0, 2_000.0, 0.0));
    }

    #[test]
    fn a_lost_instance_makes_the_ledger_a_lower_bound() {
        assert_eq!(ledger_word(&view()), "exact");
        assert_eq!(ledger_word(&FanoutView { interrupted: 1, ..view() }), "lower_bound");
    }
}
