//! Owns the knowledge whether one connection is being used: requests in progress, since when there is none, since when
//! the next one is being sent, and whether what is answered is being taken.
//! Must never know: what is asked for.
//!
//! To be in use costs a caller nothing: it asks for anything, and takes no byte of the answer, or one now and then. So an
//! answer counts as long as it is taken at [`super::unread::LEAST_PER_S`], or cannot be because we have not made it yet.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http::{Request, Version};
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::unread::Unread;

/// What is going on on one connection.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// Requests in progress, each until the last of its answer has left.
    now: u32,
    /// Those of them that wait for us: nothing is there to be taken.
    ours: u32,
    /// How long answers lie ready and nothing is taken of any.
    unread: Unread,
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
    /// With answers of which nothing is taken.
    pub unread: Duration,
}

/// Sees the requests of one connection.
///
/// Whoever waits for idleness looks when it could have come, rather than being woken by every request: that would cost
/// a refused request more than its refusal.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<Use>>);

impl Activity {
    pub(super) fn new() -> Self {
        let since = Instant::now();
        let seen = Use { now: 0, ours: 0, unread: Unread::new(since), ever: false, since, header: None, frames: false };
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

    /// Since when there is no request in progress, or only such as nobody took anything of for `unread`; `None` while
    /// there are others.
    pub(super) fn idle_since(&self, unread: Duration) -> Option<Instant> {
        let seen = *self.look();
        if seen.now == 0 { Some(seen.since) } else { seen.stuck().filter(|since| since.elapsed() >= unread) }
    }

    /// Ends once the connection has been without a whole request for too long, or its caller without taking anything.
    pub(super) async fn idle(&self, patience: Patience) {
        loop {
            let seen = *self.look();
            let now = Instant::now();
            let ends = seen.ends(patience);
            if ends.is_some_and(|ends| ends <= now) {
                return;
            }
            // A header that begins meanwhile is seen before its time is over.
            let next = now + patience.header;
            sleep_until(ends.map_or(next, |ends| next.min(ends))).await;
        }
    }

    fn begin(&self, version: Version) -> Mark {
        let mut seen = self.look();
        (seen.now, seen.ours, seen.ever, seen.header) = (seen.now + 1, seen.ours + 1, true, None);
        seen.frames = version == Version::HTTP_2;
        Mark { activity: self.clone(), ours: true, handed: None, ended: false, frames: seen.frames }
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
    /// When patience ends, unless there is a request or something is taken by then; `None` while it is we who are waited
    /// for.
    fn ends(&self, patience: Patience) -> Option<Instant> {
        if self.now > 0 {
            return self.stuck().map(|since| since + patience.unread);
        }
        let idle = self.since + if self.ever { patience.between } else { patience.header };
        Some(self.header.map_or(idle, |began| idle.min(began + patience.header)))
    }

    /// Since when every request in progress is answered and nothing is taken; what is taken too slowly counts in part.
    fn stuck(&self) -> Option<Instant> {
        self.unread.since().filter(|_| self.now > 0 && self.ours == 0)
    }

    /// A request changed hands.
    fn changed(&mut self, now: Instant) {
        self.unread.lies(self.now > self.ours, now);
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
struct Mark {
    activity: Activity,
    /// It waits for us.
    ours: bool,
    /// Bytes of the piece handed to hyper, which asks for one more than there is room for: they are taken once it asks again.
    handed: Option<usize>,
    /// All of the answer was taken.
    ended: bool,
    /// HTTP/2.
    frames: bool,
}

impl Mark {
    /// The answer's head is there, and the body waits to be taken.
    fn answered(&mut self, ended: bool) {
        self.waits_for_us(false);
        self.ended = ended;
    }

    /// The next piece is asked for.
    fn asked(&mut self) {
        if let Some(bytes) = self.handed.take() {
            self.activity.look().unread.taken(bytes, Instant::now());
        }
    }

    fn waits_for_us(&mut self, ours: bool) {
        if self.ours != ours {
            let mut seen = self.activity.look();
            seen.ours = if ours { seen.ours + 1 } else { seen.ours - 1 };
            seen.changed(Instant::now());
            self.ours = ours;
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.waits_for_us(false);
        // Over HTTP/2 an answer can be given up unread, and over HTTP/1 only with the connection.
        if self.ended || !self.frames {
            self.asked();
        }
        let mut seen = self.activity.look();
        let now = Instant::now();
        (seen.now, seen.since) = (seen.now - 1, now);
        seen.changed(now);
    }
}

/// A service whose requests are seen.
#[derive(Debug, Clone)]
pub(super) struct Watched<S> {
    inner: S,
    activity: Activity,
}

/// An answer's body. An export takes as long as its reader likes, and its connection is in use as long as it is read.
///
/// Over HTTP/2 the next piece is asked for when the reader made room for the last one, over HTTP/1 when our buffer did.
#[derive(Debug)]
pub(super) struct Sent<B> {
    body: B,
    mark: Mark,
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.mark.asked();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.mark.waits_for_us(frame.is_pending());
        match &frame {
            Poll::Pending => {}
            Poll::Ready(Some(piece)) => {
                let bytes = piece.as_ref().ok().and_then(Frame::data_ref).map_or(0, Buf::remaining);
                self.mark.handed = Some(bytes);
            }
            Poll::Ready(None) => self.mark.ended = true,
        }
        frame
    }

    /// Over HTTP/2 the last piece is not called the last, so that hyper asks once more when it is taken: from an answer
    /// given up it could not be told.
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !(self.mark.handed.is_some() && self.mark.frames)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S, R, B> Service<Request<R>> for Watched<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Body,
{
    type Response = Response<Sent<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let mut mark = self.activity.begin(request.version());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            mark.answered(answer.body().is_end_stream());
            Ok(answer.map(|body| Sent { body, mark }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::unread::LEAST_PER_S;
    use super::*;
    use bytes::Bytes;
    use futures_util::{Stream, poll};
    use http_body_util::{BodyExt, Full, StreamBody};
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    const PATIENCE: Patience =
        Patience { header: Duration::from_secs(5), between: Duration::from_secs(75), unread: Duration::from_secs(30) };

    /// A service whose only answer comes piece by piece, as they are sent.
    fn in_pieces(
        activity: &Activity,
        after: Duration,
    ) -> (mpsc::Sender<Piece>, impl Service<Request<()>, Response = Response<Sent<Pieces>>, Error = Infallible>) {
        let (sender, receiver) = mpsc::channel(1);
        let mut receiver = Some(receiver);
        let service = activity.watching(tower::service_fn(move |_: Request<()>| {
            let pieces = futures_util::stream::unfold(receiver.take().unwrap(), |mut pieces| async move {
                let piece = pieces.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece))), pieces))
            });
            let body: Pieces = StreamBody::new(Box::pin(pieces));
            async move {
                tokio::time::sleep(after).await;
                Ok::<_, Infallible>(Response::new(body))
            }
        }));
        (sender, service)
    }

    type Piece = &'static [u8];
    type Pieces = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

    fn over(version: Version) -> Request<()> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        request
    }

    async fn asked(activity: &Activity, version: Version) {
        let mut service =
            activity.watching(tower::service_fn(|_| async { Ok::<_, Infallible>(Response::new("answer".to_owned())) }));
        service.call(over(version)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_idle_soon() {
        let start = Instant::now();
        Activity::new().idle(PATIENCE).await;
        assert_eq!(start.elapsed(), PATIENCE.header);
    }

    #[tokio::test(start_paused = true)]
    async fn neither_a_long_request_nor_a_long_answer_is_idleness() {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let (activity, start) = (Activity::new(), Instant::now());
            let (sender, mut service) = in_pieces(&activity, Duration::from_secs(600));
            let used = async {
                let mut answer = service.call(over(version)).await.unwrap();
                for wait in [29, 29, 29, 600] {
                    sender.send(&[b'x'; 29 * LEAST_PER_S as usize]).await.unwrap();
                    answer.frame().await.unwrap().unwrap();
                    if wait > 29 {
                        // All that there is was read: it is we who are slow.
                        assert!(poll!(Box::pin(answer.frame())).is_pending());
                    }
                    tokio::time::sleep(Duration::from_secs(wait)).await;
                    assert_eq!(activity.idle_since(PATIENCE.unread), None);
                }
            };
            tokio::join!(activity.idle(PATIENCE), used);
            let ended = Duration::from_secs(600 + 3 * 29 + 600);
            assert_eq!(start.elapsed(), ended + PATIENCE.between);
            assert_eq!(activity.idle_since(PATIENCE.unread), Some(start + ended));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_idleness_whatever_else_is_asked_for() {
        let (activity, start) = (Activity::new(), Instant::now());
        let (_sender, mut service) = in_pieces(&activity, Duration::ZERO);
        let _unread = service.call(over(Version::HTTP_2)).await.unwrap();
        let begun = Instant::now();
        let more = async {
            loop {
                tokio::time::sleep(Duration::from_secs(7)).await;
                asked(&activity, Version::HTTP_2).await;
                let idle = activity.idle_since(PATIENCE.unread);
                assert_eq!(idle.is_some(), begun.elapsed() >= PATIENCE.unread, "{:?}", begun.elapsed());
            }
        };
        tokio::select! {
            () = activity.idle(PATIENCE) => {}
            () = more => {}
        }
        assert_eq!(start.elapsed(), PATIENCE.unread);
        assert_eq!(activity.idle_since(PATIENCE.unread), Some(begun));
    }

    /// One small answer after the other, each taken just before patience with it would end; and how long that goes on.
    async fn takes_now_and_then(bytes: &'static [u8], every: Duration) -> Duration {
        let (activity, start) = (Activity::new(), Instant::now());
        let answer = async |_| Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(bytes))));
        let mut service = activity.watching(tower::service_fn(answer));
        let asking = async {
            while start.elapsed() < Duration::from_secs(3600) {
                let mut answer = service.call(over(Version::HTTP_2)).await.unwrap();
                answer.frame().await.unwrap().unwrap();
                tokio::time::sleep(every).await;
                assert!(answer.frame().await.is_none());
            }
        };
        tokio::select! {
            () = activity.idle(PATIENCE) => {}
            () = asking => {}
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_is_idleness_and_a_kibibyte_a_second_is_not() {
        let slow = takes_now_and_then(&[b'x'; 150], Duration::from_secs(29)).await;
        assert!(PATIENCE.unread < slow && slow < PATIENCE.unread + Duration::from_secs(1), "{slow:?}");
        let read = takes_now_and_then(&[b'x'; 29 * LEAST_PER_S as usize], Duration::from_secs(29)).await;
        assert!(read >= Duration::from_secs(3600), "{read:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_that_is_used_up_comes_back_while_nothing_lies_ready() {
        let (activity, start) = (Activity::new(), Instant::now());
        let (_sender, mut service) = in_pieces(&activity, Duration::ZERO);
        let unread = service.call(over(Version::HTTP_2)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        drop(unread);
        tokio::time::sleep(Duration::from_secs(15)).await;
        let (_sender, mut service) = in_pieces(&activity, Duration::ZERO);
        let _unread = service.call(over(Version::HTTP_2)).await.unwrap();
        activity.idle(PATIENCE).await;
        assert_eq!(start.elapsed(), Duration::from_secs(20 + 15 + 25), "5 s of it were left from before");
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
