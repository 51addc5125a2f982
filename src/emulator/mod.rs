//! Owns a stand-in for FCM HTTP v1 and Google's token endpoint, to point a sender at and to see what arrived.
//! Must never know: the product. It shares no code with it, so that it can be the oracle of its tests.
//!
//! One listener, TLS or plain, HTTP/2 and HTTP/1.1 on the same port:
//!
//! | path | does |
//! |---|---|
//! | `POST /v1/projects/{project}/messages:send` | checks bearer token, project and body, logs, answers by script |
//! | `POST /token` | JWT-bearer grant: verifies signature and claims, gives an access token |
//! | `GET /computeMetadata/v1/...` | the metadata server's token, account and project id |
//! | `GET /emulator/key.json` | a service-account key whose `token_uri` is this emulator |
//! | `GET /emulator/ca.pem` | the authority to trust, with TLS |
//! | `GET /emulator/log?since=SEQ` | every send request after SEQ, NDJSON, see [`LogEntry`] |
//! | `GET /emulator/stats` | [`Stats`] |
//! | `GET`, `POST /emulator/control` | what is in force; a change of it, see [`Control`] |
//! | `GET /emulator/answers`, `GET /emulator/token-answers` | what it can be told to answer |
//! | `GET /emulator/healthz` | 200 |
//!
//! A request is logged *before* its answer goes out, with the time of its arrival. So whatever became of the answer,
//! what the emulator says it accepted is what a provider would have delivered.
//!
//! What there is to answer, and everything that can be changed while it runs, is in `docs/EMULATOR.md`.

use std::fs::{File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use serve::Door;

mod answer;
mod book;
mod conduct;
mod desk;
mod grant;
mod log;
mod message;
mod network;
mod oauth;
mod quota;
mod reply;
mod routes;
mod schema;
mod script;
mod serve;
mod settings;
mod stats;
mod table;
mod tls;
mod token_answers;

pub use conduct::Control;
pub use log::LogEntry;
pub use network::{Act, GoAway, Network};
pub use script::Rule;
pub use settings::{EmulatorError, Settings};
pub use stats::Stats;

/// Name and meaning of every built-in answer.
pub fn answers() -> impl Iterator<Item = (&'static str, &'static str)> {
    table::ANSWERS.iter().map(|a| (a.name, a.about))
}

/// Name and meaning of everything the token endpoint and the metadata server can be told to answer, beside those.
pub fn token_answers() -> impl Iterator<Item = (&'static str, &'static str)> {
    token_answers::TOKEN_ANSWERS.iter().map(|(name, about, _)| (*name, *about))
}

/// A running emulator; it ends when dropped.
pub struct Emulator {
    shared: Arc<routes::Shared>,
    endpoint: String,
    addr: SocketAddr,
    control_addr: Option<SocketAddr>,
    proxy_addr: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Emulator {
    /// Starts it on the caller's runtime; it listens when this returns. Blocks while it makes an RSA key, 0.1 s or so.
    ///
    /// # Errors
    /// When it cannot listen, write its log file or make its keys, or when a rule names no answer.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(settings: Settings) -> Result<Self, EmulatorError> {
        let file = settings.log_file.as_deref().map(open_log).transpose()?;
        let (listener, addr) = listen(settings.listen)?;
        let control = settings.control_listen.map(listen).transpose()?;
        let proxy = settings.proxy_listen.map(listen).transpose()?;
        let host = settings.host.clone().unwrap_or_else(|| reachable(addr.ip()));
        let identity = if settings.tls { Some(tls::identity(names(&host))?) } else { None };
        let scheme = if settings.tls { "https" } else { "http" };
        let endpoint = format!("{scheme}://{host}:{}", addr.port());
        let shared = Arc::new(routes::Shared {
            book: book::Book::new(file, &settings.control)?,
            wires: Arc::new(network::Wires::new(settings.max_streams, &settings.control.network)),
            account: oauth::Account::generate(&settings.project, format!("{endpoint}/token"))?,
            project: settings.project,
            ca_pem: identity.as_ref().map(|identity| identity.ca_pem.clone()),
        });
        let server = serve::Server {
            shared: shared.clone(),
            tls: identity.map(|identity| TlsAcceptor::from(identity.config)),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (control_addr, proxy_addr) =
            (control.as_ref().map(|(_, addr)| *addr), proxy.as_ref().map(|(_, addr)| *addr));
        let doors = [(Some((listener, addr)), Door::Provider), (control, Door::Control), (proxy, Door::Proxy)];
        for (listener, door) in doors.into_iter().filter_map(|(opened, door)| Some((opened?.0, door))) {
            server.tasks.spawn(server.clone().run(listener, door));
        }
        tracing::info!(target: "fanfare::emulator", endpoint, project = shared.project, "emulator listens");
        Ok(Self { shared, endpoint, addr, control_addr, proxy_addr, stop: server.stop, tasks: server.tasks })
    }

    /// Base URL, `http://127.0.0.1:41234`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where the listener is that no fault touches, if there is one.
    #[must_use]
    pub fn control_addr(&self) -> Option<SocketAddr> {
        self.control_addr
    }

    /// Where the proxy is that leads here, if there is one.
    #[must_use]
    pub fn proxy_addr(&self) -> Option<SocketAddr> {
        self.proxy_addr
    }

    /// The one project that exists.
    #[must_use]
    pub fn project(&self) -> &str {
        &self.shared.project
    }

    /// The authority clients have to trust, PEM; none without TLS.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.shared.ca_pem.as_deref()
    }

    /// A service-account key for this emulator. Holds a private key, good for nothing else.
    #[must_use]
    pub fn key_json(&self) -> String {
        self.shared.account.key_json()
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The whole log so far, in order of arrival.
    #[must_use]
    pub fn log(&self) -> Vec<LogEntry> {
        self.shared.book.log_after(0, usize::MAX)
    }

    /// Waits until the log has at least `n` entries, so that a test can act while requests are in flight.
    pub async fn logged(&self, n: u64) {
        self.shared.book.logged(n).await;
    }

    /// Changes its conduct from the next request on, and what is wrong below HTTP at once.
    ///
    /// # Errors
    /// When something names no built-in answer or cannot be sent; then nothing has changed.
    pub fn control(&self, change: &Control) -> Result<(), EmulatorError> {
        self.shared.control(change)
    }

    /// Closes the listener and cuts every connection; log and counts can still be read before this is dropped.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn open_log(path: &Path) -> Result<File, EmulatorError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|source| EmulatorError::LogFile { path: path.to_owned(), source })
}

fn listen(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), EmulatorError> {
    let open = || {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok((TcpListener::from_std(listener)?, addr))
    };
    open().map_err(|source| EmulatorError::Listen { addr, source })
}

/// How a client on this machine names the address, as a URL needs it.
fn reachable(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Where SDKs want to go, whatever they are told.
const GOOGLES: [&str; 2] = ["fcm.googleapis.com", "oauth2.googleapis.com"];

/// What the certificate is good for: always this machine, the names SDKs insist on, and `host`.
fn names(host: &str) -> Vec<String> {
    let host = host.trim_matches(['[', ']']).to_owned();
    let mut names: Vec<String> =
        ["localhost", "127.0.0.1", "::1"].iter().chain(&GOOGLES).map(ToString::to_string).collect();
    if !names.contains(&host) {
        names.push(host);
    }
    names
}
