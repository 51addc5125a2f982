//! Owns what an emulator is started with, and why it may not start.
//! Must never know: how it works.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::Control;

/// How to start an emulator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the listener; port 0 = a free one.
    pub listen: SocketAddr,
    /// Name or address clients reach it by, for certificate and URLs; absent = that of the listener.
    pub host: Option<String>,
    /// TLS with a certificate made at start, instead of plain HTTP.
    pub tls: bool,
    /// The one project that exists.
    pub project: String,
    /// Announced to HTTP/2 clients as the most concurrent streams per connection; FCM says 100. Can be changed while
    /// it runs, see [`super::Network`].
    pub max_streams: u32,
    /// Address of a second listener, plain HTTP, for `/emulator/` only, that no fault touches.
    pub control_listen: Option<SocketAddr>,
    /// Address of an HTTP proxy that leads every CONNECT to this emulator, for SDKs whose endpoint is fixed.
    pub proxy_listen: Option<SocketAddr>,
    /// Also appends the log to this file, NDJSON.
    pub log_file: Option<PathBuf>,
    /// Latency, quota, rules and so on to begin with.
    pub control: Control,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            host: None,
            tls: false,
            project: "demo-project".to_owned(),
            max_streams: 100,
            control_listen: None,
            proxy_listen: None,
            log_file: None,
            control: Control::default(),
        }
    }
}

/// Why an emulator did not start, or a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The address is taken or not ours.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// As configured.
        addr: SocketAddr,
        /// From the operating system.
        source: std::io::Error,
    },
    /// The log file cannot be appended to.
    #[error("cannot append to the log file {}: {source}", path.display())]
    LogFile {
        /// As configured.
        path: PathBuf,
        /// From the operating system.
        source: std::io::Error,
    },
    /// A key or certificate could not be made, for instance because `host` is no valid name.
    #[error("cannot make a key or certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The certificate that was made cannot be used.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// No built-in answer of this name.
    #[error("there is no answer `{0}`; GET /emulator/answers lists them")]
    UnknownAnswer(String),
    /// Says nothing without what it belongs to.
    #[error("oauth_times and oauth_retry_after need an oauth_answer beside them")]
    Alone,
    /// Cannot be the value of a header.
    #[error("quota_retry_after {0:?} cannot be sent in a header")]
    NoHeader(String),
    /// HTTP/2 has no such window.
    #[error("network.initial_window {0} is more than HTTP/2 allows, 2147483647")]
    Window(u32),
}
