//! Flushing: facts are never fenced, ownership is; nothing is ever counted twice.

use fanfare::domain::batch::FlushBatch;
use fanfare::domain::bitmap::Bitmap;
use fanfare::domain::ids::BootId;
use fanfare::domain::outcome::Outcome::{Delivered, Expired, Payload, TokenDead, Transient};
use fanfare::domain::tally::PartCounters;
use fanfare::store::StoreError;

use super::world::*;

pub async fn a_repeated_flush_changes_nothing(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 5).await;
    let batch = outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, TokenDead)]);
    let first = store.flush(batch.clone()).await.unwrap();
    assert!(first[0].owned && !first[0].closed);
    assert_eq!(first[0].done, bits(5, [0, 1]));
    let view = store.fanout(id).await.unwrap();
    for _ in 0..3 {
        assert_eq!(store.flush(batch.clone()).await.unwrap(), first);
    }
    assert_eq!(store.fanout(id).await.unwrap(), view);
    assert_eq!(counts(&store, id).await, (1, 1, 3));
    let last = outcomes(&Hold::from(&chunk), &[(2, Delivered), (3, Delivered), (4, Delivered)]);
    for _ in 0..2 {
        let acks = store.flush(last.clone()).await.unwrap();
        assert!(acks[0].owned && acks[0].closed, "closed by us, said as often as asked: {acks:?}");
    }
    assert_eq!(counts(&store, id).await, (4, 1, 0));
    assert_eq!(store.flush(FlushBatch::default()).await.unwrap(), []);
}

pub async fn flushes_commute(store: Shared) {
    let boot = instance(&store).await;
    let mut tallies = Vec::new();
    for (id, order) in [("a", [0, 1, 2]), ("b", [2, 0, 1]), ("c", [1, 2, 0])] {
        let (fanout, chunk) = one_chunk(&store, boot, id, 6).await;
        let hold = Hold::from(&chunk);
        let batches = [
            outcomes(&hold, &[(0, Delivered), (1, Transient)]),
            outcomes(&hold, &[(1, Delivered), (2, Payload)]),
            outcomes(&hold, &[(0, Transient), (5, Delivered)]),
        ];
        for i in order {
            store.flush(batches[i].clone()).await.unwrap();
        }
        tallies.push(tally(&store, fanout).await);
    }
    assert_eq!((tallies[0].delivered(), tallies[0].failed(), tallies[0].pending()), (3, 1, 2));
    assert!(tallies.iter().all(|t| *t == tallies[0]), "{tallies:?}");
}

pub async fn a_zombies_bits_count_but_do_not_own(store: Shared) {
    let (zombie, heir) = (instance(&store).await, instance(&store).await);
    let (id, chunk) = one_chunk(&store, zombie, "evt", 4).await;
    lapse(&store, zombie).await;
    store.heartbeat(heir, 60_000).await.unwrap();
    let taken = claim(&store, heir, 1).await.pop().unwrap();
    assert!(taken.epoch > chunk.epoch);
    let acks = store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, TokenDead)])).await.unwrap();
    assert!(!acks[0].owned, "the epoch moved on");
    assert_eq!(counts(&store, id).await, (1, 1, 2));
    let acks = store.flush(outcomes(&Hold::from(&taken), &[(2, Delivered)])).await.unwrap();
    assert!(acks[0].owned);
    assert_eq!(acks[0].done, bits(4, [0, 1, 2]), "the heir learns of the late facts");
}

pub async fn ok_wins_over_a_failure_row_in_either_order(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    let hold = Hold::from(&chunk);
    store.flush(outcomes(&hold, &[(0, Transient), (1, Delivered)])).await.unwrap();
    assert_eq!(counts(&store, id).await, (1, 1, 0));
    store.flush(outcomes(&hold, &[(0, Delivered), (1, Transient)])).await.unwrap();
    assert_eq!(counts(&store, id).await, (2, 0, 0));
}

pub async fn the_first_failure_row_of_a_recipient_stays(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 1).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, Payload)])).await.unwrap();
    store.flush(outcomes(&Hold::from(&chunk), &[(0, TokenDead)])).await.unwrap();
    let tally = tally(&store, id).await;
    assert_eq!((tally.count(Payload), tally.count(TokenDead)), (1, 0));
}

pub async fn only_the_owners_epoch_ends_a_chunk_for_the_rest(store: Shared) {
    let (old, new) = (instance(&store).await, instance(&store).await);
    let (id, chunk) = one_chunk(&store, old, "evt", 10).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, TokenDead)])).await.unwrap();
    lapse(&store, old).await;
    store.heartbeat(new, 60_000).await.unwrap();
    let mut taken = None;
    for claimed_again in [false, true] {
        if claimed_again {
            taken = claim(&store, new, 1).await.pop();
        }
        let acks = store.flush(rest(&Hold::from(&chunk), Expired)).await.unwrap();
        assert!(!acks[0].owned && !acks[0].closed);
        assert_eq!(counts(&store, id).await, (1, 1, 8));
    }

    let taken = taken.unwrap();
    for _ in 0..2 {
        let acks = store.flush(rest(&Hold::from(&taken), Expired)).await.unwrap();
        assert!(acks[0].owned && acks[0].closed);
        assert_eq!(acks[0].done, bits(10, [0, 1]), "the rest is one field, not bits");
    }
    assert_eq!(tally(&store, id).await.count(Expired), 8);
    // A fact that comes after the end moves one recipient from the rest to its own outcome.
    store.flush(outcomes(&Hold::from(&chunk), &[(2, Delivered)])).await.unwrap();
    assert_eq!(counts(&store, id).await, (2, 8, 0));
    assert_eq!(tally(&store, id).await.count(Expired), 7);
}

pub async fn a_flush_of_many_chunks_answers_for_each(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[3; 40]).await;
    let chunks = claim(&store, boot, 40).await;
    let mut batch = FlushBatch::default();
    for chunk in chunks.iter().rev() {
        let part = outcomes(&Hold::from(chunk), &[(0, Delivered), (1, Payload)]);
        batch.chunks.extend(part.chunks);
        batch.failures.extend(part.failures);
    }
    let acks = store.flush(batch.clone()).await.unwrap();
    let (asked, got): (Vec<_>, Vec<_>) =
        batch.chunks.iter().zip(&acks).map(|(flush, ack)| (flush.chunk, ack.chunk)).unzip();
    assert_eq!(asked, got, "in the order asked");
    assert_eq!(counts(&store, id).await, (40, 40, 40));
}

pub async fn counters_of_instances_are_absolute_and_merged(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[1]).await;
    let part = |attempts| PartCounters { attempts, mode: "shared".into(), ..PartCounters::default() };
    for attempts in [1, 5, 5] {
        store.put_parts(boot, vec![(id, part(attempts))]).await.unwrap();
    }
    store.put_parts(BootId::fresh(), vec![(id, part(2))]).await.unwrap();
    store.put_parts(boot, vec![]).await.unwrap();
    let view = store.fanout(id).await.unwrap().unwrap();
    assert_eq!((view.counters.attempts, view.instances), (7, 2));
}

pub async fn a_bitmap_of_another_length_is_corruption_and_writes_nothing(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 4).await;
    let mut batch = outcomes(&Hold::from(&chunk), &[(0, Delivered)]);
    batch.chunks[0].maybe = Bitmap::new(5);
    let refused = store.flush(batch).await;
    assert!(matches!(refused, Err(StoreError::Corrupt(_))), "{refused:?}");
    assert_eq!(counts(&store, id).await, (0, 0, 4));
}
