//! Faults below HTTP: SETTINGS, GOAWAY, RST_STREAM, silence, cuts, closed doors. Each is seen frame by frame or byte by
//! byte, and the log has what was processed and nothing else.

use fanfare::emulator::{Act, GoAway, Network};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frames::{self, Frames, Read, goaway, rst_stream};
use super::*;

const MAX_STREAMS: u16 = 3;
const INITIAL_WINDOW: u16 = 4;

fn wrong(network: Network) -> Control {
    Control { network, ..Control::default() }
}

fn now(act: Act) -> Control {
    wrong(Network { now: vec![act], ..Network::default() })
}

fn with(network: Network) -> Emulator {
    started(Settings::default(), wrong(network))
}

fn parameter(settings: &[(u16, u32)], id: u16) -> Option<u32> {
    settings.iter().find(|(other, _)| *other == id).map(|(_, value)| *value)
}

/// Tokens in the log, in their order.
fn logged(emulator: &Emulator) -> Vec<String> {
    emulator.log().into_iter().map(|entry| entry.token).collect()
}

// ---- SETTINGS -----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn the_stream_limit_moves_while_connections_are_open_and_their_acknowledgement_confuses_nobody() {
    let emulator = started(Settings { max_streams: 7, ..Settings::default() }, Control::default());
    let mut client = Frames::connect(&emulator).await;
    assert_eq!(parameter(&client.settings[0], MAX_STREAMS), Some(7));
    for limit in [3, 0, 250] {
        emulator.control(&wrong(Network { max_streams: Some(limit), ..Network::default() })).unwrap();
        client.ping().await;
        assert_eq!(client.settings.pop().unwrap(), [(MAX_STREAMS, limit)]);
        assert_eq!(client.settings.len(), 1);
    }
    let stream = client.send("ok-1").await;
    assert!(client.body(stream).await.contains("messages/"));
    emulator.control(&wrong(Network { max_streams: Some(250), ..Network::default() })).unwrap();
    client.ping().await;
    assert_eq!(client.settings.len(), 1, "what is no change is not announced");
    let next = Frames::connect(&emulator).await;
    assert_eq!(parameter(&next.settings[0], MAX_STREAMS), Some(250), "a new connection is told at once");
    assert_eq!(emulator.stats().overruns, 0);
}

#[tokio::test]
async fn a_client_of_h2_follows_a_limit_that_is_lowered_to_nothing_and_raised_again() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    emulator.control(&wrong(Network { max_streams: Some(0), ..Network::default() })).unwrap();
    let follows = async {
        while client.current_max_send_streams() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, follows).await.expect("the client has the new limit");
    let sends = tokio::spawn(async move {
        let tokens: Vec<String> = (0..20).map(|n| format!("ok-{n}")).collect();
        futures_util::future::join_all(tokens.iter().map(|token| send(&client, token))).await
    });
    assert!(timeout(SILENCE, emulator.logged(1)).await.is_err(), "a stream without leave");
    emulator.control(&wrong(Network { max_streams: Some(2), ..Network::default() })).unwrap();
    assert!(timeout(LONG, sends).await.unwrap().unwrap().iter().all(|answer| answer.as_ref().unwrap().status == 200));
    let stats = emulator.stats();
    assert_eq!((stats.accepted, stats.overruns, stats.connections_opened), (20, 0, 1));
}

#[tokio::test]
async fn a_stream_above_the_acknowledged_limit_ends_the_connection_as_at_fcm() {
    let emulator = started(Settings { max_streams: 5, ..Settings::default() }, Control::default());
    let mut client = Frames::connect(&emulator).await;
    let first = client.send("held-1").await;
    client.send("held-2").await;
    client.acknowledges = false;
    emulator.control(&wrong(Network { max_streams: Some(2), ..Network::default() })).unwrap();
    client.ping().await;
    let tolerated = client.send("held-3").await;
    client.ping().await;
    assert_eq!(emulator.stats().overruns, 0, "the client has not acknowledged the lower limit");
    client.acknowledge().await;
    client.send("held-4").await;
    let read = client.read_until(|kind| kind == frames::GOAWAY).await;
    assert_eq!(read, goaway(tolerated, 1, "exceeded_max_concurrent_streams"));
    emulator.control(&Control { release: true, ..Control::default() }).unwrap();
    let mut answered = vec![];
    while let Read::Frame(_, _, stream, _) = client.read_until(|kind| kind == frames::DATA).await {
        answered.push(stream);
    }
    answered.dedup();
    answered.sort_unstable();
    assert_eq!(answered, [first, first + 2, tolerated], "what was processed is answered, then it ends");
    let stats = emulator.stats();
    assert_eq!((stats.overruns, stats.unprocessed, stats.goaways), (1, 1, 1));
    assert_eq!(logged(&emulator), ["held-1", "held-2", "held-3"]);
}

