//! Owns one lane of the ceiling: its own bucket, its own memory of throttles, and what it exchanges with the fleet.
//! Must never know: connections, modes, or who asks.

use std::time::Duration;

use tokio::time::Instant;

use super::bucket::{AHEAD, Bucket, CREDIT, Reservation};
use super::pace::Pace;
use super::redis::{Answer, Ask, FULL};
use super::{FORFEIT_AFTER, GrantRun};
use crate::mutant;

/// How far in advance the own share gives out what has to be had from the fleet as well. What it gives out later than
/// the fleet does is put off by so much, and when the own share ceases to apply it leaves beside what the fleet gives
/// out then: with [`AHEAD`] that was a second of 1.10 times the ceiling.
const AHEAD_OF_FLEET: Duration = Duration::from_millis(20);

/// The rate of one lane for the whole fleet.
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    /// Requests per second.
    pub per_s: f64,
    /// Requests at once after a quiet time.
    pub burst: f64,
}

impl Allowed {
    /// An equal part for one of `live` instances.
    fn part(&self, live: u32) -> (f64, f64) {
        let live = if mutant::on("full_rate_in_split") { 1 } else { live };
        (self.per_s / f64::from(live.max(1)), self.burst / f64::from(live.max(1)))
    }
}

/// One operation's share of the project: `fcm.send` or `oauth.token`.
#[derive(Debug)]
pub(super) struct Lane {
    key: String,
    allowed: Allowed,
    bucket: Bucket,
    pace: Pace,
    /// Pause and cut of the fleet when last heard of, by the server's clock.
    heard: (i64, i64),
    /// The provider told us something the fleet has not heard.
    news: bool,
}

impl Lane {
    /// A lane that starts empty. The hash tag keeps all lanes of a project on one node of a cluster.
    pub(super) fn new(project: &str, operation: &str, allowed: Allowed, now: Instant) -> Self {
        Self {
            key: format!("{{fanfare:{project}}}:{operation}"),
            bucket: Bucket::empty_until(now + AHEAD, allowed.per_s, allowed.burst),
            pace: Pace::full(now),
            heard: (0, 0),
            news: false,
            allowed,
        }
    }

    /// What is remembered of throttles.
    pub(super) const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Requests per second of the whole fleet.
    pub(super) const fn rate(&self) -> f64 {
        self.allowed.per_s
    }

    /// The provider told us something the fleet has not heard.
    pub(super) const fn has_news(&self) -> bool {
        self.news
    }

    /// Key, rate and burst: what a probe needs.
    pub(super) fn ping(&self) -> (String, f64, f64) {
        (self.key.clone(), self.allowed.per_s, self.allowed.burst)
    }

    /// The share of one of `live` instances, from now on.
    pub(super) fn split(&mut self, live: u32) {
        let (per_s, burst) = self.allowed.part(live);
        self.bucket.set_rate(per_s, burst);
    }

    /// Starts this instance's own share empty, after everything that may still be reserved with the fleet.
    pub(super) fn start_empty(&mut self, live: u32, now: Instant) {
        let (per_s, burst) = self.allowed.part(live);
        self.bucket = Bucket::empty_until(now + AHEAD, per_s, burst);
    }

    /// Grants from this instance's own share.
    pub(super) fn reserve(&mut self, want: u32, now: Instant) -> Reservation {
        self.bucket.reserve(want, &self.pace, now)
    }

    /// Leave to ask the fleet, where the own share applies as well.
    pub(super) fn reserve_beside_fleet(&mut self, want: u32, now: Instant) -> Reservation {
        self.bucket.reserve_within(AHEAD_OF_FLEET, want, &self.pace, now)
    }

    /// The provider throttled this instance.
    pub(super) fn throttle(&mut self, until: Instant, now: Instant) {
        self.pace.throttle(until, now);
        self.news = true;
    }

