//! Owns the tests of the chunks in hand.
//! Must never know: anything outside the room.

use super::*;
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Origin;
use crate::domain::event::Event;
use crate::domain::ids::DeviceKey;
use crate::domain::ids::{EventId, MatchId};
use crate::domain::outcome::Outcome;
use crate::domain::recipient::Recipient;
use crate::domain::recipient::{Address, Locale, Platform};
use crate::fanout::decide::Delivery;

fn job(id: i64, class: Class) -> Arc<FanoutJob> {
    let event = Event {
        id: EventId::parse("e").unwrap(),
        kind: "goal".into(),
        match_id: MatchId::parse("m").unwrap(),
        occurred_ms: 0,
        subjects: vec!["match:m".into()],
        fields: BTreeMap::new(),
        data: BTreeMap::new(),
        useful_for_s: 120,
        supersedes: None,
    };
    Arc::new(FanoutJob {
        id: FanoutId(id),
        event,
        class,
        accepted_ms: 0,
        deadline_ms: 120_000,
        origin: Origin::default(),
    })
}

fn recipient(key: i64) -> Recipient {
    let address = Address::Token(format!("t{key}"));
    Recipient { key: DeviceKey(key), address, platform: Platform::Android, locale: Locale::default(), version: 1 }
}

fn claimed(fanout: i64, class: Class, rank: i64, n: i64) -> ClaimedChunk {
    ClaimedChunk {
        chunk: ChunkRef { fanout: FanoutId(fanout), no: 0 },
        epoch: 1,
        class,
        rank,
        recipients: (0..n).map(|k| Some(recipient(k))).collect(),
        keys: (0..n).map(DeviceKey).collect(),
        done: Bitmap::new(usize::try_from(n).unwrap()),
        maybe: Bitmap::new(usize::try_from(n).unwrap()),
    }
}

#[test]
fn the_most_urgent_chunk_goes_first_and_bulk_keeps_its_floor() {
    let mut hand = Hand::default();
    hand.add(claimed(1, Class::Bulk, 0, 400), job(1, Class::Bulk));
    hand.add(claimed(2, Class::Urgent, 9, 400), job(2, Class::Urgent));
    let picks: Vec<Class> = (0..200).map(|_| hand.pick().unwrap().key.class).collect();
    assert_eq!(picks.iter().filter(|c| **c == Class::Bulk).count(), 10);
    assert_eq!(picks[0], Class::Urgent);
}

#[test]
fn nobody_left_to_launch_means_a_chunk_is_over() {
    let mut hand = Hand::default();
    let mut chunk = claimed(1, Class::Urgent, 0, 6);
    (chunk.recipients[0], chunk.recipients[4], chunk.recipients[5]) = (None, None, None);
    let (key, _) = hand.add(chunk, job(1, Class::Urgent));
    for ordinal in [1, 2] {
        assert_eq!(hand.pick().unwrap().ordinal, ordinal);
    }
    let mut late = Bitmap::new(6);
    late.set(3);
    let chunk = hand.get_mut(key).unwrap();
    chunk.make_ready(1);
    assert!(!chunk.is_over());
    chunk.merge_done(&late);
    late.set(1);
    chunk.merge_done(&late);
    chunk.make_ready(3);
    assert!(chunk.is_over() && chunk.launchable() == 0, "gone, done elsewhere, or picked");
}

#[test]
fn rank_orders_a_class() {
    let mut hand = Hand::default();
    hand.add(claimed(1, Class::Urgent, 50, 3), job(1, Class::Urgent));
    hand.add(claimed(2, Class::Urgent, 40, 3), job(2, Class::Urgent));
    assert_eq!(hand.pick().unwrap().key.chunk.fanout, FanoutId(2));
}

#[test]
fn the_hands_are_full_up_to_a_place_whatever_lies_behind_it() {
    let mut hand = Hand::default();
    assert_eq!(hand.place_of(1), None);
    hand.add(claimed(1, Class::Urgent, 50, 500), job(1, Class::Urgent));
    assert_eq!((hand.place_of(64), hand.place_of(501)), (Some((Class::Urgent, 50)), None));
    hand.add(claimed(2, Class::Bulk, 10, 500), job(2, Class::Bulk));
    assert_eq!(hand.place_of(64), Some((Class::Urgent, 50)), "the bulk chunk is no matter");
    hand.add(claimed(3, Class::Urgent, 40, 40), job(3, Class::Urgent));
    assert_eq!((hand.place_of(40), hand.place_of(64)), (Some((Class::Urgent, 40)), Some((Class::Urgent, 50))));
    while hand.launchable() > 520 {
        hand.pick();
    }
    assert!(
        hand.place_of(64).unwrap() > (Class::Urgent, 50),
        "fewer than 64 of the urgent are left: the bulk chunk fills them"
    );
}

