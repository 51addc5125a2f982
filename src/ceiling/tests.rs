//! The feeder without Redis, on a clock that only the tests move.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tokio::time::{advance, timeout};
use tracing_subscriber::fmt::MakeWriter;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

struct Bench {
    ceiling: Ceiling,
    runs: mpsc::Receiver<GrantRun>,
    live: watch::Sender<u32>,
    start: Instant,
    cancel: CancellationToken,
}

fn bench(rate_per_s: f64, redis_url: Option<&str>, shared_database: bool) -> Bench {
    let settings = Settings {
        rate_per_s,
        burst: (rate_per_s * 0.010).max(1.0),
        redis_url: redis_url.map(SecretString::from),
        project: "test".to_owned(),
        shared_database,
    };
    let (live, receiver) = watch::channel(4);
    let (cancel, start) = (CancellationToken::new(), Instant::now());
    let (ceiling, runs) = Ceiling::start(settings, receiver, cancel.clone());
    Bench { ceiling, runs, live, start, cancel }
}

impl Bench {
    /// Takes and uses whatever is due for this long, always wanting `n` more.
    async fn use_for(&mut self, time: Duration, n: u64) -> u64 {
        let (end, before) = (Instant::now() + time, self.ceiling.snapshot().used);
        while Instant::now() < end {
            self.ceiling.want(n);
            if let Ok(Some(run)) = timeout(MS, self.runs.recv()).await {
                self.ceiling.used(u64::from(run.n));
            }
        }
        self.ceiling.snapshot().used - before
    }

