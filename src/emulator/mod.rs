//! Owns a stand-in for FCM HTTP v1 and Google's token endpoint, to point a sender at and to see what arrived.
//! Must never know: the product. It shares no code with it, so that it can be the oracle of its tests.
//!
//! One listener, TLS or plain, HTTP/2 and HTTP/1.1 on the same port:
//!
//! | path | does |
//! |---|---|
//! | `POST /v1/projects/{project}/messages:send` | checks bearer token, project and body, logs, answers by script |
//! | `POST /token` | JWT-bearer grant: verifies signature and claims, gives an access token |
//! | `GET /emulator/key.json` | a service-account key whose `token_uri` is this emulator |
//! | `GET /emulator/ca.pem` | the authority to trust, with TLS |
//! | `GET /emulator/log?since=SEQ` | every send request after SEQ, NDJSON, see [`LogEntry`] |
//! | `GET /emulator/stats` | [`Stats`] |
//! | `GET`, `POST /emulator/control` | what is in force; a change of it, see [`Control`] |
//! | `GET /emulator/answers` | the table below |
//! | `GET /emulator/healthz` | 200 |
//!
//! A request is logged *before* its answer goes out, with the time of its arrival. So whatever became of the answer,
//! what the emulator says it accepted is what a provider would have delivered.
//!
//! # Answers by device token
//!
//! A token that starts with `NAME-` gets the answer NAME; any other token gets `ok`. Where a number makes sense it
//! follows the name: `quota-3-anything`. `flakyNAME-` gives the answer NAME to the first attempt of a message to that
//! token and `ok` to those after it: `flakyunavailable-7`, `flakyhang-7`. `429`, `500` and `503` stand for `quota`,
//! `internal` and `unavailable`: `flaky503-7`. Rules given at run time come first, see [`Rule`]. Over HTTP/1.1, which
//! has no streams to reset, the connection closes instead.
//!
//! | token | answer |
//! |---|---|
//! | `ok-` | 200 with a message name |
//! | `no-credentials-` | 401 ErrorInfo CREDENTIALS_MISSING |
//! | `unauthenticated-` | 401 ErrorInfo ACCESS_TOKEN_EXPIRED, by the emulator's own check |
//! | `wrong-project-` | 404 without details, by the emulator's own check |
//! | `bad-request-` | 400 for a body that the schema or the limits refuse |
//! | `over-quota-` | 429 FcmError QUOTA_EXCEEDED by the emulator's own quota |
//! | `slow-` | `slow-N-`: 200 after N ms |
//! | `dead-` | 404 FcmError UNREGISTERED |
//! | `dead404apns-` | 404 ApnsError 410 before FcmError UNREGISTERED |
//! | `apnsgone-` | 400 FcmError INVALID_ARGUMENT with ApnsError 410 |
//! | `invalid-` | 400 FcmError INVALID_ARGUMENT, the token named in the text only |
//! | `invalid-field-` | 400 FcmError, then BadRequest message.token |
//! | `invalid-field-first-` | 400 BadRequest message.token, then FcmError |
//! | `suspect-` | 400 FcmError INVALID_ARGUMENT that names nothing |
//! | `foreign-` | 403 FcmError SENDER_ID_MISMATCH |
//! | `payload-` | 400 FcmError INVALID_ARGUMENT with BadRequest message.android.ttl |
//! | `badjson-` | 400 BadRequest on a value of `data`, no FcmError |
//! | `nodetails400-` | 400 without details |
//! | `iam-` | 403 without FcmError: the role is missing |
//! | `apidisabled-` | 403 without FcmError: the API is off |
//! | `noproject-` | 404 without details |
//! | `thirdparty-` | 401 FcmError THIRD_PARTY_AUTH_ERROR with ApnsError 403 |
//! | `expired401-` | 401 ErrorInfo ACCESS_TOKEN_EXPIRED |
//! | `bare401-` | 401 without details |
//! | `quota-` | 429 FcmError QUOTA_EXCEEDED; `quota-N-`: Retry-After N seconds |
//! | `quotadate-` | `quotadate-N-`: the same, Retry-After as the HTTP-date in N seconds |
//! | `quotahuge-` | 429, Retry-After 99999999999999999999 |
//! | `quotanegative-` | 429, Retry-After -5 |
//! | `quotafraction-` | 429, Retry-After 1.5 |
//! | `quotagarbage-` | 429, Retry-After `soon` |
//! | `quotahtml-` | 429 with an HTML page |
//! | `quota503-` | 503 whose FcmError is QUOTA_EXCEEDED |
//! | `ratelimit403-` | 403 ErrorInfo RATE_LIMIT_EXCEEDED |
//! | `unavailable-` | 503 FcmError UNAVAILABLE; `unavailable-N-`: Retry-After N seconds |
//! | `internal-` | 500 FcmError INTERNAL |
//! | `unspecified-` | 500 FcmError UNSPECIFIED_ERROR |
//! | `unknowncode-` | 400 FcmError with an errorCode nobody knows |
//! | `barestring-` | 400 whose `error` is a string |
//! | `html200-` | 200 with an HTML page |
//! | `html401-` | 401 with an HTML page |
//! | `html403-` | 403 with an HTML page |
//! | `html404-` | 404 with an HTML page |
//! | `html502-` | 502 with an HTML page |
//! | `html503-` | 503 with an HTML page |
//! | `html504-` | 504 with an HTML page |
//! | `huge502-` | 502 with 1.2 MB of HTML |
//! | `deep200-` | 200 with JSON 10,000 arrays deep |
//! | `empty200-` | 200 with an empty body |
//! | `empty401-` | 401 with an empty body |
//! | `empty404-` | 404 with an empty body |
//! | `empty500-` | 500 with an empty body |
//! | `empty503-` | 503 with an empty body |
//! | `noname200-` | 200 with `{}` |
//! | `nonstring200-` | 200 whose `name` is a number |
//! | `truncated-` | 200 with JSON cut in the middle |
//! | `truncated404-` | 404 with an UNREGISTERED body cut in the middle |
//! | `redirect302-` | 302 to another path |
//! | `method405-` | 405 with an HTML page |
//! | `oversize413-` | 413 with an HTML page |
//! | `refused-` | RST_STREAM REFUSED_STREAM: not processed |
//! | `reset-` | RST_STREAM INTERNAL_ERROR after the request was logged |
//! | `cancelled-` | RST_STREAM CANCEL after the request was logged |
//! | `hang-` | no answer, ever |
//! | `stall-` | 200 and a header, then no body |
//! | `cut-` | 200, half a body, then RST_STREAM INTERNAL_ERROR |

