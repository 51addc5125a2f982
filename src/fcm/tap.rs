//! Owns what can be known of a connection by watching its bytes: when the peer was last heard, and which requests left.
//! Must never know: what the frames mean.
//!
//! HTTP/2 libraries keep a request back while the peer allows no further stream, and say nothing of it. Streams are
//! numbered in the order in which they are opened, so the highest number whose HEADERS were written tells which
//! requests left: the others provably did not.
//!
//! A write that fails is not told upwards: answers and a GOAWAY may have come in before the peer closed, and HTTP/2 would
//! throw them away unread. Nothing leaves any more; the end is met by reading.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The client's connection preface (RFC 9113, 3.4), which is no frame.
const PREFACE: usize = 24;
/// Length, type, flags and stream number of a frame (RFC 9113, 4.1).
const HEAD: usize = 9;
/// Type of a frame that opens a stream.
const HEADERS: u8 = 1;

/// What was seen; shared by the connection and those who use it.
#[derive(Debug)]
pub struct Seen {
    base: Instant,
    /// Microseconds since `base` at which bytes last came in; 0 = never.
    heard: AtomicU64,
    /// The highest stream number whose HEADERS were given to the network, or wait for it.
    left: AtomicU32,
}

impl Default for Seen {
    fn default() -> Self {
        Self { base: Instant::now(), heard: AtomicU64::new(0), left: AtomicU32::new(0) }
    }
}

impl Seen {
    /// When bytes last came in.
    pub fn heard(&self) -> Option<Instant> {
        let micros = self.heard.load(Ordering::Acquire);
        (micros > 0).then(|| self.base + std::time::Duration::from_micros(micros))
    }

    /// Whether the HEADERS of this stream were given to the network, or can no longer be kept from it.
    pub fn left(&self, stream: u32) -> bool {
        self.left.load(Ordering::Acquire) >= stream
    }

    fn hear(&self) {
        let micros = u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.heard.store(micros.max(1), Ordering::Release);
    }
}

/// A connection whose bytes are watched.
#[derive(Debug)]
pub struct Tap<T> {
    io: T,
    seen: Arc<Seen>,
    frames: Frames,
    /// A write failed.
    shut: bool,
}

impl<T> Tap<T> {
    /// Watches from the first byte on.
    pub fn new(io: T, seen: Arc<Seen>) -> Self {
        Self { io, seen, frames: Frames::default(), shut: false }
    }

    /// What a write came to; `all` bytes are as good as written once nothing can be.
    fn unless_shut(&mut self, result: Poll<io::Result<usize>>, all: usize) -> Poll<io::Result<usize>> {
        self.shut |= matches!(result, Poll::Ready(Err(_)));
        if self.shut { Poll::Ready(Ok(all)) } else { result }
    }

