//! Owns the knowledge whether one connection is being used: requests in progress, and since when there is none.
//! Must never know: which protocol the connection speaks, or what is asked for.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

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

/// A request in progress.
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

impl<S, R> Service<R> for Watched<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.activity.0.send_modify(|seen| *seen = Use { now: seen.now + 1, ever: true });
        let mark = Mark(self.activity.0.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let _mark = mark;
            answer.await
        })
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
    async fn a_long_request_is_not_idleness() {
        let (activity, start) = (Activity::new(), Instant::now());
        let mut service = activity.watching(tower::service_fn(|()| async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok::<_, Infallible>(())
        }));
        tokio::join!(activity.idle(FIRST, BETWEEN), async { service.call(()).await.unwrap() });
        assert_eq!(start.elapsed(), Duration::from_secs(600) + BETWEEN);
    }
}
