//! Instances: what is taken from one whose lease has expired, and what one hands back itself.

use fanfare::domain::batch::{ClaimedChunk, Class, FanoutState};
use fanfare::domain::ids::{BootId, ChunkRef};
use fanfare::domain::outcome::Outcome::Delivered;
use fanfare::store::{FreezeReply, FreezeStep, MAX_TAKEOVERS, SettleReply};

use super::world::*;

pub async fn an_expired_lease_is_taken_over_with_a_new_epoch_and_unclean(store: Shared) {
    let (lost, heir) = (instance(&store).await, instance(&store).await);
    let (id, chunk) = one_chunk(&store, lost, "evt", 4).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(1, Delivered)])).await.unwrap();
    lapse(&store, lost).await;
    let beat = store.heartbeat(heir, 60_000).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks, beat.set_aside), (1, 1, 0));
    let taken = claim(&store, heir, 1).await.pop().unwrap();
    assert_eq!(taken.chunk, chunk.chunk);
    assert_eq!(taken.epoch, chunk.epoch + 2, "one for the takeover, one for the claim");
    assert_eq!(taken.done, bits(4, [1]));
    assert_eq!(taken.maybe, bits(4, [0, 2, 3]), "whoever had no outcome may have been reached");
    assert_eq!(store.fanout(id).await.unwrap().unwrap().interrupted, 1);
}

pub async fn an_orderly_leave_hands_chunks_back_clean(store: Shared) {
    let (leaver, heir) = (instance(&store).await, instance(&store).await);
    let (id, chunk) = one_chunk(&store, leaver, "evt", 4).await;
    store.leave(leaver).await.unwrap();
    let taken = claim(&store, heir, 1).await.pop().unwrap();
    assert_eq!((taken.chunk, taken.maybe.count()), (chunk.chunk, 0));
    let beat = store.heartbeat(heir, 60_000).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks), (1, 0));
    assert_eq!(store.fanout(id).await.unwrap().unwrap().interrupted, 0);
    let acks = store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered)])).await.unwrap();
    assert!(!acks[0].owned, "what is flushed after leaving counts, and owns nothing");
    assert_eq!(counts(&store, id).await, (1, 0, 3));
}

pub async fn a_live_lease_is_not_taken_over(store: Shared) {
    let (owner, other) = (instance(&store).await, instance(&store).await);
    let (_, chunk) = one_chunk(&store, owner, "evt", 4).await;
    let beat = store.heartbeat(other, 60_000).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks), (2, 0));
    assert_eq!(claim(&store, other, 1).await, []);
    assert!(store.flush(outcomes(&Hold::from(&chunk), &[])).await.unwrap()[0].owned);
}

pub async fn a_chunk_without_progress_is_set_aside_and_keeps_its_fanout_open(store: Shared) {
    let watcher = instance(&store).await;
    let id = frozen(&store, watcher, "evt", &[2, 1]).await;
    let healthy = claim(&store, watcher, 2).await;
    store.release(watcher, vec![(healthy[0].chunk, healthy[0].epoch)], 0).await.unwrap();
    let mut last = None;
    for takeover in 1..=MAX_TAKEOVERS {
        let lost = instance(&store).await;
        let chunk = claim(&store, lost, 1).await.pop().expect("it is open again");
        assert_eq!(chunk.chunk, healthy[0].chunk);
        last = Some(chunk);
        lapse(&store, lost).await;
        let beat = store.heartbeat(watcher, 60_000).await.unwrap();
        let expected = if takeover == MAX_TAKEOVERS { (0, 1) } else { (1, 0) };
        assert_eq!((beat.freed_chunks, beat.set_aside), expected, "takeover {takeover}");
    }
    assert_eq!(claim(&store, watcher, 1).await, [], "nobody claims what is set aside");
    store.flush(delivered(&healthy[1])).await.unwrap();
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open);
    let view = store.fanout(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.interrupted), (FanoutState::SetAside, u32::from(MAX_TAKEOVERS as u16)));
    assert_eq!((view.tally.delivered(), view.tally.pending()), (1, 2));
    assert_eq!(store.sweep(0).await.unwrap().complete, []);
    // Facts of the last owner may still complete it.
    store.flush(delivered(&last.unwrap())).await.unwrap();
    assert!(matches!(store.settle(id).await.unwrap(), SettleReply::Settled(s) if s.view.state == FanoutState::Done));
}

