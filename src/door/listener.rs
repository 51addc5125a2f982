//! Owns the accept loop: how many connections, how long they may dawdle, how they end.
//! Must never know: what is served.
//!
//! An accept loop of our own, because the ready-made one sets no timer: there a client that sends half a header
//! keeps its connection for ever, and a shutdown waits for the slowest client without end.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use super::activity::Patience;
use super::seats::{Seat, Seats};
use crate::metrics::Gauge;

/// Bytes of one request's headers; more is answered 431 or resets the stream.
const MAX_HEADER_BYTES: u32 = 32 * 1024;

/// Streams of one HTTP/2 connection reset by their caller before we looked at them; one more ends the connection. Opening
/// and resetting without end costs a caller nothing (CVE-2023-44487, "rapid reset").
const MAX_RESET_STREAMS: usize = 20;

/// Longest time a connection keeps its seat after it was told to leave it to somebody who waits: a round trip in a data
/// centre, and what a peer that does not answer can cost those who wait.
const LEAVE_WITHIN: Duration = Duration::from_millis(20);

/// Limits of one listener.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections. One more takes the place of whichever has been idle longest; when none is, it waits.
    pub max_connections: u32,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// From connecting to the first complete request header, and from the first byte of every later one to its last.
    pub header: Duration,
    /// Without a request after the first one. Longer than load balancers keep their side open (60 s is usual), so that it is
    /// them who close and no request meets a closing connection.
    pub keep_alive: Duration,
    /// With answers of which nothing is taken: then the connection counts as idle and ends. What is taken slowly, under 1 KiB
    /// a second, counts in part, so that an export that is read slowly goes on, and a byte now and then keeps no seat.
    pub unread: Duration,
    /// Longest wait for requests in progress at shutdown.
    pub grace: Duration,
    /// Counts open connections.
    pub connections: Gauge,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_streams: 64,
            header: Duration::from_secs(5),
            keep_alive: Duration::from_secs(75),
            unread: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            connections: Gauge::default(),
        }
    }
}

/// Serves HTTP/1.1 and HTTP/2 with prior knowledge on `listener` until `shutdown`, then lets requests in progress end.
///
/// # Errors
/// [`Cut`] when some had not ended after [`Limits::grace`]; they are cut off.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: Limits,
    shutdown: CancellationToken,
) -> Result<(), Cut>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let open = TaskTracker::new();
    let cut = CancellationToken::new();
    let seats = Seats::new(limits.max_connections, limits.unread);
    while let Some((stream, seat)) = next(&listener, &seats, &shutdown).await {
        let (cut, connections) = (cut.clone(), limits.connections.clone());
        connections.inc();
        let connection = attend(stream, seat, service.clone(), limits.clone(), shutdown.clone());
        open.spawn(async move {
            tokio::select! {
                () = connection => {}
                () = cut.cancelled() => {}
            }
            connections.dec();
        });
    }
    drop(listener);
    open.close();
    let in_time = tokio::time::timeout(limits.grace, open.wait()).await.is_ok();
    let connections = open.len();
    cut.cancel();
    open.wait().await;
    if in_time { Ok(()) } else { Err(Cut { connections }) }
}

/// Connections that had requests in progress when the grace period ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{connections} connections were cut off: their requests took longer than the grace period")]
pub struct Cut {
    /// How many.
    pub connections: usize,
}

/// The next connection with its seat; `None` at shutdown.
async fn next(listener: &TcpListener, seats: &Seats, shutdown: &CancellationToken) -> Option<(TcpStream, Seat)> {
    let connection = async {
        // It comes before its seat, for a seat that is idle is taken from nobody unless somebody wants it.
        let stream = accept(listener).await;
        (stream, seats.take().await)
    };
    tokio::select! {
        () = shutdown.cancelled() => None,
        connection = connection => Some(connection),
    }
}

/// Out of file descriptors, `accept` fails at once and again: waiting is what keeps that from being a hot loop.
async fn accept(listener: &TcpListener) -> TcpStream {
    let mut pause = Duration::from_millis(10);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(fault) if of_one_client(&fault) => {}
            Err(fault) => {
                let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(target: "fanfare::door", error = %fault, pause_ms, "cannot accept connections");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

fn of_one_client(fault: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(fault.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Ends when somebody has waited for this seat for as long as its caller may take to read our goodbye.
async fn wanted(seat: &Seat) {
    seat.go.cancelled().await;
    tokio::time::sleep(LEAVE_WITHIN).await;
}

fn protocols(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // hyper's timer runs between requests too, so here it is the longer of the two limits. The shorter one, and a client
    // that never gets as far as choosing a protocol, are `Activity`'s.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.keep_alive);
    builder.http1().max_buf_size(usize::try_from(MAX_HEADER_BYTES).unwrap_or(usize::MAX));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

async fn attend<S, B>(stream: TcpStream, seat: Seat, service: S, limits: Limits, shutdown: CancellationToken)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Answers are small and whole: nothing is won by holding them back for more.
    let _ = stream.set_nodelay(true);
    let patience = Patience { header: limits.header, between: limits.keep_alive, unread: limits.unread };
    let io = TokioIo::new(seat.activity.reading(stream));
    let service = TowerToHyperService::new(seat.activity.watching(service));
    let builder = protocols(&limits);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        end = connection.as_mut() => Some(end),
        () = shutdown.cancelled() => None,
        () = seat.activity.idle(patience) => None,
        () = seat.go.cancelled() => None,
    };
    let end = match ended {
        Some(end) => end,
        None => {
            connection.as_mut().graceful_shutdown();
            // At shutdown `serve` cuts earlier; an idle client gets this long to read our goodbye.
            let goodbye = if shutdown.is_cancelled() { limits.grace } else { limits.header };
            tokio::select! {
                end = tokio::time::timeout(goodbye, connection) => end.unwrap_or(Ok(())),
                () = wanted(&seat) => Ok(()),
            }
        }
    };
    if let Err(fault) = end {
        tracing::debug!(target: "fanfare::door", error = %fault, "connection ended badly");
    }
}
