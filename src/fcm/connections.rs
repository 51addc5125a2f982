//! Owns the HTTP/2 connections to FCM: how many there are, who is on which, and when one is given up.
//! Must never know: recipients, grants, or when to try again.
//!
//! Lives on the sender thread: no locks. A [`Stream`] is leave to have one request open on one connection, within what
//! the peer allows; it is asked for before the grant, so that no request waits for a stream while its timeout runs.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use tokio::time::Instant;

use super::attempted::Attempted;
use super::bearer::Bearer;
use super::broken::Broken;
use super::dial::Dialler;
use super::error::FcmError;
use super::http::{Target, Wire};
use super::link::{Kept, Link};
use super::tls;
use crate::mutant;

/// Timeouts in a row after which a connection is given up, beside the pings: one whose peer answers pings and nothing
/// else is no use either.
const TIMEOUTS_TO_RETIRE: u32 = 3;

/// A connection that was heard this recently is warm: well under the 3 minutes after which Google closes an idle one.
const WARM_FOR: Duration = Duration::from_secs(30);

/// An attempt that found its connection closed before it left looks for another this often.
const MOVES: u32 = 3;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("fanfare/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Asks for the detailed error bodies, as Google's own SDKs do.
const FORMAT: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-goog-api-format-version"), HeaderValue::from_static("2"));

/// What connections need to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Base URL of FCM or an emulator.
    pub endpoint: String,
    /// Root certificates trusted beside the system's, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Firebase project.
    pub project_id: String,
    /// Most requests open at once: slots and lent slots.
    pub max_streams_total: u32,
    /// Requests on one connection (FCM allows 100).
    pub streams_per_connection: u32,
    /// From launch to the end of the answer.
    pub attempt_timeout: Duration,
    /// For TCP and TLS; never longer than `attempt_timeout`.
    pub connect_timeout: Duration,
}

/// One connection, from dialling to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// All connections. A clone is the same set.
#[derive(Debug, Clone)]
pub struct Connections(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    dialler: Arc<Dialler>,
    send: Target,
    root: Target,
    open: RefCell<Vec<Rc<Connection>>>,
    next_id: Cell<u64>,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    link: Link,
    streams: Cell<u32>,
    timeouts: Cell<u32>,
}

impl Connection {
    /// Streams that can be taken now, of at most `most`.
    fn room(&self, most: u32) -> u32 {
        self.link.allowed().map_or(most, |allowed| allowed.min(most)).saturating_sub(self.streams.get())
    }
}

/// Leave to have one request open on one connection. Given back when dropped.
#[derive(Debug)]
pub struct Stream(Rc<Connection>);

impl Stream {
    fn take(connection: &Rc<Connection>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        Self(Rc::clone(connection))
    }

    /// The connection it is on.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        self.0.id
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

impl Connections {
    /// Checks the settings. Nothing is connected before [`Connections::warm`] or the first [`Connections::try_stream`].
    ///
    /// # Errors
    /// [`FcmError`] names the setting and the fix.
    pub fn new(settings: &Settings) -> Result<Self, FcmError> {
        let (dialler, send, root) = way(settings)?;
        let (dialler, settings) = (Arc::new(dialler), settings.clone());
        let inner = Inner { settings, dialler, send, root, open: RefCell::default(), next_id: Cell::new(1) };
        Ok(Self(Rc::new(inner)))
    }

    /// A stream on the least loaded connection, on another than `avoid` where one has room. Opens a further connection
    /// only when all are full; `None` when as many are open as all slots together can need.
    ///
    /// # Panics
    /// Outside a tokio runtime, when it opens a connection.
    #[must_use]
    pub fn try_stream(&self, avoid: Option<ConnectionId>) -> Option<Stream> {
        let inner = &self.0;
        let most = inner.per_connection();
        let mut open = inner.open.borrow_mut();
        open.retain(|c| c.link.usable());
        let with_room = open.iter().filter(|c| c.room(most) > 0);
        if let Some(best) = with_room.min_by_key(|c| (Some(c.id) == avoid, c.streams.get())) {
            return Some(Stream::take(best));
        }
        if open.len() >= inner.most() {
            return None;
        }
        let further = inner.fresh();
        let stream = Stream::take(&further);
        tracing::debug!(target: "fanfare::fcm", connection = further.id.0, open = open.len() + 1, "further connection");
        open.push(further);
        Some(stream)
    }

    /// Streams that can be taken now, those of connections not opened yet among them.
    #[must_use]
    pub fn room(&self) -> usize {
        let most = self.0.per_connection();
        let open = self.0.open.borrow();
        let usable = open.iter().filter(|c| c.link.usable());
        let (n, room) = usable.fold((0, 0_u64), |(n, room), c| (n + 1, room + u64::from(c.room(most))));
        let unopened = u64::try_from(self.0.most().saturating_sub(n)).unwrap_or(u64::MAX);
        usize::try_from(room + unopened.saturating_mul(u64::from(most))).unwrap_or(usize::MAX)
    }

