//! Attempts against a real HTTP/2 server whose frames this file controls: nothing is sent twice, and what is said of a
//! request that got no answer is true.
#![allow(clippy::unwrap_used, reason = "test servers fail loudly")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fanfare::domain::outcome::{Failure, Verdict};
use fanfare::fcm::attempted::Attempted;
use fanfare::fcm::bearer::Bearer;
use fanfare::fcm::connections::{ConnectionId, Connections, Settings};
use futures_util::future::join_all;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

const ACCEPTED: &str = r#"{"name":"projects/p/messages/1"}"#;
const UNCONFIRMED: Verdict = Verdict::Failed(Failure::Unconfirmed, None);
const PROTOCOL: Verdict = Verdict::Failed(Failure::Protocol, None);

/// What the server does with a message.
#[derive(Clone)]
enum Reply {
    Answer(u16, Vec<(&'static str, String)>, &'static str),
    /// Answers once this many are waiting.
    Together(Arc<Barrier>),
    Reset(Reason),
    /// Accepts it and drops the connection.
    Hangup,
    Never,
    /// Sends headers, then a body without end as fast as it is taken.
    Endless(u16),
    /// Sends headers, part of a body, and then nothing.
    Stalled(u16),
}

/// What the server saw.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    closed: AtomicUsize,
    messages: AtomicUsize,
    touches: AtomicUsize,
    body_bytes: AtomicUsize,
    headers: Mutex<Option<(String, HeaderMap)>>,
    news: Notify,
}

impl Seen {
    fn count(&self, counter: &AtomicUsize) -> usize {
        let before = counter.fetch_add(1, Ordering::SeqCst);
        self.news.notify_waiters();
        before
    }

    /// Waits for something this server will see; fails after 20 s.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waiting = async {
            loop {
                let news = self.news.notified();
                if holds(self) {
                    return;
                }
                news.await;
            }
        };
        timeout(Duration::from_secs(20), waiting).await.expect(what);
    }

    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.messages.load(Ordering::SeqCst))
    }
}

struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Server {
    /// Cleartext HTTP/2; the reply to the n-th message, from 0, is `script(n)`.
    async fn start(script: impl Fn(usize) -> Reply + Clone + Send + 'static) -> Self {
        Self::listen(None, script).await
    }

    async fn listen(tls: Option<TlsAcceptor>, script: impl Fn(usize) -> Reply + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Seen::default()));
        let counted = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (tls, seen, script) = (tls.clone(), Arc::clone(&counted), script.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, &seen, script).await,
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, &seen, script).await;
                            }
                        }
                    }
                    seen.count(&seen.closed);
                });
            }
        });
        Self { address, seen }
    }

    fn client(&self) -> Connections {
        client(&format!("http://{}", self.address), |_| {})
    }

    fn hasty_client(&self) -> Connections {
        client(&format!("http://{}", self.address), |s| s.attempt_timeout = Duration::from_millis(300))
    }
}

async fn serve<T>(socket: T, seen: &Arc<Seen>, script: impl Fn(usize) -> Reply)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    seen.count(&seen.connections);
    let mut builder = h2::server::Builder::new();
    let Ok(mut connection) = builder.max_concurrent_streams(100).handshake::<_, Bytes>(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        if request.method() == Method::GET {
            seen.count(&seen.touches);
            tokio::spawn(reply(request, respond, Reply::Answer(404, Vec::new(), "nothing here"), Arc::clone(seen)));
            continue;
        }
        let number = seen.count(&seen.messages);
        *seen.headers.lock().unwrap() = Some((request.uri().path().to_owned(), request.headers().clone()));
        match script(number) {
            Reply::Hangup => return,
            scripted => {
                tokio::spawn(reply(request, respond, scripted, Arc::clone(seen)));
            }
        }
    }
}