    /// Notes which requests left. What was offered and not yet taken counts as well: HTTP/2 cannot take it back, and it
    /// goes out when the network does. Only what was refused for good never left.
    fn offered(&mut self, wrote: &Poll<io::Result<usize>>, parts: &[IoSlice<'_>]) {
        let mut taken = match wrote {
            Poll::Ready(Ok(n)) => *n,
            Poll::Ready(Err(_)) => return,
            Poll::Pending => 0,
        };
        let mut ahead = None;
        for part in parts {
            let (gone, waiting) = part.split_at(taken.min(part.len()));
            taken -= gone.len();
            let mut opened = self.frames.opened(gone);
            if !waiting.is_empty() {
                opened = opened.max(ahead.get_or_insert_with(|| self.frames.clone()).opened(waiting));
            }
            if let Some(stream) = opened {
                self.seen.left.fetch_max(stream, Ordering::AcqRel);
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Tap<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.seen.hear();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tap<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.shut {
            return Poll::Ready(Ok(bytes.len()));
        }
        let wrote = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.offered(&wrote, &[IoSlice::new(bytes)]);
        self.unless_shut(wrote, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = parts.iter().map(|part| part.len()).sum();
        if self.shut {
            return Poll::Ready(Ok(all));
        }
        let wrote = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.offered(&wrote, parts);
        self.unless_shut(wrote, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shut {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.shut |= matches!(flushed, Poll::Ready(Err(_)));
        if self.shut { Poll::Ready(Ok(())) } else { flushed }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Finds the heads of frames in a stream of bytes, however it is cut.
#[derive(Debug, Clone)]
struct Frames {
    /// Bytes to pass over: the preface, then payloads.
    skip: usize,
    head: [u8; HEAD],
    have: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { skip: PREFACE, head: [0; HEAD], have: 0 }
    }
}

impl Frames {
    /// The highest stream number opened by frames whose head ends in these bytes.
    fn opened(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut highest = None;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD {
                let [a, b, c, kind, _, number @ ..] = self.head;
                self.skip = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
                self.have = 0;
                if kind == HEADERS {
                    highest = Some(u32::from_be_bytes(number) & 0x7fff_ffff);
                }
            }
        }
        highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, 5];
        bytes.extend(stream.to_be_bytes());
        // A payload that looks like frames must not be taken for some.
        bytes.extend(std::iter::repeat_n(1, payload));
        bytes
    }

    #[test]
    fn the_highest_stream_opened_is_found_however_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for (kind, stream, payload) in [(4, 0, 18), (1, 1, 70), (0, 1, 900), (8, 0, 4), (1, 3, 0), (0, 3, 1)] {
            bytes.extend(frame(kind, stream, payload));
        }
        for size in [1, 2, 7, 9, 10, 64, bytes.len()] {
            let mut frames = Frames::default();
            let opened: Vec<u32> = bytes.chunks(size).filter_map(|part| frames.opened(part)).collect();
            assert_eq!(opened.last(), Some(&3), "in parts of {size}");
            assert!(opened.is_sorted());
        }
        let mut frames = Frames::default();
        let headers = bytes.len() - frame(0, 3, 1).len() - frame(1, 3, 0).len();
        assert_eq!(frames.opened(&bytes[..headers + HEAD - 1]), Some(1), "a head that is cut off has not left");
    }

    /// Something to read, and a peer that takes nothing any more.
    struct Closed(&'static [u8]);

    impl AsyncRead for Closed {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A peer that takes some bytes, then none for now.
    struct Full(usize);

    impl AsyncWrite for Full {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = self.0.min(bytes.len());
            self.0 -= taken;
            if taken > 0 { Poll::Ready(Ok(taken)) } else { Poll::Pending }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_request_that_waits_for_a_full_network_cannot_be_kept_back_any_more() {
        let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(1, 1, 30), frame(1, 3, 30)].concat();
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        for taken in [0, 20, PREFACE + 5, PREFACE + HEAD + 10] {
            for parts in [1, 2] {
                let seen = Arc::new(Seen::default());
                let mut tap = Tap::new(Full(taken), Arc::clone(&seen));
                let (a, b) = bytes.split_at(PREFACE + HEAD + 20);
                let wrote = match parts {
                    1 => Pin::new(&mut tap).poll_write(cx, a),
                    _ => Pin::new(&mut tap).poll_write_vectored(cx, &[IoSlice::new(a), IoSlice::new(b)]),
                };
                assert!(wrote.is_pending() || taken > 0);
                assert_eq!((seen.left(1), seen.left(3)), (true, parts == 2), "{taken} bytes taken, {parts} parts");
            }
        }
    }

    #[tokio::test]
    async fn what_came_in_is_read_although_nothing_can_be_written_and_nothing_counts_as_left() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let seen = Arc::new(Seen::default());
        let mut tap = Tap::new(Closed(b"the last answer"), Arc::clone(&seen));
        tap.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(1, 1, 3)].concat()).await.unwrap();
        tap.flush().await.unwrap();
        let mut read = String::new();
        tap.read_to_string(&mut read).await.unwrap();
        assert_eq!((read.as_str(), seen.left(1)), ("the last answer", false));
        assert!(seen.heard().is_some());
    }
}
