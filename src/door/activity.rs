//! Owns the knowledge whether one connection is being used: requests in progress, and since when there is none.
//! Must never know: which protocol the connection speaks, or what is asked for.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tower::Service;

/// Requests in progress on one connection, whether there ever was one, and since when that is so.
#[derive(Debug, Clone, Copy)]
struct Use {
    now: u32,
    ever: bool,
    since: Instant,
}

/// Sees the requests of one connection.
///
/// Whoever waits for idleness looks when it could have come, rather than being woken by every request: that would cost
/// a refused request more than its refusal.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<Use>>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Use { now: 0, ever: false, since: Instant::now() })))
    }

    /// Wraps the service of this connection, so that its requests are seen.
    pub(super) fn watching<S>(&self, inner: S) -> Watched<S> {
        Watched { inner, activity: self.clone() }
    }

    /// Ends once no request has been in progress for `before_first`, or for `between` after the first one.
    pub(super) async fn idle(&self, before_first: Duration, between: Duration) {
        loop {
            let Use { now, ever, since } = *self.look();
            let patience = if ever { between } else { before_first };
            let earliest = if now > 0 { Instant::now() + patience } else { since + patience };
            if now == 0 && Instant::now() >= earliest {
                return;
            }
            sleep_until(earliest).await;
        }
    }

    fn begin(&self) -> Mark {
        let mut seen = self.look();
        (seen.now, seen.ever) = (seen.now + 1, true);
        Mark(self.clone())
    }

    fn look(&self) -> MutexGuard<'_, Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

impl<S, R, B> Service<R> for Watched<S>
where
    S: Service<R, Response = Response<B>>,
    S::Future: Send + 'static,
    R: 'static,
{
    type Response = Response<Sent<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let mark = self.activity.begin();
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Sent { body, _mark: mark })) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tokio::time::Instant;

    const FIRST: Duration = Duration::from_secs(5);
    const BETWEEN: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_idle_soon() {
        let start = Instant::now();
        Activity::new().idle(FIRST, BETWEEN).await;
        assert_eq!(start.elapsed(), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn neither_a_long_request_nor_a_long_answer_is_idleness() {
        let (activity, start) = (Activity::new(), Instant::now());
        let mut service = activity.watching(tower::service_fn(|()| async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok::<_, Infallible>(Response::new("an export"))
        }));
        let used = async {
            let answer = service.call(()).await.unwrap();
            // It is read for as long again.
            tokio::time::sleep(Duration::from_secs(600)).await;
            drop(answer);
        };
        tokio::join!(activity.idle(FIRST, BETWEEN), used);
        assert_eq!(start.elapsed(), Duration::from_secs(1200) + BETWEEN);
    }
}
