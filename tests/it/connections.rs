//! Connections to a provider that says GOAWAY, takes streams away, refuses them, or never answers: nothing is lost, the
//! ledger is exact, and what is well goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fanfare::domain::outcome::{Failure, Verdict};
use fanfare::emulator::{Act, Control, Emulator, GoAway, Network, Settings};
use fanfare::fcm::attempted::Attempted;
use fanfare::fcm::bearer::Bearer;
use fanfare::fcm::connections::{Connections, Settings as Pool};
use fanfare::wire::Fanout;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::harness::process::Process;
use super::harness::service::{Database, World};
use super::harness::together::together;

fn wrong(network: Network) -> Control {
    Control { network, ..Control::default() }
}

fn act(act: Act) -> Control {
    wrong(Network { now: vec![act], ..Network::default() })
}

fn streams(max: u32) -> Control {
    wrong(Network { max_streams: Some(max), ..Network::default() })
}

/// A world with a service and its followers.
async fn serving(mut world: World, run: &str, tokens: &[String]) -> (World, Process) {
    world.emulate(Control { latency_ms: Some(20), ..Control::default() });
    world.set("DATABASE__MAX_CONNECTIONS", 4);
    let service = world.spawn().await;
    service.follow(run, tokens).await;
    (world, service)
}

fn followers(run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{run}-{i}")).collect()
}

/// Everybody got it once, nobody's retry was used, and the ledger is the provider's to the last count.
fn exactly_once(world: &World, fanout: &Fanout, n: u64) {
    let stats = world.emulator.stats();
    assert_eq!((fanout.recipients, fanout.delivered, fanout.failed, fanout.retried), (n, n, 0, 0), "{fanout:#?}");
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted, stats.overruns), (n, 0, 0), "{stats:?}");
    assert_eq!(fanout.attempts - fanout.unsent - fanout.unprocessed, stats.requests, "{fanout:?} {stats:?}");
    assert!(fanout.unprocessed >= stats.refused + stats.unprocessed, "{fanout:?} {stats:?}");
    assert_eq!(fanout.ledger, "exact");
}

/// Time between the first and the last arrival of those that are answered.
fn took(world: &World) -> Duration {
    let log = world.emulator.log();
    let well = |e: &&fanfare::emulator::LogEntry| e.status == 200;
    let last = log.iter().filter(well).map(|e| e.t_ns).max().unwrap();
    Duration::from_nanos(last - log[0].t_ns)
}

/// A connection lives for a hundred requests, and three more that it does not process.
async fn goaway_every_100() {
    // At the same time, so that both have the same machine; once more when other tests took it from one of them only.
    let mut pairs = Vec::new();
    for (calm, storm) in [("calm-goaway", "goaway"), ("calm-goaway-2", "goaway-2")] {
        let (calm, storm) = tokio::join!(goaway_every(0, calm), goaway_every(100, storm));
        // `cargo bench --bench connections` measures it; here only that nothing waits for anything.
        if storm < calm * 2 {
            return;
        }
        pairs.push((calm, storm));
    }
    panic!("twice as long or longer each time, calm and with GOAWAY: {pairs:?}");
}

async fn goaway_every(every: u32, run: &'static str) -> Duration {
    let world = World::new(Database::Sqlite, false).await;
    let storm = Network { goaway_every: Some(every), goaway_unprocessed: Some(3), ..Network::default() };
    world.emulate(wrong(storm));
    let (world, service) = serving(world, run, &followers(run, 1000)).await;
    let fanout = service.settled(&service.goal(run, run, 120).await).await;
    exactly_once(&world, &fanout, 1000);
    let stats = world.emulator.stats();
    assert!(every == 0 || (stats.goaways >= 7 && fanout.unprocessed > 0), "{stats:?}");
    assert!(service.said("breaker changed").is_empty(), "a GOAWAY is no failure");
    println!("{run}: {:?}, {} GOAWAYs, {} unprocessed", took(&world), stats.goaways, fanout.unprocessed);
    took(&world)
}

/// The last stream it names is lower than what it has processed: what was delivered is sent again, and both are counted.
async fn goaway_that_lies() {
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "liar", &followers("liar", 700)).await;
    let id = service.goal("liar", "liar", 120).await;
    for sent in [150, 300, 450] {
        world.emulator.logged(sent).await;
        world.emulate(act(Act::Goaway(GoAway { last_stream: Some(1), ..GoAway::default() })));
    }
    let fanout = service.settled(&id).await;
    let stats = world.emulator.stats();
    assert_eq!((fanout.delivered, fanout.failed, stats.distinct_accepted), (700, 0, 700), "{fanout:#?}");
    assert!(stats.duplicates_accepted > 0, "it lied about some: {stats:?}");
    assert_eq!(stats.requests, 700 + stats.duplicates_accepted, "{stats:?}");
    // A connection that was cut before its GOAWAY was read leaves attempts of which nothing is known: those are retried.
    assert_eq!(fanout.attempts, 700 + fanout.unprocessed + fanout.unsent + fanout.retried, "{fanout:?}");
    assert!(stats.duplicates_accepted <= fanout.unprocessed + fanout.retried, "{fanout:?} {stats:?}");
}