async fn reply(mut request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>, reply: Reply, seen: Arc<Seen>) {
    while let Some(Ok(part)) = request.body_mut().data().await {
        let _ = request.body_mut().flow_control().release_capacity(part.len());
    }
    let head = |status| Response::builder().status(status).body(()).unwrap();
    match reply {
        Reply::Answer(status, headers, body) => {
            let mut response = head(status);
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            let mut stream = respond.send_response(response, false).unwrap();
            let _ = stream.send_data(Bytes::from_static(body.as_bytes()), true);
        }
        Reply::Together(barrier) => {
            barrier.wait().await;
            let mut stream = respond.send_response(head(200), false).unwrap();
            let _ = stream.send_data(Bytes::from_static(ACCEPTED.as_bytes()), true);
        }
        Reply::Reset(reason) => respond.send_reset(reason),
        Reply::Never | Reply::Hangup => {
            let _ = futures_util::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        }
        Reply::Endless(status) => {
            let mut stream = respond.send_response(head(status), false).unwrap();
            loop {
                stream.reserve_capacity(16 * 1024);
                match futures_util::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                    Some(Ok(room)) => {
                        seen.body_bytes.fetch_add(room, Ordering::SeqCst);
                        if stream.send_data(Bytes::from(vec![b' '; room]), false).is_err() {
                            return;
                        }
                    }
                    _ => return,
                }
            }
        }
        Reply::Stalled(status) => {
            let mut stream = respond.send_response(head(status), false).unwrap();
            let _ = stream.send_data(Bytes::from_static(b"{\"name\":"), false);
            let _ = futures_util::future::poll_fn(|cx| stream.poll_reset(cx)).await;
        }
    }
}

fn client(endpoint: &str, change: impl FnOnce(&mut Settings)) -> Connections {
    let mut settings = Settings {
        endpoint: endpoint.to_owned(),
        ca_pem: None,
        project_id: "p".to_owned(),
        max_streams_total: 400,
        streams_per_connection: 100,
        attempt_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(5),
    };
    change(&mut settings);
    Connections::new(&settings).unwrap()
}

fn attempt(client: &Connections) -> impl Future<Output = Attempted> + use<> {
    attempt_avoiding(client, None)
}

fn attempt_avoiding(client: &Connections, avoid: Option<ConnectionId>) -> impl Future<Output = Attempted> + use<> {
    let stream = client.try_stream(avoid).expect("a stream");
    client.attempt(stream, &Bearer::new("ya29.secret").unwrap(), Bytes::from_static(b"{\"message\":{}}"))
}

fn accepted(_: usize) -> Reply {
    Reply::Answer(200, Vec::new(), ACCEPTED)
}

#[tokio::test]
async fn a_message_goes_out_as_fcm_wants_it_and_its_answer_comes_back() {
    let server = Server::start(accepted).await;
    let got = attempt(&server.client()).await;
    assert_eq!((got.verdict, got.status, got.maybe), (Verdict::Accepted, 200, true));
    let (path, headers) = server.seen.headers.lock().unwrap().take().unwrap();
    assert_eq!(path, "/v1/projects/p/messages:send");
    assert_eq!(headers["authorization"], "Bearer ya29.secret");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-goog-api-format-version"], "2");
    for absent in ["accept-encoding", "cookie", "referer"] {
        assert!(!headers.contains_key(absent), "{absent}");
    }
}

#[tokio::test]
async fn a_cold_burst_opens_only_the_connections_it_needs() {
    let barrier = Arc::new(Barrier::new(400));
    let server = Server::start(move |_| Reply::Together(Arc::clone(&barrier))).await;
    let client = server.client();
    let burst: Vec<_> = (0..400).map(|_| attempt(&client)).collect();
    assert!(client.try_stream(None).is_none(), "all 400 streams are taken");
    let got = join_all(burst).await;
    assert!(got.iter().all(|a| a.verdict == Verdict::Accepted), "{got:?}");
    assert_eq!(server.seen.counts(), (4, 400));
    assert_eq!((client.open(), client.capacity()), (4, 400));
    let again = join_all((0..50).map(|_| async { drop(client.try_stream(None).unwrap()) })).await;
    assert_eq!((again.len(), client.open()), (50, 4), "streams come back");
}

#[tokio::test]
async fn one_connection_carries_everything_until_it_is_full() {
    let server = Server::start(accepted).await;
    let client = server.client();
    let first = attempt(&client).await.connection;
    for _ in 0..20 {
        assert_eq!(attempt_avoiding(&client, Some(first)).await.connection, first, "there is no other yet");
    }
    let held: Vec<_> = (0..101).map(|_| client.try_stream(None).unwrap()).collect();
    let second = held.last().unwrap().connection();
    assert_ne!(second, first);
    drop(held);
    assert_eq!(attempt_avoiding(&client, Some(first)).await.connection, second);
    assert_eq!(attempt_avoiding(&client, Some(second)).await.connection, first);
    assert_eq!(server.seen.counts(), (2, 23));
}