#[tokio::test]
async fn without_a_window_no_body_comes_until_there_is_one() {
    let emulator = with(Network { initial_window: Some(0), ..Network::default() });
    let raw = Frames::connect(&emulator).await;
    assert_eq!(parameter(&raw.settings[0], INITIAL_WINDOW), Some(0));
    let mut client = Frames::connect(&emulator).await;
    emulator.control(&wrong(Network { initial_window: Some(5), ..Network::default() })).unwrap();
    client.ping().await;
    assert_eq!(client.settings[1], [(INITIAL_WINDOW, 5)]);
    let keeps_to_it = connect_without_asking(&emulator).await;
    let waiting = tokio::spawn(async move { send(&keeps_to_it, "ok-1").await.unwrap().status });
    assert!(timeout(SILENCE, emulator.logged(1)).await.is_err(), "five bytes are no message");
    emulator.control(&wrong(Network { initial_window: Some(65_535), ..Network::default() })).unwrap();
    assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap(), 200);
}

/// A client of h2 that has the server's SETTINGS, without sending a body for it.
async fn connect_without_asking(emulator: &Emulator) -> SendRequest<Bytes> {
    let io = TcpStream::connect(emulator.addr()).await.unwrap();
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://emulator/emulator/healthz").body(()).unwrap();
    let (answer, _) = client.clone().ready().await.unwrap().send_request(request, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    client
}

// ---- GOAWAY -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_goaway_names_the_last_stream_that_is_processed_and_ends_when_it_is_answered() {
    for code in [0, 2, 11, 4711] {
        let emulator = open_to_all();
        let mut client = Frames::connect(&emulator).await;
        let held = client.send("held-1").await;
        client.ping().await;
        emulator.control(&now(Act::Goaway(GoAway { code, ..GoAway::default() }))).unwrap();
        let read = client.read_until(|kind| kind == frames::GOAWAY).await;
        assert_eq!(read, goaway(held, code, ""));
        client.send("ok-late").await;
        client.ping().await;
        emulator.control(&Control { release: true, ..Control::default() }).unwrap();
        assert!(client.body(held).await.contains("messages/"));
        assert_eq!(client.read().await, Read::End);
        assert_eq!(logged(&emulator), ["held-1"]);
        let stats = emulator.stats();
        assert_eq!((stats.accepted, stats.unprocessed, stats.goaways), (1, 1, 1));
    }
}

#[tokio::test]
async fn a_stream_whose_body_is_not_in_when_a_lower_last_stream_is_named_is_never_processed() {
    let emulator = open_to_all();
    let mut client = Frames::connect(&emulator).await;
    let first = client.send("held-1").await;
    let half = client.open().await;
    client.ping().await;
    let order = GoAway { last_stream: Some(first), ..GoAway::default() };
    emulator.control(&now(Act::Goaway(order))).unwrap();
    assert_eq!(client.read_until(|kind| kind == frames::GOAWAY).await, goaway(first, 0, ""));
    client.write(frames::DATA, 1, half, &goal("ok-2")).await;
    let window = client.read_until(|kind| kind == frames::WINDOW_UPDATE).await;
    let Read::Frame(_, _, 0, bytes) = window else { panic!("{window:?}") };
    assert_eq!(bytes, u32::try_from(goal("ok-2").len()).unwrap().to_be_bytes(), "its bytes are given back");
    emulator.control(&Control { release: true, ..Control::default() }).unwrap();
    assert!(client.body(first).await.contains("messages/"));
    assert_eq!(client.read_until(|_| false).await, Read::End);
    assert_eq!(logged(&emulator), ["held-1"]);
}

