//! Claiming: who gets which chunk, and whom it is sent to now.

use std::collections::BTreeSet;
use std::sync::Arc;

use fanfare::domain::batch::Class;
use fanfare::domain::derived::{Pause, PauseReason};
use fanfare::domain::ids::DeviceKey;
use fanfare::domain::outcome::Outcome;
use fanfare::domain::recipient::Address;
use fanfare::store::{Accepted, ClaimRequest, FreezeReply, NewFanout, NewSweep, Open, SweepBegun};

use tokio::sync::Barrier;

use super::world::*;

pub async fn chunks_are_claimed_by_class_and_then_by_rank(store: Shared) {
    let boot = instance(&store).await;
    let mut expected = Vec::new();
    for (id, class, ranks) in
        [("bulk", Class::Bulk, [1, 2]), ("late", Class::Urgent, [30, 40]), ("soon", Class::Urgent, [20, 50])]
    {
        let keys = followers(&store, id, 2).await;
        let job = accept(&store, boot, id, class).await;
        let mut step = whole(boot, &job, &keys, &[1, 1]);
        step.ranks = ranks.to_vec();
        assert_eq!(store.freeze_step(step).await.unwrap(), FreezeReply::Written(vec![]));
        expected.extend(ranks.map(|rank| (class, rank)));
    }
    expected.sort_unstable();
    let mut got = Vec::new();
    for want in [1, 3, 10] {
        got.extend(claim(&store, boot, want).await.iter().map(|c| (c.class, c.rank)));
    }
    assert_eq!(got, expected);
}

pub async fn only_what_goes_before_a_place_is_claimed_when_asked(store: Shared) {
    let boot = instance(&store).await;
    for (id, class) in [("n", Class::Normal), ("b", Class::Bulk)] {
        let keys = followers(&store, id, 1).await;
        let job = accept(&store, boot, id, class).await;
        let mut step = whole(boot, &job, &keys, &[1]);
        step.ranks = vec![5];
        store.freeze_step(step).await.unwrap();
    }
    let ahead = async |class, rank| {
        let claimed = store.claim(ClaimRequest { boot, want: 10, of: Open::AheadOf(class, rank) }).await.unwrap();
        claimed.iter().map(|c| (c.class, c.rank)).collect::<Vec<_>>()
    };
    assert_eq!(ahead(Class::Urgent, i64::MAX).await, []);
    assert_eq!(ahead(Class::Normal, 5).await, [], "its own place is not ahead of it");
    assert_eq!(ahead(Class::Bulk, 5).await, [(Class::Normal, 5)]);
    assert_eq!(ahead(Class::Bulk, 6).await, [(Class::Bulk, 5)]);
}

pub async fn what_is_overdue_is_claimed_by_itself(store: Shared) {
    let boot = instance(&store).await;
    let frozen_for = async |id: &str, lasts_ms: i64| {
        let keys = followers(&store, id, 3).await;
        let deadline_ms = store.now_ms().await.unwrap() + lasts_ms;
        let new = NewFanout { deadline_ms, ..posted(id, Class::Normal, 1) };
        let Accepted::New(job) = store.accept(boot, new).await.unwrap() else { panic!("{id} is new") };
        store.freeze_step(whole(boot, &job, &keys, &[1, 1, 1])).await.unwrap();
        job.job.id
    };
    frozen_for("in-time", 600_000).await;
    let over = frozen_for("over", 0).await;
    let overdue = async |want| {
        let claimed = store.claim(ClaimRequest { boot, want, of: Open::Overdue }).await.unwrap();
        claimed.iter().map(|c| c.chunk.fanout).collect::<Vec<_>>()
    };
    assert_eq!(overdue(2).await, [over, over]);
    assert_eq!(overdue(9).await, [over]);
    assert_eq!(overdue(9).await, []);
    assert_eq!(claim(&store, boot, 9).await.len(), 3, "the others are left alone");
}

pub async fn others_are_those_of_which_nothing_is_in_hand(store: Shared) {
    let boot = instance(&store).await;
    let (sick, small) = (frozen(&store, boot, "sick", &[1, 1, 1]).await, frozen(&store, boot, "small", &[1, 1]).await);
    assert_eq!(claim(&store, boot, 1).await[0].chunk.fanout, sick);
    let others = async |boot| {
        let claimed = store.claim(ClaimRequest { boot, want: 1, of: Open::Others }).await.unwrap();
        claimed.iter().map(|c| c.chunk.fanout).collect::<Vec<_>>()
    };
    assert_eq!(others(boot).await, [small]);
    assert_eq!(others(boot).await, [], "there is no other");
    let neighbour = instance(&store).await;
    assert_eq!(others(neighbour).await, [sick], "who owns nothing takes the first");
}