#[test]
fn gone_recipients_end_at_once_and_done_ones_are_skipped() {
    let mut hand = Hand::default();
    let mut chunk = claimed(1, Class::Urgent, 0, 4);
    chunk.recipients[1] = None;
    chunk.done.set(2);
    chunk.recipients[2] = None;
    let (key, gone) = hand.add(chunk, job(1, Class::Urgent));
    assert_eq!(gone.iter().map(|r| (r.ordinal, r.outcome)).collect::<Vec<_>>(), [(1, Outcome::Gone)]);
    let picked: Vec<u16> = std::iter::from_fn(|| hand.pick()).map(|s| s.ordinal).collect();
    assert_eq!(picked, [0, 3]);
    let chunk = hand.get_mut(key).unwrap();
    assert!(chunk.is_over(), "launched ones are the caller's to count as flying");
    assert_eq!(chunk.open(), 2);
    assert!(chunk.finish(0) && !chunk.finish(0));
}

#[test]
fn a_stopped_chunk_launches_nothing_and_names_who_was_tried() {
    let mut hand = Hand::default();
    let (key, _) = hand.add(claimed(1, Class::Urgent, 0, 5), job(1, Class::Urgent));
    for _ in 0..3 {
        let spot = hand.pick().unwrap();
        hand.get_mut(key).unwrap().deliveries.insert(spot.ordinal, Delivery::default());
    }
    let chunk = hand.get_mut(key).unwrap();
    chunk.flying = 1;
    assert_eq!(chunk.stop(Ending::Lost, &[2]), [0, 1]);
    assert!(!chunk.is_over(), "one is in flight");
    chunk.flying = 0;
    assert!(chunk.is_over());
    assert!(hand.pick().is_none());
    assert_eq!(hand.launchable(), 0);
}

#[test]
fn while_the_provider_is_unsure_whoever_has_not_failed_goes_first() {
    for pick in [Hand::pick_fresh, Hand::pick_probe] {
        let mut hand = Hand::default();
        let (key, _) = hand.add(claimed(1, Class::Urgent, 0, 3), job(1, Class::Urgent));
        let failed = hand.pick().unwrap();
        hand.get_mut(key).unwrap().make_ready(failed.ordinal);
        assert_eq!(pick(&mut hand).unwrap().ordinal, 2, "far from the one that failed");
        assert_eq!(hand.pick().unwrap().ordinal, failed.ordinal, "otherwise a retry goes before the fresh ones");
        hand.get_mut(key).unwrap().make_ready(failed.ordinal);
        assert_eq!(pick(&mut hand).unwrap().ordinal, 1);
        assert_eq!(pick(&mut hand).unwrap().ordinal, failed.ordinal, "better than nobody");
        assert_eq!(pick(&mut hand), None);
    }
}

fn fanout(spot: Option<Spot>) -> Option<i64> {
    spot.map(|spot| spot.key.chunk.fanout.0)
}

#[test]
fn a_probe_goes_to_the_most_urgent_of_those_that_have_not_failed() {
    let mut hand = Hand::default();
    // An older replay to devices that always fail, a live goal, and line-ups.
    hand.add(claimed(1, Class::Urgent, 0, 10), job(1, Class::Urgent));
    hand.add(claimed(2, Class::Urgent, 7, 10), job(2, Class::Urgent));
    hand.add(claimed(3, Class::Bulk, 0, 10), job(3, Class::Bulk));
    hand.failed(FanoutId(1));
    assert_eq!(fanout(hand.pick_probe()), Some(2));
    hand.failed(FanoutId(2));
    assert_eq!(fanout(hand.pick_probe()), Some(3), "whoever has not failed tells most");
    hand.failed(FanoutId(3));
    assert_eq!(fanout(hand.pick_probe()), Some(1), "all have failed once: by urgency");
    hand.failed(FanoutId(1));
    assert_eq!(fanout(hand.pick_probe()), Some(2));
    hand.served(FanoutId(1));
    assert_eq!(fanout(hand.pick_probe()), Some(1));
    assert_eq!(fanout(hand.pick_fresh()), Some(1), "once it answers, urgency alone");
}

