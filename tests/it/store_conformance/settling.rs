//! Settling: once, for good, with verdicts that hold only for what they were found on.

use std::sync::Arc;

use fanfare::domain::batch::FanoutState;
use fanfare::domain::ids::FanoutId;
use fanfare::domain::outcome::Outcome::{self, Delivered, Expired, Payload, TokenDead, TokenForeign, TokenInvalid};
use fanfare::domain::recipient::DeviceState;
use fanfare::domain::tally::PartCounters;
use fanfare::store::{DEAD_SHARE_MIN, FanoutQuery, Leap, SettleReply};
use tokio::sync::Barrier;

use super::world::*;

pub async fn exactly_one_of_eight_callers_settles(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[2, 2]).await;
    for chunk in claim(&store, boot, 2).await {
        store.flush(delivered(&chunk)).await.unwrap();
    }
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.settle(id).await.unwrap() })
        })
        .collect();
    let mut settled = 0;
    for caller in callers {
        match caller.await.unwrap() {
            SettleReply::Settled(line) => {
                settled += 1;
                assert_eq!((line.view.tally.delivered(), line.view.state), (4, FanoutState::Done));
                assert!(line.view.settled_ms.is_some());
            }
            SettleReply::NotOurs => {}
            SettleReply::Open => panic!("every chunk is closed"),
        }
    }
    assert_eq!(settled, 1);
    assert_eq!(store.settle(FanoutId(i64::MAX)).await.unwrap(), SettleReply::NotOurs);
    assert_eq!(store.backlog().await.unwrap().fanouts(), 0);
}

pub async fn of_two_that_close_the_last_chunks_at_once_one_settles(store: Shared) {
    let boot = instance(&store).await;
    for round in 0..20 {
        let id = frozen(&store, boot, &format!("evt-{round}"), &[1, 1]).await;
        let start = Arc::new(Barrier::new(2));
        let closers: Vec<_> = claim(&store, boot, 2)
            .await
            .into_iter()
            .map(|chunk| {
                let (store, start) = (store.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    assert!(store.flush(delivered(&chunk)).await.unwrap()[0].closed);
                    matches!(store.settle(id).await.unwrap(), SettleReply::Settled(_))
                })
            })
            .collect();
        let mut settled = 0;
        for closer in closers {
            settled += u32::from(closer.await.unwrap());
        }
        assert_eq!(settled, 1, "round {round}");
    }
}

pub async fn a_fanout_with_an_open_chunk_or_freeze_stays_open(store: Shared) {
    let boot = instance(&store).await;
    let freezing = accept(&store, boot, "freezing", fanfare::domain::batch::Class::Urgent).await.job.id;
    assert_eq!(store.settle(freezing).await.unwrap(), SettleReply::Open);
    let id = frozen(&store, boot, "evt", &[1, 1]).await;
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open, "both chunks are open");
    let chunks = claim(&store, boot, 2).await;
    store.flush(delivered(&chunks[0])).await.unwrap();
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open, "one is owned still");
    store.flush(rest(&Hold::from(&chunks[1]), Expired)).await.unwrap();
    assert_eq!(settle(&store, id).await.view.tally.count(Expired), 1);
}

pub async fn a_settled_tally_never_changes(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 5).await;
    let hold = Hold::from(&chunk);
    store.put_parts(boot, vec![(id, PartCounters { attempts: 3, ..PartCounters::default() })]).await.unwrap();
    assert_eq!(store.flush(outcomes(&hold, &[(0, Delivered), (1, Payload)])).await.unwrap()[0].late, 0);
    assert_eq!(store.flush(rest(&hold, Expired)).await.unwrap()[0].late, 0, "before it is settled nothing is late");
    let settled = settle(&store, id).await;
    assert_eq!(store.fanout(id).await.unwrap().as_ref(), Some(&settled.view));
    // Late facts and late counters are kept, and change nothing that was said.
    let late = outcomes(&hold, &[(0, Delivered), (1, Delivered), (2, Delivered), (3, TokenDead)]);
    let counted = async |batch| store.flush(batch).await.unwrap()[0].late;
    assert_eq!(counted(late.clone()).await, 3, "one was failed and is delivered, two had no outcome of their own");
    assert_eq!(counted(late).await, 0, "a repeated flush brings nothing new");
    store.put_parts(boot, vec![(id, PartCounters { attempts: 9, ..PartCounters::default() })]).await.unwrap();
    assert_eq!(store.fanout(id).await.unwrap(), Some(settled.view));
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::NotOurs);
}

pub async fn a_verdict_holds_only_for_the_version_it_was_found_on(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 6).await;
    let found = [(0, TokenDead), (1, TokenDead), (2, TokenInvalid), (3, TokenForeign), (4, TokenDead), (5, Payload)];
    store.flush(outcomes(&Hold::from(&chunk), &found)).await.unwrap();
    // Since the send, one device got a new token, and one proved alive to another sender.
    store.put_device(device("evt-1", "fresh")).await.unwrap();
    store.flush(outcomes(&Hold::from(&chunk), &[(4, Delivered)])).await.unwrap();
    let settled = settle(&store, id).await;
    assert_eq!((settled.judged, settled.withheld), (3, vec![]));
    let mut states = Vec::new();
    for i in 0..6 {
        states.push(state_of(&store, &format!("evt-{i}")).await);
    }
    use DeviceState::{Live, Suspended, Tombstoned};
    assert_eq!(states, [Tombstoned, Live, Suspended, Suspended, Live, Live]);
    assert_eq!(store.device(device_id("evt-0")).await.unwrap().unwrap().version, 2, "a verdict is a new version");
}