pub async fn the_floor_is_the_first_chunk_of_the_least_urgent_class(store: Shared) {
    let boot = instance(&store).await;
    for (id, class) in [("u", Class::Urgent), ("n", Class::Normal), ("b", Class::Bulk)] {
        let keys = followers(&store, id, 2).await;
        let job = accept(&store, boot, id, class).await;
        let mut step = whole(boot, &job, &keys, &[1, 1]);
        step.ranks = vec![7, 3];
        store.freeze_step(step).await.unwrap();
    }
    let floor = async |than| {
        let claimed = store.claim_floor(boot, than).await.unwrap();
        claimed.iter().map(|c| (c.class, c.rank)).collect::<Vec<_>>()
    };
    assert_eq!(floor(Class::Bulk).await, [], "nothing is less urgent");
    assert_eq!(floor(Class::Urgent).await, [(Class::Bulk, 3)]);
    assert_eq!(floor(Class::Normal).await, [(Class::Bulk, 7)]);
    assert_eq!(floor(Class::Normal).await, [], "the least urgent class that is left is that in hand");
    assert_eq!(floor(Class::Urgent).await, [(Class::Normal, 3)]);
    assert_eq!(claim(&store, boot, 9).await.len(), 3, "they are owned like any other");
}

pub async fn the_floor_passes_by_what_is_paused_or_waits(store: Shared) {
    let boot = instance(&store).await;
    let frozen_as = async |id: &str, class, sizes: &[usize]| {
        let keys = followers(&store, id, sizes.iter().sum()).await;
        let job = accept(&store, boot, id, class).await;
        store.freeze_step(whole(boot, &job, &keys, sizes)).await.unwrap();
        job.job.id
    };
    frozen_as("waits", Class::Bulk, &[1]).await;
    let waits = claim(&store, boot, 1).await.pop().unwrap();
    let later = store.now_ms().await.unwrap() + 60_000;
    store.release(boot, vec![(waits.chunk, waits.epoch)], later).await.unwrap();

    let keys = followers(&store, "swept", 1).await;
    let event = event("swept");
    let new = NewSweep { event, after: DeviceKey(0), max_attempts: 9, accept_dead_percent: None, lasts_ms: 60_000 };
    let SweepBegun::Begun(sweep) = store.begin_sweep(boot, new).await.unwrap() else { panic!("there is no other") };
    store.freeze_step(whole(boot, &sweep, &keys, &[1])).await.unwrap();
    store.pause(vec![Pause { fanout: sweep.job.id, reason: PauseReason::Throttle, resumed: 0 }]).await.unwrap();

    frozen_as("normal", Class::Normal, &[1, 1]).await;
    frozen_as("urgent", Class::Urgent, &[1]).await;
    let floor =
        async || store.claim_floor(boot, Class::Urgent).await.unwrap().iter().map(|c| c.class).collect::<Vec<_>>();
    assert_eq!(floor().await, [Class::Normal], "the least urgent that may be sent now");
    assert_eq!(floor().await, [Class::Normal]);
    assert_eq!(floor().await, []);
    assert_eq!(claim(&store, boot, 9).await.iter().map(|c| c.class).collect::<Vec<_>>(), [Class::Urgent]);
}

pub async fn two_claimers_never_get_the_same_chunk(store: Shared) {
    let boot = instance(&store).await;
    frozen(&store, boot, "evt", &[1; 400]).await;
    let mut claimers = Vec::new();
    let start = Arc::new(Barrier::new(6));
    for _ in 0..6 {
        let (store, start) = (store.clone(), start.clone());
        claimers.push(tokio::spawn(async move {
            let boot = instance(&store).await;
            start.wait().await;
            let mut mine = Vec::new();
            loop {
                let got = claim(&store, boot, 3).await;
                if got.is_empty() {
                    break mine;
                }
                mine.extend(got.into_iter().map(|c| (c.chunk.no, c.epoch)));
            }
        }));
    }
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.unwrap());
    }
    assert!(all.iter().all(|(_, epoch)| *epoch == 1), "each was claimed for the first time");
    assert_eq!(all.len(), 400);
    assert_eq!(all.iter().map(|(no, _)| no).collect::<BTreeSet<_>>().len(), 400);
}

pub async fn a_claim_looks_up_the_token_of_now_and_reports_who_is_gone(store: Shared) {
    let boot = instance(&store).await;
    frozen(&store, boot, "evt", &[4]).await;
    store.put_device(device("evt-1", "rotated")).await.unwrap();
    store
        .put_device({
            let mut d = device("evt-2", "");
            d.address = Address::Fid("fid-2".into());
            d
        })
        .await
        .unwrap();
    assert!(store.delete_device(device_id("evt-3")).await.unwrap());
    let chunk = claim(&store, boot, 1).await.pop().unwrap();
    let addresses: Vec<_> = chunk.recipients.iter().map(|r| r.as_ref().map(|r| r.address.clone())).collect();
    let token = |t: &str| Some(Address::Token(t.to_owned()));
    assert_eq!(addresses, [token("token-evt-0"), token("rotated"), Some(Address::Fid("fid-2".into())), None]);
    assert_eq!(chunk.recipients[1].as_ref().unwrap().version, 2);
    let keys: Vec<_> = chunk.recipients.iter().flatten().map(|r| r.key).collect();
    assert_eq!(keys, chunk.keys[..3], "the frozen order stays");
    assert_eq!((chunk.done.count(), chunk.done.len(), chunk.maybe.count()), (0, 4, 0));
}

