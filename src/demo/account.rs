//! Owns what the demo tells a person: progress, the figures of the line in words, what to try next.
//! Must never know: how the figures came about.

use crate::emulator::Stats;
use crate::wire::Fanout;

/// One line of progress.
#[must_use]
pub fn bar(f: &Fanout) -> String {
    const WIDTH: u64 = 30;
    let done = f.delivered + f.failed;
    let filled = (done * WIDTH).checked_div(f.recipients).unwrap_or(0).min(WIDTH);
    let bar: String = (0..WIDTH).map(|i| if i < filled { '#' } else { '.' }).collect();
    format!(
        "[{bar}] {done}/{} recipients, {} delivered, {} failed, {} pending, {} ms ",
        f.recipients, f.delivered, f.failed, f.pending, f.duration_ms
    )
}

/// The figures of the line with a short account of each.
pub fn tell(f: &Fanout, emulator: Option<&Stats>) {
    println!("\nThe line above is what an operator reads, one per fan-out. The same in words:\n");
    row("recipients", f.recipients, "devices that followed one of the subjects when the goal was accepted, each once");
    row("delivered", f.delivered, "accepted by FCM");
    row("failed", f.failed, "ended otherwise; delivered + failed + pending = recipients, always");
    for (name, n) in f.outcomes.iter().filter(|(name, n)| **n > 0 && *name != "delivered") {
        row(&format!("  {name}"), *n, meaning(name));
    }
    row("attempts", f.attempts, "HTTP requests, one grant of the ceiling each");
    row("retried", f.retried, "of these, second attempts: recipients that failed once and were tried again");
    row("stalled", f.stalled, "attempts older than 1 s; each lent its slot, so nobody waited for it");
    println!("{:<14}{:>8}  from acceptance to the last outcome on disk", "duration_ms", f.duration_ms);
    row("slowest_send_ms", f.slowest_send_ms, "the slowest answer");
    println!("{:<14}{:>8}  of {}/s; ledger: {}", "ceiling", f.ceiling.mode, f.ceiling.rate, f.ledger);
    if let Some(stats) = emulator {
        let agrees = if stats.requests == f.attempts { "which agrees" } else { "WHICH DISAGREES" };
        println!(
            "\nThe emulator counted {} requests ({agrees} with attempts) and accepted {}, {} of them twice.",
            stats.requests, stats.accepted, stats.duplicates_accepted
        );
    }
}

fn row(name: &str, n: u64, says: &str) {
    println!("{name:<14}{n:>8}  {says}");
}

fn meaning(outcome: &str) -> &'static str {
    match outcome {
        "token_dead" => "FCM said UNREGISTERED: the device is tombstoned and not sent to again",
        "token_invalid" => "FCM refused the device token: the device is suspended until it registers again",
        "token_foreign" => "the device token belongs to another Firebase project",
        "payload" => "FCM refused the message",
        "credential" => "our credentials were refused",
        "transient" => "the provider failed twice while it served others",
        "unconfirmed" => "sent twice without an answer; may have arrived",
        "protocol" => "an answer that means nothing, twice",
        "expired" => "not useful any more before it could be sent",
        "gone" => "the device was deleted meanwhile",
        _ => "see the README",
    }
}

/// Three commands that work as printed.
pub fn next(urls: &(String, String), secret: &str, f: &Fanout) {
    let binary = std::env::current_exe().map_or_else(|_| "fanfare".to_owned(), |path| path.display().to_string());
    let (api, ops) = urls;
    println!(
        "\nIt goes on serving until Ctrl-C. Try in another terminal:\n\n  \
         {binary} fanout show {} --url {api} --key {secret}\n\n  \
         {binary} send red_card --match {} --field home=Arsenal --field away=Chelsea --field score=2-1 --field team=Chelsea --field player=Palmer --field minute=70 --wait --url {api} --key {secret}\n\n  \
         curl -s '{ops}/readyz?verbose'\n",
        f.id, f.match_id
    );
}