    /// Makes one attempt: one HTTP request, one judged answer, nothing sent twice. A request that found its connection
    /// closed before it left is given to another, as it is no request yet.
    pub fn attempt(&self, stream: Stream, bearer: &Bearer, body: Bytes) -> impl Future<Output = Attempted> + use<> {
        let (pool, authorization) = (self.clone(), bearer.header());
        async move {
            mutant::panic_at("attempt", &body);
            let started = Instant::now();
            let deadline = started + pool.0.settings.attempt_timeout;
            let request = || post(&pool.0.send, &authorization, body.len());
            let (mut stream, mut moves) = (stream, 0);
            let wire = loop {
                let kept = match stream.0.link.exchange(request(), body.clone(), deadline).await {
                    Ok(wire) => break wire,
                    Err(kept) => kept,
                };
                if kept == Kept::NoStream {
                    break Wire::Broken(Broken::NoStream);
                }
                match pool.try_stream(Some(stream.connection())) {
                    Some(other) if moves < MOVES => stream = other,
                    _ => break Wire::Broken(Broken::Connect),
                }
                moves += 1;
            };
            pool.0.observe(&stream.0, &wire);
            Attempted::judge(&wire, stream.connection(), started.elapsed(), SystemTime::now())
        }
    }

    /// Makes the first connection, or proves that it still lives, before it is needed: `GET /` on the endpoint, without
    /// credentials, whatever the answer. FCM counts messages, and this is none; it needs no grant. Returns at once when
    /// the connection has just been used. `true` = warm.
    pub fn warm(&self) -> impl Future<Output = bool> + use<> {
        let pool = self.clone();
        async move {
            let first = pool.0.open.borrow().iter().find(|c| c.link.usable()).cloned();
            if let Some(first) = &first
                && first.link.heard().is_some_and(|at| at.elapsed() < WARM_FOR)
            {
                return true;
            }
            let Some(stream) = first.as_ref().map(Stream::take).or_else(|| pool.try_stream(None)) else { return false };
            let deadline = Instant::now() + pool.0.dialler.within;
            let wire = stream.0.link.exchange(get(&pool.0.root), Bytes::new(), deadline).await;
            if wire == Ok(Wire::Broken(Broken::Timeout)) {
                pool.0.retire(&stream.0, "no answer while idle");
            }
            matches!(wire, Ok(Wire::Answer(_)))
        }
    }

    /// Connections in use, the ones being drained not among them.
    #[must_use]
    pub fn open(&self) -> usize {
        self.0.open.borrow().iter().filter(|c| c.link.usable()).count()
    }

    /// Streams that could be open at once, if the peer allows as many.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        let most = u32::try_from(self.0.most()).unwrap_or(u32::MAX);
        most.saturating_mul(self.0.per_connection())
    }
}

impl Inner {
    fn per_connection(&self) -> u32 {
        self.settings.streams_per_connection.max(1)
    }

    fn most(&self) -> usize {
        let streams = self.settings.max_streams_total.max(1);
        usize::try_from(streams.div_ceil(self.per_connection())).unwrap_or(usize::MAX)
    }

    fn fresh(&self) -> Rc<Connection> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let link = Link::dial(Arc::clone(&self.dialler), id);
        Rc::new(Connection { id: ConnectionId(id), link, streams: Cell::new(0), timeouts: Cell::new(0) })
    }

    fn observe(&self, connection: &Rc<Connection>, wire: &Wire) {
        match wire {
            Wire::Broken(Broken::Timeout) => connection.timeouts.set(connection.timeouts.get() + 1),
            Wire::Answer(_) | Wire::Broken(Broken::Unprocessed) => connection.timeouts.set(0),
            Wire::Broken(_) => {}
        }
        if connection.timeouts.get() >= TIMEOUTS_TO_RETIRE {
            self.retire(connection, "timeouts in a row");
        }
    }

    /// New streams go to another connection; this one closes when its last stream is given back.
    fn retire(&self, connection: &Rc<Connection>, reason: &'static str) {
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|c| Rc::ptr_eq(c, connection)) else { return };
        open.remove(at);
        let draining = connection.streams.get();
        tracing::warn!(target: "fanfare::fcm", connection = connection.id.0, draining, reason, "connection retired");
    }
}

/// The way to the endpoint: who dials, where a send goes, and where a request that is none.
pub(super) fn way(settings: &Settings) -> Result<(Dialler, Target, Target), FcmError> {
    let base = settings.endpoint.trim_end_matches('/');
    let target = |path: String| {
        Target::parse(&format!("{base}{path}")).ok_or_else(|| FcmError::Endpoint(settings.endpoint.clone()))
    };
    let project = &settings.project_id;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':' | b'_');
    if project.is_empty() || !project.bytes().all(plain) {
        return Err(FcmError::ProjectId(project.clone()));
    }
    let (send, root) = (target(format!("/v1/projects/{project}/messages:send"))?, target("/".to_owned())?);
    let tls = tls::client_config(settings.ca_pem.as_deref(), tls::HTTP2_ONLY, send.is_https())?;
    let dialler = Dialler::new(&root, tls, settings.connect_timeout.min(settings.attempt_timeout))?;
    Ok((dialler, send, root))
}

pub(super) fn post(to: &Target, authorization: &HeaderValue, length: usize) -> Request<()> {
    let mut request = get(to);
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, authorization.clone());
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(FORMAT.0, FORMAT.1);
    request
}

fn get(to: &Target) -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = to.uri().clone();
    *request.version_mut() = http::Version::HTTP_2;
    request.headers_mut().insert(USER_AGENT, AGENT);
    request
}
