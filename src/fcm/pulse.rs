//! Owns the question whether a connection is dead: when to ask the peer, and when its silence is an answer.
//! Must never know: sockets and frames (time is an argument).
//!
//! A connection that died without a word looks open for minutes, and everything in flight on it waits. A busy healthy
//! one is never asked: something comes in all the time. Google closes connections for needless pings
//! (`too_many_pings`), so there is a shortest time between two, and none while no request is open.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing came in for this long although a request is open: the peer is asked.
pub const PING_AFTER: Duration = Duration::from_secs(3);
/// Nothing came in for this long after that: the connection is dead.
pub const PONG_WITHIN: Duration = Duration::from_secs(5);
/// Shortest time between two pings: at most six a minute, while one request hangs and nothing else is sent.
/// A connection that dies right after it answered one is found in 10 + 5 s, any other in 3 + 5 s.
pub const PING_GAP: Duration = Duration::from_secs(10);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Wait,
    /// Send a ping.
    Ping,
    /// Give the connection up.
    Dead,
}

/// The pings of one connection.
#[derive(Debug, Default)]
pub struct Pulse {
    asked: Option<Instant>,
    last: Option<Instant>,
}

impl Pulse {
    /// What to do now. `heard` = when bytes last came in; `open_since` = since when at least one request is open.
    pub fn check(&mut self, now: Instant, heard: Instant, open_since: Option<Instant>) -> Act {
        let Some(open_since) = open_since else {
            self.asked = None;
            return Act::Wait;
        };
        if let Some(asked) = self.asked.filter(|asked| heard <= *asked) {
            return if now.saturating_duration_since(asked) >= PONG_WITHIN { Act::Dead } else { Act::Wait };
        }
        self.asked = None;
        let quiet = now.saturating_duration_since(heard.max(open_since));
        let may = self.last.is_none_or(|last| now.saturating_duration_since(last) >= PING_GAP);
        if quiet < PING_AFTER || !may {
            return Act::Wait;
        }
        (self.asked, self.last) = (Some(now), Some(now));
        Act::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(500);

    /// Runs for `steps`; `hears(step, pinged)` says whether something comes in. Returns when what was done.
    fn run(steps: u32, open_from: u32, hears: impl Fn(u32, bool) -> bool) -> Vec<(Duration, Act)> {
        let t = Instant::now();
        let (mut pulse, mut heard, mut done) = (Pulse::default(), t, Vec::new());
        for step in 0..steps {
            let now = t + STEP * step;
            let act = pulse.check(now, heard, (step >= open_from).then_some(t + STEP * open_from));
            if act != Act::Wait {
                done.push((STEP * step, act));
            }
            if act == Act::Dead {
                break;
            }
            if hears(step, act == Act::Ping) {
                heard = now + Duration::from_millis(1);
            }
        }
        done
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_is_found_in_8_seconds_by_one_ping() {
        let done = run(100, 0, |_, _| false);
        assert_eq!(done, [(Duration::from_secs(3), Act::Ping), (Duration::from_secs(8), Act::Dead)]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_dies_right_after_it_answered_is_found_in_15_seconds() {
        let done = run(100, 0, |step, pinged| pinged && step < 10);
        let died = Duration::from_secs(3);
        assert_eq!(done.last().unwrap().1, Act::Dead);
        assert!(done.last().unwrap().0 - died <= Duration::from_secs(15), "{done:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_or_idle_connection_is_never_asked() {
        assert_eq!(run(1000, 0, |step, _| step % 5 == 0), []);
        assert_eq!(run(1000, 2000, |_, _| false), [], "no request is open");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_alone_costs_at_most_six_pings_a_minute() {
        let done = run(1200, 0, |_, pinged| pinged);
        assert!(done.iter().all(|(_, act)| *act == Act::Ping));
        assert!((55..=60).contains(&done.len()), "{} in ten minutes", done.len());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_before_the_first_request_does_not_count() {
        let done = run(100, 60, |_, _| false);
        assert_eq!(done[0], (Duration::from_secs(33), Act::Ping));
    }
}
