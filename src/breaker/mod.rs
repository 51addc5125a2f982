//! Owns the breaker: when a provider is too sick to be sent to, and how sending starts again.
//! Must never know: what is being called, how a mark was decided, or any clock (time is an argument).
//!
//! Closed: everything goes; a failed half of the last ten seconds, or sixteen failures in a row, opens it. Open:
//! nothing goes, for a second, then two, up to a minute. Half-open: one probe. Its success closes the breaker,
//! which then lets two, four, eight ... attempts run at once, so that the return is not a stampede.
//!
//! Half-open is where breakers hang for good: the probe is cancelled, its answer ignored, its slot never given
//! back. Three things prevent it here: a [`Ticket`] dropped without a verdict frees the slot; a probe has a time
//! limit, which starts when it is launched; and a verdict counts only in the state its attempt was launched in.

use std::rc::Rc;
use tokio::time::Instant;

pub use settings::BreakerSettings;
use ticket::Book;
pub use ticket::Ticket;
use window::Window;

use crate::mutant;

mod settings;
mod ticket;
mod window;

/// At a limit of this many the ramp is over: no instance has more slots that matter.
const RAMP_END: u32 = 1024;

/// What an attempt says about the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It answered with sense, whatever the answer meant for the recipient.
    Success,
    /// It did not.
    Failure,
    /// The attempt says nothing: throttled, cancelled, never left.
    Neutral,
}

/// Whether attempts may be launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Without limit.
    Closed,
    /// A few at once, after an outage.
    Ramping,
    /// Not at all.
    Open,
    /// One.
    HalfOpen,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Ramping, Self::Open, Self::HalfOpen];

    /// `closed`, `ramping`, `open` or `half_open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Ramping => "ramping",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// At most `limit` attempts at once, of which `good` succeeded since the limit was set. `since` is when it
    /// closed; none before the first opening.
    Closed { since: Option<Instant>, limit: u32, good: u32 },
    /// Nothing until then.
    Open { until: Instant },
    /// One probe; `launched` is when, if one was.
    HalfOpen { launched: Option<Instant> },
}