pub async fn progress_forgives_earlier_takeovers(store: Shared) {
    let watcher = instance(&store).await;
    let n = usize::from(MAX_TAKEOVERS as u16) * 2;
    frozen(&store, watcher, "evt", &[n + 1]).await;
    for i in 0..n {
        let lost = instance(&store).await;
        let chunk = claim(&store, lost, 1).await.pop().expect("never set aside");
        if i % 2 == 0 {
            store.flush(outcomes(&Hold::from(&chunk), &[(i, Delivered)])).await.unwrap();
        }
        lapse(&store, lost).await;
        assert_eq!(store.heartbeat(watcher, 60_000).await.unwrap().set_aside, 0);
    }
}

pub async fn a_lost_instance_interrupts_a_fanout_once(store: Shared) {
    let (lost, heir) = (instance(&store).await, instance(&store).await);
    let a = frozen(&store, lost, "a", &[1; 5]).await;
    let b = frozen(&store, lost, "b", &[1; 2]).await;
    assert_eq!(claim(&store, lost, 10).await.len(), 7);
    lapse(&store, lost).await;
    let beats: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.heartbeat(heir, 60_000).await.unwrap().freed_chunks })
        })
        .collect();
    let mut freed = 0;
    for beat in beats {
        freed += beat.await.unwrap();
    }
    assert_eq!(freed, 7, "each chunk was freed once");
    for id in [a, b] {
        assert_eq!(store.fanout(id).await.unwrap().unwrap().interrupted, 1);
    }
}

async fn owned(store: &Shared, boot: BootId) -> Vec<(ChunkRef, i32)> {
    let mut owned = holds(&store.owned(boot).await.unwrap());
    owned.sort_unstable();
    owned
}

fn holds(chunks: &[ClaimedChunk]) -> Vec<(ChunkRef, i32)> {
    chunks.iter().map(|c| (c.chunk, c.epoch)).collect()
}

pub async fn what_an_instance_owns_is_found(store: Shared) {
    let (boot, other) = (instance(&store).await, instance(&store).await);
    let keys = followers(&store, "first", 2).await;
    let job = accept(&store, boot, "first", Class::Bulk).await;
    let step = FreezeStep { claim_first: 1, ..whole(boot, &job, &keys, &[1, 1]) };
    let FreezeReply::Written(frozen_owned) = store.freeze_step(step).await.unwrap() else { panic!("it is ours") };
    assert_eq!(owned(&store, boot).await, holds(&frozen_owned), "created owned");

    frozen(&store, boot, "evt", &[1; 4]).await;
    let (mine, theirs) = (claim(&store, boot, 3).await, claim(&store, other, 2).await);
    let mut all = holds(&frozen_owned);
    all.extend(holds(&mine));
    assert_eq!(owned(&store, boot).await, all, "of every fan-out");
    assert_eq!(owned(&store, other).await, {
        let mut theirs = holds(&theirs);
        theirs.sort_unstable();
        theirs
    });

    store.release(boot, vec![all[1]], 0).await.unwrap();
    store.flush(delivered(&mine[1])).await.unwrap();
    assert_eq!(owned(&store, boot).await, [all[0], all[3]], "neither what was handed back nor what is closed");
    lapse(&store, boot).await;
    store.heartbeat(other, 60_000).await.unwrap();
    assert_eq!(owned(&store, boot).await, [], "lost with the lease");
}
