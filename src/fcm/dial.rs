//! Owns the making of a connection: name, TCP, TLS.
//! Must never know: what is sent over it.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

use super::broken::Broken;
use super::error::FcmError;
use super::http::Target;

/// A connection before HTTP/2 is spoken on it.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Makes connections to one server.
#[derive(Clone)]
pub struct Dialler {
    tcp: HttpConnector,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    to: Uri,
    /// For everything until the peer has spoken HTTP/2.
    pub within: Duration,
}

impl Dialler {
    /// # Errors
    /// [`FcmError::Endpoint`] when TLS has no name to verify.
    pub fn new(to: &Target, tls: ClientConfig, within: Duration) -> Result<Self, FcmError> {
        let uri = to.uri().clone();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let named = |host: String| ServerName::try_from(host).map_err(|_| FcmError::Endpoint(uri.to_string()));
        let tls = if to.is_https() { Some((TlsConnector::from(Arc::new(tls)), named(host)?)) } else { None };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(within));
        // Watches a connection while it is idle, when no ping is sent.
        tcp.set_keepalive(Some(Duration::from_secs(15)));
        tcp.set_keepalive_interval(Some(Duration::from_secs(5)));
        tcp.set_keepalive_retries(Some(2));
        Ok(Self { tcp, tls, to: uri, within })
    }

    /// Looks the name up anew, so that a server that moved is found; several addresses are tried, as RFC 8305 says.
    ///
    /// # Errors
    /// [`Broken::Connect`] or [`Broken::Tls`].
    pub async fn dial(&self) -> Result<Box<dyn Io>, Broken> {
        let tcp = self.tcp.clone().oneshot(self.to.clone()).await.map_err(|error| Broken::read(&error, true))?;
        let tcp = tcp.into_inner();
        let Some((tls, name)) = &self.tls else { return Ok(Box::new(tcp)) };
        let io = tls.connect(name.clone(), tcp).await.map_err(|error| Broken::read(&error, true))?;
        Ok(Box::new(io))
    }
}

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialler").field("to", &self.to).field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}