/// GOAWAY with an error is the provider in trouble: what it did not process never left for good.
async fn goaway_in_anger() {
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "anger", &followers("anger", 700)).await;
    let id = service.goal("anger", "anger", 120).await;
    for sent in [150, 300, 450] {
        world.emulator.logged(sent).await;
        world.emulate(act(Act::Goaway(GoAway { code: 11, ..GoAway::default() })));
    }
    let fanout = service.settled(&id).await;
    let stats = world.emulator.stats();
    assert_eq!((fanout.delivered, fanout.failed, stats.distinct_accepted), (700, 0, 700), "{fanout:#?}");
    assert_eq!(fanout.attempts - fanout.unsent - fanout.unprocessed, stats.requests, "{fanout:?} {stats:?}");
    assert_eq!(stats.duplicates_accepted, 0);
}

/// Every third stream is refused.
async fn refused_streams() {
    let token = |i: usize| if i.is_multiple_of(3) { format!("flakyrefused-ref-{i}") } else { format!("ok-ref-{i}") };
    let tokens: Vec<String> = (0..600).map(token).collect();
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "ref", &tokens).await;
    let fanout = service.settled(&service.goal("ref", "ref", 120).await).await;
    exactly_once(&world, &fanout, 600);
    assert_eq!((fanout.unprocessed, world.emulator.stats().refused), (200, 200));
    assert_eq!(fanout.attempts, 800, "each with a grant of its own");
}

/// 100 streams, then 4, then none, then 100 again, in the middle of a burst.
async fn streams_taken_away() {
    let (world, service) = serving(World::new(Database::Sqlite, false).await, "taken", &followers("taken", 800)).await;
    let id = service.goal("taken", "taken", 120).await;
    world.emulator.logged(300).await;
    world.emulate(streams(4));
    let lowered = world.emulator.stats().requests;
    world.emulator.logged(lowered + 150).await;
    world.emulate(streams(0));
    // What was under way has arrived by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stopped = world.emulator.stats().requests;
    // Longer than a request may wait for a stream.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.emulator.stats().requests, stopped, "no stream, no request");
    world.emulate(streams(100));
    let fanout = service.settled(&id).await;
    exactly_once(&world, &fanout, 800);
    assert_eq!((fanout.unprocessed, fanout.outcomes["unconfirmed"]), (0, 0));
    assert!(fanout.unsent <= 32, "at most those that were on their way when the limit fell: {fanout:?}");
    assert!(service.said("breaker changed").is_empty(), "a lower limit is no failure");
    println!("streams taken away: {} unsent", fanout.unsent);
}

/// `k` of 32 slots never get an answer.
async fn stalled(k: usize, run: &'static str) {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__ATTEMPT_TIMEOUT_MS", 20_000);
    let token = |i: usize| if i < k { format!("hang-{run}-{i}") } else { format!("ok-{run}-{i}") };
    let (world, service) = serving(world, run, &(0..500).map(token).collect::<Vec<_>>()).await;
    // So long that the others are not through before the stalled ones may lend their slots.
    world.emulate(Control { latency_ms: Some(100), ..Control::default() });
    // Over before an attempt's time is, so that nobody stalled is retried; the others have all the time until then.
    let id = service.goal(run, run, 15).await;
    let fanout = service.settled(&id).await;
    assert_eq!((fanout.delivered, fanout.outcomes["unconfirmed"]), (500 - k as u64, k as u64), "{fanout:#?}");
    let lent = service.line(&id).await["lent_peak"].as_u64().unwrap();
    println!("{k} of 32 stalled: the others took {:?}, {lent} slots lent", took(&world));
    // What was lent before more than a quarter was old is a third of the slots at most.
    assert!(lent <= 10 && (k != 8 || lent >= 8), "{k} stalled, {lent} lent");
}

/// Law 12: up to a quarter may stall and the others keep their throughput (`cargo bench --bench connections` measures
/// it); above that nothing more is lent, and the others still get through.
async fn stalled_requests() {
    tokio::join!(stalled(8, "stall-8"), stalled(20, "stall-20"));
}

