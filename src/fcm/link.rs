//! Owns one HTTP/2 connection on the network, from dialling to its end, and the requests open on it.
//! Must never know: which connections there are, or what an answer means.
//!
//! h2 is used without an HTTP client on top, because only h2 says how many streams the peer allows now, whether it has
//! sent GOAWAY, and whether a request that got no answer ever left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use http::Request;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::broken::Broken;
use super::dial::{Dialler, Io};
use super::http::{Wire, answer};
use super::pulse::{Act, Pulse};
use super::tap::{Seen, Tap};

/// Time between two looks at the pulse.
const LOOK: Duration = Duration::from_millis(500);
/// A request that has not left by then waits for a stream the peer does not give.
const STREAM_WITHIN: Duration = Duration::from_secs(2);
/// A connection nobody uses any more may take this long to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);
/// Streams we gave up are remembered, so that their late answers are dropped in silence. A forgotten one is an error, and
/// enough of those end the connection: attempts that time out by the thousand must not.
const RESETS_REMEMBERED: usize = 20_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(30);
/// h2 ends a connection after many small DATA frames nobody read; the late answers of streams we gave up are such.
const UNREAD_BYTES: usize = 64 << 20;
/// Flow-control windows, bytes: more than we read of any body, and enough for the bodies of all streams at once.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Where a connection stands.
#[derive(Debug, Clone)]
enum State {
    Dialling,
    /// The peer has spoken: its limits are known.
    Up(SendRequest<Bytes>),
    /// It never came up.
    Failed(Broken),
    Ended,
}

/// A request that provably never left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The connection was closed, or about to be; another may take it.
    Closed,
    /// The peer allowed no stream for it in time.
    NoStream,
}

/// One connection. It closes when this and every request on it are dropped.
#[derive(Debug)]
pub struct Link {
    state: watch::Receiver<State>,
    seen: Arc<Seen>,
    open: Arc<Open>,
}

impl Link {
    /// Begins to dial, in a task of its own.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn dial(dialler: Arc<Dialler>, id: u64) -> Self {
        let (sender, state) = watch::channel(State::Dialling);
        let (seen, open) = (Arc::new(Seen::default()), Arc::new(Open::new()));
        let driver = Driver { id, state: sender, seen: Arc::clone(&seen), open: Arc::clone(&open) };
        tokio::spawn(driver.run(dialler));
        Self { state, seen, open }
    }

    /// Whether a new request may still be given to it: not closed, and no GOAWAY seen.
    #[must_use]
    pub fn usable(&self) -> bool {
        match &*self.state.borrow() {
            State::Dialling => true,
            State::Up(sender) => !matches!(sender.clone().ready().now_or_never(), Some(Err(_))),
            State::Failed(_) | State::Ended => false,
        }
    }

    /// Streams the peer allows at once; none known before it has spoken.
    #[must_use]
    pub fn allowed(&self) -> Option<u32> {
        match &*self.state.borrow() {
            State::Up(sender) => Some(u32::try_from(sender.current_max_send_streams()).unwrap_or(u32::MAX)),
            _ => None,
        }
    }

    /// Waits for the peer to speak; how many streams it allows at once.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn spoken(&self) -> Result<u32, Broken> {
        match self.up().await {
            State::Up(sender) => Ok(u32::try_from(sender.current_max_send_streams()).unwrap_or(u32::MAX)),
            State::Failed(broken) => Err(broken),
            State::Dialling | State::Ended => Err(Broken::Connect),
        }
    }

    /// When the peer was last heard.
    #[must_use]
    pub fn heard(&self) -> Option<Instant> {
        self.seen.heard()
    }

    /// Makes one request. Nothing is sent twice.
    ///
    /// # Errors
    /// [`Kept`]: it provably never left although the connection had come up.
    pub async fn exchange(&self, request: Request<()>, body: Bytes, deadline: Instant) -> Result<Wire, Kept> {
        let mut sender = match timeout_at(deadline, self.up()).await {
            // Where there never was a connection, nothing was sent.
            Err(_) => return Ok(Wire::Broken(Broken::Connect)),
            Ok(up) => match up {
                State::Up(sender) => sender,
                State::Failed(broken) => return Ok(Wire::Broken(broken)),
                State::Dialling | State::Ended => return Err(Kept::Closed),
            },
        };
        let _open = OpenOne::new(&self.open);
        let bare = body.is_empty();
        let Ok((mut response, mut rest)) = sender.send_request(request, bare) else { return Err(Kept::Closed) };
        let stream = response.stream_id().as_u32();
        if !bare {
            // When this fails the stream is gone, and the response says why.
            let _ = rest.send_data(body, true);
        }
        let by = deadline.min(Instant::now() + STREAM_WITHIN);
        let headers = match timeout_at(by, &mut response).await {
            Ok(headers) => headers,
            Err(_) if !self.seen.left(stream) => return Err(Kept::NoStream),
            Err(_) => match timeout_at(deadline, response).await {
                Ok(headers) => headers,
                Err(_) => return Ok(Wire::Broken(Broken::Timeout)),
            },
        };
        match headers {
            Ok(response) => Ok(Wire::Answer(answer(response, deadline).await)),
            Err(_) if !self.seen.left(stream) => Err(Kept::Closed),
            Err(error) => Ok(Wire::Broken(Broken::of_h2(&error))),
        }
    }

    /// The state once it is no longer dialling.
    async fn up(&self) -> State {
        let mut state = self.state.clone();
        let decided = state.wait_for(|state| !matches!(state, State::Dialling)).await;
        decided.map_or(State::Ended, |state| state.clone())
    }
}

