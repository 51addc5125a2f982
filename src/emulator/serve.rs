//! Owns the listeners and their connections: accepting, TLS, HTTP/2 and HTTP/1.1 on one port, streams in flight.
//! Must never know: paths and answers.
//!
//! Every byte of a connection passes through its [`super::network::Tap`], as plain `AsyncRead + AsyncWrite` below HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::network::{Socket, Wire, sit_out};
use super::routes::{self, Shared};

/// A handshake that takes longer has failed.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Wait after a failed accept; they come in rows when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// The longest CONNECT a proxy reads, bytes.
const CONNECT_MAX: usize = 8192;

/// What comes in through a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// The provider itself.
    Provider,
    /// The pages about the emulator, out of the reach of any fault.
    Control,
    /// A proxy that leads to the provider, whatever it is asked for.
    Proxy,
}

/// What a connection needs.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Server {
    /// Accepts until stopped.
    pub(super) async fn run(self, listener: TcpListener, door: Door) {
        let stop = self.stop.clone();
        stop.run_until_cancelled(self.accept(listener, door)).await;
    }

    async fn accept(self, mut listener: TcpListener, door: Door) {
        let addr = listener.local_addr();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((io, _)) => self.spawn(io, door),
                    Err(error) => {
                        tracing::warn!(target: "fanfare::emulator", %error, "connection not accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = self.shared.wires.refuses(), if door == Door::Provider => {
                    let Ok(addr) = addr else { continue };
                    drop(listener);
                    self.shared.wires.admits().await;
                    listener = reopened(addr).await;
                }
            }
        }
    }

    fn spawn(&self, io: TcpStream, door: Door) {
        let server = self.clone();
        self.tasks.spawn(async move {
            let stop = server.stop.clone();
            stop.run_until_cancelled(server.welcome(io, door)).await;
        });
    }

    async fn welcome(&self, mut io: TcpStream, door: Door) {
        // Failing only means that small answers may wait for the client's acknowledgement.
        let _ = io.set_nodelay(true);
        if door == Door::Control {
            let service = service_fn(|request| routes::handle_control(self.shared.clone(), request));
            let served = builder().serve_connection(TokioIo::new(io), service).await;
            return ended(0, served.err());
        }
        if door == Door::Proxy && !connected(&mut io).await {
            return;
        }
        let open = Open::connection(&self.shared);
        let wire = Arc::new(self.shared.wires.connected(self.shared.book.connections_opened.up()));
        self.connection(io, wire).await;
        drop(open);
    }

    async fn connection(&self, io: TcpStream, wire: Arc<Wire>) {
        if wire.is_silent() {
            // How it ends says nothing: nobody has answered.
            let _ = sit_out(wire.tap(io)).await;
            return;
        }
        let Some(tls) = &self.tls else { return self.http(io, wire).await };
        match tokio::time::timeout(HANDSHAKE, tls.accept(io)).await {
            Ok(Ok(io)) => self.http(io, wire).await,
            Ok(Err(error)) => self.handshake_failed(&error.to_string()),
            Err(_) => self.handshake_failed("timeout"),
        }
    }

    fn handshake_failed(&self, error: &str) {
        self.shared.book.tls_failures.up();
        tracing::debug!(target: "fanfare::emulator", error, "TLS handshake failed");
    }

    async fn http<I: Socket>(&self, io: I, wire: Arc<Wire>) {
        let (streams, number) = (Arc::new(AtomicU32::new(0)), wire.number);
        let io = TokioIo::new(wire.tap(io));
        let service = service_fn(|request| {
            let stream = Open::stream(&self.shared, &streams);
            let reply = routes::handle(self.shared.clone(), wire.clone(), request);
            async move {
                let reply = reply.await;
                drop(stream);
                reply
            }
        });
        let served = builder().serve_connection(io, service).await;
        ended(number, served.err());
    }
}

/// HTTP/2 without a limit of its own on streams: the tap keeps the one that is in force.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(u32::MAX);
    builder
}

/// A client that goes away is no fault of the emulator's.
fn ended(connection: u32, error: Option<Box<dyn std::error::Error + Send + Sync>>) {
    if let Some(error) = error {
        tracing::debug!(target: "fanfare::emulator", error, connection, "connection ended");
    }
}

/// The listener again. Its address was ours a moment ago; should somebody have taken it, they may give it back.
async fn reopened(addr: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(addr).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::warn!(target: "fanfare::emulator", %error, %addr, "listener not opened again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Reads a CONNECT and agrees to it; false when it was something else. Wherever it wants to go, it is here already.
async fn connected(io: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < CONNECT_MAX {
        // Byte by byte, so that nothing of what follows is taken.
        match io.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    let agreed = head.starts_with(b"CONNECT ") && head.ends_with(b"\r\n\r\n");
    let answer: &[u8] = if agreed {
        b"HTTP/1.1 200 Connection established\r\n\r\n"
    } else {
        b"HTTP/1.1 405 Method Not Allowed\r\nallow: CONNECT\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    };
    io.write_all(answer).await.is_ok() && agreed
}

/// Something open that is counted while it lives, however it ends.
struct Open {
    shared: Arc<Shared>,
    /// The connection's own count of streams; none for a connection.
    streams: Option<Arc<AtomicU32>>,
}

impl Open {
    fn connection(shared: &Arc<Shared>) -> Self {
        shared.book.connections.up();
        Self { shared: shared.clone(), streams: None }
    }

    fn stream(shared: &Arc<Shared>, streams: &Arc<AtomicU32>) -> Self {
        shared.book.streams.up();
        let on_this_one = streams.fetch_add(1, Ordering::Relaxed) + 1;
        shared.book.connection_peak.fetch_max(on_this_one, Ordering::Relaxed);
        Self { shared: shared.clone(), streams: Some(streams.clone()) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        match &self.streams {
            Some(streams) => {
                streams.fetch_sub(1, Ordering::Relaxed);
                self.shared.book.streams.down();
            }
            None => self.shared.book.connections.down(),
        }
    }
}
