//! Freezing: pages of followers fixed into chunks, by one owner, each step once.

use fanfare::domain::batch::{Class, FanoutState};
use fanfare::domain::ids::DeviceKey;
use fanfare::domain::recipient::KindMask;
use fanfare::store::{FollowerPage, FreezeReply, FreezeStep, HANDOVER_MS, SettleReply};

use super::world::*;

pub async fn a_freeze_goes_on_across_pages_and_ends_in_chunks(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 1_200).await;
    let mut job = accept(&store, boot, "evt", Class::Urgent).await;
    let mut seen = Vec::new();
    loop {
        let page = FollowerPage { subject: "match:evt".into(), kinds: GOAL, after: job.cursor, limit: 500 };
        let found = store.follower_page(page).await.unwrap();
        let last = found.len() < 500;
        let first = job.next_chunk == 0;
        let step = FreezeStep { last, claim_first: usize::from(first), ..whole(boot, &job, &found, &[found.len()]) };
        let FreezeReply::Written(claimed) = store.freeze_step(step).await.unwrap() else { panic!("it is ours") };
        assert_eq!(claimed.len(), usize::from(first), "the first chunk only was claimed");
        assert!(
            claimed.iter().all(|c| c.epoch == 1 && c.keys == keys[..500] && c.recipients.iter().all(Option::is_some))
        );
        job.cursor = *found.last().unwrap();
        job.next_chunk += 1;
        seen.extend(found);
        let state = store.fanout(job.job.id).await.unwrap().unwrap().state;
        assert_eq!(state, if last { FanoutState::Sending } else { FanoutState::Freezing });
        if last {
            break;
        }
    }
    assert_eq!(seen, keys);
    assert_eq!(tally(&store, job.job.id).await.recipients(), 1_200);
    let claimed = claim(&store, boot, 10).await;
    assert_eq!(claimed.iter().map(|c| c.chunk.no).collect::<Vec<_>>(), [1, 2], "chunk 0 is claimed already");
    assert_eq!(claimed[1].keys, keys[1000..]);
}

pub async fn a_repeated_step_changes_nothing_and_answers_the_same(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 30).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    for last in [false, true] {
        let mut step = whole(boot, &job, &keys[..20], &[10, 10]);
        if last {
            step = whole(boot, &job, &keys[20..], &[10]);
            (step.from, step.first_chunk) = (keys[19], 2);
        }
        step.claim_first = 1;
        step.last = last;
        let first = store.freeze_step(step.clone()).await.unwrap();
        assert!(matches!(&first, FreezeReply::Written(c) if c.len() == 1), "{first:?}");
        assert_eq!(store.freeze_step(step).await.unwrap(), first);
        assert_eq!(tally(&store, job.job.id).await.recipients(), if last { 30 } else { 20 });
    }
}

pub async fn a_step_is_lost_once_another_instance_owns_the_freeze(store: Shared) {
    let (old, new) = (instance(&store).await, instance(&store).await);
    let keys = followers(&store, "evt", 20).await;
    let job = accept(&store, old, "evt", Class::Urgent).await;
    let first = FreezeStep { last: false, ..whole(old, &job, &keys[..10], &[10]) };
    store.freeze_step(first).await.unwrap();
    lapse(&store, old).await;
    store.heartbeat(new, 60_000).await.unwrap();
    let taken = store.take_freezes(new, vec![], 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].epoch, taken[0].cursor, taken[0].next_chunk), (2, keys[9], 1), "it goes on where it stood");
    assert_eq!(taken[0].job, job.job);
    let mut late = whole(old, &job, &keys[10..], &[10]);
    (late.from, late.first_chunk) = (keys[9], 1);
    assert_eq!(store.freeze_step(late).await.unwrap(), FreezeReply::Lost);
    assert_eq!(tally(&store, job.job.id).await.recipients(), 10);
    let rest = whole(new, &taken[0], &keys[10..], &[10]);
    assert_eq!(store.freeze_step(rest).await.unwrap(), FreezeReply::Written(vec![]));
    assert_eq!(tally(&store, job.job.id).await.recipients(), 20);
}

pub async fn a_freeze_of_a_live_instance_is_not_taken(store: Shared) {
    let (old, new) = (instance(&store).await, instance(&store).await);
    accept(&store, old, "evt", Class::Urgent).await;
    assert_eq!(store.take_freezes(new, vec![], 10).await.unwrap(), vec![]);
    store.leave(old).await.unwrap();
    let taken = store.take_freezes(new, vec![], 10).await.unwrap();
    assert_eq!(taken.len(), 1, "an orderly leave hands it back");
    assert_eq!(store.take_freezes(new, vec![], 10).await.unwrap(), vec![], "and it is taken once");
}

