//! Owns what the demo tells a person: the figures of the line in words, and what to try next.
//! Must never know: how the figures came about.

use super::seed;
use crate::emulator::Stats;
use crate::wire::Fanout;

/// The figures of the line with a short account of each.
#[must_use]
pub fn account(f: &Fanout) -> String {
    let mut text = String::from("\nThe line above is what an operator reads, one per fan-out. Its main figures:\n\n");
    let mut row = |name: &str, value: &str, says: &str| text.push_str(&format!("{name:<17}{value:>8}  {says}\n"));
    let n = |n: u64| n.to_string();
    row("recipients", &n(f.recipients), "devices that followed a subject of the goal when it was posted, each once");
    row("delivered", &n(f.delivered), "accepted by FCM");
    row("failed", &n(f.failed), "ended otherwise; delivered + failed + pending = recipients at any time");
    for (name, count) in f.outcomes.iter().filter(|(name, n)| **n > 0 && *name != "delivered") {
        row(&format!("  {name}"), &n(*count), meaning(name));
    }
    row("attempts", &n(f.attempts), "HTTP requests to FCM, each with a grant of the ceiling");
    row("retried", &n(f.retried), "attempts that were the one retry of a recipient");
    if f.throttled > 0 {
        row("throttled", &n(f.throttled), "answers that said `slower`; those recipients waited and lost nothing");
    }
    row("stalled", &n(f.stalled), "attempts that took over a second; a stalled one may lend its slot to others");
    row("duration_ms", &f.duration_ms.to_string(), "from acceptance to the last outcome on disk");
    row("slowest_send_ms", &n(f.slowest_send_ms), "the slowest answer; the fan-out cannot end before it");
    row("ceiling_rate", &f.ceiling.rate.to_string(), "requests per second that the whole fleet never exceeds");
    row("ceiling_mode", &f.ceiling.mode, kept(&f.ceiling.mode));
    row("ledger", &f.ledger, "whether every count above is known; `lower_bound` after an instance was lost");
    text
}

fn meaning(outcome: &str) -> &'static str {
    match outcome {
        "token_dead" => "UNREGISTERED: the app is gone; the device is not sent to again",
        "token_invalid" => "no device token FCM can read; suspended until the device registers again",
        "token_foreign" => "the device token belongs to another Firebase project",
        "payload" => "FCM refused the message",
        "credential" => "our credentials were refused",
        "transient" => "failed twice while others were served",
        "unconfirmed" => "sent, and no answer came; may have arrived",
        "protocol" => "answered twice with something that means nothing",
        "expired" => "too late to be useful before it could be sent",
        "cancelled" => "superseded, or stopped by an operator",
        "gone" => "the device was deleted meanwhile",
        _ => "see the README",
    }
}

fn kept(mode: &str) -> &'static str {
    match mode {
        "single" => "where the rate is kept: in this process, the only one on its database",
        "shared" => "where the rate is kept: in Redis, for all instances",
        "split" => "where the rate is kept: in each instance, its part; there is no Redis, or it is away",
        _ => "nothing was sent",
    }
}

/// What the emulator counted, and whether it is what the line says.
///
/// # Errors
/// The same sentence when it is not.
pub fn compare(f: &Fanout, stats: &Stats) -> Result<String, String> {
    // An attempt that never left, or that the provider refused to process, cannot have been counted there.
    let arrived = f.attempts.saturating_sub(f.unsent).saturating_sub(f.unprocessed);
    let counts = format!("{} requests, {} accepted", stats.requests, stats.accepted);
    let twice = stats.duplicates_accepted;
    if stats.requests == arrived && stats.accepted - twice == f.delivered {
        return Ok(format!("The emulator kept its own count and agrees: {counts}, {twice} of them twice."));
    }
    Err(format!("the emulator kept its own count and DISAGREES: {counts}, {twice} of them twice"))
}

/// Three commands that work as printed, with nothing on the machine but this binary.
#[must_use]
pub fn next(api: &str, secret: &str, f: &Fanout) -> String {
    let binary = std::env::current_exe().map_or_else(|_| "fanfare".to_owned(), |path| path.display().to_string());
    let Fanout { id, match_id, .. } = f;
    let device = seed::dead_one(match_id, f.recipients);
    format!(
        "\nThe service goes on until Ctrl-C. Three things to try in another terminal:\n\n\
         the fan-out as the API tells it\n  \
         {binary} fanout show {id} --url {api} --key {secret}\n\n\
         the final whistle; whoever turned out dead or invalid is not among its recipients\n  \
         {binary} send full_time --match {match_id} --field home=Arsenal --field away=Chelsea --field score=2-1 \
         --wait --url {api} --key {secret}\n\n\
         one of the devices, and what became of it\n  \
         {binary} devices show {device} --url {api} --key {secret}\n\n"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// The demo's fan-out as it ends.
    pub fn fanout() -> Fanout {
        serde_json::from_value(json!({
            "id": "1", "event_id": "demo-1", "type": "goal", "match_id": "m1", "kind": "original", "state": "done",
            "recipients": 1000, "delivered": 980, "failed": 20, "pending": 0,
            "outcomes": {"delivered": 980, "token_dead": 10, "token_invalid": 10, "expired": 0},
            "attempts": 1010, "retried": 10, "throttled": 0, "unprocessed": 0, "unsent": 0, "reauthed": 0,
            "stalled": 1, "accepted_at": "2026-11-30T15:03:12Z", "deadline_at": "2026-11-30T15:05:12Z",
            "settled_at": "2026-11-30T15:03:15Z", "duration_ms": 3682, "slowest_send_ms": 3043, "ledger": "exact",
            "ceiling": {"mode": "single", "rate": 9000.0, "pace": 9000.0}
        }))
        .unwrap()
    }

    #[test]
    fn the_figures_stand_in_one_column() {
        let text = account(&fanout());
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("  ")).collect();
        assert_eq!(rows.len(), 13, "{text}");
        for row in rows {
            let (figure, says) = row.split_at(25);
            assert!(!figure.ends_with(' ') && says.starts_with("  ") && !says.starts_with("   "), "{row}");
        }
    }

    #[test]
    fn the_emulators_count_is_compared_and_not_taken_on_trust() {
        let stats = Stats { requests: 1010, accepted: 980, ..Stats::default() };
        assert!(compare(&fanout(), &stats).unwrap().contains("agrees: 1010 requests, 980 accepted, 0 of them twice"));
        assert!(compare(&Fanout { unsent: 1, attempts: 1011, ..fanout() }, &stats).is_ok());
        let twice = Stats { accepted: 981, duplicates_accepted: 1, ..stats.clone() };
        assert!(compare(&fanout(), &twice).unwrap().contains("1 of them twice"));
        for wrong in [Stats { requests: 1011, ..stats.clone() }, Stats { accepted: 979, ..stats }] {
            assert!(compare(&fanout(), &wrong).unwrap_err().contains("DISAGREES"));
        }
    }

    #[test]
    fn what_to_try_next_names_this_fan_out_and_this_service() {
        let text = next("http://127.0.0.1:1", "fanfare_key", &fanout());
        assert_eq!(text.matches("--url http://127.0.0.1:1 --key fanfare_key\n").count(), 3, "{text}");
        assert!(text.contains(" fanout show 1 ") && text.contains("--match m1 "), "{text}");
        assert!(text.contains(" devices show demo-m1-11 "), "{text}");
    }
}
