//! The script itself, on a clock that only the tests move: the one of the server is replaced by two more arguments.

use std::time::Duration;

use fanfare::ceiling::pace::Pace;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, Script};
use tokio::time::Instant;

use crate::harness::redis::RedisServer;

const SCRIPT: &str = include_str!("../../../src/ceiling/reserve.lua");
const KEY: &str = "{fanfare:test}:fcm.send";
const AHEAD_US: u64 = 100_000;
const LONGEST_US: u64 = 3_600_000_000;
const FULL: f64 = 1_000_000.0;
/// The server's clock at the start, seconds since the epoch.
const START_S: u64 = 1_800_000_000;

/// One caller after another at one server. Everything in microseconds.
struct Bench<'a> {
    script: Script,
    connection: &'a mut Connection,
    rate: f64,
    burst: f64,
    /// True time since the start, and what the server's clock is ahead of it.
    now: u64,
    ahead: i64,
    /// What the callers remember of throttles.
    pace: Pace,
    origin: Instant,
    due: Vec<u64>,
}

/// What the script answered: how many, the first when, or ask again in.
struct Said {
    n: u64,
    wait: i64,
}

impl<'a> Bench<'a> {
    fn new(connection: &'a mut Connection, rate: f64, burst: f64) -> Self {
        let driven = SCRIPT.replace("redis.call('TIME')", "{ARGV[10], ARGV[11]}");
        assert_ne!(driven, SCRIPT, "the script reads another clock");
        redis::cmd("FLUSHALL").exec(connection).unwrap();
        let origin = Instant::now();
        let (script, pace) = (Script::new(&driven), Pace::full(origin));
        Self { script, connection, rate, burst, now: 0, ahead: 0, pace, origin, due: Vec::new() }
    }

    fn at(&self, us: u64) -> Instant {
        self.origin + Duration::from_micros(us)
    }

    fn throttle(&mut self, us: u64) {
        let now = self.at(self.now);
        self.pace.throttle(now + Duration::from_micros(us), now);
        self.ask(0, true);
    }

    fn ask(&mut self, want: u64, news: bool) -> Said {
        let now = self.at(self.now);
        let server = START_S * 1_000_000 + self.now.checked_add_signed(self.ahead).expect("after the start");
        let mut call = self.script.key(KEY);
        call.arg(1e6 / self.rate).arg(self.burst).arg(want).arg(AHEAD_US).arg(LONGEST_US).arg(50_000.0);
        call.arg(self.pace.paused_for(now).as_micros() as u64).arg((self.pace.share(now) * FULL) as i64);
        call.arg(u8::from(news)).arg(server / 1_000_000).arg(server % 1_000_000);
        let answer: Vec<i64> = call.invoke(self.connection).expect("an answer");
        let (n, wait, every) = (answer[0].unsigned_abs(), answer[1], answer[2]);
        let due = |i: i64| self.now.saturating_add_signed(wait + i * every / 1_000).max(self.now);
        self.due.extend((0..answer[0]).map(due));
        Said { n, wait }
    }