    async fn next(&mut self) -> GrantRun {
        self.runs.recv().await.expect("a run")
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reserved_while_nothing_is_wanted() {
    let mut bench = bench(1000.0, None, false);
    assert!(timeout(60 * SECOND, bench.runs.recv()).await.is_err());
    bench.ceiling.want(3);
    let run = bench.next().await;
    assert_eq!((run.n, run.first), (3, bench.start + 60 * SECOND - 9 * MS), "a burst of ten may be due");
    assert!(timeout(60 * SECOND, bench.runs.recv()).await.is_err(), "three were wanted, three came");
}

#[tokio::test(start_paused = true)]
async fn a_process_starts_empty() {
    let mut bench = bench(1000.0, None, false);
    bench.ceiling.want(100);
    assert_eq!(bench.next().await.first, bench.start + 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn beside_a_shared_database_without_redis_the_rate_is_split_by_the_heartbeats() {
    let mut bench = bench(1000.0, None, true);
    let now = bench.ceiling.snapshot();
    assert_eq!((now.mode, now.rate, now.share), (Mode::Split, 1000.0, 250.0));
    assert_eq!(now.reason, "redis: not configured beside a shared database");
    let used = bench.use_for(4 * SECOND, 50).await;
    assert!((200..=280).contains(&used), "for 3 s the others do not know of it: {used}");
    let used = bench.use_for(4 * SECOND, 50).await;
    assert!((900..=1030).contains(&used), "{used}");
    bench.live.send_replace(8);
    let used = bench.use_for(4 * SECOND, 50).await;
    assert!((480..=520).contains(&used), "{used}");
    assert_eq!(bench.ceiling.snapshot().share, 125.0);
    bench.live.send_replace(0);
    bench.use_for(SECOND, 50).await;
    assert_eq!(bench.ceiling.snapshot().share, 1000.0, "itself it always counts");
}

#[tokio::test(start_paused = true)]
async fn a_url_that_is_none_is_a_split_that_says_so() {
    let bench = bench(1000.0, Some("http://:hunter2@x"), true);
    assert_eq!(bench.ceiling.snapshot().reason, "redis: bad url");
    assert_eq!(bench.ceiling.snapshot().mode, Mode::Split);
}

#[tokio::test(start_paused = true)]
async fn a_throttle_pauses_as_long_as_asked_and_then_half_the_pace_applies() {
    for (asked, paused) in [(Some(7 * SECOND), 7), (None, 60), (Some(Duration::ZERO), 1), (Some(Duration::MAX), 3600)] {
        let mut bench = bench(1000.0, None, false);
        bench.use_for(SECOND, 50).await;
        bench.ceiling.throttled(asked);
        let end = Instant::now() + paused * SECOND;
        assert_eq!(bench.ceiling.paused_until(), Some(end), "at once, for the grants in hand");
        while let Ok(Some(stale)) = timeout(MS, bench.runs.recv()).await {
            assert!(stale.first < end);
        }
        bench.ceiling.throttled(Some(SECOND));
        let end = end.max(Instant::now() + SECOND);
        bench.ceiling.want(50);
        let run = bench.next().await;
        assert_eq!((run.first, run.every), (end, 2 * MS));
        let now = bench.ceiling.snapshot();
        assert_eq!((now.pace, now.reason.as_str()), (500.0, "throttled by the provider"));
        advance(end - Instant::now() + 4 * SECOND).await;
        assert_eq!((bench.ceiling.snapshot().pace, bench.ceiling.paused_until()), (700.0, None));
        advance(6 * SECOND).await;
        assert_eq!(bench.ceiling.snapshot().reason, "");
    }
}

#[tokio::test(start_paused = true)]
async fn the_oauth_call_has_a_lane_of_its_own_and_is_never_held_up_by_pushes() {
    let mut bench = bench(1000.0, None, false);
    bench.use_for(10 * SECOND, 500).await;
    bench.ceiling.throttled(None);
    let charger = bench.ceiling.charger();
    let asked = Instant::now();
    for _ in 0..5 {
        charger.charge().await;
    }
    assert!(asked.elapsed() < 5 * MS, "the burst: {:?}", asked.elapsed());
    for _ in 0..10 {
        charger.charge().await;
    }
    assert!((990 * MS..1100 * MS).contains(&asked.elapsed()), "ten a second: {:?}", asked.elapsed());
    bench.cancel.cancel();
    timeout(SECOND, charger.charge()).await.expect("an answer after the end, too");
}

#[tokio::test(start_paused = true)]
async fn the_feeder_ends_when_nobody_takes_grants() {
    let Bench { ceiling, runs, live: _live, cancel: _cancel, .. } = bench(1000.0, None, false);
    ceiling.want(10);
    drop(runs);
    timeout(5 * SECOND, async {
        while ceiling.published.has_changed().is_ok() {
            advance(MS).await;
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the feeder ended");
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    fn with(&self, message: &str) -> Vec<serde_json::Value> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lines = String::from_utf8(text).expect("text");
        let parsed = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("json"));
        parsed.filter(|line| line["fields"]["message"] == message).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn every_ten_seconds_one_line_says_what_is_in_force_while_grants_are_wanted() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    // With a single subscriber, whether an event is wanted is decided by the thread that reaches it first, which may
    // be another test's; with two it is asked of both.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut bench = bench(1000.0, None, true);
    bench.use_for(25 * SECOND, 20).await;
    let said = lines.with("ceiling in force");
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0]["target"], "fanfare::ceiling");
    let fields = said[1]["fields"].as_object().expect("fields");
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    let mut expected = ["mode", "rate", "pace", "used_per_s", "waiting", "forfeited", "paused_until_ms", "reason"];
    expected.sort_unstable();
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!((&fields["mode"], &fields["paused_until_ms"]), (&"split".into(), &0.into()));
    let per_s = fields["used_per_s"].as_f64().expect("a number");
    assert!((240.0..260.0).contains(&per_s), "{per_s}");
    bench.ceiling.want(0);
    while timeout(MS, bench.runs.recv()).await.is_ok() {}
    advance(10 * SECOND).await;
    bench.use_for(Duration::ZERO, 0).await;
    let quiet = lines.with("ceiling in force").len();
    tokio::time::sleep(60 * SECOND).await;
    assert!(lines.with("ceiling in force").len() <= quiet + 1, "silent when nothing is wanted");
}

#[tokio::test(start_paused = true)]
async fn each_pause_is_said_once_and_time_throttled_and_time_held_are_counted_apart() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut bench = bench(1000.0, None, false);
    bench.use_for(2 * SECOND, 50).await;
    let busy = bench.ceiling.snapshot();
    assert!(busy.held_for > SECOND && busy.throttled_for.is_zero(), "our own ceiling only: {busy:?}");
    for n in 1..=2 {
        for _ in 0..3 {
            bench.ceiling.throttled(Some(7 * SECOND));
            bench.use_for(SECOND, 50).await;
        }
        bench.use_for(9 * SECOND, 50).await;
        let said = lines.with("ceiling paused by the provider");
        assert_eq!(said.len(), n, "{said:?}");
        assert_eq!((&said[n - 1]["fields"]["told_by"], &said[n - 1]["level"]), (&"provider".into(), &"WARN".into()));
    }
    let after = bench.ceiling.snapshot();
    // Asked for three times a second apart: nine seconds each.
    assert!((17 * SECOND..=18 * SECOND + 100 * MS).contains(&after.throttled_for), "{after:?}");
    let held = after.held_for - busy.held_for;
    assert!(held < 8 * SECOND, "a pause is not held by our own ceiling: {after:?}");
    bench.ceiling.want(0);
    tokio::time::sleep(60 * SECOND).await;
    let idle = bench.ceiling.snapshot();
    assert!(idle.held_for <= after.held_for + SECOND, "nothing is held when nothing is wanted: {idle:?}");
}
