//! Owns what comes before everything else: whoever finds no room is told so, at the price of a look.
//! Must never know: calls, keys, or what is in a request but its path.
//!
//! At fifty times the load that fits, forty-nine of fifty requests end here, and what each of them costs is taken from the
//! one that is served. So nothing is made for them that was not made before: the answers lie ready, the body is not
//! touched, and no room further in hears of them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::routing::future::RouteFuture;
use bytes::Bytes;
use futures_util::future::Either;
use hyper::body::Incoming;
use tokio::time::MissedTickBehavior;
use tower::Service;

use super::guard::crowded;
use super::problem::PROBLEM_JSON;
use super::{Api, pools, request_id};
use crate::door::Reason;
use crate::door::gate::{LATEST_RETURN_S, retry_after_s};

/// Time between two looks of [`Front::tend`].
const TEND_EVERY: Duration = Duration::from_secs(1);

/// The API as [`crate::door::serve`] wants it.
#[derive(Clone)]
pub struct Front {
    api: Arc<Api>,
    router: Router,
    /// What is said to whoever is to come back in 1, 2, ... seconds.
    full: Arc<[Bytes]>,
}

impl Front {
    pub(super) fn new(api: Arc<Api>, router: Router) -> Self {
        let full = (1..=LATEST_RETURN_S).map(|seconds| crowded(Reason::Full).retry_after_s(seconds).body()).collect();
        Self { api, router, full }
    }

    /// Looks after what no request does: the end of shedding is told, and numbers that are shown do not grow old. Ends
    /// never.
    pub fn tend(&self) -> impl Future<Output = ()> + Send + use<> {
        let api = Arc::clone(&self.api);
        async move {
            let mut tick = tokio::time::interval(TEND_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                api.shedding.look();
                api.backlog.look(&api.state.store).await;
            }
        }
    }

    fn send_away(&self, headers: &HeaderMap) -> Response<Body> {
        let seconds = retry_after_s();
        let body = usize::try_from(seconds - 1).ok().and_then(|n| self.full.get(n)).cloned().unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let own = response.headers_mut();
        own.insert(CONTENT_TYPE, PROBLEM_JSON);
        own.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if let Some(id) = request_id::given(headers) {
            own.insert(request_id::HEADER, id.clone());
        }
        response
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Self::Response, Infallible>>, RouteFuture<Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let pool = pools::pool(request.uri().path());
        if self.api.gate.is_full(pool) {
            self.api.shedding.note(pool, Reason::Full);
            return Either::Left(ready(Ok(self.send_away(request.headers()))));
        }
        Either::Right(Service::call(&mut self.router, request))
    }
}
