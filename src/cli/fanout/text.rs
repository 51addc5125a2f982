//! Owns how fan-outs are shown to people: a line while one is sent, a table of many, an account of one.
//! Must never know: where they come from.

use crate::wire::Fanout;

pub(super) fn progress(f: &Fanout) -> String {
    format!("{}: {} of {} done, {} failed", f.state, f.delivered + f.failed, f.recipients, f.failed)
}

pub(super) fn table(fanouts: &[Fanout]) -> String {
    let mut text = format!(
        "{:>8}  {:<10} {:<18} {:<12} {:>10} {:>10} {:>8} {:>8}  accepted\n",
        "id", "state", "type", "match", "recipients", "delivered", "failed", "pending"
    );
    for f in fanouts {
        text.push_str(&format!(
            "{:>8}  {:<10} {:<18} {:<12} {:>10} {:>10} {:>8} {:>8}  {}\n",
            f.id, f.state, f.event_type, f.match_id, f.recipients, f.delivered, f.failed, f.pending, f.accepted_at
        ));
    }
    text
}

/// A fan-out for people.
pub(super) fn account(f: &Fanout) -> String {
    let failed: Vec<String> = f
        .outcomes
        .iter()
        .filter(|(name, n)| **n > 0 && name.as_str() != "delivered")
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let why = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join(", ")) };
    let seconds = f.duration_ms as f64 / 1000.0;
    let ceiling = match &f.ceiling {
        c if c.mode.is_empty() => "nothing was sent under it yet".to_owned(),
        c => format!("{} {:.0}/s, lowest pace {:.0}/s", c.mode, c.rate, c.pace),
    };
    let kin = kin(f);
    [
        format!(
            "fan-out     {}  {} of match {}, event {}, {}{kin}",
            f.id, f.event_type, f.match_id, f.event_id, f.kind
        ),
        format!(
            "state       {} after {seconds:.1} s; accepted {}, useful until {}",
            f.state, f.accepted_at, f.deadline_at
        ),
        format!(
            "recipients  {}: {} delivered, {} failed{why}, {} pending",
            f.recipients, f.delivered, f.failed, f.pending
        ),
        format!(
            "attempts    {}, of which {} retries; {} throttled, slowest {} ms",
            f.attempts, f.retried, f.throttled, f.slowest_send_ms
        ),
        format!("ceiling     {ceiling}"),
        format!("ledger      {}\n", f.ledger),
    ]
    .join("\n")
}

/// How it stands to other fan-outs, behind its kind.
fn kin(f: &Fanout) -> String {
    let parts = [
        f.parent.as_ref().map(|id| format!(" of fan-out {id}")),
        f.never_saw.map(|n| format!("; {n} never saw what it corrects")),
        f.superseded_by.as_ref().map(|id| format!("; superseded by fan-out {id}")),
        f.paused.as_ref().map(|why| format!("; paused by its {why}")),
    ];
    parts.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fanout() -> Fanout {
        serde_json::from_value(json!({
            "id": "17", "event_id": "evt-1", "type": "goal", "match_id": "4711", "kind": "original", "state": "done",
            "recipients": 10, "delivered": 8, "failed": 2, "pending": 0,
            "outcomes": {"delivered": 8, "token_dead": 2, "expired": 0},
            "attempts": 11, "retried": 1, "throttled": 0, "unprocessed": 0, "unsent": 0, "reauthed": 0, "stalled": 0,
            "accepted_at": "2026-11-30T15:03:12Z", "deadline_at": "2026-11-30T15:05:12Z", "duration_ms": 1900,
            "slowest_send_ms": 80, "ledger": "exact", "ceiling": {"mode": "single", "rate": 9000.0, "pace": 2254.3319538}
        }))
        .unwrap()
    }

    #[test]
    fn only_outcomes_that_happened_are_told() {
        let text = account(&fanout());
        assert!(text.contains("10: 8 delivered, 2 failed (token_dead 2), 0 pending"), "{text}");
        assert!(text.contains("done after 1.9 s"), "{text}");
        assert!(text.contains("single 9000/s, lowest pace 2254/s"), "{text}");
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        assert_eq!(table(&[fanout(), fanout()]).lines().count(), 3);
    }
}
