//! Owns the stories in which everything breaks that can: real processes are killed and stopped, the real database is
//! shot, cut, locked, starved and filled up, while goals are sent. The provider's own log says who was reached.
//!
//! After every story: nobody is lost, duplicates are within law 9, every count is what the rows add up to, every chunk
//! is closed, and every fan-out has one line. What is random comes from the seed of the story; what the machine adds to
//! it does not, so a story that fails says its seed and its numbers, not every microsecond.
//!
//! `FANFARE_LONG=1` (`tests/run --long`) has more than 100,000 recipients, and faults for as long as they are sent to.

mod fleet;
mod oracle;
mod stories;

use crate::harness::together::together;

/// Times as many recipients.
fn scale() -> usize {
    if long() { 8 } else { 1 }
}

/// Whether there is time.
fn long() -> bool {
    std::env::var("FANFARE_LONG").is_ok_and(|long| long == "1")
}

/// Beside each other: most of it is waiting for leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn instances_that_die_or_stand_still_lose_nobody() {
    together(vec![
        ("kill -9", Box::pin(stories::killed())),
        ("kill -9, lease run out", Box::pin(stories::killed_and_left())),
        ("SIGSTOP", Box::pin(stories::stopped())),
        ("mixed", Box::pin(stories::mixed())),
        ("Redis flaps, kills", Box::pin(stories::redis_flaps())),
        ("a chunk that kills", Box::pin(stories::poisoned())),
    ])
    .await;
}

/// Beside each other, each on a database or a server of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_database_that_fails_in_any_way_loses_nobody() {
    together(vec![
        ("immediate restarts", Box::pin(stories::restarted())),
        ("connections cut", Box::pin(stories::cut())),
        ("answers lost", Box::pin(stories::answers_lost())),
        ("squatters", Box::pin(stories::squatted())),
        ("table locked", Box::pin(stories::locked())),
        ("disk full", Box::pin(stories::disk_full())),
    ])
    .await;
}
