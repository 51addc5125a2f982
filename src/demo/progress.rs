//! Owns how the demo shows that something happens: one line drawn over and over on a terminal, a plain line now and
//! then anywhere else.
//! Must never know: how the counts come about.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::Fanout;

/// Least distance of two plain lines: a log is read afterwards, and wants few.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// Shows a fan-out on its way.
#[derive(Debug)]
pub struct Progress {
    live: bool,
    last: Option<(Instant, u64)>,
}

impl Progress {
    /// For what stdout is.
    #[must_use]
    pub fn new() -> Self {
        Self { live: std::io::stdout().is_terminal(), last: None }
    }

    /// Shows how far it is.
    pub fn show(&mut self, f: &Fanout, now: Instant) {
        let text = self.text(f, now);
        print!("{text}");
        let _ = std::io::stdout().flush();
    }

    fn text(&mut self, f: &Fanout, now: Instant) -> String {
        let ended = f.settled_at.is_some();
        if self.live {
            // The cursor stays in front, so that a log line of the service is written over the bar, not behind it.
            let end = if ended { '\n' } else { '\r' };
            return format!("\x1b[K{} {}{end}", bar(f), counts(f));
        }
        let done = f.delivered + f.failed;
        let due = match self.last {
            None => true,
            Some((at, shown)) => shown != done && (ended || now.saturating_duration_since(at) >= PLAIN_EVERY),
        };
        if !due {
            return String::new();
        }
        self.last = Some((now, done));
        format!("{}\n", counts(f))
    }
}

fn counts(f: &Fanout) -> String {
    let done = f.delivered + f.failed;
    let Fanout { recipients, delivered, failed, pending, .. } = f;
    let seconds = f.duration_ms as f64 / 1000.0;
    format!("{seconds:>5.1} s  {done} of {recipients}: {delivered} delivered, {failed} failed, {pending} pending")
}

fn bar(f: &Fanout) -> String {
    const WIDTH: u64 = 20;
    let done = f.delivered + f.failed;
    let filled = (done * WIDTH).checked_div(f.recipients).unwrap_or(0).min(WIDTH);
    let cells: String = (0..WIDTH).map(|i| if i < filled { '#' } else { '.' }).collect();
    format!("[{cells}]")
}

#[cfg(test)]
mod tests {
    use super::super::account::tests::fanout;
    use super::*;

    fn at(delivered: u64, settled: bool) -> Fanout {
        let settled_at = settled.then(|| "2026-11-30T15:03:14Z".to_owned());
        Fanout { recipients: 1000, delivered, failed: 0, pending: 1000 - delivered, settled_at, ..fanout() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_gets_a_line_a_second_while_something_changes_and_the_end() {
        let mut progress = Progress { live: false, last: None };
        let begun = Instant::now();
        let mut shown = Vec::new();
        for tenth in 0..40 {
            let now = begun + Duration::from_millis(tenth * 100);
            let delivered = if tenth < 15 { tenth * 60 } else { 999 };
            shown.push(progress.text(&at(delivered, false), now));
        }
        shown.push(progress.text(&at(1000, true), begun + Duration::from_millis(4_010)));
        let lines: Vec<&String> = shown.iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(lines.len(), 4, "0 s, 1 s, 2 s, the end: {lines:?}");
        assert!(lines.iter().all(|line| line.ends_with('\n') && !line.contains(['\r', '\x1b'])), "{lines:?}");
        assert!(lines[3].contains("1000 of 1000"), "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_terminal_gets_one_line_that_is_drawn_over() {
        let mut progress = Progress { live: true, last: None };
        let half = progress.text(&at(500, false), Instant::now());
        assert!(half.contains("[##########..........]") && half.ends_with('\r') && !half.contains('\n'), "{half:?}");
        assert!(progress.text(&at(1000, true), Instant::now()).ends_with('\n'));
    }
}
