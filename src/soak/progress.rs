//! Owns how a soak shows that it runs: one line drawn over and over on a terminal, a plain line now and then anywhere else.
//! Must never know: how the counts come about.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

/// Distance of two plain lines: a log is read afterwards, and wants few.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// What is shown.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Into the day, s.
    pub now_s: u64,
    /// Of the day, s.
    pub of_s: u64,
    /// Posts answered.
    pub posts: usize,
    /// Messages the provider took.
    pub accepted: u64,
    /// Most requests in any second so far.
    pub fullest: u32,
    /// Ceiling, per second.
    pub rate: f64,
    /// Instances that run.
    pub running: usize,
    /// The faults of the moment.
    pub faults: String,
}

/// Shows it on stderr.
#[derive(Debug)]
pub struct Progress {
    live: bool,
    last: Option<Instant>,
}

impl Progress {
    /// For what stderr is.
    #[must_use]
    pub fn new() -> Self {
        Self { live: std::io::stderr().is_terminal(), last: None }
    }

    /// Shows how far it is.
    pub fn show(&mut self, state: &State, now: Instant) {
        let _ = write!(std::io::stderr(), "{}", self.text(state, now));
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        let clear = if self.live { "\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    fn text(&mut self, s: &State, now: Instant) -> String {
        let State { now_s, of_s, posts, accepted, fullest, rate, running, faults } = s;
        let faults = if faults.is_empty() { String::new() } else { format!("  [{faults}]") };
        let line = format!(
            "{now_s:>4} of {of_s} s  {posts} posts  {accepted} delivered  fullest second {fullest} of {rate:.0}  {running} up{faults}"
        );
        if self.live {
            return format!("\x1b[K{line}\r");
        }
        if self.last.is_some_and(|at| now.saturating_duration_since(at) < PLAIN_EVERY) {
            return String::new();
        }
        self.last = Some(now);
        format!("{line}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_log_gets_few_lines_and_a_terminal_one_that_is_drawn_over() {
        let (begun, state) = (Instant::now(), State { faults: "stalls".into(), ..State::default() });
        let mut plain = Progress { live: false, last: None };
        let lines: Vec<String> =
            (0..25).map(|s| plain.text(&state, begun + Duration::from_secs(s))).filter(|t| !t.is_empty()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("[stalls]\n") && !lines[0].contains(['\r', '\x1b']));
        let live = Progress { live: true, last: None }.text(&state, begun);
        assert!(live.ends_with('\r') && !live.contains('\n'));
    }
}
