//! Owns one lane of the ceiling: its own bucket, its own memory of throttles, and what it exchanges with the fleet.
//! Must never know: connections, modes, or who asks.

use std::time::Duration;

use tokio::time::Instant;

use super::bucket::{AHEAD, Bucket, Reservation};
use super::pace::Pace;
use super::redis::{Answer, Ask, FULL, Known, SILENCE};
use super::{FORFEIT_AFTER, GrantRun};

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
    known: Known,
    /// The provider told us something the fleet has not heard.
    fresh: bool,
}

impl Lane {
    /// A lane that starts empty. The hash tag keeps all lanes of a project on one node of a cluster.
    pub(super) fn new(project: &str, operation: &str, allowed: Allowed, now: Instant) -> Self {
        Self {
            key: format!("{{fanfare:{project}}}:{operation}"),
            bucket: Bucket::empty_until(now + AHEAD, allowed.per_s, allowed.burst),
            pace: Pace::full(now),
            known: Known::NOTHING,
            fresh: false,
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
        self.fresh
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

    /// The provider throttled this instance.
    pub(super) fn throttle(&mut self, until: Instant, now: Instant) {
        self.pace.throttle(until, now);
        self.fresh = true;
    }

    /// The question to the fleet, with all this lane remembers.
    pub(super) fn question(&self, want: u32, now: Instant) -> Ask<'_> {
        let own = (self.pace.share(now) * FULL as f64) as i64;
        Ask {
            key: &self.key,
            per_s: self.allowed.per_s,
            burst: self.allowed.burst,
            want,
            known: self.known,
            fresh_pause: if self.fresh { self.pace.paused_for(now) } else { Duration::ZERO },
            fresh_ppm: if self.fresh { own } else { FULL },
        }
    }

    /// The fleet's answer to a question of `asked`, heard at `heard`. Grants count from when it was heard, never
    /// early. An answer so late that they were due long ago grants nothing, nor does a fleet that has forgotten a
    /// pause this lane remembers; that fleet is told again. `Err` = that many grants are forfeited.
    pub(super) fn answer(&mut self, answer: &Answer, asked: Instant, heard: Instant) -> Result<Reservation, u32> {
        self.learn(answer, heard);
        if answer.n == 0 {
            return Ok(Reservation::Wait(answer.wait));
        }
        let first = heard + answer.wait;
        let end = self.pace.paused_until();
        self.fresh = first + SILENCE < end;
        if self.fresh || heard - asked > FORFEIT_AFTER {
            return Err(answer.n);
        }
        // This lane heard of the pause later than the fleet, so for it the pause ends a round trip later.
        let first = first.max(end);
        Ok(Reservation::Granted(GrantRun { n: answer.n, first, every: answer.every }))
    }

    /// Takes over what the fleet knows. Only a change is taken over: a pause repeated in every answer would end a
    /// round trip later each time, and never.
    fn learn(&mut self, answer: &Answer, heard: Instant) {
        if answer.known.pause_us != self.known.pause_us && answer.pause_left() > Duration::ZERO {
            self.pace.pause(heard + answer.pause_left());
        }
        if answer.known.cut_us != self.known.cut_us {
            self.pace.lower(answer.share(), heard);
        }
        self.known = answer.known;
        self.fresh = false;
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

    fn answer(n: u32, known: Known) -> Answer {
        Answer { n, wait: MS, every: MS, known, now_us: 50_000_000 }
    }

    #[test]
    fn a_throttle_is_told_once_and_what_the_fleet_made_of_it_every_time() {
        let now = Instant::now();
        let mut lane = lane(now);
        lane.throttle(now + 60 * SECOND, now);
        let ask = lane.question(5, now + SECOND);
        assert_eq!((ask.fresh_pause, ask.fresh_ppm, ask.known), (59 * SECOND, 500_000, Known::NOTHING));
        let known = Known { pause_us: 109_000_000, pace_ppm: 500_000, cut_us: 50_000_000 };
        let told = lane.answer(&answer(0, known), now + SECOND, now + SECOND);
        assert_eq!(told, Ok(Reservation::Wait(MS)));
        let ask = lane.question(5, now + 2 * SECOND);
        assert_eq!((ask.fresh_pause, ask.fresh_ppm, ask.known), (Duration::ZERO, FULL, known));
    }

    #[test]
    fn a_pause_of_the_fleet_is_remembered_and_does_not_creep() {
        let now = Instant::now();
        let mut lane = lane(now);
        let known = Known { pause_us: 60_000_000, pace_ppm: 500_000, cut_us: 40_000_000 };
        for i in 0..50 {
            let heard = now + MS * (i + 1);
            let late = Answer { now_us: 50_000_000 + i64::from(i) * 500, ..answer(0, known) };
            assert!(lane.answer(&late, now, heard).is_ok());
        }
        assert_eq!(lane.pace().paused_until(), now + MS + 10 * SECOND);
        assert!((lane.pace().share(now + 10 * SECOND) - 0.5).abs() < 1e-3);
    }

    #[test]
    fn a_fleet_that_forgot_the_pause_grants_nothing_into_it() {
        let now = Instant::now();
        let mut lane = lane(now);
        lane.throttle(now + 60 * SECOND, now);
        assert_eq!(lane.answer(&answer(7, Known::NOTHING), now, now), Err(7));
        assert_eq!(lane.question(7, now).fresh_pause, 60 * SECOND, "and is told again");
    }

    #[test]
    fn grants_count_from_when_they_were_heard_of_and_lapse_with_a_late_answer() {
        let now = Instant::now();
        let mut lane = lane(now);
        let heard = now + 20 * MS;
        let run = GrantRun { n: 7, first: heard + MS, every: MS };
        assert_eq!(lane.answer(&answer(7, Known::NOTHING), now, heard), Ok(Reservation::Granted(run)));
        assert_eq!(lane.answer(&answer(7, Known::NOTHING), now, now + 51 * MS), Err(7));
    }
}