pub async fn judgement_is_withheld_when_the_dead_share_leaps(store: Shared) {
    let boot = instance(&store).await;
    let many = DEAD_SHARE_MIN as usize;
    for (name, n, withheld) in [("leap", many * 2, true), ("few", many * 10, false)] {
        let (id, chunk) = one_chunk(&store, boot, name, n).await;
        let found: Vec<(usize, Outcome)> = (0..n).map(|i| (i, if i < many { TokenDead } else { Delivered })).collect();
        store.flush(outcomes(&Hold::from(&chunk), &found)).await.unwrap();
        let settled = settle(&store, id).await;
        assert_eq!(!settled.withheld.is_empty(), withheld, "{name}");
        assert_eq!(settled.judged, if withheld { 0 } else { many as u64 }, "{name}");
        // For whoever tells of it when the one that settled it has died, and for how the guard stands.
        let swept = store.sweep(0).await.unwrap();
        assert_eq!(swept.unreported.last(), Some(&settled), "{name}");
        let stands = settled.withheld.iter().map(|withheld| Leap { fanout: id, withheld: *withheld });
        assert_eq!(swept.leaps, stands.collect::<Vec<_>>(), "{name}: the last word");
        assert_eq!(settled.view.tally.count(TokenDead), many as u64, "what was found is said all the same");
        let expected = if withheld { DeviceState::Live } else { DeviceState::Tombstoned };
        assert_eq!(state_of(&store, &format!("{name}-0")).await, expected, "{name}");
    }
}

pub async fn judged_devices_are_not_followers_any_more(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 3).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, TokenDead), (1, Delivered), (2, TokenInvalid)])).await.unwrap();
    settle(&store, id).await;
    assert_eq!(page(&store, "match:evt", GOAL).await, chunk.keys[1..2]);
    let dead = store.device(device_id("evt-0")).await.unwrap().unwrap();
    assert_eq!(dead.follows.subjects.len(), 1, "what it followed is kept for its return");
}

pub async fn the_sweep_finds_what_is_complete_and_what_is_unreported(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[1]).await;
    assert_eq!(store.sweep(0).await.unwrap(), Default::default());
    let chunk = claim(&store, boot, 1).await.pop().unwrap();
    store.flush(delivered(&chunk)).await.unwrap();
    assert_eq!(store.sweep(0).await.unwrap().complete, [id]);
    let settled = settle(&store, id).await;
    let swept = store.sweep(0).await.unwrap();
    assert_eq!((swept.complete, swept.unreported), (vec![], vec![settled]));
    assert_eq!(store.sweep(60_000).await.unwrap(), Default::default(), "its own settler still has time to write it");
    store.mark_reported(id).await.unwrap();
    assert_eq!(store.sweep(0).await.unwrap(), Default::default());
}

pub async fn a_list_of_a_window_of_time_has_what_was_accepted_in_it(store: Shared) {
    let boot = instance(&store).await;
    assert_eq!(store.open_since().await.unwrap().1, None);
    let mut accepted = Vec::new();
    for name in ["a", "b", "c"] {
        let id = frozen(&store, boot, name, &[1]).await;
        accepted.push((store.fanout(id).await.unwrap().unwrap().accepted_ms, id));
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    let (now_ms, oldest) = store.open_since().await.unwrap();
    assert_eq!(oldest, Some(accepted[0].0));
    assert!(now_ms >= accepted[2].0);
    let within = async |from, to| {
        let query = FanoutQuery { accepted: Some((from, to)), limit: 10, ..FanoutQuery::default() };
        store.fanouts(query).await.unwrap().iter().map(|view| view.id).collect::<Vec<_>>()
    };
    let [(first, a), (second, b), (third, c)] = accepted[..] else { panic!("{accepted:?}") };
    assert_eq!(within(first, third + 1).await, [c, b, a]);
    assert_eq!(within(first, third).await, [b, a], "the second time is not of the window");
    assert_eq!(within(second, third + 1).await, [c, b], "the first is");
    let chunk = claim(&store, boot, 3).await.into_iter().find(|chunk| chunk.chunk.fanout == a).unwrap();
    store.flush(delivered(&chunk)).await.unwrap();
    assert_eq!(store.open_since().await.unwrap().1, Some(first), "all its outcomes are known, but it is not settled");
    settle(&store, a).await;
    assert_eq!(store.open_since().await.unwrap().1, Some(second));
}

pub async fn lists_are_newest_first_and_filtered_by_state(store: Shared) {
    let boot = instance(&store).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.insert(0, frozen(&store, boot, name, &[1]).await);
    }
    let chunk = claim(&store, boot, 3).await.into_iter().find(|c| c.chunk.fanout == ids[1]).unwrap();
    store.flush(delivered(&chunk)).await.unwrap();
    settle(&store, ids[1]).await;
    let list = async |state, before, limit| {
        let views = store.fanouts(FanoutQuery { state, before, limit, accepted: None }).await.unwrap();
        views.iter().map(|view| view.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None, 10).await, ids);
    assert_eq!(list(None, None, 2).await, ids[..2]);
    assert_eq!(list(None, Some(ids[0]), 10).await, ids[1..]);
    assert_eq!(list(Some(FanoutState::Done), None, 10).await, ids[1..2]);
    assert_eq!(list(Some(FanoutState::Sending), None, 10).await, [ids[0], ids[2]]);
}