/// 1,000 slots at once, on connections that carry 100: ten, made once.
async fn a_cold_start() {
    let mut world = World::new(Database::Sqlite, false).await;
    world.set("FCM__SLOTS", 1000);
    world.set("FCM__STALL_AFTER_MS", 20_000);
    let wire = world.wire().await;
    let (world, service) = serving(world, "cold", &followers("cold", 1000)).await;
    // So long that all are in flight before the first is answered.
    world.emulate(Control { latency_ms: Some(4000), ..Control::default() });
    let fanout = service.settled(&service.goal("cold", "cold", 60).await).await;
    exactly_once(&world, &fanout, 1000);
    let stats = world.emulator.stats();
    assert_eq!((wire.accepted(), stats.peak_streams_per_connection), (10, 100), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_provider_that_closes_refuses_and_stalls_costs_nobody_an_outcome() {
    together(vec![
        ("GOAWAY every 100 requests", Box::pin(goaway_every_100())),
        ("GOAWAY that lies", Box::pin(goaway_that_lies())),
        ("GOAWAY with an error", Box::pin(goaway_in_anger())),
        ("refused streams", Box::pin(refused_streams())),
        ("streams taken away", Box::pin(streams_taken_away())),
        ("1,000 slots", Box::pin(a_cold_start())),
        ("stalled requests", Box::pin(stalled_requests())),
    ])
    .await;
}

fn pool(endpoint: &str, change: impl FnOnce(&mut Pool)) -> Connections {
    let mut settings = Pool {
        endpoint: endpoint.to_owned(),
        ca_pem: None,
        project_id: "demo-project".to_owned(),
        max_streams_total: 100,
        streams_per_connection: 100,
        attempt_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(5),
    };
    change(&mut settings);
    Connections::new(&settings).unwrap()
}

fn attempt(pool: &Connections) -> impl Future<Output = Attempted> + use<> {
    let stream = pool.try_stream(None).expect("a stream");
    let body = r#"{"message":{"token":"ok-1","notification":{"title":"GOAL"}}}"#;
    pool.attempt(stream, &Bearer::new("ya29.secret").unwrap(), Bytes::from_static(body.as_bytes()))
}

fn open_to_all(tls: bool) -> Emulator {
    let control = Control { check_auth: Some(false), ..Control::default() };
    Emulator::start(Settings { tls, control, ..Settings::default() }).unwrap()
}

/// A peer that takes the connection and then says nothing is nobody to send to: nothing leaves, with TLS and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_mute_or_away_costs_only_time() {
    for tls in [false, true] {
        let emulator = open_to_all(tls);
        let pool = pool(emulator.endpoint(), |s| {
            s.connect_timeout = Duration::from_millis(400);
            s.ca_pem = emulator.ca_pem().map(|pem| pem.as_bytes().to_vec());
        });
        for trouble in [
            Network { mute_ms: Some(60_000), ..Network::default() },
            Network { refuse_ms: Some(60_000), ..Network::default() },
        ] {
            emulator.control(&wrong(Network { now: vec![Act::Rst { connection: None }], ..trouble })).unwrap();
            while pool.open() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for got in join_all((0..20).map(|_| attempt(&pool))).await {
                let known = matches!(got.verdict, Verdict::Unsent) && !got.maybe;
                assert!(known, "tls {tls}: {got:?}");
            }
            let arrived = emulator.stats().requests;
            emulator.control(&Control { calm: true, check_auth: Some(false), ..Control::default() }).unwrap();
            while attempt(&pool).await.verdict != Verdict::Accepted {
                // The listener may not be back yet.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!((emulator.stats().requests, pool.open()), (arrived + 1, 1), "tls {tls}");
        }
    }
}

/// What the peer allows is known before anything is sent, and followed.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_streams_are_given_out_than_the_peer_allows() {
    let control = Control { check_auth: Some(false), ..Control::default() };
    let emulator = Emulator::start(Settings { max_streams: 7, control, ..Settings::default() }).unwrap();
    let pool = pool(emulator.endpoint(), |_| {});
    assert!(pool.warm().await);
    assert_eq!(pool.room(), 7);
    let held: Vec<_> = std::iter::from_fn(|| pool.try_stream(None)).collect();
    assert_eq!((held.len(), pool.room(), pool.open()), (7, 0, 1), "no second connection to get around it");
    drop(held);
    emulator.control(&streams(3)).unwrap();
    while pool.room() != 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // An interim answer is none.
    emulator.control(&wrong(Network { early_hints: Some(true), ..Network::default() })).unwrap();
    let got = join_all((0..3).map(|_| attempt(&pool))).await;
    assert!(got.iter().all(|got| got.verdict == Verdict::Accepted), "{got:?}");
    assert_eq!(emulator.stats().overruns, 0);
}

/// A burst that was given streams before the limit fell: what cannot be opened never left, and says so in time.
#[tokio::test(flavor = "multi_thread")]
async fn what_gets_no_stream_is_not_called_sent() {
    let emulator = open_to_all(false);
    let pool = pool(emulator.endpoint(), |_| {});
    assert!(pool.warm().await);
    let burst: Vec<_> = (0..20).map(|_| attempt(&pool)).collect();
    emulator.control(&streams(0)).unwrap();
    while pool.room() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for got in join_all(burst).await {
        assert_eq!((got.verdict, got.maybe, got.status), (Verdict::Unopened, false, 0), "{got:?}");
    }
    assert_eq!((emulator.stats().requests, emulator.stats().overruns), (0, 0));
    emulator.control(&streams(100)).unwrap();
    while pool.room() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(attempt(&pool).await.verdict, Verdict::Accepted);
    assert_eq!(emulator.stats().connections_opened, 1, "the connection is as good as before");
}

/// A peer that gives no room for a body: its attempts time out, may have arrived, and the connection is replaced, the
/// next one too while that lasts; afterwards everything is as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_no_body_is_given_up_and_comes_back() {
    let emulator = open_to_all(false);
    let none = wrong(Network { initial_window: Some(0), ..Network::default() });
    emulator.control(&none).unwrap();
    let pool = pool(emulator.endpoint(), |s| s.attempt_timeout = Duration::from_millis(300));
    for round in 1..=2 {
        for got in join_all((0..20).map(|_| attempt(&pool))).await {
            assert_eq!(
                (got.verdict, got.maybe, got.status),
                (Verdict::Failed(Failure::Unconfirmed, None), true, 0),
                "{got:?}"
            );
        }
        assert_eq!((emulator.stats().connections_opened, pool.open()), (round, 0), "retired after timeouts in a row");
    }
    assert_eq!(emulator.stats().requests, 0, "no request was whole");
    emulator.control(&wrong(Network { initial_window: Some(1 << 20), ..Network::default() })).unwrap();
    for _ in 0..3 {
        let got = join_all((0..100).map(|_| attempt(&pool))).await;
        assert!(got.iter().all(|got| got.verdict == Verdict::Accepted), "{got:?}");
    }
    assert_eq!((emulator.stats().connections_opened, emulator.stats().requests), (3, 300));
}

