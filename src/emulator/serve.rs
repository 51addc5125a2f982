//! Owns the listener and its connections: accepting, TLS, HTTP/2 and HTTP/1.1 on one port, streams in flight.
//! Must never know: paths and answers.
//!
//! Every byte of a connection passes through here as plain `AsyncRead + AsyncWrite` below HTTP; faults of frames or
//! of the network can be put in between without touching anything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::routes::{self, Shared};

/// A handshake that takes longer has failed.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Wait after a failed accept; they come in rows when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What a connection needs.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    pub(super) tls: Option<TlsAcceptor>,
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    pub(super) max_streams: u32,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Server {
    /// Accepts until stopped.
    pub(super) async fn run(self, listener: TcpListener) {
        while let Some(accepted) = self.stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((io, _)) => self.spawn(io),
                Err(error) => {
                    tracing::warn!(target: "fanfare::emulator", %error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn spawn(&self, io: TcpStream) {
        let server = self.clone();
        let number = self.shared.book.connections_opened.up();
        self.tasks.spawn(async move {
            let open = Open::connection(&server.shared);
            let stop = server.stop.clone();
            stop.run_until_cancelled(server.connection(io, number)).await;
            drop(open);
        });
    }

    async fn connection(&self, io: TcpStream, number: u32) {
        // Failing only means that small answers may wait for the client's acknowledgement.
        let _ = io.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.http(io, number).await };
        match tokio::time::timeout(HANDSHAKE, tls.accept(io)).await {
            Ok(Ok(io)) => self.http(io, number).await,
            Ok(Err(error)) => self.handshake_failed(&error.to_string()),
            Err(_) => self.handshake_failed("timeout"),
        }
    }

    fn handshake_failed(&self, error: &str) {
        self.shared.book.tls_failures.up();
        tracing::debug!(target: "fanfare::emulator", error, "TLS handshake failed");
    }

    async fn http<I>(&self, io: I, number: u32)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = Arc::new(AtomicU32::new(0));
        let service = service_fn(|request| {
            let stream = Open::stream(&self.shared, &streams);
            let reply = routes::handle(self.shared.clone(), number, request);
            async move {
                let reply = reply.await;
                drop(stream);
                reply
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(self.max_streams);
        if let Err(error) = builder.serve_connection(TokioIo::new(io), service).await {
            // A client that goes away is no fault of the emulator's.
            tracing::debug!(target: "fanfare::emulator", error = %error, connection = number, "connection ended");
        }
    }
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
