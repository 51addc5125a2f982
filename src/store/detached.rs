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
}
