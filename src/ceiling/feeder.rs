//! Owns the one task that turns wants into runs of grants.
//! Must never know: what a grant is used for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::GrantRun;
use super::board::Board;
use super::bucket::{AHEAD, Reservation};
use super::charger::Question;
use super::demand::{self, Demand};
use super::redis::SILENCE;
use super::report::Report;
use super::source::{InForce, Operation, Source};

/// After a refusal the next question waits at least this long: that many milliseconds' worth of grants in one
/// answer instead of one grant each, out of a reserve of 100 ms.
const BETWEEN_ASKS_MS: f64 = 5.0;
/// A refused instance asks again after this long at the latest. When Redis forgets a pause, the first grant it gives
/// out then is due [`AHEAD`] later; by that time somebody has told it again.
const LONGEST_SLEEP: Duration = Duration::from_millis(AHEAD.as_millis() as u64 / 2);
/// How long a want too small for a round trip waits for company.
const COMPANY: Duration = Duration::from_millis(1);
/// Between two questions of an instance that only forfeits what it gets.
const STARVING: Duration = Duration::from_millis(100);
/// How often the feeder looks at itself.
const SECOND: Duration = Duration::from_secs(1);

/// What the feeder does next.
enum Next {
    /// Go on after a look at everything else.
    Again,
    /// Nothing before then.
    At(Instant),
    /// The dispatcher has to take the last run first.
    Room,
    /// Nothing is wanted.
    Sleep,
    /// Nobody takes grants any more.
    End,
}

pub(super) struct Feeder {
    source: Source,
    board: Arc<Board>,
    runs: mpsc::Sender<GrantRun>,
    publish: watch::Sender<InForce>,
    demand: Demand,
    not_before: Instant,
    /// A small want has waited for company.
    waited: bool,
    throttled_until: Instant,
    /// The ceiling had nothing left when last asked, and since when that is counted.
    held: bool,
    counted: Instant,
    /// End of the last pause that was said.
    pause_said: Instant,
    report: Report,
}

impl Feeder {
    pub(super) fn new(
        source: Source,
        board: Arc<Board>,
        runs: mpsc::Sender<GrantRun>,
        publish: watch::Sender<InForce>,
    ) -> Self {
        let now = Instant::now();
        Self {
            source,
            board,
            runs,
            publish,
            demand: Demand::new(now),
            not_before: now,
            waited: false,
            throttled_until: now,
            held: false,
            counted: now,
            pause_said: now,
            report: Report::new(now),
        }
    }

    pub(super) async fn run(
        mut self,
        mut charges: mpsc::Receiver<Question>,
        mut live: watch::Receiver<u32>,
        cancel: CancellationToken,
    ) {
        self.source.start().await;
        let mut second = interval_at(Instant::now() + SECOND, SECOND);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = self.feed().await;
            self.publish();
            if matches!(next, Next::End) {
                return;
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = self.source.back() => {}
                Ok(()) = live.changed() => self.source.set_live(*live.borrow_and_update()),
                Some(question) = charges.recv() => self.charge(question).await,
                _ = second.tick() => self.report.second(&self.source, &self.board),
                () = self.board.woken() => {}
                () = wait(&next, &self.runs) => {}
            }
        }
    }

    /// One step: at most one reservation.
    async fn feed(&mut self) -> Next {
        let now = Instant::now();
        self.count(now);
        self.hear_throttle(now).await;
        if self.runs.is_closed() {
            return Next::End;
        }
        let wanted = self.board.wanted();
        if wanted == 0 {
            self.held = false;
            return if self.board.may_sleep() { Next::Sleep } else { Next::Again };
        }
        self.report.wanted();
        if now < self.not_before {
            return Next::At(self.not_before);
        }
        if self.runs.capacity() == 0 {
            return Next::Room;
        }
        let recent = self.demand.recent(self.board.used(), now);
        if self.source.is_far() && !self.waited && !demand::is_worth_asking(wanted, recent) {
            self.waited = true;
            return Next::At(now + COMPANY);
        }
        self.waited = false;
        if self.demand.is_starving(self.board.used(), self.board.forfeited()) {
            // One, to notice when it can be used again.
            let next = self.ask(1).await;
            self.not_before = self.not_before.max(now + STARVING);
            return next;
        }
        self.ask(demand::ask(wanted, recent, self.source.rate())).await
    }

    async fn ask(&mut self, n: u32) -> Next {
        let answer = self.source.reserve(Operation::Send, n).await;
        self.held = !matches!(answer, Reservation::Granted(run) if run.n == n);
        match answer {
            Reservation::Granted(run) => {
                self.board.granted(run.n);
                if run.n < n {
                    self.not_before = Instant::now() + between_asks();
                }
                if self.runs.try_send(run).is_ok() { Next::Again } else { Next::End }
            }
            Reservation::Wait(hint) => {
                self.not_before = Instant::now() + hint.clamp(between_asks(), LONGEST_SLEEP);
                Next::At(self.not_before)
            }
        }
    }

    /// The dispatcher may have been throttled: that goes before everything else, to the fleet too.
    async fn hear_throttle(&mut self, now: Instant) {
        let until = self.board.throttled_until();
        if until > self.throttled_until {
            self.throttled_until = until;
            self.source.throttle(until, now);
        }
        self.source.tell().await;
    }

    /// Counts the time since the last look: the provider's pause and the ceiling's own shortage are different things.
    fn count(&mut self, now: Instant) {
        let paused = self.pause_said.clamp(self.counted, now) - self.counted;
        self.board.count_throttled(paused);
        if self.held {
            self.board.count_held(now - self.counted - paused);
        }
        self.counted = now;
    }

    /// Every instance that obeys a pause says so, once, wherever it heard of it.
    fn say_pause(&mut self, until: Instant) {
        let now = Instant::now();
        if until > now && self.pause_said <= now {
            let paused_ms = until.saturating_duration_since(now).as_millis() as u64;
            // What came back from Redis is later than what was told by as long as Redis took to answer.
            let told_by = if self.throttled_until + SILENCE >= until { "provider" } else { "fleet" };
            tracing::warn!(target: "fanfare::ceiling", paused_ms, told_by, "ceiling paused by the provider");
        }
        self.pause_said = self.pause_said.max(until);
    }

    async fn charge(&mut self, question: Question) {
        let answer = match self.source.reserve(Operation::Oauth, 1).await {
            Reservation::Granted(run) => Ok(run.first),
            Reservation::Wait(hint) => Err(Instant::now() + hint.max(COMPANY)),
        };
        // Nobody listens any more: the refresh was given up, and one grant with it.
        let _ = question.send(answer);
    }

    fn publish(&mut self) {
        let in_force = self.source.in_force(self.report.used_per_s());
        self.board.pause(in_force.pace.paused_until());
        self.say_pause(in_force.pace.paused_until());
        self.publish.send_if_modified(|published| {
            let changed = *published != in_force;
            *published = in_force;
            changed
        });
    }
}

async fn wait(next: &Next, runs: &mpsc::Sender<GrantRun>) {
    match next {
        Next::Again | Next::End => {}
        Next::At(then) => sleep_until(*then).await,
        // A closed channel shows at the next attempt to send.
        Next::Room => drop(runs.reserve().await),
        Next::Sleep => std::future::pending().await,
    }
}

/// Around [`BETWEEN_ASKS_MS`], at random: instances that asked in step would always be served in the same order.
fn between_asks() -> Duration {
    Duration::from_secs_f64(BETWEEN_ASKS_MS * (0.6 + 0.8 * rand::random::<f64>()) / 1_000.0)
}