#[tokio::test]
async fn a_goaway_that_lies_takes_nothing_out_of_the_log() {
    let emulator = open_to_all();
    let mut client = Frames::connect(&emulator).await;
    client.send("held-1").await;
    client.send("held-2").await;
    timeout(LONG, emulator.logged(2)).await.unwrap();
    let order = GoAway { last_stream: Some(0), close: true, ..GoAway::default() };
    emulator.control(&now(Act::Goaway(order))).unwrap();
    assert_eq!(client.read_until(|kind| kind == frames::GOAWAY).await, goaway(0, 0, ""));
    assert_eq!(client.read().await, Read::End, "`close` answers nobody");
    assert_eq!((emulator.stats().accepted, emulator.stats().unprocessed), (2, 0));
}

#[tokio::test]
async fn a_last_stream_that_is_still_to_come_lets_the_client_go_on_up_to_it() {
    let emulator = open_to_all();
    let mut client = Frames::connect(&emulator).await;
    let last_stream = Some(3);
    emulator.control(&now(Act::Goaway(GoAway { last_stream, ..GoAway::default() }))).unwrap();
    assert_eq!(client.read_until(|kind| kind == frames::GOAWAY).await, goaway(3, 0, ""));
    for token in ["ok-1", "ok-2"] {
        let stream = client.send(token).await;
        assert!(client.body(stream).await.contains("messages/"));
    }
    assert_eq!(client.read().await, Read::End);
    assert_eq!(logged(&emulator), ["ok-1", "ok-2"]);
}

#[tokio::test]
async fn every_so_many_streams_a_goaway_leaves_as_many_unprocessed_as_it_was_told() {
    let network = Network { goaway_every: Some(3), goaway_unprocessed: Some(2), ..Network::default() };
    let emulator = with(network);
    for round in 1..=2 {
        let mut client = Frames::connect(&emulator).await;
        for n in 1..=4 {
            client.send(&format!("held-{n}")).await;
        }
        client.ping().await;
        assert_eq!(emulator.stats().goaways, round - 1, "it waits for one more stream");
        client.send("held-5").await;
        assert_eq!(client.read_until(|kind| kind == frames::GOAWAY).await, goaway(5, 0, ""));
        timeout(LONG, emulator.logged(3 * round)).await.unwrap();
        emulator.control(&Control { release: true, ..Control::default() }).unwrap();
        assert_eq!(client.read_until(|_| false).await, Read::End);
        assert_eq!((emulator.stats().accepted, emulator.stats().unprocessed), (3 * round, 2 * round));
    }
}

#[tokio::test]
async fn a_goaway_does_not_wait_for_streams_that_nobody_opens() {
    let network = Network { goaway_every: Some(1), goaway_unprocessed: Some(9), ..Network::default() };
    let emulator = with(network);
    let mut client = Frames::connect(&emulator).await;
    let first = client.send("ok-1").await;
    assert!(client.body(first).await.contains("messages/"));
    assert!(client.is_silent().await, "nobody waits for anything");
    client.send("ok-2").await;
    assert_eq!(client.read_until(|kind| kind == frames::GOAWAY).await, goaway(first, 0, ""));
    assert_eq!(client.read_until(|_| false).await, Read::End);
    assert_eq!(logged(&emulator), ["ok-1"]);
}

#[tokio::test]
async fn an_order_for_one_connection_leaves_the_others_alone() {
    let emulator = open_to_all();
    let (mut one, mut two) = (Frames::connect(&emulator).await, Frames::connect(&emulator).await);
    emulator.control(&now(Act::Goaway(GoAway { connection: Some(2), ..GoAway::default() }))).unwrap();
    assert_eq!(two.read_until(|kind| kind == frames::GOAWAY).await, goaway(0, 0, ""));
    assert_eq!(two.read().await, Read::End);
    emulator.control(&now(Act::Rst { connection: Some(2) })).unwrap();
    one.ping().await;
}

