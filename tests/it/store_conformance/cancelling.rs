//! Cancelling: once, with one field per chunk, and nothing that was found is lost.

use fanfare::domain::batch::{Class, FanoutState};
use fanfare::domain::ids::FanoutId;
use fanfare::domain::outcome::Outcome::{Cancelled, Delivered, Payload};
use fanfare::store::{CancelReply, FreezeReply, MAX_TAKEOVERS, SettleReply};

use super::world::*;

async fn settled(store: &Shared, id: FanoutId) -> fanfare::store::FanoutView {
    match store.settle(id).await.unwrap() {
        SettleReply::Settled(settled) => settled.view,
        other => panic!("{id} is complete: {other:?}"),
    }
}

pub async fn of_eight_that_cancel_one_does(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[3, 2]).await;
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.cancel(id).await.unwrap() })
        })
        .collect();
    let mut replies = Vec::new();
    for caller in callers {
        replies.push(caller.await.unwrap());
    }
    assert_eq!(replies.iter().filter(|reply| **reply == CancelReply::Cancelled).count(), 1, "{replies:?}");
    let loser = CancelReply::Ended(FanoutState::Cancelled);
    assert_eq!(replies.iter().filter(|reply| **reply == loser).count(), 7, "{replies:?}");
    assert_eq!(counts(&store, id).await, (0, 5, 0), "what nobody had in hand has ended");
    assert_eq!(claim(&store, boot, 10).await, [], "nothing of it is claimed");
    assert_eq!(store.sweep(0).await.unwrap().complete, [id]);
    let view = settled(&store, id).await;
    assert_eq!((view.state, view.tally.count(Cancelled)), (FanoutState::Cancelled, 5));
    assert_eq!(store.cancel(id).await.unwrap(), loser);
    assert_eq!(store.cancel(FanoutId(i64::MAX)).await.unwrap(), CancelReply::Unknown);
}

pub async fn what_has_ended_is_not_cancelled(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 2).await;
    store.flush(delivered(&chunk)).await.unwrap();
    let view = settled(&store, id).await;
    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Ended(FanoutState::Done));
    assert_eq!(store.fanout(id).await.unwrap(), Some(view), "settled for good");
}

pub async fn what_is_in_hand_is_ended_by_its_owner_who_hears_of_it(store: Shared) {
    let (boot, other) = (instance(&store).await, instance(&store).await);
    let id = frozen(&store, boot, "evt", &[4, 2]).await;
    let mine = claim(&store, boot, 1).await.pop().unwrap();
    let hold = Hold::from(&mine);
    let before = store.flush(outcomes(&hold, &[(0, Delivered)])).await.unwrap();
    assert!(!before[0].cancelled && before[0].owned);
    assert_eq!(store.heartbeat(boot, 60_000).await.unwrap().cancelled, []);

    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);
    assert_eq!(counts(&store, id).await, (1, 2, 3), "the open chunk has ended, the owned one has not");
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open);
    assert_eq!(store.sweep(0).await.unwrap().complete, [], "its owner still has it");
    assert_eq!(store.heartbeat(boot, 60_000).await.unwrap().cancelled, [id]);
    assert_eq!(store.heartbeat(other, 60_000).await.unwrap().cancelled, [], "it has nothing of it in hand");
    let news = store.flush(outcomes(&hold, &[(1, Payload)])).await.unwrap();
    assert!(news[0].cancelled && news[0].owned && !news[0].closed, "{news:?}");

    // An attempt that was in flight keeps its outcome; the rest ends together.
    let mut last = outcomes(&hold, &[(2, Delivered)]);
    last.chunks[0].rest = rest(&hold, Cancelled).chunks[0].rest;
    assert!(store.flush(last).await.unwrap()[0].closed);
    assert_eq!(store.heartbeat(boot, 60_000).await.unwrap().cancelled, []);
    let view = settled(&store, id).await;
    let tally = view.tally;
    assert_eq!((tally.delivered(), tally.count(Payload), tally.count(Cancelled), tally.pending()), (2, 1, 3, 0));
    assert_eq!(tally.delivered() + tally.failed(), tally.recipients());
}