pub async fn an_own_freeze_lost_on_its_way_is_taken_unless_it_runs(store: Shared) {
    let boot = instance(&store).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    assert_eq!(store.take_freezes(boot, vec![], 10).await.unwrap(), vec![], "it may still be on its way");
    let taken = loop {
        assert_eq!(store.take_freezes(boot, vec![job.job.id], 10).await.unwrap(), vec![], "it runs");
        let taken = store.take_freezes(boot, vec![], 10).await.unwrap();
        let age = store.now_ms().await.unwrap() - job.job.accepted_ms;
        assert!(taken.is_empty() || age >= HANDOVER_MS, "taken after {age} ms");
        assert!(age < 20 * HANDOVER_MS, "never taken");
        if !taken.is_empty() {
            break taken;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!((taken[0].job.id, taken[0].epoch), (job.job.id, job.epoch + 1), "whoever still has it loses it");
}

pub async fn a_page_holds_only_followers_that_want_the_kind(store: Shared) {
    let corner = KindMask::only(5);
    for (id, mask) in [("a", GOAL), ("b", corner), ("c", GOAL.with(corner)), ("d", KindMask::NONE)] {
        store.put_device(device(id, id)).await.unwrap();
        store.put_follows(device_id(id), following("team:ars", mask)).await.unwrap();
    }
    let key = async |id: &str| store.device(device_id(id)).await.unwrap().unwrap().key;
    let (a, b, c) = (key("a").await, key("b").await, key("c").await);
    assert_eq!(page(&store, "team:ars", GOAL).await, [a, c]);
    assert_eq!(page(&store, "team:ars", GOAL.with(corner)).await, [a, b, c]);
    assert_eq!(page(&store, "team:che", GOAL).await, Vec::<DeviceKey>::new());
    let second = FollowerPage { subject: "team:ars".into(), kinds: KindMask::ALL, after: a, limit: 1 };
    assert_eq!(store.follower_page(second).await.unwrap(), [b], "after the cursor, and no more than asked");
}

pub async fn a_fanout_without_followers_is_complete_after_its_last_step(store: Shared) {
    let boot = instance(&store).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    assert_eq!(store.sweep(0).await.unwrap().complete, []);
    let step = whole(boot, &job, &[], &[]);
    assert_eq!(store.freeze_step(step).await.unwrap(), FreezeReply::Written(vec![]));
    assert_eq!(store.sweep(0).await.unwrap().complete, [job.job.id]);
    let SettleReply::Settled(settled) = store.settle(job.job.id).await.unwrap() else { panic!("it is complete") };
    assert_eq!((settled.view.state, settled.view.tally.recipients()), (FanoutState::Done, 0));
}

pub async fn rows_that_come_and_go_between_two_pages_are_frozen_once_or_not_at_all(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 9).await;
    let mut job = accept(&store, boot, "evt", Class::Urgent).await;
    let next = async |after| {
        let page = FollowerPage { subject: "match:evt".into(), kinds: GOAL, after, limit: 4 };
        store.follower_page(page).await.unwrap()
    };
    let first = next(job.cursor).await;
    assert_eq!(first, keys[..4]);
    // One of the page that was read, before it is written; one that is still to be read; a newcomer; one who returns.
    for gone in ["evt-2", "evt-6", "evt-7"] {
        assert!(store.delete_device(device_id(gone)).await.unwrap());
    }
    for (id, token) in [("late", "token-late"), ("evt-7", "token-back")] {
        store.put_device(device(id, token)).await.unwrap();
        store.put_follows(device_id(id), following("match:evt", KindMask::ALL)).await.unwrap();
    }
    let step = FreezeStep { last: false, ..whole(boot, &job, &first, &[4]) };
    assert_eq!(store.freeze_step(step).await.unwrap(), FreezeReply::Written(vec![]));
    (job.cursor, job.next_chunk) = (first[3], 1);
    let second = next(job.cursor).await;
    assert_eq!(second[..3], [keys[4], keys[5], keys[8]], "whoever was deleted before they were read is not frozen");
    let rest = next(second[3]).await;
    let newcomers = [second[3], rest[0]];
    assert!(rest.len() == 1 && newcomers.iter().all(|key| *key > keys[8]), "no key is given twice: {newcomers:?}");
    let all = [second, rest].concat();
    assert_eq!(store.freeze_step(whole(boot, &job, &all, &[5])).await.unwrap(), FreezeReply::Written(vec![]));
    let claimed = claim(&store, boot, 9).await;
    assert_eq!(claimed.iter().flat_map(|c| &c.keys).copied().collect::<Vec<_>>(), [&keys[..4], &all].concat());
    let gone: Vec<_> = claimed.iter().map(|c| c.recipients.iter().filter(|r| r.is_none()).count()).collect();
    assert_eq!(gone, [1, 0], "deleted after it was frozen");
}