/// A server of bare frames that answers a stream only after the client has given it up, or, told so, at once.
struct Late {
    address: SocketAddr,
    at_once: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Late {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let late = Self { address, at_once: Arc::default(), requests: Arc::default(), connections: Arc::default() };
        let (at_once, requests, connections) =
            (Arc::clone(&late.at_once), Arc::clone(&late.requests), Arc::clone(&late.connections));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer_late(socket, Arc::clone(&at_once), Arc::clone(&requests)));
            }
        });
        late
    }
}

async fn answer_late(
    mut socket: TcpStream,
    at_once: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    socket.read_exact(&mut [0; 24]).await?;
    // SETTINGS without a limit, and a window for all the bodies that will come.
    socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    socket.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x3f, 0xff, 0, 0]).await?;
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        socket.read_exact(&mut payload).await?;
        let stream = &head[5..];
        let (ends, given_up) = (head[3] == 0 && head[4] & 1 == 1, head[3] == 3);
        requests.fetch_add(usize::from(ends), Ordering::SeqCst);
        if given_up || (ends && at_once.load(Ordering::SeqCst)) {
            // `:status 200` of the static table, then the body.
            let body = br#"{"name":"projects/p/messages/1"}"#;
            let mut frames = [&[0, 0, 1, 1, 4], stream, &[0x88]].concat();
            frames.extend([&[0, 0, u8::try_from(body.len()).unwrap(), 0, 1], stream, body].concat());
            socket.write_all(&frames).await?;
        }
    }
}

/// 10,000 attempts are given up, and each is answered after that; the connection is as good as before.
#[tokio::test]
async fn ten_thousand_cancelled_streams_leave_later_traffic_unharmed() {
    let late = Late::start().await;
    let pool = pool(&format!("http://{}", late.address), |_| {});
    for wave in 1..=100 {
        let mut given_up: Vec<_> = (0..100).map(|_| Box::pin(attempt(&pool))).collect();
        let all_arrived = async {
            while late.requests.load(Ordering::SeqCst) < wave * 100 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            got = join_all(given_up.iter_mut()) => panic!("wave {wave}: not given up by us: {:?}", got[0]),
            () = all_arrived => {}
        }
    }
    late.at_once.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let got = join_all((0..100).map(|_| attempt(&pool))).await;
        assert!(got.iter().all(|got| got.verdict == Verdict::Accepted), "{got:?}");
    }
    assert_eq!((late.connections.load(Ordering::SeqCst), pool.open()), (1, 1), "still the first connection");
    assert_eq!(late.requests.load(Ordering::SeqCst), 12_000);
}
