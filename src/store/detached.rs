//! Owns the one way a database future is run: in a task of its own, awaited through its handle.
//! Must never know: which database, or what is asked of it.

use std::future::Future;

use tracing::Instrument;

use super::StoreError;

/// Runs `f` to its end even when the caller is cancelled: only the handle is dropped then, never the future, so that
/// no connection goes back to its pool inside an open transaction (transact-rs/sqlx#4393).
///
/// # Errors
/// Those of `f`; [`StoreError::Statement`] when it panicked, [`StoreError::Unavailable`] when the runtime ends.
pub(crate) async fn detached<T: Send + 'static>(
    f: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::spawn(f.in_current_span()).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => Err(StoreError::Statement("a database task panicked".to_owned())),
        Err(_) => Err(StoreError::Unavailable("the process is ending".to_owned())),
    }
}

/// As [`detached`], for an answer that makes its receiver the owner of something. When the caller was cancelled
/// meanwhile (an HTTP client hung up, say), `give_back` is run with the answer: otherwise this instance would own,
/// for as long as it lives, what nobody in it works on.
///
/// # Errors
/// Those of [`detached`].
pub(crate) async fn detached_or<T, G, U>(
    f: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    give_back: G,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    G: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    let undo = |value| drop(tokio::spawn(give_back(value)));
    let parcel = detached(async move { f.await.map(|value| Parcel(Some((value, undo)))) }).await?;
    parcel.open()
}

/// An answer on its way. Dropped unopened, it undoes itself.
struct Parcel<T, G: FnOnce(T)>(Option<(T, G)>);

impl<T, G: FnOnce(T)> Parcel<T, G> {
    fn open(mut self) -> Result<T, StoreError> {
        let (value, _) = self.0.take().ok_or_else(|| StoreError::Statement("an answer was opened twice".to_owned()))?;
        Ok(value)
    }
}

impl<T, G: FnOnce(T)> Drop for Parcel<T, G> {
    fn drop(&mut self) {
        if let Some((value, undo)) = self.0.take() {
            undo(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_cancelled_caller_does_not_cancel_the_work() {
        let (go, wait) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel::<()>();
        let mut call = Box::pin(detached(async move {
            wait.await.map_err(|_| StoreError::Unavailable("dropped".to_owned()))?;
            let _ = done.send(());
            Ok(())
        }));
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        drop(call);
        go.send(()).expect("the work still waits");
        finished.await.expect("the work went on to its end");
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_ours() {
        let got = detached::<()>(async { panic!("as tested") }).await;
        assert!(matches!(got, Err(StoreError::Statement(_))), "{got:?}");
    }

    #[tokio::test]
    async fn an_answer_nobody_waits_for_is_given_back() {
        for hung_up_after_the_answer in [false, true] {
            let (go, wait) = oneshot::channel::<()>();
            let (gave, given) = oneshot::channel::<u32>();
            let work = async move {
                wait.await.map_err(|_| StoreError::Unavailable("dropped".to_owned()))?;
                Ok(7)
            };
            let mut call = Box::pin(detached_or(work, |value| async move { gave.send(value).expect("it is awaited") }));
            assert!(futures_util::poll!(call.as_mut()).is_pending());
            if hung_up_after_the_answer {
                go.send(()).expect("the work still waits");
                tokio::task::yield_now().await;
                drop(call);
            } else {
                drop(call);
                go.send(()).expect("the work still waits");
            }
            assert_eq!(given.await, Ok(7));
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_received_is_kept() {
        let (gave, mut given) = oneshot::channel::<u32>();
        let got = detached_or(async { Ok(7) }, |value| async move { gave.send(value).expect("not run") }).await;
        assert_eq!(got.ok(), Some(7));
        assert_eq!(given.try_recv(), Err(oneshot::error::TryRecvError::Closed), "the way back is gone");
    }
}