// ---- RST_STREAM ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_stream_is_reset_with_any_code_and_only_refused_stream_means_not_processed() {
    let emulator = open_to_all();
    let mut client = Frames::connect(&emulator).await;
    for code in (0..=13).chain([4711]) {
        let (stream, lost) =
            (client.send(&format!("rst-{code}-x")).await, client.send(&format!("lostrst-{code}-x")).await);
        let reset = async |client: &mut Frames| client.read_until(|kind| kind == frames::RST_STREAM).await;
        let mut resets = [reset(&mut client).await, reset(&mut client).await];
        resets.sort_by_key(|read| if let Read::Frame(_, _, stream, _) = read { *stream } else { 0 });
        assert_eq!(resets, [rst_stream(stream, code), rst_stream(lost, code)]);
    }
    let stats = emulator.stats();
    assert_eq!((stats.requests, stats.refused, stats.accepted), (29, 1, 15));
    let accepted = |entry: &LogEntry| entry.accepted == entry.token.starts_with("lostrst-") && entry.status == 0;
    assert!(emulator.log().iter().all(accepted));
}

// ---- silence ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_black_hole_has_an_open_socket_and_no_frame_in_either_direction() {
    let emulator = open_to_all();
    let (mut client, mut other) = (Frames::connect(&emulator).await, Frames::connect(&emulator).await);
    client.send("held-1").await;
    client.ping().await;
    emulator.control(&now(Act::BlackHole { connection: Some(1) })).unwrap();
    emulator.control(&Control { release: true, ..Control::default() }).unwrap();
    client.write(frames::PING, 0, 0, b"12345678").await;
    client.send("ok-2").await;
    assert!(client.is_silent().await);
    other.ping().await;
    assert_eq!(logged(&emulator), ["held-1"]);
    assert_eq!(emulator.stats().connections_open, 2);
    emulator.control(&Control { calm: true, ..Control::default() }).unwrap();
    assert_eq!(client.read().await, Read::End, "what it has missed is lost, so it ends");
    other.ping().await;
    assert_eq!(emulator.stats().accepted, 1);
}

#[tokio::test]
async fn a_connection_can_fall_silent_after_so_many_streams() {
    let emulator = with(Network { black_hole_after: Some(2), ..Network::default() });
    let mut client = Frames::connect(&emulator).await;
    for token in ["ok-1", "ok-2"] {
        let stream = client.send(token).await;
        assert!(client.body(stream).await.contains("messages/"));
    }
    client.send("ok-3").await;
    client.write(frames::PING, 0, 0, b"12345678").await;
    assert!(client.is_silent().await);
    assert_eq!(logged(&emulator), ["ok-1", "ok-2"]);
    drop(client);
    let noticed = async {
        while emulator.stats().connections_open > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, noticed).await.expect("a client that gives up is noticed all the same");
}

#[tokio::test]
async fn a_ping_can_go_unanswered_while_requests_are_answered() {
    let emulator = with(Network { ignore_pings: Some(true), ..Network::default() });
    let mut client = Frames::connect(&emulator).await;
    client.write(frames::PING, 0, 0, b"12345678").await;
    let stream = client.send("ok-1").await;
    assert!(client.body(stream).await.contains("messages/"));
    assert!(client.is_silent().await);
    emulator.control(&wrong(Network { ignore_pings: Some(false), ..Network::default() })).unwrap();
    client.write(frames::PING, 0, 0, b"87654321").await;
    assert_eq!(client.read().await, Read::Frame(frames::PING, 1, 0, b"87654321".to_vec()));
    assert_eq!(emulator.stats().pings_ignored, 1);
}

// ---- the connection -----------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_connection_is_cut_in_the_middle_with_fin_or_rst() {
    let orders = [(Act::Fin { connection: None }, Read::End), (Act::Rst { connection: None }, Read::Reset)];
    for (order, end) in orders {
        let emulator = open_to_all();
        let mut client = Frames::connect(&emulator).await;
        client.send("held-1").await;
        timeout(LONG, emulator.logged(1)).await.unwrap();
        emulator.control(&now(order)).unwrap();
        assert_eq!(client.read_until(|_| false).await, end);
    }
}

#[tokio::test]
async fn an_answer_can_be_the_end_of_its_connection() {
    let cases = [
        ("fin-1", Read::End, false),
        ("lostfin-1", Read::End, true),
        ("tcprst-1", Read::Reset, false),
        ("losttcprst-1", Read::Reset, true),
    ];
    for (token, end, accepted) in cases {
        let emulator = open_to_all();
        let mut client = Frames::connect(&emulator).await;
        client.send(token).await;
        assert_eq!(client.read_until(|_| false).await, end, "{token}");
        assert_eq!(emulator.log()[0].accepted, accepted, "{token}");
    }
}

