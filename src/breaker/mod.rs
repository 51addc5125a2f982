//! Owns the breaker: when a provider is too sick to be sent to, and how sending starts again.
//! Must never know: what is being called, how a mark was decided, or any clock (time is an argument).
//!
//! Closed: everything goes; a failed half of the last ten seconds, or sixteen failures in a row, opens it. Open:
//! nothing goes, for a second, then two, up to ten. Half-open: one probe. Its success closes the breaker,
//! which then lets two, four, eight ... attempts run at once, so that the return is not a stampede.
//!
//! What is counted is who fails and not how often: a few devices that always fail are tried again and again, and would
//! look like an outage. Only a probe's answer always counts.
//!
//! Nothing is carried over from one outage to the next: ten seconds closed are health, and health has no past.
//!
//! Half-open is where breakers hang for good: the probe is cancelled, its answer ignored, its slot never given
//! back. Three things prevent it here: a [`Ticket`] dropped without a verdict frees the slot; a probe without an answer
//! counts as failed after a time, which starts when it is launched; and a verdict counts only in the state its attempt was
//! launched in, but for the good answer of a probe, which says that the provider is there whenever it comes.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use evidence::Evidence;
pub use settings::BreakerSettings;
pub use state::{BreakerState, Mark, Opening};
use ticket::Book;
pub use ticket::Ticket;
use window::Window;

use crate::mutant;

mod evidence;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod ticket;
mod window;

/// Somebody served this recently shows that the provider is there, whoever else hangs.
const LATELY: Duration = Duration::from_secs(1);
/// So many failures in a row may be the beginning of an outage. Fewer happen by chance among devices that are sick.
const DOUBTFUL: u32 = 4;
/// At a limit of this many the ramp is over: no instance has more slots that matter.
const RAMP_END: u32 = 1024;

#[derive(Debug, Clone, Copy)]
enum State {
    /// Without limit.
    Closed,
    /// After an outage.
    Ramping(Ramp),
    /// Nothing until then.
    Open { until: Instant },
    /// One probe; `launched` is when, if one was.
    HalfOpen { launched: Option<Instant> },
}

/// How far the return has come.
#[derive(Debug, Clone, Copy)]
struct Ramp {
    /// Attempts that may run at once.
    limit: u32,
    /// Of these, how many succeeded since the limit was set.
    good: u32,
    /// When it closed.
    since: Instant,
    /// Nobody has failed anew since then.
    clean: Instant,
    /// When somebody was served last, if anybody was since then.
    served: Option<Instant>,
}

impl Ramp {
    /// The probe was the first step, of one; the next is two.
    const fn begin(now: Instant) -> Self {
        Self { limit: 2, good: 0, since: now, clean: now, served: Some(now) }
    }

    const fn fails(&mut self, now: Instant) {
        (self.clean, self.served) = (now, None);
    }

    /// The next step once as many succeeded as may run at once. Whether that was the last.
    const fn succeeds(&mut self, now: Instant) -> bool {
        self.served = Some(now);
        self.good += 1;
        if self.good >= self.limit {
            (self.good, self.limit) = (0, self.limit * 2);
        }
        self.limit >= RAMP_END
    }

    /// Whether somebody was served, and nobody is out who may be finding out right now that this was the last one: a
    /// provider that falls silent fails nobody before their time-out.
    fn proven(&self, out: u32, now: Instant) -> bool {
        self.served.is_some_and(|last| out == 0 || now.saturating_duration_since(last) <= LATELY)
    }
}

