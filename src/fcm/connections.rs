//! Owns the HTTP/2 connections to FCM: how many there are, who is on which, and when one is given up.
//! Must never know: recipients, grants, or when to try again.
//!
//! Lives on the sender thread: no locks. A [`Stream`] is leave to have one request open on one connection; it is asked
//! for before the grant, so that no request waits inside the HTTP client while its timeout runs.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustls::ClientConfig;
use tokio::time::Instant;

use super::attempted::Attempted;
use super::bearer::Bearer;
use super::broken::Broken;
use super::error::FcmError;
use super::http::{Http2, Target, Wire};
use super::tls;

/// Timeouts in a row after which a connection is given up: an HTTP/2 connection that has died silently looks open, and
/// a timed-out request does not close it.
const TIMEOUTS_TO_RETIRE: u32 = 3;

/// A connection that answered this recently is warm: well under the 3 minutes after which Google closes an idle one.
const WARM_FOR: Duration = Duration::from_secs(30);

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

/// One connection, for as long as it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// All connections. A clone is the same set.
#[derive(Debug, Clone)]
pub struct Connections(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    tls: ClientConfig,
    send: Target,
    root: Target,
    open: RefCell<Vec<Rc<Connection>>>,
    next_id: Cell<u64>,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    http: Http2,
    streams: Cell<u32>,
    timeouts: Cell<u32>,
    heard: Cell<Option<Instant>>,
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
    /// Checks the settings. Nothing is connected before [`Connections::warm`] or the first attempt.
    ///
    /// # Errors
    /// [`FcmError`] names the setting and the fix.
    pub fn new(settings: &Settings) -> Result<Self, FcmError> {
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
        let mut settings = settings.clone();
        settings.connect_timeout = settings.connect_timeout.min(settings.attempt_timeout);
        let first_id = Cell::new(1);
        let inner = Inner { settings, tls, send, root, open: RefCell::default(), next_id: first_id };
        // Built here so that a client that cannot be built is a start-up error.
        let first = inner.fresh()?;
        inner.open.borrow_mut().push(first);
        Ok(Self(Rc::new(inner)))
    }

    /// A stream on the least loaded connection, on another than `avoid` where one has room. Opens a further connection
    /// only when all are full; `None` when as many are open as all slots together can need.
    #[must_use]
    pub fn try_stream(&self, avoid: Option<ConnectionId>) -> Option<Stream> {
        let inner = &self.0;
        let mut open = inner.open.borrow_mut();
        let with_room = open.iter().filter(|c| c.streams.get() < inner.settings.streams_per_connection.max(1));
        if let Some(best) = with_room.min_by_key(|c| (Some(c.id) == avoid, c.streams.get())) {
            return Some(Stream::take(best));
        }
        if open.len() >= inner.most() {
            return None;
        }
        let further = inner.fresh_or_log()?;
        let stream = Stream::take(&further);
        tracing::debug!(target: "fanfare::fcm", connection = further.id.0, open = open.len() + 1, "further connection");
        open.push(further);
        Some(stream)
    }

    /// Makes one attempt: one HTTP request, one judged answer, nothing sent twice.
    pub fn attempt(&self, stream: Stream, bearer: &Bearer, body: Bytes) -> impl Future<Output = Attempted> + use<> {
        let inner = Rc::clone(&self.0);
        let sending = stream.0.http.post(&inner.send, bearer, body, inner.settings.attempt_timeout);
        async move {
            let started = Instant::now();
            let wire = sending.await;
            inner.observe(&stream.0, &wire);
            Attempted::judge(&wire, stream.connection(), started.elapsed(), SystemTime::now())
        }
    }

    /// Makes the first connection, or proves that it still lives, before it is needed: `GET /` on the endpoint, without
    /// credentials, whatever the answer. FCM counts messages, and this is none; it needs no grant. Returns at once when
    /// the connection has just been used. `true` = warm.
    pub fn warm(&self) -> impl Future<Output = bool> + use<> {
        let inner = Rc::clone(&self.0);
        async move {
            let Some(connection) = inner.open.borrow().first().cloned() else { return false };
            if connection.heard.get().is_some_and(|at| at.elapsed() < WARM_FOR) {
                return true;
            }
            let stream = Stream::take(&connection);
            let wire = connection.http.touch(&inner.root, inner.settings.connect_timeout).await;
            drop(stream);
            inner.observe(&connection, &wire);
            if wire == Wire::Broken(Broken::Timeout) {
                inner.retire(&connection, "no answer while idle");
            }
            matches!(wire, Wire::Answer(_))
        }
    }

    /// Connections in use, the ones being drained not among them.
    #[must_use]
    pub fn open(&self) -> usize {
        self.0.open.borrow().len()
    }

    /// Streams that could be open at once.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        let most = u32::try_from(self.0.most()).unwrap_or(u32::MAX);
        most.saturating_mul(self.0.settings.streams_per_connection.max(1))
    }
}

impl Inner {
    fn most(&self) -> usize {
        let streams = self.settings.max_streams_total.max(1);
        usize::try_from(streams.div_ceil(self.settings.streams_per_connection.max(1))).unwrap_or(usize::MAX)
    }

    fn fresh(&self) -> Result<Rc<Connection>, FcmError> {
        let http = Http2::new(self.tls.clone(), self.settings.connect_timeout)?;
        let id = ConnectionId(self.next_id.replace(self.next_id.get() + 1));
        Ok(Rc::new(Connection { id, http, streams: Cell::new(0), timeouts: Cell::new(0), heard: Cell::new(None) }))
    }

    /// Every connection is built like the first, so this fails only when the machine is out of something.
    fn fresh_or_log(&self) -> Option<Rc<Connection>> {
        self.fresh().inspect_err(|error| tracing::error!(target: "fanfare::fcm", %error, "no further connection")).ok()
    }

    fn observe(&self, connection: &Rc<Connection>, wire: &Wire) {
        match wire {
            Wire::Broken(Broken::Timeout) => connection.timeouts.set(connection.timeouts.get() + 1),
            Wire::Answer(_) | Wire::Broken(Broken::Unprocessed) => {
                connection.timeouts.set(0);
                connection.heard.set(Some(Instant::now()));
            }
            Wire::Broken(_) => connection.heard.set(None),
        }
        if connection.timeouts.get() >= TIMEOUTS_TO_RETIRE {
            self.retire(connection, "timeouts in a row");
        }
    }

    /// New streams go to a fresh connection; the old one closes when its last stream is given back.
    fn retire(&self, connection: &Rc<Connection>, reason: &'static str) {
        let mut open = self.open.borrow_mut();
        let Some(at) = open.iter().position(|c| Rc::ptr_eq(c, connection)) else { return };
        let Some(fresh) = self.fresh_or_log() else { return };
        let (old, new, draining) = (connection.id.0, fresh.id.0, connection.streams.get());
        tracing::warn!(target: "fanfare::fcm", connection = old, replaced_by = new, draining, reason, "connection retired");
        open[at] = fresh;
    }
}
