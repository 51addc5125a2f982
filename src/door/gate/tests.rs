//! Owns the proofs of the gate: its limits, its queue, and what bulk may borrow.
//! Must never know: what is asked for.

use super::*;
use tokio::time::Instant;

use crate::metrics::Metrics;
use futures_util::poll;
use std::collections::BTreeSet;

fn gate(interactive: u32, read: u32, bulk: u32, borrowed: u32) -> Gate {
    Gate::new(Places { interactive, read, bulk, borrowed }, DoorMetrics::register(&mut Metrics::new()))
}

#[tokio::test]
async fn the_limit_is_exact_and_a_place_comes_back_with_its_last_holder() {
    let gate = gate(2, 0, 0, 0);
    let first = gate.enter(Pool::Interactive).await.unwrap();
    let second = gate.enter(Pool::Interactive).await.unwrap();
    let clone = first.clone();
    drop(first);
    assert_eq!(gate.free(Pool::Interactive), 0, "a clone still holds the place");
    drop((clone, second));
    assert_eq!(gate.free(Pool::Interactive), 2);
}

#[tokio::test]
async fn a_room_without_places_sends_everybody_away_at_once() {
    let gate = gate(0, 0, 0, 0);
    for pool in Pool::ALL {
        assert_eq!(gate.enter(*pool).await.unwrap_err(), Reason::Full);
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_wait_as_can_be_served_in_time_and_no_longer_than_allowed() {
    let gate = gate(4, 0, 0, 0);
    gate.enter(Pool::Interactive).await.unwrap().served(Duration::from_millis(20));
    let inside = [
        gate.enter(Pool::Interactive).await.unwrap(),
        gate.enter(Pool::Interactive).await.unwrap(),
        gate.enter(Pool::Interactive).await.unwrap(),
        gate.enter(Pool::Interactive).await.unwrap(),
    ];
    let start = Instant::now();
    let mut waiting = [Box::pin(gate.enter(Pool::Interactive)), Box::pin(gate.enter(Pool::Interactive))];
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    assert_eq!(gate.enter(Pool::Interactive).await.unwrap_err(), Reason::Full);
    assert_eq!(start.elapsed(), Duration::ZERO, "told at once");
    for one in waiting {
        assert_eq!(one.await.unwrap_err(), Reason::Waited);
    }
    assert_eq!(start.elapsed(), LONGEST_WAIT);
    let mut next = Box::pin(gate.enter(Pool::Interactive));
    assert!(poll!(&mut next).is_pending(), "those who gave up wait no more");
    drop(inside);
    next.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_waited_too_long_is_refused_even_when_a_place_is_free() {
    let gate = gate(1, 0, 0, 0);
    let inside = gate.enter(Pool::Interactive).await.unwrap();
    let mut late = Box::pin(gate.enter(Pool::Interactive));
    assert!(poll!(&mut late).is_pending());
    drop(inside);
    // The place is its own by now, but nobody looked in time.
    tokio::time::advance(LONGEST_WAIT + Duration::from_millis(1)).await;
    assert_eq!(late.await.unwrap_err(), Reason::Waited);
    assert_eq!(gate.free(Pool::Interactive), 1);
}

#[tokio::test]
async fn who_hangs_up_while_waiting_takes_nothing() {
    let gate = gate(1, 0, 0, 0);
    let inside = gate.enter(Pool::Interactive).await.unwrap();
    let mut gone = Box::pin(gate.enter(Pool::Interactive));
    assert!(poll!(&mut gone).is_pending());
    drop(gone);
    let mut next = Box::pin(gate.enter(Pool::Interactive));
    assert!(poll!(&mut next).is_pending(), "its place in the queue is free again");
    drop(inside);
    next.await.unwrap();
    assert_eq!(gate.free(Pool::Interactive), 1);
}

#[tokio::test]
async fn the_faster_they_are_served_the_more_may_wait() {
    let gate = gate(8, 0, 0, 0);
    let room = gate.0.room(Pool::Interactive);
    assert_eq!(room.most_waiting(), 16, "nothing is known yet");
    for (ms, most) in [(20, 4), (40, 2), (1000, 1), (5, 16), (1, 80), (0, 128)] {
        let waiting = Room::new(8);
        waiting.typical.observe(Duration::from_millis(ms));
        assert_eq!(waiting.most_waiting(), most, "{ms} ms");
    }
    let pass = gate.enter(Pool::Interactive).await.unwrap();
    pass.step_out();
    pass.step_in().await;
    pass.served(Duration::from_secs(60));
    assert_eq!(gate.typical(Pool::Interactive), Duration::ZERO, "a wait for something else is not service");
}

/// A database that stands still serves nobody in time: who comes then is told at once, not after 20 ms.
#[tokio::test(start_paused = true)]
async fn nobody_waits_while_nothing_moves() {
    let gate = gate(1, 0, 0, 0);
    tokio::time::advance(Duration::from_secs(60)).await;
    let inside = gate.enter(Pool::Interactive).await.unwrap();
    assert!(!gate.is_full(Pool::Interactive), "an idle room did not stand still");
    tokio::time::advance(Duration::from_millis(101)).await;
    assert!(gate.is_full(Pool::Interactive));
    let start = Instant::now();
    assert_eq!(gate.enter(Pool::Interactive).await.unwrap_err(), Reason::Full);
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(inside);
    let _next = gate.enter(Pool::Interactive).await.unwrap();
    assert!(poll!(Box::pin(gate.enter(Pool::Interactive))).is_pending(), "it moves again");
}

/// A database that answers late lets places go now and then, and no waiter lives to see it: the wait is of no use to anybody.
#[tokio::test(start_paused = true)]
async fn after_a_wait_in_vain_one_waits_until_it_is_served_and_then_many() {
    let gate = gate(1, 0, 0, 0);
    let inside = gate.enter(Pool::Interactive).await.unwrap();
    let (first, second) = tokio::join!(gate.enter(Pool::Interactive), gate.enter(Pool::Interactive));
    assert_eq!((first.unwrap_err(), second.unwrap_err()), (Reason::Waited, Reason::Waited));
    let mut scout = Box::pin(gate.enter(Pool::Interactive));
    assert!(poll!(&mut scout).is_pending());
    assert_eq!(gate.enter(Pool::Interactive).await.unwrap_err(), Reason::Full, "one is enough to find out");
    drop(inside);
    let _inside = scout.await.unwrap();
    let (mut one, mut other) = (Box::pin(gate.enter(Pool::Interactive)), Box::pin(gate.enter(Pool::Interactive)));
    assert!(poll!(&mut one).is_pending() && poll!(&mut other).is_pending(), "it was served");
}

#[tokio::test]
async fn bulk_borrows_what_is_idle_and_events_never_wait_for_it() {
    let gate = gate(2, 4, 1, 3);
    let mut bulk = Vec::new();
    while let Ok(pass) = gate.enter(Pool::Bulk).await {
        bulk.push(pass);
    }
    assert_eq!(bulk.len(), 3, "its own place, and two of the readings': half of theirs stay free");
    assert_eq!((gate.free(Pool::Interactive), gate.free(Pool::Read)), (2, 2));
    let read = gate.enter(Pool::Read).await.unwrap();
    drop(bulk.pop());
    assert_eq!(gate.enter(Pool::Bulk).await.unwrap_err(), Reason::Full, "half of the readings' places are in use");
    drop(read);
    assert!(gate.enter(Pool::Bulk).await.is_ok());
}

#[tokio::test]
async fn a_request_that_only_waits_gives_its_place_away() {
    let gate = gate(0, 1, 0, 0);
    let sleeper = gate.enter(Pool::Read).await.unwrap();
    sleeper.step_out();
    let other = gate.enter(Pool::Read).await.unwrap();
    let mut back = Box::pin(sleeper.step_in());
    assert!(poll!(&mut back).is_pending(), "no place while the other has it");
    drop(other);
    back.await;
    assert_eq!(gate.free(Pool::Read), 0);
    drop(sleeper);
    assert_eq!(gate.free(Pool::Read), 1);
}

#[tokio::test]
async fn a_request_can_move_to_another_room_when_that_has_a_place() {
    let gate = gate(1, 0, 1, 0);
    let pass = gate.enter(Pool::Interactive).await.unwrap();
    pass.move_to(Pool::Bulk).await.unwrap();
    assert_eq!((pass.pool(), gate.free(Pool::Interactive), gate.free(Pool::Bulk)), (Pool::Bulk, 1, 0));
    let other = gate.enter(Pool::Interactive).await.unwrap();
    assert_eq!(other.move_to(Pool::Bulk).await.unwrap_err(), Reason::Full);
    assert_eq!(gate.free(Pool::Interactive), 1, "refused, it holds nothing");
}

#[test]
fn those_shed_together_come_back_apart() {
    let seen: BTreeSet<u64> = (0..1000).map(|_| retry_after_s()).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}
