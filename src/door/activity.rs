//! Owns the knowledge whether one connection is being used: requests in progress, since when there is none, and since when
//! the next one is being sent.
//! Must never know: what is asked for.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Version};
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tower::Service;

/// What is going on on one connection.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// Requests in progress.
    now: u32,
    /// Whether there ever was one.
    ever: bool,
    /// Since when `now` is 0, if it is.
    since: Instant,
    /// Since when bytes come that are no request yet.
    header: Option<Instant>,
    /// HTTP/2, where bytes may come without a request: pings, and answers to ours.
    frames: bool,
}

/// How long a connection may be without a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// From connecting to the first whole header, and from the first byte to the last of any other.
    pub header: Duration,
    /// Between two requests.
    pub between: Duration,
}

/// Sees the requests of one connection.
///
/// Whoever waits for idleness looks when it could have come, rather than being woken by every request: that would cost
/// a refused request more than its refusal.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<Use>>);

impl Activity {
    pub(super) fn new() -> Self {
        let seen = Use { now: 0, ever: false, since: Instant::now(), header: None, frames: false };
        Self(Arc::new(Mutex::new(seen)))
    }

    /// Wraps the service of this connection, so that its requests are seen.
    pub(super) fn watching<S>(&self, inner: S) -> Watched<S> {
        Watched { inner, activity: self.clone() }
    }

    /// Wraps the connection itself, so that it is seen when a request begins to come.
    pub(super) fn reading<I>(&self, inner: I) -> Read<I> {
        Read { inner, activity: self.clone() }
    }

    /// Since when there is no request in progress; `None` while there is one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let seen = self.look();
        (seen.now == 0).then_some(seen.since)
    }

    /// Ends once the connection has been without a whole request for too long.
    pub(super) async fn idle(&self, patience: Patience) {
        loop {
            let seen = *self.look();
            let now = Instant::now();
            if seen.now == 0 && seen.ends(patience) <= now {
                return;
            }
            // A header that begins meanwhile is seen before its time is over.
            let next = now + patience.header;
            sleep_until(if seen.now == 0 { next.min(seen.ends(patience)) } else { next }).await;
        }
    }

    fn begin(&self, version: Version) -> Mark {
        let mut seen = self.look();
        (seen.now, seen.ever, seen.header) = (seen.now + 1, true, None);
        seen.frames = version == Version::HTTP_2;
        Mark(self.clone())
    }

    fn bytes_came(&self) {
        let mut seen = self.look();
        if seen.now == 0 && seen.ever && !seen.frames && seen.header.is_none() {
            seen.header = Some(Instant::now());
        }
    }

    fn look(&self) -> MutexGuard<'_, Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Use {
    /// When patience ends, unless there is a request by then.
    fn ends(&self, patience: Patience) -> Instant {
        let idle = self.since + if self.ever { patience.between } else { patience.header };
        self.header.map_or(idle, |began| idle.min(began + patience.header))
    }
}

/// The bytes of a connection, whose coming is seen.
#[derive(Debug)]
pub(super) struct Read<I> {
    inner: I,
    activity: Activity,
}

impl<I: AsyncRead + Unpin> AsyncRead for Read<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.bytes_came();
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Read<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}

/// A request in progress, until the last of its answer has left.
#[derive(Debug)]
struct Mark(Activity);

impl Drop for Mark {
    fn drop(&mut self) {
        let mut seen = self.0.look();
        (seen.now, seen.since) = (seen.now - 1, Instant::now());
    }
}

/// A service whose requests are seen.
#[derive(Debug, Clone)]
pub(super) struct Watched<S> {
    inner: S,
    activity: Activity,
}

/// An answer's body. An export takes as long as its reader likes, and its connection is in use all that time.
#[derive(Debug)]
pub(super) struct Sent<B> {
    body: B,
    _mark: Mark,
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S, R, B> Service<Request<R>> for Watched<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Sent<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let mark = self.activity.begin(request.version());
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Sent { body, _mark: mark })) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Patience = Patience { header: Duration::from_secs(5), between: Duration::from_secs(75) };

    async fn asked(activity: &Activity, version: Version) {
        let mut service =
            activity.watching(tower::service_fn(|_| async { Ok::<_, Infallible>(Response::new("answer")) }));
        let mut request = Request::new(());
        *request.version_mut() = version;
        service.call(request).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_idle_soon() {
        let start = Instant::now();
        Activity::new().idle(PATIENCE).await;
        assert_eq!(start.elapsed(), PATIENCE.header);
    }

    #[tokio::test(start_paused = true)]
    async fn neither_a_long_request_nor_a_long_answer_is_idleness() {
        let (activity, start) = (Activity::new(), Instant::now());
        let mut service = activity.watching(tower::service_fn(|_| async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok::<_, Infallible>(Response::new("an export"))
        }));
        let used = async {
            let answer = service.call(Request::new(())).await.unwrap();
            // It is read for as long again.
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(activity.idle_since(), None);
            drop(answer);
        };
        tokio::join!(activity.idle(PATIENCE), used);
        assert_eq!(start.elapsed(), Duration::from_secs(1200) + PATIENCE.between);
        assert_eq!(activity.idle_since(), Some(start + Duration::from_secs(1200)));
    }

    /// Over HTTP/2 bytes come that begin no request.
    #[tokio::test(start_paused = true)]
    async fn every_header_has_the_time_of_the_first_one_from_its_first_byte() {
        for (version, ends_after) in [(Version::HTTP_11, 21 + 5), (Version::HTTP_2, 75)] {
            let (activity, start) = (Activity::new(), Instant::now());
            let (mut far, near) = tokio::io::duplex(64);
            asked(&activity, version).await;
            let mut near = activity.reading(near);
            let trickle = async {
                for _ in 0..3 {
                    tokio::time::sleep(Duration::from_secs(21)).await;
                    far.write_all(b"G").await.unwrap();
                    near.read_u8().await.unwrap();
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = activity.idle(PATIENCE) => {}
                () = trickle => {}
            }
            assert_eq!(start.elapsed(), Duration::from_secs(ends_after), "{version:?}");
        }
    }
}
