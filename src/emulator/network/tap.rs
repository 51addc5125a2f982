//! Owns the bytes of one connection between its socket and HTTP: moves them through its link, and ends it as the link
//! says.
//! Must never know: frames.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::link::{Fate, Link};

/// Read from the socket at a time, bytes.
const PIECE: usize = 16 * 1024;
/// With so much due to the client the server above has to wait, bytes.
const OUT_MAX: usize = 64 * 1024;

/// A stream of bytes with a TCP socket at its bottom.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket.
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// What HTTP reads from and writes to.
pub(crate) struct Tap<I> {
    io: I,
    link: Arc<Mutex<Link>>,
    /// For the server above, not read yet.
    arrived: Vec<u8>,
    read: usize,
}

pub(super) fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: Socket> Tap<I> {
    pub(super) fn new(io: I, link: Arc<Mutex<Link>>) -> Self {
        Self { io, link, arrived: Vec::new(), read: 0 }
    }

    /// The fate, with this task to be woken when it changes.
    fn fate(&self, cx: &Context<'_>) -> Fate {
        let mut link = lock(&self.link);
        link.waker = Some(cx.waker().clone());
        link.fate
    }

    /// Sends what is due to the client. None of it is taken back once the socket has it.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut link = lock(&self.link);
        let mut sent = 0;
        let result = loop {
            if sent == link.out.len() {
                break Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.io).poll_write(cx, &link.out[sent..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => sent += n,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        link.out.drain(..sent);
        result
    }

    fn drain_and_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// The end the link wants, as HTTP above sees it; pending while the client has not got what is due to it.
    fn end(&mut self, fate: Fate, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if fate == Fate::Rst {
            // Closing a socket that does not linger resets it.
            self.io.tcp().set_zero_linger()?;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        ready!(self.drain_and_flush(cx))?;
        // Gone already is as good.
        let _ = ready!(Pin::new(&mut self.io).poll_shutdown(cx));
        // A socket that is closed with something unread is reset, and a client that is reset loses what it has not
        // read yet. So the rest is read until the client closes its side too.
        self.swallow(cx)
    }

    /// Reads and throws away until the client ends the connection.
    fn swallow(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE];
        loop {
            let mut buffer = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            lock(&self.link).too_late(buffer.filled());
        }
    }

    /// More for the server above; nothing at the end.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE];
        let mut buffer = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        self.arrived.clear();
        self.read = 0;
        if buffer.filled().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut link = lock(&self.link);
        // Between the check and this the fate may have changed; a silent connection has not heard it then.
        if link.fate == Fate::Open {
            link.client_sent(buffer.filled(), &mut self.arrived);
        }
        drop(link);
        if self.arrived.is_empty() {
            // All of it was dropped. HTTP above would take nothing for the end, so it is asked again.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.arrived[self.read..];
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.read += n;
    }
}

impl<I: Socket> AsyncRead for Tap<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.fate(cx) {
            Fate::Open => {
                // What the link itself has to say is sent from here: HTTP above does not know of it.
                if let Poll::Ready(Err(error)) = this.drain_and_flush(cx) {
                    return Poll::Ready(Err(error));
                }
                if this.read == this.arrived.len() {
                    ready!(this.receive(cx))?;
                    if let Poll::Ready(Err(error)) = this.drain_and_flush(cx) {
                        return Poll::Ready(Err(error));
                    }
                }
                this.give(buf);
                Poll::Ready(Ok(()))
            }
            Fate::Silent => this.swallow(cx),
            ending => this.end(ending, cx),
        }
    }
}

impl<I: Socket> AsyncWrite for Tap<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.fate(cx) {
            Fate::Open => {}
            Fate::Rst => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Fate::Silent | Fate::Fin => return Poll::Ready(Ok(buf.len())),
        }
        if lock(&this.link).out.len() > OUT_MAX {
            ready!(this.drain(cx))?;
        }
        lock(&this.link).server_sent(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.fate(cx) {
            Fate::Open | Fate::Fin => this.drain_and_flush(cx),
            Fate::Silent | Fate::Rst => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.fate(cx) {
            Fate::Open => {
                ready!(this.drain_and_flush(cx))?;
                Pin::new(&mut this.io).poll_shutdown(cx)
            }
            // Without a word; the socket closes when it is dropped, which is when the client has gone.
            Fate::Silent | Fate::Fin | Fate::Rst => Poll::Ready(Ok(())),
        }
    }
}
