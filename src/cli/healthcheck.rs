//! Owns `fanfare healthcheck`: what a container without a shell calls.
//! Must never know: what makes a service ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Failure, configuration};

/// Whom to ask.
#[derive(Debug, Clone, Args)]
pub struct HealthcheckArgs {
    /// The operations listener [default: ops.listen of the configuration].
    #[arg(long, value_name = "IP:PORT")]
    pub addr: Option<SocketAddr>,
    /// Longest wait, ms.
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    pub timeout_ms: u64,
}

/// Asks `/readyz`; silent when ready.
///
/// # Errors
/// [`Failure::Runtime`] when the service is not ready, not there, or too slow.
pub async fn run(args: HealthcheckArgs, file: Option<&Path>) -> Result<(), Failure> {
    let addr = match args.addr {
        Some(addr) => addr,
        None => reachable(configuration(file)?.config.ops.listen),
    };
    if addr.port() == 0 {
        return Err(Failure::Config("ops.listen has port 0, a free one: name it with --addr".to_owned()));
    }
    let fail = |what: String| Failure::Runtime(format!("http://{addr}/readyz: {what}"));
    match tokio::time::timeout(Duration::from_millis(args.timeout_ms), status(addr)).await {
        Ok(Ok(200)) => Ok(()),
        Ok(Ok(status)) => Err(fail(format!("not ready (status {status})"))),
        Ok(Err(error)) => Err(fail(error.to_string())),
        Err(_) => Err(fail(format!("no answer within {} ms", args.timeout_ms))),
    }
}

/// Every address is listened to; this machine answers on its loopback one.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    addr
}

/// One request, and the status of its answer. The head is all that matters, so an HTTP client would be for nothing.
async fn status(addr: SocketAddr) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    let status = std::str::from_utf8(&head).ok().and_then(|head| head.strip_prefix("HTTP/1.1 ")?.parse().ok());
    status.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "the answer is not HTTP/1.1"))
}