/// The breaker. Belongs to one thread.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
    window: Window,
    consecutive: u32,
    /// Openings since the last long health: the exponent of the next one's length.
    openings: u32,
    ignored: u64,
    book: Rc<Book>,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: State::Closed { since: None, limit: u32::MAX, good: 0 },
            window: Window::default(),
            consecutive: 0,
            openings: 0,
            ignored: 0,
            book: Rc::default(),
        }
    }

    /// How many more attempts may be launched now, while `in_flight` are. Those launched before the breaker last
    /// changed its state do not count against a ramp: they may hang until their timeout and say nothing new.
    pub fn allowance(&mut self, now: Instant, in_flight: u32) -> u32 {
        self.tick(now);
        match self.state {
            State::Closed { limit: u32::MAX, .. } => u32::MAX,
            State::Closed { limit, .. } => limit.saturating_sub(in_flight.saturating_sub(self.book.stale())),
            State::Open { .. } => 0,
            State::HalfOpen { .. } => u32::from(self.book.current() == 0),
        }
    }

    /// An attempt leaves now; [`Breaker::allowance`] was above 0. Keep the ticket until its end.
    pub fn launch(&mut self, now: Instant) -> Ticket {
        let probe = matches!(self.state, State::HalfOpen { .. });
        if let State::HalfOpen { launched } = &mut self.state {
            *launched = Some(now);
        }
        Ticket::new(&self.book, probe)
    }

    /// The attempt ended. A mark from before the last change of state is counted in [`Breaker::ignored`] only.
    pub fn finish(&mut self, ticket: Ticket, mark: Mark, now: Instant) {
        self.tick(now);
        if mark == Mark::Neutral && !mutant::on("throttle_is_failure") {
            return;
        }
        if ticket.is_stale() {
            self.ignored += 1;
            return;
        }
        match (self.state, mark) {
            (State::HalfOpen { .. }, Mark::Success) => self.close(now),
            (State::HalfOpen { .. }, _) => self.open(now),
            (State::Closed { .. }, _) => self.judge(mark, now),
            (State::Open { .. }, _) => {}
        }
    }

    /// The state as of the last call.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { limit: u32::MAX, .. } => BreakerState::Closed,
            State::Closed { .. } => BreakerState::Ramping,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// When an open breaker lets a probe through.
    #[must_use]
    pub const fn open_until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            _ => None,
        }
    }

    /// When [`Breaker::allowance`] may rise although no attempt ended: what a timer should wait for.
    #[must_use]
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until.max(now)),
            State::HalfOpen { launched: Some(at) } if self.book.current() > 0 => {
                Some((at + self.settings.probe_limit).max(now))
            }
            _ => None,
        }
    }

    /// Marks that came too late to count, since the start.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// What time alone changes: an opening ends, a probe is given up.
    fn tick(&mut self, now: Instant) {
        match self.state {
            State::Open { until } if until <= now => self.enter(State::HalfOpen { launched: None }),
            State::HalfOpen { launched: Some(at) }
                if self.book.current() > 0 && at + self.settings.probe_limit <= now =>
            {
                self.enter(State::HalfOpen { launched: None });
            }
            _ => {}
        }
    }

    fn judge(&mut self, mark: Mark, now: Instant) {
        self.window.count(mark, now);
        if mark == Mark::Success {
            self.consecutive = 0;
            self.widen();
            return;
        }
        self.consecutive += 1;
        let (samples, failures) = self.window.sums(now);
        let share = f64::from(failures) / f64::from(samples.max(1));
        let rate = samples >= self.settings.min_samples && share >= self.settings.failure_share;
        if rate || self.consecutive >= self.settings.consecutive {
            self.open(now);
        }
    }

    /// One step of the ramp once as many attempts succeeded as may run at once.
    fn widen(&mut self) {
        if let State::Closed { limit, good, .. } = &mut self.state {
            if *limit == u32::MAX {
                return;
            }
            *good += 1;
            if *good >= *limit {
                *good = 0;
                *limit = if *limit * 2 >= RAMP_END { u32::MAX } else { *limit * 2 };
            }
        }
    }

    /// The probe was the ramp's first step of one; the next is two.
    fn close(&mut self, now: Instant) {
        self.enter(State::Closed { since: Some(now), limit: 2, good: 0 });
    }

    fn open(&mut self, now: Instant) {
        if let State::Closed { since: Some(since), .. } = self.state
            && now.saturating_duration_since(since) >= self.settings.healthy_after
        {
            self.openings = 0;
        }
        let doubled = self.settings.open_first * 2_u32.saturating_pow(self.openings.min(16));
        let spread = 0.8 + 0.4 * (self.settings.jitter)().clamp(0.0, 1.0);
        self.openings = self.openings.saturating_add(1);
        self.enter(State::Open { until: now + doubled.min(self.settings.open_max).mul_f64(spread) });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.window = Window::default();
        self.consecutive = 0;
        self.book.next_generation();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A breaker without jitter, and a clock that only the test moves.
    struct Bench {
        breaker: Breaker,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let settings = BreakerSettings { jitter: || 0.5, ..BreakerSettings::default() };
            Self { breaker: Breaker::new(settings), now: Instant::now() }
        }

        fn opened() -> Self {
            let mut bench = Self::new();
            bench.marks(16, Mark::Failure);
            assert_eq!(bench.breaker.state(), BreakerState::Open);
            bench
        }

        fn half_open() -> Self {
            let mut bench = Self::opened();
            bench.pass(SECOND);
            assert_eq!(bench.allowance(0), 1);
            bench
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
        }

        fn allowance(&mut self, in_flight: u32) -> u32 {
            self.breaker.allowance(self.now, in_flight)
        }

        fn launch(&mut self) -> Ticket {
            self.breaker.launch(self.now)
        }

        fn finish(&mut self, ticket: Ticket, mark: Mark) {
            self.breaker.finish(ticket, mark, self.now);
        }

        fn marks(&mut self, n: u32, mark: Mark) {
            for _ in 0..n {
                let ticket = self.launch();
                self.finish(ticket, mark);
            }
        }

        fn open_for(&self) -> Duration {
            self.breaker.open_until().expect("open") - self.now
        }
    }

    #[test]
    fn sixteen_failures_in_a_row_open_it_and_fifteen_do_not() {
        let mut bench = Bench::new();
        bench.marks(15, Mark::Failure);
        bench.marks(1, Mark::Success);
        bench.marks(4, Mark::Failure);
        assert_eq!(bench.breaker.state(), BreakerState::Open, "20 marks, 19 of them failures: the rate");
        let mut bench = Bench::new();
        bench.marks(15, Mark::Failure);
        assert_eq!(bench.allowance(0), u32::MAX);
        bench.marks(1, Mark::Failure);
        assert_eq!(bench.allowance(0), 0);
    }

    #[test]
    fn half_of_twenty_marks_within_ten_seconds_open_it() {
        let mut bench = Bench::new();
        for _ in 0..9 {
            bench.marks(1, Mark::Success);
            bench.marks(1, Mark::Failure);
        }
        bench.marks(1, Mark::Success);
        assert_eq!(bench.allowance(0), u32::MAX, "19 marks say nothing about a rate");
        bench.marks(1, Mark::Failure);
        assert_eq!(bench.allowance(0), 0);
    }

    #[test]
    fn less_than_half_never_opens_it() {
        let mut bench = Bench::new();
        for _ in 0..200 {
            bench.marks(11, Mark::Success);
            bench.marks(9, Mark::Failure);
            bench.pass(SECOND / 3);
        }
        assert_eq!(bench.breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn failures_older_than_ten_seconds_are_forgotten() {
        let mut bench = Bench::new();
        bench.marks(15, Mark::Failure);
        bench.marks(1, Mark::Success);
        bench.pass(10 * SECOND);
        bench.marks(6, Mark::Success);
        bench.marks(4, Mark::Failure);
        assert_eq!(bench.breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn throttles_and_cancels_say_nothing() {
        let mut bench = Bench::new();
        bench.marks(15, Mark::Failure);
        bench.marks(100, Mark::Neutral);
        assert_eq!(bench.breaker.state(), BreakerState::Closed, "they are no failures");
        bench.marks(1, Mark::Failure);
        assert_eq!(bench.breaker.state(), BreakerState::Open, "and they do not interrupt a row of them");
    }

    #[test]
    fn it_lets_one_probe_through_after_a_second_and_opens_for_twice_as_long_when_that_fails() {
        let mut bench = Bench::opened();
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(bench.open_for(), expected * SECOND);
            assert_eq!(bench.breaker.next_change(bench.now), bench.breaker.open_until());
            bench.pass(expected * SECOND - Duration::from_millis(1));
            assert_eq!(bench.allowance(0), 0);
            bench.pass(Duration::from_millis(1));
            assert_eq!(bench.allowance(0), 1);
            let probe = bench.launch();
            assert!(probe.is_probe());
            assert_eq!(bench.allowance(1), 0, "one at a time");
            bench.finish(probe, Mark::Failure);
        }
    }

    #[test]
    fn jitter_spreads_the_end_of_an_opening_by_a_fifth_either_way() {
        for (draw, expected) in [(|| 0.0) as fn() -> f64, || 1.0].into_iter().zip([0.8, 1.2]) {
            let mut bench = Bench::new();
            bench.breaker.settings.jitter = draw;
            bench.marks(16, Mark::Failure);
            assert_eq!(bench.open_for(), SECOND.mul_f64(expected));
        }
    }

    #[test]
    fn a_probe_that_succeeds_starts_a_ramp_of_two_four_eight() {
        let mut bench = Bench::half_open();
        bench.marks(1, Mark::Success);
        for limit in [2, 4, 8, 16, 32, 64, 128, 256, 512] {
            assert_eq!((bench.allowance(0), bench.breaker.state()), (limit, BreakerState::Ramping));
            let running: Vec<Ticket> = (0..limit).map(|_| bench.launch()).collect();
            assert_eq!(bench.allowance(limit), 0);
            for ticket in running {
                bench.finish(ticket, Mark::Success);
            }
        }
        assert_eq!((bench.allowance(0), bench.breaker.state()), (u32::MAX, BreakerState::Closed));
    }

    #[test]
    fn attempts_that_hang_since_the_outage_do_not_hold_up_the_ramp() {
        let mut bench = Bench::new();
        let hanging: Vec<Ticket> = (0..32).map(|_| bench.launch()).collect();
        bench.marks(16, Mark::Failure);
        bench.pass(SECOND);
        assert_eq!(bench.allowance(32), 1);
        bench.marks(1, Mark::Success);
        assert_eq!(bench.allowance(32), 2);
        drop(hanging);
        assert_eq!(bench.allowance(0), 2);
    }

    #[test]
    fn a_cancelled_probe_gives_its_slot_back() {
        let mut bench = Bench::half_open();
        let probe = bench.launch();
        assert_eq!(bench.allowance(1), 0);
        drop(probe);
        assert_eq!((bench.allowance(0), bench.breaker.state()), (1, BreakerState::HalfOpen));
    }

    #[test]
    fn a_throttled_probe_gives_its_slot_back_and_lengthens_nothing() {
        let mut bench = Bench::half_open();
        bench.marks(1, Mark::Neutral);
        assert_eq!(bench.allowance(0), 1);
        bench.marks(1, Mark::Failure);
        assert_eq!(bench.open_for(), 2 * SECOND);
    }

    #[test]
    fn a_probe_without_an_answer_is_given_up_after_its_limit() {
        let mut bench = Bench::half_open();
        bench.pass(3600 * SECOND);
        assert_eq!(bench.allowance(0), 1, "waiting for a grant costs a probe nothing");
        let lost = bench.launch();
        let limit = BreakerSettings::default().probe_limit;
        assert_eq!(bench.breaker.next_change(bench.now), Some(bench.now + limit));
        bench.pass(limit - SECOND);
        assert_eq!(bench.allowance(1), 0);
        bench.pass(SECOND);
        assert_eq!(bench.allowance(1), 1);
        bench.finish(lost, Mark::Success);
        assert_eq!(bench.breaker.state(), BreakerState::HalfOpen, "its late answer does not settle the next probe");
        assert_eq!(bench.breaker.ignored(), 1);
    }

    #[test]
    fn answers_from_before_the_opening_do_not_close_it() {
        let mut bench = Bench::new();
        let early = [bench.launch(), bench.launch()];
        bench.marks(16, Mark::Failure);
        bench.pass(SECOND);
        for ticket in early {
            bench.finish(ticket, Mark::Success);
        }
        assert_eq!((bench.breaker.state(), bench.breaker.ignored()), (BreakerState::HalfOpen, 2));
    }

    #[test]
    fn a_minute_of_health_starts_the_doubling_over() {
        let mut bench = Bench::half_open();
        bench.marks(1, Mark::Failure);
        bench.pass(2 * SECOND);
        assert_eq!(bench.allowance(0), 1);
        bench.marks(1, Mark::Success);
        bench.pass(59 * SECOND);
        bench.marks(16, Mark::Failure);
        assert_eq!(bench.open_for(), 4 * SECOND);
        bench.pass(4 * SECOND);
        assert_eq!(bench.allowance(0), 1);
        bench.marks(1, Mark::Success);
        bench.pass(60 * SECOND);
        bench.marks(16, Mark::Failure);
        assert_eq!(bench.open_for(), SECOND);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Launch,
        Finish(usize, Mark),
        Drop(usize),
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let mark = prop_oneof![4 => Just(Mark::Failure), 1 => Just(Mark::Success), 1 => Just(Mark::Neutral)];
        let step = prop_oneof![
            8 => Just(Step::Launch),
            8 => (any::<usize>(), mark).prop_map(|(i, mark)| Step::Finish(i, mark)),
            1 => any::<usize>().prop_map(Step::Drop),
            2 => (0..20_000_u64).prop_map(Step::Pass),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        /// Attempts end within 30 s, as their timeout sees to; the longest opening is 60 s and a fifth.
        #[test]
        fn once_calls_succeed_it_admits_one_in_bounded_time_whatever_came_before(steps in steps()) {
            let mut bench = Bench::new();
            bench.breaker.settings.jitter = || 1.0;
            let mut flying = Vec::new();
            for step in steps {
                match step {
                    Step::Launch if bench.allowance(flying.len() as u32) > 0 => flying.push(bench.launch()),
                    Step::Finish(i, mark) if !flying.is_empty() => {
                        let ticket = flying.swap_remove(i % flying.len());
                        bench.finish(ticket, mark);
                    }
                    Step::Drop(i) if !flying.is_empty() => drop(flying.swap_remove(i % flying.len())),
                    Step::Pass(ms) => bench.pass(Duration::from_millis(ms)),
                    _ => {}
                }
                if bench.breaker.state() == BreakerState::HalfOpen {
                    prop_assert!(bench.breaker.book.current() <= 1, "never two probes");
                }
            }
            let healed = bench.now;
            while bench.allowance(flying.len() as u32) == 0 {
                prop_assert!(bench.now - healed <= 108 * SECOND, "stuck in {:?}", bench.breaker.state);
                bench.pass(SECOND);
                if bench.now - healed >= 30 * SECOND {
                    flying.clear();
                }
            }
            for _ in 0..1100 {
                prop_assert!(bench.allowance(flying.len() as u32) > 0);
                bench.marks(1, Mark::Success);
            }
            prop_assert_eq!(bench.breaker.state(), BreakerState::Closed);
        }
    }
}
