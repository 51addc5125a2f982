//! Owns the knowledge whether one connection is being used: requests in progress, and since when there is none.
//! Must never know: which protocol the connection speaks, or what is asked for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;
use tower::Service;

/// Requests in progress on one connection, and whether there ever was one.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    now: u32,
    ever: bool,
}

/// Sees the requests of one connection.
#[derive(Debug, Clone)]
pub(super) struct Activity(watch::Sender<Use>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Use::default()))
    }

    /// Wraps the service of this connection, so that its requests are seen.
    pub(super) fn watching<S>(&self, inner: S) -> Watched<S> {
        Watched { inner, activity: self.clone() }
    }

    /// Ends once no request has been in progress for `before_first`, or for `between` after the first one.
    pub(super) async fn idle(&self, before_first: Duration, between: Duration) {
        let mut uses = self.0.subscribe();
        loop {
            let seen = *uses.borrow_and_update();
            let patience = if seen.ever { between } else { before_first };
            let quiet = async {
                if seen.now > 0 {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(patience).await;
            };
            tokio::select! {
                _ = uses.changed() => {}
                () = quiet => return,
            }
        }
    }
}

/// A request in progress, until the last of its answer has left.
#[derive(Debug)]
struct Mark(watch::Sender<Use>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.now -= 1);
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
        self.activity.0.send_modify(|seen| *seen = Use { now: seen.now + 1, ever: true });
        let mark = Mark(self.activity.0.clone());
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
