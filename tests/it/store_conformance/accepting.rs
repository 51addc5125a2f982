//! Accepting: once per event id, whoever asks how often.

use fanfare::domain::batch::{Class, FanoutKind, FanoutState};
use fanfare::domain::ids::{BootId, DeviceKey, FanoutId};
use fanfare::store::{Accepted, StoreError, Waiting};

use super::world::*;

pub async fn twenty_parallel_posts_of_one_event_make_one_fanout(store: Shared) {
    let boot = instance(&store).await;
    let posts: Vec<_> = (0..20)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.accept(boot, posted("evt", Class::Urgent, 1)).await.unwrap() })
        })
        .collect();
    let (mut new, mut repeated) = (Vec::new(), Vec::new());
    for post in posts {
        match post.await.unwrap() {
            Accepted::New(job) => new.push(job.job.id),
            Accepted::Repeat(id) => repeated.push(id),
            other => panic!("the content is the same: {other:?}"),
        }
    }
    assert_eq!((new.len(), repeated.len()), (1, 19));
    assert!(repeated.iter().all(|id| *id == new[0]));
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
}

pub async fn the_same_id_with_other_content_conflicts(store: Shared) {
    let boot = instance(&store).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    let other = store.accept(boot, posted("evt", Class::Urgent, 2)).await.unwrap();
    assert_eq!(other, Accepted::Conflict(job.job.id));
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
}

pub async fn an_accepted_event_is_read_back_as_it_was(store: Shared) {
    let boot = instance(&store).await;
    let before = store.now_ms().await.unwrap();
    let freeze = accept(&store, boot, "evt", Class::Normal).await;
    let after = store.now_ms().await.unwrap();
    assert!((before..=after).contains(&freeze.job.accepted_ms), "{before} {freeze:?} {after}");
    assert_eq!((freeze.epoch, freeze.cursor, freeze.next_chunk), (1, DeviceKey(0), 0));
    assert_eq!(freeze.job.event, event("evt"));
    assert_eq!(store.job(freeze.job.id).await.unwrap(), Some(freeze.job.clone()));
    let view = store.fanout(freeze.job.id).await.unwrap().unwrap();
    assert_eq!((view.state, view.kind, view.class), (FanoutState::Freezing, FanoutKind::Original, Class::Normal));
    assert_eq!((view.event_id, view.match_id), (event("evt").id, event("evt").match_id));
    assert_eq!((view.accepted_ms, view.settled_ms), (freeze.job.accepted_ms, None));
    assert_eq!(store.job(FanoutId(i64::MAX)).await.unwrap(), None);
    assert_eq!(store.fanout(FanoutId(i64::MAX)).await.unwrap(), None);
}

pub async fn migrating_again_applies_nothing_and_the_store_is_ready(store: Shared) {
    assert_eq!(store.migrate().await.unwrap(), 0);
    store.ready().await.unwrap();
    let beat = store.heartbeat(BootId::fresh(), 1000).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks, beat.set_aside), (1, 0, 0));
}

/// Whose turn comes too late is not written at all: its caller was told to come again.
pub async fn what_could_not_begin_in_time_is_not_kept(store: Shared) {
    let boot = instance(&store).await;
    let late = tokio::time::Instant::now() - std::time::Duration::from_millis(1);
    let refused = store.accept_by(boot, posted("evt", Class::Urgent, 1), late).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert_eq!(store.backlog().await.unwrap(), Waiting::default());
    assert!(matches!(store.accept(boot, posted("evt", Class::Urgent, 1)).await.unwrap(), Accepted::New(_)));
}

pub async fn chunks_that_nobody_has_in_hand_are_counted_by_class(store: Shared) {
    let boot = instance(&store).await;
    for (id, class, chunks) in [("a", Class::Urgent, 2), ("b", Class::Urgent, 1), ("c", Class::Bulk, 3)] {
        let keys = followers(&store, id, chunks * 2).await;
        let job = accept(&store, boot, id, class).await;
        let step = whole(boot, &job, &keys, &vec![2; chunks]);
        store.freeze_step(step).await.unwrap();
    }
    let mut waiting = store.backlog().await.unwrap();
    waiting.open_fanouts.sort_by_key(|(class, _)| class.code());
    waiting.open_chunks.sort_by_key(|(class, _)| class.code());
    assert_eq!(waiting.open_fanouts, [(Class::Urgent, 2), (Class::Bulk, 1)]);
    assert_eq!(waiting.open_chunks, [(Class::Urgent, 3), (Class::Bulk, 3)]);
    let claimed = claim(&store, boot, 3).await;
    let waiting = store.backlog().await.unwrap().open_chunks;
    assert_eq!((claimed.len(), waiting), (3, vec![(Class::Bulk, 3)]));
}
