//! Owns one connection of the load: it posts an event, and reads the answer to its end.
//! Must never know: when a post was due, or what becomes of its figures.

use std::io;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection, opened when it is needed.
pub struct Caller {
    stream: Option<TcpStream>,
    addr: String,
    key: String,
    buffer: Vec<u8>,
}

impl Caller {
    pub fn new(addr: &str, key: &str) -> Self {
        Self { stream: None, addr: addr.to_owned(), key: key.to_owned(), buffer: Vec::new() }
    }

    /// The next post begins on another connection.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }

    /// The status of the answer to one event. Each is of a match of its own: no two are the same news.
    pub async fn post(&mut self, id: u64) -> io::Result<u16> {
        let happened = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let body = format!(
            r#"{{"id":"evt-{id}","type":"goal","match_id":"{id}","occurred_at":"{happened}","subjects":["match:{id}"],"fields":{{"home":"A","away":"B","score":"1-0","minute":1,"player":"P"}}}}"#
        );
        let request = format!(
            "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.addr).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().expect("just connected");
        stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(status) = whole(&self.buffer) {
                return Ok(status);
            }
        }
    }
}

/// The status, once head and body are there.
fn whole(bytes: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    (body.len() >= length.unwrap_or(0)).then(|| head.get(9..12)?.parse().ok())?
}
