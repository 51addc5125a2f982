//! Owns what becomes of a request whose caller hangs up: what it works on it ends, what it waits for it gives up.
//! Must never know: what is asked for.
//!
//! A database goes on working when nobody reads the answer. So a request runs in a task of its own, and keeps its place at
//! the gate as long as it works: otherwise callers who ask and hang up would have more work going than there are places.
//! Without a place, in a long poll or before the rest of its body, it works on nothing, and ends with its caller.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::door::Pass;

/// Does `work` under `pass`, whose place is given back when it has ended and not when this is dropped. `None` when it
/// panicked.
pub(super) async fn whole<T: Send + 'static>(pass: Pass, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let caller = CancellationToken::new();
    let hung_up = caller.clone();
    let _told_when_dropped = caller.drop_guard();
    let task = async move {
        let (mut work, mut gone) = (pin!(work), pin!(hung_up.cancelled()));
        poll_fn(|cx| {
            // Looked at before the work is: it must not take a place again for nobody.
            let alone = hung_up.is_cancelled() || gone.as_mut().poll(cx).is_ready();
            if alone && !pass.is_inside() {
                return Poll::Ready(None);
            }
            match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if alone && !pass.is_inside() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    };
    tokio::spawn(task.in_current_span()).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use tokio::sync::oneshot;

    use crate::door::{DoorMetrics, Gate, Places, Pool};
    use crate::metrics::Metrics;

    fn gate() -> Gate {
        let places = Places { interactive: 0, read: 1, bulk: 0, borrowed: 0 };
        Gate::new(places, DoorMetrics::register(&mut Metrics::new()))
    }

    #[tokio::test]
    async fn work_goes_on_without_its_caller_and_keeps_its_place_to_the_end() {
        let gate = gate();
        let pass = gate.enter(Pool::Read).await.unwrap();
        let (go, wait) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let mut call = Box::pin(whole(pass.clone(), async move {
            let _ = wait.await;
            let _ = done.send(pass.is_inside());
        }));
        assert!(poll!(&mut call).is_pending());
        drop(call);
        tokio::task::yield_now().await;
        assert_eq!(gate.free(Pool::Read), 0, "it works");
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok(true));
        let _next = gate.enter(Pool::Read).await.unwrap();
    }

    #[tokio::test]
    async fn what_only_waits_ends_with_its_caller() {
        let gate = gate();
        let pass = gate.enter(Pool::Read).await.unwrap();
        let other = pass.clone();
        let (alive, ended) = oneshot::channel::<()>();
        let mut call = Box::pin(whole(pass, async move {
            other.step_out();
            std::future::pending::<()>().await;
            drop(alive);
        }));
        assert!(poll!(&mut call).is_pending());
        tokio::task::yield_now().await;
        assert_eq!(gate.free(Pool::Read), 1);
        drop(call);
        assert!(ended.await.is_err(), "dropped where it waited");
    }

    #[tokio::test]
    async fn a_panic_is_told() {
        let pass = gate().enter(Pool::Read).await.unwrap();
        assert_eq!(whole(pass, async { panic!("as tested") }).await, None::<()>);
    }
}
