//! What is told of one device in one fan-out: its place, found among many chunks, and what bears on its absence.

use fanfare::domain::batch::{Class, FanoutState};
use fanfare::domain::ids::{DeviceKey, FanoutId};
use fanfare::domain::outcome::Cause;
use fanfare::domain::outcome::Outcome::{Delivered, Expired, TokenDead};
use fanfare::domain::recipient::{DeviceState, Follows, KindMask};
use fanfare::store::{CancelReply, ChunkState, Explained, SettleReply};

use super::world::*;

async fn explain(store: &Shared, id: FanoutId, device: &str) -> Explained {
    store.explain(id, device_id(device)).await.unwrap().expect("the fan-out is there")
}

pub async fn every_recipient_is_found_in_its_chunk(store: Shared) {
    let boot = instance(&store).await;
    let sizes = [3, 1, 7, 2, 2, 500, 1];
    let id = frozen(&store, boot, "evt", &sizes).await;
    let mut device = 0;
    for (no, size) in sizes.iter().enumerate() {
        // The first and the last of each chunk are where a search goes wrong.
        for at in [0, size - 1] {
            let told = explain(&store, id, &format!("evt-{}", device + at)).await;
            let place = told.place.unwrap_or_else(|| panic!("device {} of chunk {no}", device + at));
            assert_eq!((place.chunk.no, place.state, place.owner), (no as i32, ChunkState::Open, None));
            assert_eq!(Some(place.key), told.device.map(|known| known.view.key));
            assert!(!place.done && !place.ok && !place.maybe && place.rest.is_none() && place.failure.is_none());
        }
        device += size;
    }
    followers(&store, "late", 1).await;
    assert_eq!(explain(&store, id, "late-0").await.place, None, "above every key");
    let second = frozen(&store, boot, "second", &[2]).await;
    assert_eq!(explain(&store, second, "evt-0").await.place, None, "below every key");
    assert_eq!(store.explain(FanoutId(i64::MAX), device_id("evt-0")).await.unwrap(), None);
}

pub async fn an_outcome_is_told_with_all_that_is_kept_of_it(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 4).await;
    let hold = Hold::from(&chunk);
    store.flush(outcomes(&hold, &[(0, Delivered), (1, TokenDead)])).await.unwrap();
    let place = async |i: usize| explain(&store, id, &format!("evt-{i}")).await.place.unwrap();
    let waiting = place(3).await;
    assert_eq!((waiting.state, waiting.owner, waiting.done), (ChunkState::Owned, Some((boot, true)), false));
    assert!(place(0).await.ok);
    let failure = place(1).await.failure.unwrap();
    assert_eq!((failure.outcome, failure.status, failure.attempts), (TokenDead, 404, 1));
    assert_eq!((failure.text.as_str(), failure.variant.as_str()), (failure.text.as_str(), "goal/de/android"));
    assert!(failure.device_version == 1 && failure.at_ms > 1_600_000_000_000, "{failure:?}");

    store.flush(rest(&hold, Expired)).await.unwrap();
    let ended = place(2).await;
    let rest = ended.rest.unwrap();
    assert_eq!((ended.state, rest.outcome, rest.cause), (ChunkState::Closed, Expired, Cause::Queue));
    // Whoever is proved delivered later has failed no more.
    store.flush(outcomes(&hold, &[(1, Delivered)])).await.unwrap();
    assert!(place(1).await.ok && place(1).await.failure.is_none());
}

pub async fn a_lost_owner_is_told_from_a_live_one(store: Shared) {
    let (boot, dead) = (instance(&store).await, instance(&store).await);
    let (id, _) = one_chunk(&store, dead, "evt", 2).await;
    lapse(&store, dead).await;
    let place = explain(&store, id, "evt-0").await.place.unwrap();
    assert_eq!((place.owner, place.maybe), (Some((dead, false)), false));
    store.heartbeat(boot, 60_000).await.unwrap();
    let place = explain(&store, id, "evt-0").await.place.unwrap();
    assert_eq!((place.state, place.owner, place.maybe), (ChunkState::Open, None, true), "it may have been in flight");
}

pub async fn what_bears_on_an_absence_is_kept_with_its_time(store: Shared) {
    let boot = instance(&store).await;
    followers(&store, "evt", 2).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    let (id, accepted) = (job.job.id, job.job.accepted_ms);
    let known = explain(&store, id, "evt-0").await.device.unwrap();
    assert!(known.created_ms > 0 && known.created_ms <= accepted && known.follows_ms <= accepted, "{known:?}");
    assert_eq!(known.state_ms, 0);

    let later = async |wait_for: i64| while store.now_ms().await.unwrap() <= wait_for {};
    later(accepted).await;
    let nothing = Follows { subjects: vec![], muted: KindMask::NONE };
    assert!(store.put_follows(device_id("evt-0"), nothing).await.unwrap());
    let known = explain(&store, id, "evt-0").await.device.unwrap();
    assert!(known.created_ms <= accepted && known.follows_ms > accepted, "{known:?}");
    // Registering again changes neither, and an import that says nothing of follows does not either.
    let untouched = explain(&store, id, "evt-1").await.device.unwrap();
    store.put_device(device("evt-1", "another-token")).await.unwrap();
    let known = explain(&store, id, "evt-1").await.device.unwrap();
    assert_eq!((known.created_ms, known.follows_ms), (untouched.created_ms, untouched.follows_ms));
    store.put_device(device("late", "late-token")).await.unwrap();
    assert!(explain(&store, id, "late").await.device.unwrap().created_ms > accepted);
    assert_eq!(explain(&store, id, "late").await.state, FanoutState::Freezing);
    let nobody = explain(&store, id, "nobody").await;
    assert_eq!((nobody.device, nobody.former, nobody.place), (None, vec![], None));
}

pub async fn a_deleted_device_keeps_its_place(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 3).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, TokenDead)])).await.unwrap();
    assert!(store.delete_device(device_id("evt-0")).await.unwrap());
    // Its token goes to another device, and it is gone by that.
    store.put_device(device("heir", "token-evt-1")).await.unwrap();
    for (name, key) in [("evt-0", chunk.keys[0]), ("evt-1", chunk.keys[1])] {
        let told = explain(&store, id, name).await;
        assert_eq!((told.device, told.former[0].key, told.place.unwrap().key), (None, key, key), "{name}");
    }
    // The id comes back as another device: the place is still that of the one before.
    store.put_device(device("evt-0", "token-again")).await.unwrap();
    let told = explain(&store, id, "evt-0").await;
    assert_ne!(told.device.unwrap().view.key, chunk.keys[0]);
    assert_eq!(told.place.unwrap().key, chunk.keys[0]);
}

pub async fn a_freeze_cut_short_is_told_from_one_that_ended(store: Shared) {
    let boot = instance(&store).await;
    let cut = accept(&store, boot, "cut", Class::Urgent).await.job.id;
    let ended = frozen(&store, boot, "ended", &[1]).await;
    for id in [cut, ended] {
        assert_eq!(store.cancel(id).await.unwrap(), CancelReply::Cancelled);
        assert!(matches!(store.settle(id).await.unwrap(), SettleReply::Settled(_)));
    }
    let told = explain(&store, cut, "nobody").await;
    assert_eq!((told.cut, told.cursor, told.state), (true, DeviceKey(0), FanoutState::Cancelled));
    assert!(!explain(&store, ended, "nobody").await.cut);
    let dead = explain(&store, ended, "ended-0").await.device.unwrap();
    assert_eq!((dead.view.state, dead.state_ms), (DeviceState::Live, 0));
}