#[tokio::test]
async fn an_attempt_that_is_dropped_gives_its_stream_back() {
    let server = Server::start(|_| Reply::Never).await;
    let client = client(&format!("http://{}", server.address), |s| {
        s.max_streams_total = 1;
        s.streams_per_connection = 1;
    });
    let mut waiting = Box::pin(attempt(&client));
    assert!(client.try_stream(None).is_none());
    tokio::select! {
        got = &mut waiting => panic!("answered: {got:?}"),
        () = server.seen.until("the message arrives", |seen| seen.counts().1 == 1) => {}
    }
    drop(waiting);
    assert!(client.try_stream(None).is_some());
}

#[tokio::test]
async fn a_refused_stream_is_unprocessed_and_not_sent_again_behind_our_back() {
    let server = Server::start(|n| if n == 0 { Reply::Reset(Reason::REFUSED_STREAM) } else { accepted(n) }).await;
    let client = server.client();
    let got = attempt(&client).await;
    assert_eq!((got.verdict, got.status, got.maybe), (Verdict::Unprocessed, 0, false));
    assert_eq!(server.seen.counts(), (1, 1));
    assert_eq!(attempt(&client).await.verdict, Verdict::Accepted);
    assert_eq!(server.seen.counts(), (1, 2));
}

#[tokio::test]
async fn a_reset_after_sending_may_have_been_delivered() {
    for reason in [Reason::CANCEL, Reason::INTERNAL_ERROR, Reason::ENHANCE_YOUR_CALM, Reason::NO_ERROR] {
        let server = Server::start(move |_| Reply::Reset(reason)).await;
        let got = attempt(&server.client()).await;
        assert_eq!((got.verdict, got.maybe), (UNCONFIRMED, true), "{reason:?}");
        assert_eq!(server.seen.counts(), (1, 1), "{reason:?}");
    }
    let server = Server::start(|_| Reply::Hangup).await;
    let got = attempt(&server.client()).await;
    assert_eq!((got.verdict, got.maybe), (UNCONFIRMED, true), "hang-up");
    assert_eq!(server.seen.counts(), (1, 1));
}

#[tokio::test]
async fn a_peer_that_wants_http_1_is_a_protocol_failure_or_no_peer_at_all() {
    let server = Server::start(|_| Reply::Reset(Reason::HTTP_1_1_REQUIRED)).await;
    assert_eq!(attempt(&server.client()).await.verdict, PROTOCOL);
    assert_eq!(server.seen.counts(), (1, 1));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        drain(socket).await;
    });
    // No request leaves before the peer has spoken HTTP/2.
    let got = attempt(&client(&format!("http://{address}"), |_| {})).await;
    assert_eq!((got.verdict, got.maybe), (Verdict::Unsent, false), "{}", got.text);
    assert_eq!(got.text, "the peer does not speak HTTP/2");
}

/// Reads to the end of the connection.
async fn drain(mut socket: TcpStream) {
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
}

/// A server of bare frames: answers the first request with GOAWAY and closes, and counts the requests.
/// `last` = the last stream it claims to process.
async fn goaway_server(reason: Reason, last: u32) -> (SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                socket.read_exact(&mut [0; 24]).await?;
                socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
                loop {
                    let mut head = [0; 9];
                    socket.read_exact(&mut head).await?;
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                    let mut payload = vec![0; usize::try_from(length).unwrap()];
                    socket.read_exact(&mut payload).await?;
                    if head[3] == 1 {
                        counted.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                }
                let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
                frame.extend(last.to_be_bytes());
                frame.extend(u32::from(reason).to_be_bytes());
                socket.write_all(&frame).await?;
                socket.shutdown().await?;
                drain(socket).await;
                std::io::Result::Ok(())
            });
        }
    });
    (address, requests)
}