/// The task of one connection.
struct Driver {
    id: u64,
    state: watch::Sender<State>,
    seen: Arc<Seen>,
    open: Arc<Open>,
}

type Conn = Connection<Tap<Box<dyn Io>>, Bytes>;

impl Driver {
    async fn run(self, dialler: Arc<Dialler>) {
        let up = tokio::time::timeout(dialler.within, self.up(&dialler)).await.unwrap_or(Err(Broken::Connect));
        match up {
            Err(broken) => {
                tracing::debug!(target: "fanfare::fcm", connection = self.id, reason = broken.as_str(), "no connection");
                self.state.send_replace(State::Failed(broken));
            }
            Ok((sender, connection)) => {
                let streams = sender.current_max_send_streams();
                tracing::debug!(target: "fanfare::fcm", connection = self.id, streams, "connection is up");
                self.state.send_replace(State::Up(sender));
                let reason = self.drive(connection).await;
                tracing::debug!(target: "fanfare::fcm", connection = self.id, reason, "connection ended");
                self.state.send_replace(State::Ended);
            }
        }
    }

    /// Dials, and waits for the peer's SETTINGS: then its limits are known, and that it speaks HTTP/2 at all.
    async fn up(&self, dialler: &Dialler) -> Result<(SendRequest<Bytes>, Conn), Broken> {
        let io = Tap::new(dialler.dial().await?, Arc::clone(&self.seen));
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .data_frame_budget(UNREAD_BYTES)
            .max_concurrent_reset_streams(RESETS_REMEMBERED)
            .reset_stream_duration(REMEMBERED_FOR)
            .max_local_error_reset_streams(None);
        let (sender, mut connection) = builder.handshake(io).await.map_err(|error| not_http2(&error))?;
        let spoken = poll_fn(|cx| match connection.poll_unpin(cx) {
            std::task::Poll::Ready(Err(error)) => std::task::Poll::Ready(Err(not_http2(&error))),
            std::task::Poll::Ready(Ok(())) => std::task::Poll::Ready(Err(Broken::Connect)),
            std::task::Poll::Pending if self.seen.heard().is_some() => std::task::Poll::Ready(Ok(())),
            std::task::Poll::Pending => std::task::Poll::Pending,
        });
        spoken.await?;
        Ok((sender, connection))
    }

    /// Until it ends; says why.
    async fn drive(&self, mut connection: Conn) -> &'static str {
        let mut pings = connection.ping_pong();
        let mut pulse = Pulse::default();
        let mut allowed = connection.max_concurrent_send_streams();
        let mut looks = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                // What has come in is read before silence is judged: it may be us who slept.
                biased;
                ended = &mut connection => return if ended.is_ok() { "closed" } else { "broken" },
                () = self.state.closed() => return self.part(connection).await,
                _ = looks.tick() => {}
            }
            self.note_limit(&mut allowed, connection.max_concurrent_send_streams());
            let now = Instant::now();
            match pulse.check(now, self.seen.heard().unwrap_or(now), self.open.since()) {
                Act::Wait => {}
                Act::Ping => ping(pings.as_mut()),
                Act::Dead => {
                    let draining = self.open.count.load(Ordering::Relaxed);
                    tracing::warn!(target: "fanfare::fcm", connection = self.id, draining, reason = "no answer to a ping", "connection retired");
                    return "dead";
                }
            }
        }
    }

    /// Nobody will ask for a further stream: what is open ends, then the peer is told.
    async fn part(&self, connection: Conn) -> &'static str {
        // The last sender keeps the connection open.
        self.state.send_replace(State::Ended);
        let bye = tokio::time::timeout(GOODBYE, connection).await;
        if bye.is_ok() { "no longer used" } else { "no longer used, and no goodbye" }
    }

    fn note_limit(&self, known: &mut usize, now: usize) {
        if *known != now {
            tracing::info!(target: "fanfare::fcm", connection = self.id, from = *known, to = now, "the provider changed its stream limit");
            *known = now;
        }
    }
}

fn ping(pings: Option<&mut PingPong>) {
    if let Some(pings) = pings {
        // The last answer may not have been fetched; without that no further ping can be sent.
        let _ = poll_fn(|cx| pings.poll_pong(cx)).now_or_never();
        let _ = pings.send_ping(Ping::opaque());
    }
}

/// What it means that a connection breaks before the peer has spoken HTTP/2.
fn not_http2(error: &h2::Error) -> Broken {
    if error.is_io() { Broken::Connect } else { Broken::NotHttp2 }
}

/// Requests open on a connection.
#[derive(Debug)]
struct Open {
    base: Instant,
    count: AtomicU32,
    /// Microseconds since `base` at which the first of them was opened.
    since: AtomicU64,
}

impl Open {
    fn new() -> Self {
        Self { base: Instant::now(), count: AtomicU32::new(0), since: AtomicU64::new(0) }
    }

    /// Since when at least one is open.
    fn since(&self) -> Option<Instant> {
        let any = self.count.load(Ordering::Acquire) > 0;
        any.then(|| self.base + Duration::from_micros(self.since.load(Ordering::Acquire)))
    }
}

/// One of them.
struct OpenOne<'a>(&'a Open);

impl<'a> OpenOne<'a> {
    fn new(open: &'a Open) -> Self {
        if open.count.fetch_add(1, Ordering::AcqRel) == 0 {
            let now = u64::try_from(open.base.elapsed().as_micros()).unwrap_or(u64::MAX);
            open.since.store(now, Ordering::Release);
        }
        Self(open)
    }
}

impl Drop for OpenOne<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}