#[test]
fn probes_go_round_when_everybody_has_failed() {
    let mut hand = Hand::default();
    let (sick, _) = hand.add(claimed(1, Class::Urgent, 0, 3), job(1, Class::Urgent));
    let (live, _) = hand.add(claimed(2, Class::Urgent, 1, 3), job(2, Class::Urgent));
    while let Some(spot) = hand.pick() {
        hand.failed(spot.key.chunk.fanout);
    }
    for _ in 0..4 {
        hand.get_mut(sick).unwrap().make_ready(0);
        hand.get_mut(live).unwrap().make_ready(0);
        let order: Vec<_> = (0..2)
            .map(|_| {
                let spot = hand.pick_probe().unwrap();
                hand.failed(spot.key.chunk.fanout);
                spot.key.chunk.fanout.0
            })
            .collect();
        assert_eq!(order, [1, 2], "the devices that always fail do not take every probe");
    }
    hand.remove(sick);
    hand.remove(live);
    assert!(hand.failing.is_empty());
}

#[test]
fn whom_an_earlier_owner_may_have_reached_and_who_was_set_aside_are_named_at_the_end() {
    let mut hand = Hand::default();
    let mut chunk = claimed(1, Class::Urgent, 0, 6);
    chunk.maybe.set(4);
    let (key, _) = hand.add(chunk, job(1, Class::Urgent));
    let chunk = hand.get_mut(key).unwrap();
    chunk.aside.insert(2, Outcome::Credential);
    chunk.aside.insert(5, Outcome::Payload);
    assert!(chunk.has_shelved());
    assert!(chunk.finish(5), "an outcome of its own");
    assert!(!chunk.has_shelved());
    assert_eq!(chunk.stop(Ending::Lost, &[]), [2, 4]);
    assert!(chunk.may_have_it(4) && !chunk.may_have_it(2));
    // Whatever it ends as here, a retraction has to reach whom an earlier owner may have reached.
    chunk.deliveries.insert(4, Delivery::default());
    chunk.deliveries.insert(3, Delivery { maybe: true, ..Delivery::default() });
    assert!(chunk.may_have_been_reached(4) && chunk.may_have_been_reached(3) && !chunk.may_have_been_reached(2));
}

#[test]
fn one_whose_device_is_gone_ends_with_what_an_earlier_owner_may_have_done() {
    let mut hand = Hand::default();
    let mut chunk = claimed(1, Class::Urgent, 0, 3);
    (chunk.recipients[0], chunk.recipients[1]) = (None, None);
    chunk.maybe.set(1);
    let (_, gone) = hand.add(chunk, job(1, Class::Urgent));
    assert_eq!(gone.iter().map(|r| (r.ordinal, r.maybe)).collect::<Vec<_>>(), [(0, false), (1, true)]);
}

#[test]
fn a_late_acknowledgement_takes_recipients_out() {
    let mut hand = Hand::default();
    let (key, _) = hand.add(claimed(1, Class::Urgent, 0, 3), job(1, Class::Urgent));
    let mut theirs = Bitmap::new(3);
    theirs.set(0);
    hand.get_mut(key).unwrap().merge_done(&theirs);
    assert_eq!(hand.pick().unwrap().ordinal, 1);
    assert!(hand.holds(FanoutId(1)) && hand.find(key.chunk) == Some(key));
    hand.remove(key);
    assert!(hand.is_empty() && !hand.holds(FanoutId(1)));
}

#[test]
fn a_chunk_claimed_anew_lies_beside_the_one_whose_attempts_still_fly() {
    let mut hand = Hand::default();
    let (old, _) = hand.add(claimed(1, Class::Urgent, 0, 3), job(1, Class::Urgent));
    hand.pick().unwrap();
    let chunk = hand.get_mut(old).unwrap();
    chunk.flying = 1;
    chunk.stop(Ending::Lost, &[0]);
    let (new, _) = hand.add(ClaimedChunk { epoch: 2, ..claimed(1, Class::Urgent, 0, 3) }, job(1, Class::Urgent));
    assert_eq!((hand.iter().count(), hand.find(old.chunk)), (2, Some(new)));
    hand.get_mut(old).unwrap().flying -= 1;
    assert!(hand.get(old).unwrap().is_over() && !hand.get(new).unwrap().is_over());
    hand.remove(old);
    assert_eq!(hand.find(old.chunk), Some(new), "the late landing does not put the new one out of hand");
    assert!(std::iter::from_fn(|| hand.pick()).map(|s| (s.key.epoch, s.ordinal)).eq([(2, 0), (2, 1), (2, 2)]));
}