pub async fn a_released_chunk_waits_until_its_time_and_is_not_unclean(store: Shared) {
    let boot = instance(&store).await;
    let (_, chunk) = one_chunk(&store, boot, "evt", 3).await;
    let now = store.now_ms().await.unwrap();
    store.release(boot, vec![(chunk.chunk, chunk.epoch)], now + 60_000).await.unwrap();
    assert_eq!(claim(&store, boot, 1).await, []);
    let acks = store.flush(outcomes(&Hold::from(&chunk), &[])).await.unwrap();
    assert!(!acks[0].owned && !acks[0].closed, "{acks:?}");

    let (_, other) = one_chunk(&store, boot, "other", 3).await;
    store.release(boot, vec![(other.chunk, other.epoch)], 0).await.unwrap();
    let again = claim(&store, boot, 1).await.pop().unwrap();
    assert_eq!((again.chunk, again.epoch, again.maybe.count()), (other.chunk, other.epoch + 1, 0));
}

pub async fn an_instance_finds_what_it_owns_without_having_been_told(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 6).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    let mut step = whole(boot, &job, &keys, &[2, 2, 1, 1]);
    step.claim_first = 1;
    // As if the answers to both had been lost.
    let FreezeReply::Written(mut lost) = store.freeze_step(step).await.unwrap() else { panic!("it is ours") };
    lost.extend(claim(&store, boot, 2).await);
    assert_eq!(lost.len(), 3);
    assert_eq!(store.owned(boot).await.unwrap(), lost);
    assert_eq!(store.owned(boot).await.unwrap(), lost, "looking changes nothing");
    assert_eq!(store.owned(instance(&store).await).await.unwrap(), [], "another instance owns none of them");

    store.flush(delivered(&lost[0])).await.unwrap();
    store.flush(outcomes(&Hold::from(&lost[1]), &[(1, Outcome::Delivered)])).await.unwrap();
    store.release(boot, vec![(lost[2].chunk, lost[2].epoch)], 0).await.unwrap();
    let left = store.owned(boot).await.unwrap();
    assert_eq!(left.len(), 1, "neither a closed nor a released chunk is owned");
    assert_eq!((left[0].chunk, left[0].epoch, left[0].done.clone()), (lost[1].chunk, lost[1].epoch, bits(2, [1])));
}

pub async fn a_release_under_an_old_epoch_changes_nothing(store: Shared) {
    let boot = instance(&store).await;
    let (_, chunk) = one_chunk(&store, boot, "evt", 3).await;
    store.release(boot, vec![(chunk.chunk, chunk.epoch + 1)], 0).await.unwrap();
    store.release(instance(&store).await, vec![(chunk.chunk, chunk.epoch)], 0).await.unwrap();
    assert_eq!(claim(&store, boot, 1).await, []);
    assert!(store.flush(outcomes(&Hold::from(&chunk), &[])).await.unwrap()[0].owned);
}

pub async fn a_chunk_that_was_put_off_is_open_once_it_is_called_back(store: Shared) {
    let boot = instance(&store).await;
    let (_, chunk) = one_chunk(&store, boot, "evt", 3).await;
    let later = store.now_ms().await.unwrap() + 60_000;
    store.release(boot, vec![(chunk.chunk, chunk.epoch)], later).await.unwrap();
    store.recall(vec![(chunk.chunk, chunk.epoch - 1)]).await.unwrap();
    assert_eq!(claim(&store, boot, 1).await, [], "an earlier owner's word");
    store.recall(vec![(chunk.chunk, chunk.epoch)]).await.unwrap();
    let other = instance(&store).await;
    let again = claim(&store, other, 1).await.pop().unwrap();
    assert_eq!((again.chunk, again.epoch, again.maybe.count()), (chunk.chunk, chunk.epoch + 1, 0));

    // Whoever has claimed it since owns it, and what they put off stays so.
    store.recall(vec![(chunk.chunk, again.epoch)]).await.unwrap();
    assert!(store.flush(outcomes(&Hold::from(&again), &[])).await.unwrap()[0].owned);
    store.release(other, vec![(again.chunk, again.epoch)], later).await.unwrap();
    store.recall(vec![(chunk.chunk, chunk.epoch)]).await.unwrap();
    assert_eq!(claim(&store, boot, 1).await, []);
}