    /// The question to the fleet, with what this lane remembers.
    pub(super) fn question(&self, want: u32, now: Instant) -> Ask<'_> {
        let forgets = mutant::on("pause_forgotten_on_flush") && !self.news;
        Ask {
            key: &self.key,
            per_s: self.allowed.per_s,
            burst: self.allowed.burst,
            want,
            pause: if forgets { Duration::ZERO } else { self.pace.paused_for(now) },
            pace_ppm: (self.pace.share(now) * FULL as f64) as i64,
            news: self.news,
        }
    }

    /// The fleet's answer to a question of `asked`, heard at `heard`. Grants count from when it was heard, never
    /// early, and not before this lane's own pause is over. `Err` = that many grants are forfeited: the answer took so
    /// long that they would be used too late.
    pub(super) fn answer(&mut self, answer: &Answer, asked: Instant, heard: Instant) -> Result<Reservation, u32> {
        self.learn(answer, heard);
        if answer.n == 0 {
            return Ok(Reservation::Wait(answer.wait));
        }
        if heard - asked > FORFEIT_AFTER {
            return Err(answer.n);
        }
        let due = heard + answer.wait;
        let due = due.checked_sub(answer.credit.min(CREDIT)).unwrap_or(due);
        let first = due.max(self.pace.paused_until());
        Ok(Reservation::Granted(GrantRun { n: answer.n, first, every: answer.every }))
    }

    /// Takes over what the fleet knows. Only a change is taken over: a pause repeated in every answer would end a
    /// round trip later each time, and never.
    fn learn(&mut self, answer: &Answer, heard: Instant) {
        if answer.pause_us != self.heard.0 {
            self.pace.pause(heard + answer.pause_left());
        }
        if answer.cut_us != self.heard.1 {
            self.pace.lower(answer.share(), heard);
        }
        self.heard = (answer.pause_us, answer.cut_us);
        self.news = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn lane(now: Instant) -> Lane {
        Lane::new("p", "fcm.send", Allowed { per_s: 1000.0, burst: 10.0 }, now)
    }

    /// An answer with the server's clock at 50 s.
    fn answer(n: u32, pause_us: i64, cut_us: i64) -> Answer {
        let pace_ppm = if cut_us == 0 { FULL } else { FULL / 2 };
        Answer { n, wait: MS, credit: Duration::ZERO, every: MS, pause_us, pace_ppm, cut_us, now_us: 50_000_000 }
    }

    #[test]
    fn a_throttle_is_news_once_and_a_memory_from_then_on() {
        let now = Instant::now();
        let mut lane = lane(now);
        lane.throttle(now + 60 * SECOND, now);
        let ask = lane.question(5, now + SECOND);
        assert_eq!((ask.pause, ask.pace_ppm, ask.news), (59 * SECOND, FULL / 2, true));
        let told = lane.answer(&answer(0, 109_000_000, 50_000_000), now + SECOND, now + SECOND);
        assert_eq!(told, Ok(Reservation::Wait(MS)));
        let ask = lane.question(5, now + 2 * SECOND);
        assert_eq!((ask.pause, ask.pace_ppm, ask.news), (58 * SECOND, FULL / 2, false));
    }

    #[test]
    fn a_pause_of_the_fleet_is_remembered_and_does_not_creep() {
        let now = Instant::now();
        let mut lane = lane(now);
        for i in 0..50 {
            let late = Answer { now_us: 50_000_000 + i64::from(i) * 500, ..answer(0, 60_000_000, 40_000_000) };
            assert!(lane.answer(&late, now, now + MS * (i + 1)).is_ok());
        }
        assert_eq!(lane.pace().paused_until(), now + MS + 10 * SECOND);
        assert!((lane.pace().share(now + 10 * SECOND) - 0.5).abs() < 1e-3);
    }

    #[test]
    fn whatever_the_fleet_says_the_own_pause_is_obeyed() {
        let now = Instant::now();
        let mut lane = lane(now);
        lane.throttle(now + 60 * SECOND, now);
        let run = GrantRun { n: 7, first: now + 60 * SECOND, every: MS };
        assert_eq!(lane.answer(&answer(7, 0, 0), now, now), Ok(Reservation::Granted(run)));
        assert_eq!(lane.question(7, now).pause, 60 * SECOND, "and the fleet is told again");
    }

    #[test]
    fn grants_count_from_when_they_were_heard_of_and_lapse_with_a_late_answer() {
        let now = Instant::now();
        let mut lane = lane(now);
        let heard = now + 20 * MS;
        let run = GrantRun { n: 7, first: heard + MS, every: MS };
        assert_eq!(lane.answer(&answer(7, 0, 0), now, heard), Ok(Reservation::Granted(run)));
        assert_eq!(lane.answer(&answer(7, 0, 0), now, now + 51 * MS), Err(7));
        let quiet = Answer { wait: Duration::ZERO, credit: 6 * MS, ..answer(7, 0, 0) };
        let run = GrantRun { n: 7, first: heard - 6 * MS, every: MS };
        assert_eq!(lane.answer(&quiet, now, heard), Ok(Reservation::Granted(run)), "the burst may leave at once");
    }

    #[test]
    fn an_own_share_starts_empty_and_after_all_that_is_reserved() {
        let now = Instant::now();
        let mut lane = lane(now - 60 * SECOND);
        lane.start_empty(4, now);
        let run = GrantRun { n: 1, first: now + AHEAD, every: 4 * MS };
        assert_eq!(lane.reserve(50, now), Reservation::Granted(run));
    }

    #[test]
    fn an_own_share_beside_the_fleet_puts_off_little() {
        let now = Instant::now();
        let mut lane = lane(now - SECOND);
        for i in 0..100 {
            let now = now + MS * i;
            if let Reservation::Granted(run) = lane.reserve_beside_fleet(50, now) {
                assert!(run.first + run.every * (run.n - 1) <= now + AHEAD_OF_FLEET, "{run:?}");
            }
        }
    }
}