/// The breaker. Belongs to one thread.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
    window: Window,
    evidence: Evidence,
    consecutive: u32,
    /// Openings since the last health: the exponent of the next one's length.
    openings: u32,
    opening: Option<Opening>,
    ignored: u64,
    book: Rc<Book>,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: State::Closed,
            window: Window::default(),
            evidence: Evidence::default(),
            consecutive: 0,
            openings: 0,
            opening: None,
            ignored: 0,
            book: Rc::default(),
        }
    }

    /// How many more attempts may be launched now, while `in_flight` are. Those launched before the breaker last
    /// changed its state do not count against a ramp: they may hang until their timeout and say nothing new.
    pub fn allowance(&mut self, now: Instant, in_flight: u32) -> u32 {
        self.tick(now);
        match self.state {
            State::Closed => u32::MAX,
            State::Ramping(ramp) => ramp.limit.saturating_sub(in_flight.saturating_sub(self.book.stale())),
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

    /// The attempt for `who` ended. A mark from before the last change of state is counted in [`Breaker::ignored`] only,
    /// but for the success of a probe.
    pub fn finish(&mut self, ticket: Ticket, who: i64, mark: Mark, now: Instant) {
        self.tick(now);
        if mark == Mark::Neutral && !mutant::on("throttle_is_failure") {
            return;
        }
        if ticket.is_stale() {
            // A probe that was given up, and is served after all: slow, but there.
            if ticket.is_probe() && mark == Mark::Success && self.state().holds() {
                self.enter(State::Ramping(Ramp::begin(now)));
            } else {
                self.ignored += 1;
            }
            return;
        }
        match (self.state, mark) {
            (State::HalfOpen { .. }, Mark::Success) => self.enter(State::Ramping(Ramp::begin(now))),
            (State::HalfOpen { .. }, _) => self.open((1, 1), now),
            (State::Closed | State::Ramping(_), Mark::Success) => self.serve(who, now),
            (State::Closed | State::Ramping(_), _) => self.judge(who, now),
            (State::Open { .. }, _) => {}
        }
    }

    /// The state as of the last call.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Ramping(_) => BreakerState::Ramping,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether the provider may be failing everybody just now, as far as is known: nothing but a probe may leave, or the last
    /// few of those whose failure was news were followed by no success.
    #[must_use]
    pub const fn doubts(&self) -> bool {
        self.state().holds() || self.consecutive >= DOUBTFUL
    }

    /// When an open breaker lets a probe through.
    #[must_use]
    pub const fn open_until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            _ => None,
        }
    }

    /// Why it opened last; none before the first time.
    #[must_use]
    pub const fn opening(&self) -> Option<Opening> {
        self.opening
    }

    /// When [`Breaker::allowance`] may rise although no attempt ended: what a timer should wait for.
    #[must_use]
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until.max(now)),
            State::HalfOpen { launched: Some(at) } if self.book.current() > 0 => {
                Some((at + self.settings.probe_limit).max(now))
            }
            State::Ramping(ramp) => Some(ramp.clean + self.settings.healthy_after).filter(|at| *at > now),
            _ => None,
        }
    }

    /// Marks that came too late to count, since the start.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// What time alone changes: an opening ends, a probe is given up, a ramp is over. Call it now and then when nothing
    /// is launched, so that [`Breaker::state`] is true.
    pub fn tick(&mut self, now: Instant) {
        match self.state {
            State::Open { until } if until <= now => self.enter(State::HalfOpen { launched: None }),
            State::HalfOpen { launched: Some(at) }
                if self.book.current() > 0 && at + self.settings.probe_limit <= now =>
            {
                self.open((1, 1), now);
            }
            State::Ramping(ramp) => {
                let long = |since: Instant| now.saturating_duration_since(since) >= self.settings.healthy_after;
                if long(ramp.clean) && ramp.proven(self.book.current(), now) {
                    self.recover();
                } else if long(ramp.since) {
                    self.openings = 0;
                }
            }
            _ => {}
        }
    }

    fn serve(&mut self, who: i64, now: Instant) {
        self.window.count(Mark::Success, now);
        self.evidence.succeeds(who);
        self.consecutive = 0;
        if let State::Ramping(ramp) = &mut self.state
            && ramp.succeeds(now)
        {
            self.recover();
        }
    }

    fn judge(&mut self, who: i64, now: Instant) {
        if !self.evidence.fails(who, now) {
            return;
        }
        if let State::Ramping(ramp) = &mut self.state {
            ramp.fails(now);
        }
        self.window.count(Mark::Failure, now);
        self.consecutive += 1;
        let (samples, failures) = self.window.sums(now);
        let share = f64::from(failures) / f64::from(samples.max(1));
        if self.consecutive >= self.settings.consecutive {
            self.open((self.consecutive, self.consecutive), now);
        } else if samples >= self.settings.min_samples && share >= self.settings.failure_share {
            self.open((failures, samples), now);
        }
    }

    /// The ramp is over. Attempts in flight and what was counted belong to the same health, and go on counting.
    const fn recover(&mut self) {
        self.state = State::Closed;
        self.openings = 0;
    }

    fn open(&mut self, (failures, of): (u32, u32), now: Instant) {
        let doubled = self.settings.open_first * 2_u32.saturating_pow(self.openings.min(16));
        let spread = 0.8 + 0.4 * (self.settings.jitter)().clamp(0.0, 1.0);
        let wait = doubled.min(self.settings.open_max).mul_f64(spread);
        self.openings = self.openings.saturating_add(1);
        self.opening = Some(Opening { failures, of, wait });
        self.enter(State::Open { until: now + wait });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.window = Window::default();
        self.evidence = Evidence::default();
        self.consecutive = 0;
        self.book.next_generation();
    }
}
