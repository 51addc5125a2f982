//! Owns who is connected: at most so many, and when there are as many, the one that has been idle longest goes.
//! Must never know: what is served.
//!
//! A connection costs its caller nothing, not even a key. If those there are could keep others out by doing nothing, a
//! thousand of them would be enough to shut the service. So a newcomer always gets in while any is idle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::cap::size;

/// Nobody was idle, or whoever was told to go was not: the next look comes after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The seats.
#[derive(Debug, Clone)]
pub(super) struct Seats {
    places: Arc<Semaphore>,
    taken: Arc<Mutex<HashMap<u64, Taken>>>,
    next: Arc<AtomicU64>,
    /// With an answer of which nothing is taken for so long, whoever has the seat is idle.
    unread: Duration,
}

#[derive(Debug)]
struct Taken {
    activity: Activity,
    go: CancellationToken,
}

/// One connection's, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    id: u64,
    /// What it is used for.
    pub activity: Activity,
    /// Cancelled when it has to go.
    pub go: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Seats {
    pub(super) fn new(most: u32, unread: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(size(most))), taken: Arc::default(), next: Arc::default(), unread }
    }

    /// A seat, as soon as one is free or somebody idle has left.
    pub(super) async fn take(&self) -> Seat {
        loop {
            let mut place = Arc::clone(&self.places).try_acquire_owned().ok();
            if place.is_none() {
                self.send_away_the_longest_idle();
                let freed = timeout(LOOK_AGAIN, Arc::clone(&self.places).acquire_owned()).await;
                place = freed.ok().and_then(Result::ok);
            }
            if let Some(place) = place {
                return self.seat(place);
            }
        }
    }

    fn seat(&self, place: OwnedSemaphorePermit) -> Seat {
        let (activity, go) = (Activity::new(), CancellationToken::new());
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.taken().insert(id, Taken { activity: activity.clone(), go: go.clone() });
        Seat { seats: self.clone(), id, activity, go, _place: place }
    }

    fn send_away_the_longest_idle(&self) {
        let taken = self.taken();
        let idle = taken.values().filter(|one| !one.go.is_cancelled());
        let since = |one: &Taken| one.activity.idle_since(self.unread);
        let longest = idle.filter_map(|one| Some((since(one)?, one))).min_by_key(|(since, _)| *since);
        if let Some((_, one)) = longest {
            one.go.cancel();
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use http::{Request, Response};
    use std::convert::Infallible;
    use tokio::time::sleep;
    use tower::Service;

    const UNREAD: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_takes_the_seat_of_whoever_was_idle_longest_and_of_nobody_who_is_not() {
        let seats = Seats::new(3, UNREAD);
        let busy = seats.take().await;
        let mut service = busy
            .activity
            .watching(tower::service_fn(|_| async { Ok::<_, Infallible>(Response::new("answer".to_owned())) }));
        let answer = service.call(Request::new(())).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let old = seats.take().await;
        sleep(Duration::from_secs(1)).await;
        let young = seats.take().await;
        sleep(Duration::from_secs(1)).await;
        let mut newcomer = Box::pin(seats.take());
        assert!(poll!(&mut newcomer).is_pending());
        assert!(old.go.is_cancelled() && !young.go.is_cancelled() && !busy.go.is_cancelled());
        drop(old);
        let newcomer = newcomer.await;
        let mut next = Box::pin(seats.take());
        assert!(poll!(&mut next).is_pending() && young.go.is_cancelled(), "it does so each time");
        drop((young, newcomer));
        let _next = next.await;
        let _last = seats.take().await;
        let mut late = Box::pin(seats.take());
        sleep(LOOK_AGAIN).await;
        assert!(poll!(&mut late).is_pending() && !busy.go.is_cancelled());
        sleep(UNREAD).await;
        assert!(poll!(&mut late).is_pending() && busy.go.is_cancelled(), "nobody reads its answer");
        drop(answer);
        assert!(busy.activity.idle_since(UNREAD).is_some());
    }
}