#[tokio::test]
async fn over_http_1_a_connection_is_cut_or_silenced_just_the_same() {
    let emulator = open_to_all();
    let ask = async |token: &str| {
        let mut io = TcpStream::connect(emulator.addr()).await.unwrap();
        let body = goal(token);
        let head = format!("POST {SEND} HTTP/1.1\r\nhost: emulator\r\ncontent-length: {}\r\n\r\n", body.len());
        io.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        io
    };
    let mut byte = [0];
    assert_eq!(timeout(LONG, ask("fin-1").await.read(&mut byte)).await.unwrap().unwrap(), 0);
    let reset = timeout(LONG, ask("losttcprst-1").await.read(&mut byte)).await.unwrap().unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    let mut held = ask("held-1").await;
    timeout(LONG, emulator.logged(3)).await.unwrap();
    emulator.control(&now(Act::BlackHole { connection: None })).unwrap();
    emulator.control(&Control { release: true, ..Control::default() }).unwrap();
    assert!(timeout(SILENCE, held.read(&mut byte)).await.is_err());
    let accepted: Vec<bool> = emulator.log().iter().map(|entry| entry.accepted).collect();
    assert_eq!(accepted, [false, true, true]);
}

#[tokio::test]
async fn over_tls_a_cut_is_a_cut_too() {
    let emulator = started(Settings { tls: true, ..Settings::default() }, Control::default());
    let url = format!("{}{SEND}", emulator.endpoint());
    let client = life::trusting(&emulator).retry(reqwest::retry::never()).build().unwrap();
    for token in ["fin-1", "tcprst-1"] {
        assert!(client.post(&url).body(goal(token)).send().await.is_err(), "{token}");
    }
    assert_eq!(client.post(&url).body(goal("ok-1")).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_muted_listener_accepts_and_then_says_nothing_not_even_tls() {
    for tls in [false, true] {
        let emulator = started(Settings { tls, ..Settings::default() }, Control::default());
        emulator.control(&wrong(Network { mute_ms: Some(3_600_000), ..Network::default() })).unwrap();
        let mut io = TcpStream::connect(emulator.addr()).await.unwrap();
        // The beginning of a ClientHello, or of nothing in particular: it is not looked at.
        io.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
        let mut byte = [0];
        assert!(timeout(SILENCE, io.read(&mut byte)).await.is_err());
        emulator.control(&Control { calm: true, ..Control::default() }).unwrap();
        assert_eq!(timeout(LONG, io.read(&mut byte)).await.unwrap().unwrap(), 0);
        assert_eq!(emulator.stats().tls_failures, 0);
    }
}

#[tokio::test]
async fn the_listener_closes_for_a_time_and_opens_on_the_same_port() {
    let emulator = open_to_all();
    let mut before = Frames::connect(&emulator).await;
    emulator.control(&wrong(Network { refuse_ms: Some(3_600_000), ..Network::default() })).unwrap();
    let refused = async { while TcpStream::connect(emulator.addr()).await.is_ok() {} };
    timeout(LONG, refused).await.expect("a closed door");
    let error = TcpStream::connect(emulator.addr()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    before.ping().await;
    emulator.control(&wrong(Network { refuse_ms: Some(50), ..Network::default() })).unwrap();
    let opened = async { while TcpStream::connect(emulator.addr()).await.is_err() {} };
    timeout(LONG, opened).await.expect("an open door");
    Frames::connect(&emulator).await.ping().await;
}

#[tokio::test]
async fn early_hints_come_before_the_answer() {
    let emulator = with(Network { early_hints: Some(true), ..Network::default() });
    let mut client = Frames::connect(&emulator).await;
    for token in ["ok-1", "dead-2"] {
        let stream = client.send(token).await;
        let first = client.read_until(|kind| kind == frames::HEADERS).await;
        assert_eq!(first, Read::Frame(frames::HEADERS, 4, stream, b"\x08\x03103".to_vec()));
        assert!(matches!(client.read().await, Read::Frame(frames::HEADERS, _, of, _) if of == stream));
        assert!(!client.body(stream).await.is_empty());
    }
}