    /// Most grants due in any window over burst and rate, if one more may be out per `lapses`.
    fn excess(&self) -> f64 {
        let mut due = self.due.clone();
        due.sort_unstable();
        due.truncate(1_500);
        let mut worst = f64::MIN;
        for (i, from) in due.iter().enumerate() {
            for (j, to) in due.iter().enumerate().skip(i) {
                let allowed = self.burst + self.rate * (to - from + 2) as f64 / 1e6;
                worst = worst.max((j - i + 1) as f64 - allowed);
            }
        }
        worst
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ask(u64),
    Pass(u64),
    Throttle(u64),
    Flush,
    /// The server's clock goes by so much, either way.
    Jump(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hours = 2 * LONGEST_US as i64;
    let step = prop_oneof![
        20 => (1..200_u64).prop_map(Step::Ask),
        20 => (0..200_000_u64).prop_map(Step::Pass),
        1 => (0..3_000_000_u64).prop_map(Step::Throttle),
        1 => Just(Step::Flush),
        1 => prop_oneof![-hours..hours, -200_000..200_000_i64].prop_map(Step::Jump),
    ];
    prop::collection::vec(step, 1..120)
}

/// Runs a property against a real server, off the runtime's threads.
async fn check<S>(cases: u32, strategy: S, test: impl Fn(&mut Connection, S::Value) -> TestCaseResult + Send + 'static)
where
    S: Strategy + Send + 'static,
{
    let redis = RedisServer::start().await;
    let url = redis.url();
    let run = move || {
        use secrecy::ExposeSecret;
        let client = redis::Client::open(url.expose_secret()).unwrap();
        let connection = std::cell::RefCell::new(client.get_connection().unwrap());
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
        runner
            .run(&strategy, |value| test(&mut connection.borrow_mut(), value))
            .unwrap_or_else(|error| panic!("{error}"));
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

type TestCaseResult = Result<(), TestCaseError>;

#[tokio::test]
async fn no_window_holds_more_than_burst_and_rate_whatever_clocks_and_flushes_do() {
    let strategy = (steps(), 1.0..3_000.0_f64, 1.0..30.0_f64);
    check(48, strategy, |connection, (steps, rate, burst)| {
        let mut bench = Bench::new(connection, rate, burst);
        // Forward the clock may go as well: what was reserved under the earlier time then lies in the past, for the
        // server only, and one reserve of it may be given out again.
        let mut lapses = 0.0;
        for step in steps {
            match step {
                Step::Pass(us) => bench.now += us,
                Step::Throttle(us) => bench.throttle(us),
                Step::Flush => {
                    redis::cmd("FLUSHALL").exec(bench.connection).unwrap();
                    lapses += 1.0;
                }
                Step::Jump(us) => {
                    bench.ahead += us.max(-bench.ahead - bench.now as i64);
                    if us > 0 {
                        lapses += burst + rate * AHEAD_US as f64 / 1e6;
                    }
                }
                Step::Ask(want) => {
                    let paused = bench.pace.paused_for(bench.at(bench.now)).as_micros() as u64;
                    let said = bench.ask(want, false);
                    prop_assert!(said.n <= want && said.wait <= LONGEST_US as i64);
                    // A memory counts when it differs by more than a round trip, and a reserve is as long as that.
                    prop_assert!(
                        said.n == 0 || paused == 0 || said.wait + 2 >= paused as i64 || lapses > 0.0,
                        "inside the pause"
                    );
                }
            }
        }
        let excess = bench.excess() - lapses;
        prop_assert!(excess <= 1e-6, "{excess} grants too many");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn however_often_and_little_is_asked_the_whole_rate_can_be_had() {
    let asks = prop::collection::vec((1..90_000_u64, 0..3_u64), 20..80);
    check(32, (asks, 20.0..3_000.0_f64, 1.0..30.0_f64), |connection, (asks, rate, burst)| {
        let mut bench = Bench::new(connection, rate, burst);
        bench.ask(1, false);
        for (pass, refused) in asks {
            bench.now += pass;
            // Until it says no; and after that a few more, whom it must cost nothing.
            while bench.ask(7, false).n > 0 {}
            (0..refused).for_each(|_| assert_eq!(bench.ask(7, false).n, 0));
        }
        let most = rate * bench.now as f64 / 1e6;
        prop_assert!(bench.due.len() as f64 >= most - 1.0, "{} of {most}", bench.due.len());
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_clock_gone_back_changes_neither_the_pause_nor_the_rate() {
    let minutes = |n: i64| n * 60_000_000;
    check(1, Just(()), move |connection, ()| {
        for back in [minutes(30), minutes(59), minutes(600), 150_000] {
            let mut bench = Bench::new(connection, 100.0, 1.0);
            bench.ahead = minutes(1_000);
            while bench.ask(50, false).n > 0 {}
            bench.throttle(20_000_000);
            bench.now += 1_000_000;
            // No time counts as passed between the last call and the step, so there is one right before it.
            bench.ask(1, false);
            bench.ahead -= back;
            // A stranger, who remembers nothing.
            bench.pace = Pace::full(bench.origin);
            prop_assert_eq!(bench.ask(1, false).n, 0);
            bench.now += 18_000_000;
            prop_assert_eq!(bench.ask(1, false).n, 0, "one second too early, gone back by {}", back);
            bench.now += 1_000_000;
            let said = bench.ask(1, false);
            prop_assert!(said.n == 1 && said.wait <= 0, "gone back by {}", back);
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_memory_of_a_pause_counts_only_when_it_differs_by_more_than_a_round_trip() {
    let redis = RedisServer::start().await;
    let script = Script::new(SCRIPT);
    let mut connection = redis.connection().await;
    let mut pause_after = async |own_pause: u64, news: bool| -> i64 {
        let mut call = script.key("{fanfare:test}:fcm.send");
        call.arg(500.0).arg(20).arg(5).arg(100_000).arg(3_600_000_000_u64).arg(50_000);
        call.arg(own_pause).arg(1_000_000).arg(u8::from(news));
        let answer: Vec<i64> = call.invoke_async(&mut connection).await.expect("an answer");
        (answer[3] - answer[6]).max(0)
    };
    assert_eq!(pause_after(99_000, false).await, 0, "the end of a pause that is over for the fleet");
    assert_eq!(pause_after(50_000, true).await, 50_000, "news, to the microsecond");
    assert_eq!(pause_after(9_000_000, false).await, 9_000_000, "the fleet has forgotten");
    let left = pause_after(9_050_000, false).await;
    assert!(left <= 9_000_000, "{left}: a memory does not stretch the pause");
    assert_eq!(pause_after(9_050_000, true).await, 9_050_000);
    assert_eq!(pause_after(7_200_000_000, true).await, 3_600_000_000, "an hour at most");
}
