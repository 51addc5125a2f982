//! Owns the knowledge whether a connection was ever made.
//! Must never know: what is sent over it.
//!
//! An attempt that times out while its connection is still being made was not sent, and only the connector knows.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tower::{Layer, Service};

/// Counts the connections one client has made. A clone is the same counter.
#[derive(Debug, Clone, Default)]
pub struct Dials(Arc<AtomicU64>);

impl Dials {
    /// Connections made so far, TLS handshake included.
    pub fn made(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl<S> Layer<S> for Dials {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, dials: self.clone() }
    }
}

/// A connector whose successes are counted.
#[derive(Debug, Clone)]
pub struct Counted<S> {
    inner: S,
    dials: Dials,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (dialling, dials) = (self.inner.call(request), self.dials.clone());
        Box::pin(async move {
            let made = dialling.await?;
            dials.0.fetch_add(1, Ordering::Release);
            Ok(made)
        })
    }
}