use std::fs::{File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod answer;
mod book;
mod conduct;
mod log;
mod message;
mod oauth;
mod quota;
mod reply;
mod routes;
mod schema;
mod script;
mod serve;
mod settings;
mod stats;
mod tls;

pub use conduct::Control;
pub use log::LogEntry;
pub use script::Rule;
pub use settings::{EmulatorError, Settings};
pub use stats::Stats;

/// Name and meaning of every built-in answer.
pub fn answers() -> impl Iterator<Item = (&'static str, &'static str)> {
    answer::ANSWERS.iter().map(|a| (a.name, a.about))
}

/// A running emulator; it ends when dropped.
pub struct Emulator {
    shared: Arc<routes::Shared>,
    endpoint: String,
    addr: SocketAddr,
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
        let host = settings.host.unwrap_or_else(|| reachable(addr.ip()));
        let identity = if settings.tls { Some(tls::identity(names(&host))?) } else { None };
        let scheme = if settings.tls { "https" } else { "http" };
        let endpoint = format!("{scheme}://{host}:{}", addr.port());
        let shared = Arc::new(routes::Shared {
            book: book::Book::new(file),
            account: oauth::Account::generate(&settings.project, format!("{endpoint}/token"))?,
            project: settings.project,
            ca_pem: identity.as_ref().map(|identity| identity.ca_pem.clone()),
        });
        shared.book.control(&settings.control)?;
        let server = serve::Server {
            shared: shared.clone(),
            tls: identity.map(|identity| TlsAcceptor::from(identity.config)),
            max_streams: settings.max_streams,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (stop, tasks) = (server.stop.clone(), server.tasks.clone());
        tasks.spawn(server.run(listener));
        tracing::info!(target: "fanfare::emulator", endpoint, project = shared.project, "emulator listens");
        Ok(Self { shared, endpoint, addr, stop, tasks })
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
        self.shared.book.stats()
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

    /// Changes its conduct from the next request on.
    ///
    /// # Errors
    /// When a rule or the OAuth answer names no built-in answer; then nothing has changed.
    pub fn control(&self, change: &Control) -> Result<(), EmulatorError> {
        self.shared.book.control(change)
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

/// What the certificate is good for: always this machine, and `host`.
fn names(host: &str) -> Vec<String> {
    let host = host.trim_matches(['[', ']']).to_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !names.contains(&host) {
        names.push(host);
    }
    names
}