#[tokio::test]
async fn a_goaway_decides_by_the_last_stream_it_names() {
    for (reason, last, verdict, maybe) in [
        (Reason::NO_ERROR, 0, Verdict::Unprocessed, false),
        (Reason::ENHANCE_YOUR_CALM, 0, Verdict::Unsent, false),
        (Reason::INTERNAL_ERROR, 0, Verdict::Unsent, false),
        (Reason::HTTP_1_1_REQUIRED, 0, PROTOCOL, true),
        (Reason::NO_ERROR, 1, UNCONFIRMED, true),
        (Reason::INTERNAL_ERROR, 1, UNCONFIRMED, true),
    ] {
        let (address, requests) = goaway_server(reason, last).await;
        let client = client(&format!("http://{address}"), |_| {});
        // The second attempt shows that the client gets over it: a new connection, the same answer.
        for sent in 1..=2 {
            let got = attempt(&client).await;
            assert_eq!((got.verdict, got.maybe), (verdict, maybe), "{reason:?} last stream {last}");
            assert_eq!(
                requests.load(Ordering::SeqCst),
                sent,
                "{reason:?} last stream {last}: one attempt, one request"
            );
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_unsent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(&format!("http://{address}"), |_| {});
    let got = join_all((0..100).map(|_| attempt(&client))).await;
    for got in got {
        assert_eq!(
            (got.verdict, got.status, got.maybe, got.text.as_str()),
            (Verdict::Unsent, 0, false, "no connection")
        );
    }
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_unsent_for_all_who_wait_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = client(&format!("https://{address}"), |s| {
        s.ca_pem = Some(certificate("127.0.0.1").0.into_bytes());
        s.connect_timeout = Duration::from_millis(400);
        s.attempt_timeout = Duration::from_millis(600);
    });
    // Nobody accepts: the kernel completes TCP, TLS waits.
    let got = join_all((0..10).map(|_| attempt(&client))).await;
    for got in got {
        assert_eq!((got.verdict, got.maybe), (Verdict::Unsent, false), "{}", got.text);
    }
    drop(listener);
}

#[tokio::test]
async fn silence_is_unconfirmed_and_three_in_a_row_retire_the_connection() {
    let server = Server::start(|n| if n == 2 || n >= 6 { accepted(n) } else { Reply::Never }).await;
    let client = server.hasty_client();
    let first = client.try_stream(None).unwrap();
    let old = first.connection();
    for number in 0..6 {
        let got = attempt(&client).await;
        assert_eq!(got.connection, old, "message {number}: an answer in between starts the count again");
        if number != 2 {
            assert_eq!((got.verdict, got.maybe, got.status), (UNCONFIRMED, true, 0));
        }
        assert_eq!(server.seen.counts(), (1, number + 1), "a timeout is not sent again");
    }
    let got = attempt(&client).await;
    assert_eq!(got.verdict, Verdict::Accepted);
    assert_ne!(got.connection, old);
    assert_eq!((server.seen.counts(), client.open()), ((2, 7), 1));
    assert_eq!(server.seen.closed.load(Ordering::SeqCst), 0, "a stream is still out on the old connection");
    drop(first);
    server.seen.until("the old connection closes", |seen| seen.closed.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_body_is_read_to_64_kib_and_its_stream_dropped() {
    for (status, verdict) in [(200, PROTOCOL), (404, PROTOCOL), (429, Verdict::Throttled(None))] {
        let server = Server::start(move |_| Reply::Endless(status)).await;
        let got = attempt(&server.client()).await;
        assert_eq!(got.verdict, verdict, "{status}");
        assert_eq!(got.text, format!("{status} body too long, 65536 bytes read"));
        // What had been granted to the stream by flow control may still come (2 MiB), and no more.
        let bytes = server.seen.body_bytes.load(Ordering::SeqCst);
        assert!(bytes < 4 * 1024 * 1024, "{bytes}");
    }
}

#[tokio::test]
async fn a_body_that_stops_is_not_an_answer() {
    let stalled = Server::start(|_| Reply::Stalled(200)).await;
    let got = attempt(&stalled.hasty_client()).await;
    assert_eq!((got.verdict, got.maybe, got.status), (UNCONFIRMED, true, 200));
    let cut = Server::start(|_| Reply::Answer(200, vec![("content-length", "100".to_owned())], ACCEPTED)).await;
    let got = attempt(&cut.client()).await;
    assert_eq!((got.verdict, got.maybe), (PROTOCOL, true));
    assert!(got.text.starts_with("200 body cut off"), "{}", got.text);
    let failing = Server::start(|_| Reply::Stalled(503)).await;
    assert_eq!(attempt(&failing.hasty_client()).await.verdict, Verdict::Failed(Failure::Transient, None));
}

#[tokio::test]
async fn redirects_are_not_followed_and_nothing_is_decompressed() {
    let elsewhere = Server::start(accepted).await;
    let to = format!("http://{}/", elsewhere.address);
    for status in [301, 302, 307, 308] {
        let to = to.clone();
        let server = Server::start(move |_| Reply::Answer(status, vec![("location", to.clone())], "")).await;
        assert_eq!(attempt(&server.client()).await.verdict, PROTOCOL, "{status}");
    }
    assert_eq!(elsewhere.seen.counts(), (0, 0));
    let packed = Server::start(|_| Reply::Answer(200, vec![("content-encoding", "gzip".to_owned())], ACCEPTED)).await;
    assert_eq!(attempt(&packed.client()).await.verdict, Verdict::Accepted, "the bytes are taken as they are");
}

#[tokio::test]
async fn warming_connects_without_sending_a_message() {
    let server = Server::start(accepted).await;
    let client = server.client();
    assert!(client.warm().await);
    assert_eq!((server.seen.counts(), server.seen.touches.load(Ordering::SeqCst)), ((1, 0), 1));
    assert!(client.warm().await, "just used: nothing to do");
    assert_eq!(server.seen.touches.load(Ordering::SeqCst), 1);
    assert_eq!(attempt(&client).await.verdict, Verdict::Accepted);
    assert_eq!(server.seen.counts(), (1, 1), "over the connection that was warmed");
    let nobody =
        Connections::new(&Settings { endpoint: "http://127.0.0.1:1".to_owned(), ..settings_of_nobody() }).unwrap();
    assert!(!nobody.warm().await);
}

fn settings_of_nobody() -> Settings {
    Settings {
        endpoint: String::new(),
        ca_pem: None,
        project_id: "p".to_owned(),
        max_streams_total: 1,
        streams_per_connection: 100,
        attempt_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
    }
}

/// A self-signed certificate and its key, both PEM.
fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn acceptor(name: &str, alpn: &[&[u8]]) -> (TlsAcceptor, String) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let (certificate, key) = certificate(name);
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), certificate)
}

#[tokio::test]
async fn a_cold_burst_over_tls_makes_one_handshake_per_connection() {
    let (acceptor, certificate) = acceptor("127.0.0.1", &[b"h2", b"http/1.1"]);
    let barrier = Arc::new(Barrier::new(200));
    let server = Server::listen(Some(acceptor), move |_| Reply::Together(Arc::clone(&barrier))).await;
    let client = client(&format!("https://{}", server.address), |s| s.ca_pem = Some(certificate.into_bytes()));
    let got = join_all((0..200).map(|_| attempt(&client))).await;
    assert!(got.iter().all(|a| a.verdict == Verdict::Accepted), "{got:?}");
    assert_eq!(server.seen.counts(), (2, 200));
}

#[tokio::test]
async fn tls_needs_a_trusted_root_the_right_name_and_http_2() {
    let attempt_with = |name: &'static str, alpn: &'static [&'static [u8]], trusted: bool| async move {
        let (acceptor, certificate) = acceptor(name, alpn);
        let server = Server::listen(Some(acceptor), accepted).await;
        let root = if trusted { certificate } else { self::certificate("other").0 };
        let client = client(&format!("https://{}", server.address), |s| s.ca_pem = Some(root.into_bytes()));
        let got = attempt(&client).await;
        (got.verdict, got.text, server.seen.counts())
    };
    let fine = (Verdict::Accepted, "200".to_owned(), (1, 1));
    let failed = (Verdict::Unsent, "TLS handshake failed".to_owned(), (0, 0));
    assert_eq!(attempt_with("127.0.0.1", &[b"h2"], true).await, fine);
    assert_eq!(attempt_with("127.0.0.1", &[b"h2"], false).await, failed, "unknown root");
    assert_eq!(attempt_with("fcm.example", &[b"h2"], true).await.1, failed.1, "wrong name");
    assert_eq!(attempt_with("127.0.0.1", &[b"http/1.1"], true).await, failed, "HTTP/1.1 only");
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = settings_of_nobody();
        settings.endpoint = "https://fcm.googleapis.com".to_owned();
        change(&mut settings);
        Connections::new(&settings).unwrap_err().to_string()
    };
    for endpoint in ["", "fcm.googleapis.com", "ftp://x", "https://u:p@x", "https://x?y"] {
        let settings = Settings { endpoint: endpoint.to_owned(), ..settings_of_nobody() };
        let said = Connections::new(&settings).unwrap_err().to_string();
        assert!(said.contains("fcm.endpoint"), "{endpoint:?}: {said}");
    }
    assert!(refused(|s| s.project_id = String::new()).contains("fcm.project_id"));
    assert!(refused(|s| s.project_id = "../../x".to_owned()).contains("fcm.project_id"));
    assert!(refused(|s| s.ca_pem = Some(b"no".to_vec())).contains("fcm.ca_file"));
}
