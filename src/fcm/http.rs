//! Owns what came of a request as plain data, and the client for the token endpoint: the only file that knows reqwest.
//! Must never know: what an answer means.
//!
//! Nothing is sent twice behind our back: the client's own retries, redirects, cookies, proxies and decompression are
//! off.

use std::time::Duration;

use bytes::Bytes;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, Url};
use tokio::time::{Instant, timeout_at};

use super::broken::Broken;
use super::error::FcmError;
use super::tls;

/// Bytes read of a body; the rest is dropped with its stream. The longest known FCM answer has under 2 KiB.
pub const BODY_CAP: usize = 64 * 1024;

/// Google's metadata servers answer only requests with this header, and mark their answers with it.
const FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
const GOOGLE: &str = "Google";

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Whole,
    /// It went on beyond [`BODY_CAP`].
    TooLong,
    /// The stream or the connection broke.
    Cut,
    /// It had not ended in time.
    TimedOut,
}

/// An answer, or as much of it as came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Retry-After` as sent.
    pub retry_after: Option<String>,
    /// `Date` as sent: the peer's clock.
    pub date: Option<String>,
    /// At most [`BODY_CAP`] bytes.
    pub body: Vec<u8>,
    /// Whether that is all of it.
    pub ending: Ending,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wire {
    /// At least status and headers.
    Answer(Answer),
    /// Nothing.
    Broken(Broken),
}

/// A URL that was checked once, so that no attempt parses it again.
#[derive(Debug, Clone)]
pub struct Target(Url, Uri);

impl Target {
    /// Takes an absolute `http` or `https` URL with a host, without user info, query or fragment.
    #[must_use]
    pub fn parse(raw: &str) -> Option<Self> {
        let url = Url::parse(raw).ok()?;
        let web = matches!(url.scheme(), "http" | "https") && url.has_host();
        let plain = url.username().is_empty() && url.password().is_none();
        let bare = url.query().is_none() && url.fragment().is_none();
        let uri = url.as_str().parse().ok()?;
        (web && plain && bare).then_some(Self(url, uri))
    }

    /// Whether TLS is asked for.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether it is this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The same with a query.
    #[must_use]
    pub fn with_query(mut self, query: &str) -> Self {
        self.0.set_query(Some(query));
        self
    }

    /// The same address.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.1
    }
}

/// A client for the token endpoint: HTTP/2 where the handshake agrees on it, else HTTP/1.1.
#[derive(Debug, Clone)]
pub struct TokenHttp(Client);

impl TokenHttp {
    /// Builds the client; `ca_pem` is trusted beside the system's roots.
    ///
    /// # Errors
    /// [`FcmError::CaFile`], [`FcmError::Client`].
    pub fn new(ca_pem: Option<&[u8]>, connect_timeout: Duration) -> Result<Self, FcmError> {
        let tls = tls::client_config(ca_pem, tls::HTTP2_OR_1, false)?;
        let client = strict(tls, connect_timeout).build().map_err(|e| FcmError::Client(e.to_string()))?;
        Ok(Self(client))
    }

    /// Posts a form.
    pub async fn post_form(&self, to: &Target, fields: &[(&str, &str)], within: Duration) -> Wire {
        exchange(self.0.post(to.0.clone()).form(fields), within).await
    }

    /// Asks a metadata server, with the header it demands. Also says whether the answer carries it, as all of theirs do.
    pub async fn get_metadata(&self, from: &Target, within: Duration) -> (Wire, bool) {
        let deadline = Instant::now() + within;
        match send(self.0.get(from.0.clone()).header(FLAVOR, GOOGLE), deadline).await {
            Err(broken) => (Wire::Broken(broken), false),
            Ok(response) => {
                let genuine = response.headers().get(FLAVOR).is_some_and(|value| value == GOOGLE);
                (Wire::Answer(client_answer(response, deadline).await), genuine)
            }
        }
    }
}

fn strict(tls: rustls::ClientConfig, connect_timeout: Duration) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .retry(reqwest::retry::never())
        .redirect(Policy::none())
        .no_proxy()
        .referer(false)
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout)
        .user_agent(concat!("fanfare/", env!("CARGO_PKG_VERSION")))
}

async fn exchange(request: RequestBuilder, within: Duration) -> Wire {
    let deadline = Instant::now() + within;
    match send(request, deadline).await {
        Err(broken) => Wire::Broken(broken),
        Ok(response) => Wire::Answer(client_answer(response, deadline).await),
    }
}

async fn send(request: RequestBuilder, deadline: Instant) -> Result<Response, Broken> {
    let sent = timeout_at(deadline, request.send()).await.map_err(|_| Broken::Timeout)?;
    sent.map_err(|error| Broken::read(&error, error.is_connect()))
}

/// The parts of a body, one after the other.
trait Parts {
    /// `None`: it ended as it should. An error: it broke.
    async fn part(&mut self) -> Option<Result<Bytes, ()>>;
}

impl Parts for Response {
    async fn part(&mut self) -> Option<Result<Bytes, ()>> {
        self.chunk().await.map_err(|_| ()).transpose()
    }
}

impl Parts for h2::RecvStream {
    async fn part(&mut self) -> Option<Result<Bytes, ()>> {
        let part = self.data().await?.map_err(|_| ());
        if let Ok(part) = &part {
            // Fails only for a stream that is gone, and then nothing more comes.
            let _ = self.flow_control().release_capacity(part.len());
        }
        Some(part)
    }
}

async fn client_answer(mut response: Response, deadline: Instant) -> Answer {
    let (status, headers) = (response.status().as_u16(), std::mem::take(response.headers_mut()));
    collect(status, &headers, response, deadline).await
}

/// Reads an answer to its end, to [`BODY_CAP`], or to the deadline.
pub(super) async fn answer(response: http::Response<h2::RecvStream>, deadline: Instant) -> Answer {
    let (head, body) = response.into_parts();
    collect(head.status.as_u16(), &head.headers, body, deadline).await
}

async fn collect(status: u16, headers: &HeaderMap, mut parts: impl Parts, deadline: Instant) -> Answer {
    let header = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).map(str::to_owned);
    let (retry_after, date) = (header(RETRY_AFTER), header(DATE));
    let mut body = Vec::new();
    let ending = loop {
        match timeout_at(deadline, parts.part()).await {
            Err(_) => break Ending::TimedOut,
            Ok(Some(Err(()))) => break Ending::Cut,
            Ok(None) => break Ending::Whole,
            Ok(Some(Ok(part))) => {
                let room = BODY_CAP - body.len();
                body.extend_from_slice(&part[..part.len().min(room)]);
                if part.len() > room {
                    break Ending::TooLong;
                }
            }
        }
    };
    Answer { status, retry_after, date, body, ending }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_web_addresses_are_targets() {
        assert!(Target::parse("https://fcm.googleapis.com/v1/projects/p/messages:send").unwrap().is_https());
        assert!(!Target::parse("http://127.0.0.1:9000").unwrap().is_https());
        for bad in ["", "fcm.googleapis.com", "ftp://x", "https://", "https://u:p@x/", "https://x/?a=b", "https://x/#f"]
        {
            assert!(Target::parse(bad).is_none(), "{bad:?}");
        }
    }
}