pub async fn what_comes_back_to_a_cancelled_fanout_ends_with_the_next_settle(store: Shared) {
    let (boot, dead) = (instance(&store).await, instance(&store).await);
    let id = frozen(&store, boot, "evt", &[2, 3]).await;
    let released = claim(&store, boot, 1).await.pop().unwrap();
    let lost = claim(&store, dead, 1).await.pop().unwrap();
    store.flush(outcomes(&Hold::from(&lost), &[(1, Delivered)])).await.unwrap();
    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);

    store.release(boot, vec![(released.chunk, released.epoch)], 0).await.unwrap();
    assert_eq!(claim(&store, boot, 10).await, []);
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open, "the dead instance has not been found out yet");
    lapse(&store, dead).await;
    store.heartbeat(boot, 60_000).await.unwrap();
    assert_eq!(claim(&store, boot, 10).await, [], "a cancelled chunk is not taken over to be sent");
    assert_eq!(store.sweep(0).await.unwrap().complete, [id]);
    let view = settled(&store, id).await;
    assert_eq!((view.tally.delivered(), view.tally.count(Cancelled), view.interrupted), (1, 4, 1));
    // The dead one comes back with what it knows: facts are kept, and what was said stays.
    store.flush(outcomes(&Hold::from(&lost), &[(0, Delivered)])).await.unwrap();
    assert_eq!(store.fanout(id).await.unwrap(), Some(view));
}

pub async fn a_set_aside_fanout_can_be_cancelled(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[2]).await;
    for _ in 0..MAX_TAKEOVERS {
        let dead = instance(&store).await;
        assert_eq!(claim(&store, dead, 1).await.len(), 1);
        lapse(&store, dead).await;
        store.heartbeat(boot, 60_000).await.unwrap();
    }
    assert_eq!(store.fanout(id).await.unwrap().unwrap().state, FanoutState::SetAside);
    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);
    assert_eq!(settled(&store, id).await.tally.count(Cancelled), 2);
}

pub async fn a_freeze_stops_where_the_cancel_met_it(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 6).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    let mut first = whole(boot, &job, &keys[..4], &[2, 2]);
    first.last = false;
    first.claim_first = 1;
    let FreezeReply::Written(claimed) = store.freeze_step(first.clone()).await.unwrap() else { panic!() };
    let id = job.job.id;
    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);
    let mut second = whole(boot, &job, &keys[4..], &[2]);
    (second.from, second.first_chunk) = (keys[3], 2);
    assert_eq!(store.freeze_step(second).await.unwrap(), FreezeReply::Lost);
    assert_eq!(store.freeze_step(first).await.unwrap(), FreezeReply::Lost, "not even what was written is repeated");
    assert_eq!(store.take_freezes(boot, vec![], 9).await.unwrap(), [], "nobody goes on with it");
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open);
    store.flush(delivered(&claimed[0])).await.unwrap();
    let view = settled(&store, id).await;
    assert_eq!((view.tally.recipients(), view.tally.delivered(), view.tally.count(Cancelled)), (4, 2, 2));
}

pub async fn a_fanout_cancelled_before_its_freeze_settles_with_nobody(store: Shared) {
    let boot = instance(&store).await;
    let id = accept(&store, boot, "evt", Class::Urgent).await.job.id;
    assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);
    assert_eq!(settled(&store, id).await.tally.recipients(), 0);
}

/// Steps of a freeze, claims and a cancel at once: whatever comes first, nothing is left open.
pub async fn a_cancel_in_the_middle_of_everything_leaves_nothing_open(store: Shared) {
    let boot = instance(&store).await;
    for round in 0..10 {
        let name = format!("evt-{round}");
        let keys = followers(&store, &name, 12).await;
        let job = accept(&store, boot, &name, Class::Urgent).await;
        let id = job.job.id;
        let mut steps = Vec::new();
        for part in 0..3 {
            let mut step = whole(boot, &job, &keys[part * 4..part * 4 + 4], &[2, 2]);
            (step.first_chunk, step.last) = (part as i32 * 2, part == 2);
            step.from = if part == 0 { job.cursor } else { keys[part * 4 - 1] };
            steps.push(step);
        }
        let (freezer, claimer, canceller) = (store.clone(), store.clone(), store.clone());
        let freezing = tokio::spawn(async move {
            for step in steps {
                freezer.freeze_step(step).await.unwrap();
            }
        });
        let claiming = tokio::spawn(async move {
            let mut claimed = Vec::new();
            for _ in 0..4 {
                claimed.extend(claim(&claimer, boot, 1).await);
            }
            claimed
        });
        let cancelling = tokio::spawn(async move { canceller.cancel(id).await.unwrap() });
        freezing.await.unwrap();
        let claimed = claiming.await.unwrap();
        assert_eq!(cancelling.await.unwrap(), CancelReply::Cancelled);
        for chunk in &claimed {
            let ack = store.flush(rest(&Hold::from(chunk), Cancelled)).await.unwrap().pop().unwrap();
            assert!(ack.closed && ack.cancelled, "round {round}: {ack:?}");
        }
        let tally = settled(&store, id).await.tally;
        assert_eq!((tally.count(Cancelled), tally.pending()), (tally.recipients(), 0), "round {round}");
    }
}
