//! Owns the tests of what a process leaves behind for the next.
//! Must never know: anything outside the room.

use super::*;

/// A goal with two recipients, its one chunk owned by `boot`.
async fn sending(store: &SqliteStore, boot: BootId) -> FanoutId {
    store.heartbeat(boot, LEASE_MS).await.unwrap();
    let Accepted::New(freeze) = store.accept(boot, goal("evt-1")).await.unwrap() else { panic!("accepted before") };
    let step = FreezeStep {
        boot,
        fanout: freeze.job.id,
        epoch: freeze.epoch,
        from: freeze.cursor,
        chunks: vec![vec![DeviceKey(1), DeviceKey(2)]],
        first_chunk: 0,
        ranks: vec![0],
        claim_first: 1,
        never_saw: None,
        last: true,
    };
    let reply = store.freeze_step(step).await.unwrap();
    assert!(matches!(reply, FreezeReply::Written(chunks) if chunks.len() == 1));
    freeze.job.id
}

#[tokio::test]
async fn settling_too_early_costs_no_commit() {
    let (_directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    let before = store.write_counts();
    assert_eq!(store.settle(fanout).await.unwrap(), SettleReply::Open);
    assert_eq!(store.write_counts(), before);
}

#[tokio::test]
async fn what_a_dead_process_held_is_free_at_the_next_start_however_long_its_lease() {
    let (directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    drop(store);
    let store = reopen(&place(&directory)).await;
    let boot = BootId::fresh();
    let beat = store.heartbeat(boot, LEASE_MS).await.unwrap();
    assert_eq!((beat.live_instances, beat.freed_chunks, beat.set_aside), (1, 1, 0));
    let chunks = store.claim(ClaimRequest { boot, want: 9, of: Open::All }).await.unwrap();
    assert_eq!((chunks[0].epoch, chunks[0].maybe.count()), (3, 2), "freed and claimed again, all may have been sent");
    assert_eq!(store.fanout(fanout).await.unwrap().unwrap().interrupted, 1);
}

#[tokio::test]
async fn what_a_process_handed_back_before_it_ended_is_not_unclean() {
    let (directory, store) = fresh().await;
    let boot = BootId::fresh();
    let fanout = sending(&store, boot).await;
    store.leave(boot).await.unwrap();
    store.close().await;
    let store = open(&place(&directory)).await;
    let boot = BootId::fresh();
    assert_eq!(store.heartbeat(boot, LEASE_MS).await.unwrap().freed_chunks, 0);
    let chunks = store.claim(ClaimRequest { boot, want: 9, of: Open::All }).await.unwrap();
    assert_eq!((chunks[0].epoch, chunks[0].maybe.count()), (2, 0));
    assert_eq!(store.fanout(fanout).await.unwrap().unwrap().interrupted, 0);
}

#[tokio::test]
async fn a_damaged_row_is_corrupt_and_never_a_default() {
    let (_directory, store) = fresh().await;
    let fanout = sending(&store, BootId::fresh()).await;
    for damage in ["UPDATE chunk SET ok = x'0f'", "UPDATE chunk SET ok = x''", "UPDATE fanout SET state = 9"] {
        on_writer(&store, damage).await;
        let got = store.fanout(fanout).await;
        assert!(matches!(got, Err(StoreError::Corrupt(_))), "{damage}: {got:?}");
    }
}
