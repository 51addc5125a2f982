//! Fan-outs that follow from others: corrections in every order, the same news twice, replays, pauses.

use std::collections::BTreeMap;

use fanfare::domain::batch::{Class, FanoutKind, FanoutState};
use fanfare::domain::derived::{Pause, PauseReason, Source};
use fanfare::domain::event::{CorrectionMode, Supersedes};
use fanfare::domain::ids::{BootId, DeviceKey, FanoutId, MatchId};
use fanfare::domain::outcome::Outcome::{
    self, Cancelled, Delivered, Expired, Internal, TokenDead, Transient, Unconfirmed,
};
use fanfare::domain::tally::PartCounters;
use fanfare::store::{
    Accepted, FreezeJob, FreezeReply, FrozenPage, MAX_TAKEOVERS, NewFanout, NewReplay, ReplayReply, ResumeReply,
    SettleReply,
};

use super::world::*;

/// A correction of `target`, for the followers of `match:{id}`.
fn correction(id: &str, target: &str, mode: CorrectionMode) -> NewFanout {
    let mut new = posted(id, Class::Urgent, 1);
    new.event.supersedes = Some(Supersedes { event_id: event(target).id, mode });
    new.event.fields = BTreeMap::from([("player".to_owned(), id.to_owned())]);
    new
}

async fn corrects(store: &Shared, boot: BootId, new: NewFanout) -> (FreezeJob, Vec<FanoutId>) {
    match store.accept(boot, new).await.unwrap() {
        Accepted::Correction { freeze, stopped } => (freeze, stopped),
        other => panic!("{other:?}"),
    }
}

async fn view(store: &Shared, id: FanoutId) -> fanfare::store::FanoutView {
    store.fanout(id).await.unwrap().unwrap()
}

async fn settled(store: &Shared, id: FanoutId) -> fanfare::store::FanoutView {
    match store.settle(id).await.unwrap() {
        SettleReply::Settled(settled) => settled.view,
        other => panic!("{id} is complete: {other:?}"),
    }
}

async fn reached(store: &Shared, of: FanoutId) -> Vec<(DeviceKey, bool)> {
    store.reached_page(FrozenPage { of, after: DeviceKey(0), limit: 10_000 }).await.unwrap()
}

async fn failed(store: &Shared, of: FanoutId, source: Source) -> Vec<DeviceKey> {
    store.failed_page(FrozenPage { of, after: DeviceKey(0), limit: 10_000 }, source).await.unwrap()
}

/// Of everyone frozen in the family, whoever may have been reached; as a freeze would read it.
async fn saw(store: &Shared, id: FanoutId) -> Vec<DeviceKey> {
    let mut all = Vec::new();
    for kin in store.kin(id).await.unwrap() {
        all.extend(reached(store, kin).await.into_iter().filter(|(_, reached)| *reached).map(|(key, _)| key));
    }
    all.sort_unstable();
    all.dedup();
    all
}

pub async fn a_correction_stops_what_it_corrects_and_takes_its_place(store: Shared) {
    let (boot, other) = (instance(&store).await, instance(&store).await);
    let original = frozen(&store, boot, "goal", &[3, 2]).await;
    let mine = claim(&store, other, 1).await.pop().unwrap();
    let (freeze, stopped) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Retract)).await;
    let id = freeze.job.id;
    assert_eq!(stopped, [original]);
    assert!((1..=5_000).contains(&freeze.hold_ms), "{freeze:?}");
    assert_eq!(freeze.job.origin.source, Source::Reached);
    assert_eq!((freeze.job.origin.parent, freeze.job.origin.root.clone()), (Some(original), Some(event("goal").id)));
    assert_eq!(freeze.job.origin.key.as_deref(), Some("key-goal"), "it lies where the goal lies");
    assert_eq!(store.job(id).await.unwrap(), Some(freeze.job), "whoever claims it later sends the same");
    let before = view(&store, original).await;
    assert_eq!((before.state, before.kin.superseded_by), (FanoutState::Cancelled, Some(id)));
    assert_eq!(before.tally.count(Cancelled), 2, "the open chunk has ended, the owned one has not");
    assert_eq!(store.heartbeat(other, 60_000).await.unwrap().cancelled, [original], "its owner hears of it");
    assert_eq!(claim(&store, boot, 9).await, []);
    // Until its owner has said what was in flight, all of its chunk may have been sent it.
    assert_eq!(saw(&store, id).await, mine.keys);
    let hold = Hold::from(&mine);
    let mut last = outcomes(&hold, &[(0, Delivered), (1, Transient)]);
    last.chunks[0].rest = rest(&hold, Cancelled).chunks[0].rest;
    store.flush(last).await.unwrap();
    assert_eq!(saw(&store, id).await, [mine.keys[0]]);
    assert_eq!(settled(&store, original).await.tally.count(Cancelled), 3);
    let correction = view(&store, id).await;
    assert_eq!((correction.kind, correction.parent), (FanoutKind::Correction, Some(original)));
    assert_eq!(store.take_freezes(other, vec![], 9).await.unwrap(), [], "it is held, and its owner lives");
}

pub async fn a_correction_of_what_is_settled_or_cancelled_works_from_kept_facts(store: Shared) {
    let boot = instance(&store).await;
    let (original, chunk) = one_chunk(&store, boot, "goal", 2).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, TokenDead)])).await.unwrap();
    let was = settled(&store, original).await;
    let (freeze, stopped) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Retract)).await;
    assert_eq!(stopped, [], "nothing of it was under way");
    assert_eq!(saw(&store, freeze.job.id).await, [chunk.keys[0]]);
    let now = view(&store, original).await;
    assert_eq!((now.state, now.tally, now.kin.superseded_by), (was.state, was.tally, Some(freeze.job.id)));

    let cancelled = frozen(&store, boot, "corner", &[2]).await;
    store.cancel(cancelled).await.unwrap();
    let (freeze, stopped) = corrects(&store, boot, correction("no-corner", "corner", CorrectionMode::Replace)).await;
    assert_eq!((stopped, freeze.job.origin.source), (vec![cancelled], Source::Audience));
    assert_eq!(saw(&store, freeze.job.id).await, []);
}

pub async fn a_correction_of_a_correction_reaches_whoever_saw_any_of_them(store: Shared) {
    let boot = instance(&store).await;
    let (original, chunk) = one_chunk(&store, boot, "goal", 3).await;
    store.flush(outcomes(&Hold::from(&chunk), &[(0, Delivered), (1, Transient), (2, Transient)])).await.unwrap();
    settled(&store, original).await;
    let (first, _) = corrects(&store, boot, correction("other-scorer", "goal", CorrectionMode::Replace)).await;
    let step = whole(boot, &first, &chunk.keys[1..], &[2]);
    assert_eq!(store.freeze_step(step).await.unwrap(), FreezeReply::Written(vec![]));
    let sent = claim(&store, boot, 1).await.pop().unwrap();
    store.flush(outcomes(&Hold::from(&sent), &[(0, Delivered)])).await.unwrap();
    store.release(boot, vec![(sent.chunk, sent.epoch)], 0).await.unwrap();
    // It names the original, whose place was taken: it takes the place of what took it.
    let (second, stopped) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Retract)).await;
    assert_eq!((stopped.as_slice(), second.job.origin.parent), ([first.job.id].as_slice(), Some(first.job.id)));
    assert_eq!(second.job.origin.root, Some(event("goal").id), "on the phone it replaces the first message");
    assert_eq!(second.job.origin.key.as_deref(), Some("key-goal"));
    assert_eq!(saw(&store, second.job.id).await, chunk.keys[..2]);
    assert_eq!(view(&store, original).await.kin.superseded_by, Some(first.job.id));
    // Its own freeze stops where it was.
    assert_eq!(view(&store, first.job.id).await.kin.superseded_by, Some(second.job.id));
}

pub async fn a_correction_that_comes_first_ends_its_original_as_it_comes(store: Shared) {
    let boot = instance(&store).await;
    let (freeze, stopped) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Replace)).await;
    assert_eq!((stopped, freeze.job.origin.parent), (vec![], None));
    assert_eq!(freeze.job.origin.root, Some(event("goal").id));
    assert_eq!(freeze.job.origin.key.as_deref(), Some("key-off"), "nothing lies there yet");
    assert_eq!(store.seen(event("goal").id).await.unwrap(), None, "it was named, not posted");
    let Accepted::Superseded { fanout, by, stopped } =
        store.accept(boot, posted("goal", Class::Urgent, 1)).await.unwrap()
    else {
        panic!("it is superseded as it comes")
    };
    assert_eq!((by, stopped), (freeze.job.id, vec![]));
    let original = view(&store, fanout).await;
    assert_eq!((original.state, original.kin.superseded_by), (FanoutState::Cancelled, Some(by)));
    assert_eq!(store.sweep(0).await.unwrap().complete, [fanout], "found if nobody settles it");
    assert_eq!(settled(&store, fanout).await.tally.recipients(), 0);
    assert_eq!(store.accept(boot, posted("goal", Class::Urgent, 1)).await.unwrap(), Accepted::Repeat(fanout));
    assert_eq!(store.accept(boot, posted("goal", Class::Urgent, 2)).await.unwrap(), Accepted::Conflict(fanout));
    // Both are one family: the next correction of the original takes the place of the first.
    let (second, stopped) = corrects(&store, boot, correction("on-again", "goal", CorrectionMode::Replace)).await;
    assert_eq!((stopped, second.job.origin.parent), (vec![by], Some(by)));
    assert_eq!(second.job.origin.key.as_deref(), Some("key-off"), "in the place of what was sent first");
    // A correction in whose name another match's event comes does not stop it.
    corrects(&store, boot, correction("stray", "elsewhere", CorrectionMode::Retract)).await;
    let mut elsewhere = posted("elsewhere", Class::Urgent, 1);
    elsewhere.event.match_id = MatchId::parse("other").unwrap();
    assert!(matches!(store.accept(boot, elsewhere).await.unwrap(), Accepted::New(_)));
}

pub async fn an_event_of_another_match_is_not_corrected(store: Shared) {
    let boot = instance(&store).await;
    let original = accept(&store, boot, "goal", Class::Urgent).await.job.id;
    let mut wrong = correction("off", "goal", CorrectionMode::Retract);
    wrong.event.match_id = MatchId::parse("other").unwrap();
    let refused = store.accept(boot, wrong.clone()).await.unwrap();
    assert_eq!(refused, Accepted::OtherMatch(MatchId::parse("4711").unwrap()));
    assert_eq!(view(&store, original).await.state, FanoutState::Freezing);
    assert_eq!(store.seen(wrong.event.id).await.unwrap(), None, "nothing of it is kept");
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
}

/// Whichever is first, the correction is what is left, and the original is known to be corrected.
pub async fn an_original_and_its_correction_at_once_never_miss_each_other(store: Shared) {
    let boot = instance(&store).await;
    for round in 0..100 {
        let (goal, off) = (format!("goal-{round}"), format!("off-{round}"));
        let post = |new: NewFanout| {
            let store = store.clone();
            tokio::spawn(async move { store.accept(boot, new).await.unwrap() })
        };
        let correction = correction(&off, &goal, CorrectionMode::Replace);
        let original = posted(&goal, Class::Urgent, 1);
        let (one, other) = match round % 2 {
            0 => (post(original), post(correction)),
            _ => {
                let first = post(correction);
                (post(original), first)
            }
        };
        let (original, correction) = (one.await.unwrap(), other.await.unwrap());
        let Accepted::Correction { freeze, stopped } = correction else { panic!("{correction:?}") };
        let id = match &original {
            Accepted::New(freeze) => freeze.job.id,
            Accepted::Superseded { fanout, .. } => *fanout,
            other => panic!("{other:?}"),
        };
        assert_eq!(stopped.contains(&id), matches!(original, Accepted::New(_)), "round {round}: {original:?}");
        let (original, correction) = (view(&store, id).await, view(&store, freeze.job.id).await);
        assert_eq!((original.state, original.kin.superseded_by), (FanoutState::Cancelled, Some(freeze.job.id)));
        assert_eq!((correction.state, correction.kin.superseded_by), (FanoutState::Freezing, None), "round {round}");
    }
}

pub async fn of_many_corrections_at_once_one_is_left(store: Shared) {
    let boot = instance(&store).await;
    let original = accept(&store, boot, "goal", Class::Urgent).await.job.id;
    let mut posts: Vec<_> = (0..8)
        .map(|i| {
            let new = correction(&format!("off-{i}"), "goal", CorrectionMode::Replace);
            let store = store.clone();
            tokio::spawn(async move { store.accept(boot, new).await.unwrap() })
        })
        .collect();
    // And two that name each other, of which one is left, too.
    for (id, target) in [("a", "b"), ("b", "a")] {
        let (new, store) = (correction(id, target, CorrectionMode::Replace), store.clone());
        posts.push(tokio::spawn(async move { store.accept(boot, new).await.unwrap() }));
    }
    let mut ids = Vec::new();
    for post in posts {
        ids.push(match post.await.unwrap() {
            Accepted::Correction { freeze, .. } => freeze.job.id,
            Accepted::Superseded { fanout, .. } => fanout,
            other => panic!("{other:?}"),
        });
    }
    let mut left = [0, 0];
    for (i, id) in ids.iter().enumerate() {
        let view = view(&store, *id).await;
        let place = &mut left[usize::from(i >= 8)];
        *place += u32::from(view.kin.superseded_by.is_none());
        assert_eq!(view.kin.superseded_by.is_none(), view.state == FanoutState::Freezing);
    }
    assert_eq!(left, [1, 1], "one of the eight, and one of the two");
    assert!(view(&store, original).await.kin.superseded_by.is_some());
}

pub async fn a_correction_in_the_middle_joins_two_chains(store: Shared) {
    let boot = instance(&store).await;
    let first = accept(&store, boot, "a", Class::Urgent).await.job.id;
    let (last, _) = corrects(&store, boot, correction("c", "b", CorrectionMode::Retract)).await;
    let Accepted::Superseded { fanout, by, stopped } =
        store.accept(boot, correction("b", "a", CorrectionMode::Replace)).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((by, stopped.as_slice()), (last.job.id, [first].as_slice()));
    // Held yet, the last one takes the name of the first: whoever has read it before reads it anew.
    let origin = store.job(last.job.id).await.unwrap().unwrap().origin;
    assert_eq!((origin.root, origin.key.as_deref()), (Some(event("a").id), Some("key-a")));
    assert_eq!(store.freeze_step(whole(boot, &last, &[], &[])).await.unwrap(), FreezeReply::Lost);
    assert_eq!(store.kin(last.job.id).await.unwrap(), {
        let mut kin = vec![first, fanout];
        kin.sort_unstable();
        kin
    });
}

pub async fn a_correction_in_the_middle_that_comes_after_the_last_was_sent_is_refused_and_says_why(store: Shared) {
    let boot = instance(&store).await;
    let (first, chunk) = one_chunk(&store, boot, "a", 2).await;
    store.flush(delivered(&chunk)).await.unwrap();
    settled(&store, first).await;
    let (last, _) = corrects(&store, boot, correction("c", "b", CorrectionMode::Retract)).await;
    store.freeze_step(whole(boot, &last, &[], &[])).await.unwrap();
    let middle = correction("b", "a", CorrectionMode::Replace);
    for _ in 0..2 {
        let told = store.accept(boot, middle.clone()).await.unwrap();
        assert_eq!(told, Accepted::CorrectedBefore(last.job.id));
    }
    assert_eq!(view(&store, first).await.kin.superseded_by, None);
    let (again, _) = corrects(&store, boot, correction("c-again", "a", CorrectionMode::Retract)).await;
    assert_eq!(saw(&store, again.job.id).await, chunk.keys, "whoever saw the first hears of it");
}

pub async fn news_that_comes_back_while_its_correction_is_held_is_all_that_is_sent(store: Shared) {
    let boot = instance(&store).await;
    let same = |id: &str| {
        let mut new = posted(id, Class::Urgent, 1);
        new.event.subjects = vec!["match:x".to_owned()];
        new
    };
    let Accepted::New(first) = store.accept(boot, same("one")).await.unwrap() else { panic!() };
    let (off, _) = corrects(&store, boot, correction("off", "one", CorrectionMode::Retract)).await;
    let Accepted::Correction { freeze, stopped } = store.accept(boot, same("two")).await.unwrap() else { panic!() };
    assert_eq!(stopped, [off.job.id]);
    assert_eq!((freeze.job.origin.source, freeze.job.origin.parent), (Source::Audience, Some(off.job.id)));
    assert_eq!(freeze.job.origin.root, Some(event("one").id));
    assert_eq!(freeze.job.origin.key.as_deref(), Some("key-one"));
    assert!(freeze.hold_ms > 0);
    assert_eq!(store.kin(freeze.job.id).await.unwrap(), [first.job.id, off.job.id]);
    assert_eq!(view(&store, off.job.id).await.kin.superseded_by, Some(freeze.job.id));
    let told = store.accept(boot, same("three")).await.unwrap();
    assert!(matches!(told, Accepted::Duplicate { fanout, .. } if fanout == freeze.job.id), "{told:?}");
    // When the correction is on its way, the news is news again.
    let (off, _) = corrects(&store, boot, correction("off-again", "two", CorrectionMode::Retract)).await;
    store.freeze_step(whole(boot, &off, &[], &[])).await.unwrap();
    assert!(matches!(store.accept(boot, same("four")).await.unwrap(), Accepted::New(_)));
}

pub async fn the_same_news_under_twenty_ids_at_once_is_one_fanout(store: Shared) {
    let boot = instance(&store).await;
    let same = |id: &str| {
        let mut new = posted(id, Class::Urgent, id.len() as u8);
        new.event.subjects = vec!["match:x".to_owned()];
        new.event.occurred_ms += id.len() as i64;
        new
    };
    let posts: Vec<_> = (0..20)
        .map(|i| {
            let (store, new) = (store.clone(), same(&format!("evt-{i}")));
            tokio::spawn(async move { store.accept(boot, new).await.unwrap() })
        })
        .collect();
    let (mut new, mut same_as) = (Vec::new(), Vec::new());
    for post in posts {
        match post.await.unwrap() {
            Accepted::New(job) => new.push(job.job),
            Accepted::Duplicate { fanout, of } => same_as.push((fanout, of)),
            other => panic!("{other:?}"),
        }
    }
    let [only] = &new[..] else { panic!("{new:?}") };
    assert_eq!(same_as, vec![(only.id, only.event.id.clone()); 19]);
    assert_eq!(store.backlog().await.unwrap().fanouts(), 1);
    // Each of the ids is known from now on.
    let again = (0..20).map(|i| format!("evt-{i}")).find(|id| *id != only.event.id.as_str()).unwrap();
    let told = store.accept(boot, same(&again)).await.unwrap();
    assert_eq!(told, Accepted::Duplicate { fanout: only.id, of: only.event.id.clone() });
    let mut other = same(&again);
    other.content_hash = [99; 32];
    assert_eq!(store.accept(boot, other).await.unwrap(), Accepted::Conflict(only.id));
    // Other news of the same match is other news, and a correction that reads the same is a correction.
    let mut different = same("evt-other");
    different.event.fields.insert("minute".into(), "68".into());
    assert!(matches!(store.accept(boot, different).await.unwrap(), Accepted::New(_)));
    let mut correction = same("evt-correction");
    correction.event.supersedes = Some(Supersedes { event_id: only.event.id.clone(), mode: CorrectionMode::Replace });
    let (correction, stopped) = corrects(&store, boot, correction).await;
    assert_eq!(stopped, [only.id]);
    let told = store.accept(boot, same("evt-late")).await.unwrap();
    assert!(matches!(told, Accepted::Duplicate { fanout, .. } if fanout == correction.job.id), "{told:?}");
}

pub async fn the_same_news_is_new_again_when_the_first_is_over(store: Shared) {
    let boot = instance(&store).await;
    let same = |id: &str, deadline_ms| {
        let mut new = posted(id, Class::Urgent, 1);
        (new.event.subjects, new.deadline_ms) = (vec!["match:x".to_owned()], deadline_ms);
        new
    };
    let fresh = async |id: &str, deadline_ms| match store.accept(boot, same(id, deadline_ms)).await.unwrap() {
        Accepted::New(job) => job.job.id,
        other => panic!("{id}: {other:?}"),
    };
    let far = 4_000_000_000_000;
    let first = fresh("one", far).await;
    store.cancel(first).await.unwrap();
    fresh("two", far).await;
    // Goal, disallowed, the same goal again.
    let (off, _) = corrects(&store, boot, correction("off", "two", CorrectionMode::Retract)).await;
    store.freeze_step(whole(boot, &off, &[], &[])).await.unwrap();
    fresh("three", store.now_ms().await.unwrap() + 20).await;
    assert!(view(&store, off.job.id).await.kin.superseded_by.is_none());
    let until = store.now_ms().await.unwrap() + 20;
    soon("the deadline", async {
        while store.now_ms().await.unwrap() <= until {
            tokio::task::yield_now().await;
        }
    })
    .await;
    fresh("four", far).await;
}

pub async fn a_held_freeze_is_found_when_its_hold_is_over(store: Shared) {
    let (boot, dead) = (instance(&store).await, instance(&store).await);
    let mut brief = correction("off", "goal", CorrectionMode::Replace);
    brief.deadline_ms = store.now_ms().await.unwrap() + 1_500;
    let (freeze, _) = corrects(&store, dead, brief).await;
    assert!((1..=750).contains(&freeze.hold_ms), "half of its time: {freeze:?}");
    lapse(&store, dead).await;
    assert_eq!(store.take_freezes(boot, vec![], 9).await.unwrap(), [], "nobody begins before");
    let taken = soon("the end of the hold", async {
        loop {
            match store.take_freezes(boot, vec![], 9).await.unwrap().pop() {
                Some(taken) => break taken,
                None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    assert_eq!((taken.job.id, taken.hold_ms), (freeze.job.id, 0));
    assert!(store.now_ms().await.unwrap() >= freeze.job.accepted_ms + freeze.hold_ms);
    assert_eq!(taken.job, freeze.job);
}

pub async fn who_never_saw_it_is_counted_once_for_each_step(store: Shared) {
    let boot = instance(&store).await;
    let keys = followers(&store, "off", 4).await;
    let (freeze, _) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Replace)).await;
    let mut first = whole(boot, &freeze, &keys[..2], &[2]);
    (first.last, first.never_saw) = (false, Some(7));
    for _ in 0..2 {
        store.freeze_step(first.clone()).await.unwrap();
    }
    let mut last = whole(boot, &freeze, &keys[2..], &[2]);
    (last.from, last.first_chunk, last.never_saw) = (keys[1], 1, Some(3));
    store.freeze_step(last).await.unwrap();
    assert_eq!(view(&store, freeze.job.id).await.kin.never_saw, Some(10));
    let plain = frozen(&store, boot, "plain", &[1]).await;
    assert_eq!(view(&store, plain).await.kin.never_saw, None);
}

fn replay(parent: FanoutId, request_id: Option<&str>) -> NewReplay {
    NewReplay {
        parent,
        request_id: request_id.map(str::to_owned),
        source: Source::Failed,
        deadline_ms: 4_000_000_000_000,
        max_attempts: 10,
    }
}

async fn replayed(store: &Shared, boot: BootId, new: NewReplay) -> FreezeJob {
    match store.replay(boot, new).await.unwrap() {
        ReplayReply::New(freeze) => *freeze,
        other => panic!("{other:?}"),
    }
}

/// A settled fan-out whose recipients ended so.
async fn ended(store: &Shared, boot: BootId, id: &str, how: &[Outcome]) -> (FanoutId, Vec<DeviceKey>) {
    let (fanout, chunk) = one_chunk(store, boot, id, how.len()).await;
    let found: Vec<(usize, Outcome)> = how.iter().copied().enumerate().collect();
    store.flush(outcomes(&Hold::from(&chunk), &found)).await.unwrap();
    settled(store, fanout).await;
    (fanout, chunk.keys)
}

pub async fn of_eight_replays_one_is_made(store: Shared) {
    let boot = instance(&store).await;
    let (parent, _) = ended(&store, boot, "evt", &[Transient, Delivered]).await;
    let callers: Vec<_> = (0..8)
        .map(|i| {
            let (store, new) = (store.clone(), replay(parent, (i % 2 == 0).then_some("same")));
            tokio::spawn(async move { store.replay(boot, new).await.unwrap() })
        })
        .collect();
    let mut replies = Vec::new();
    for caller in callers {
        replies.push(caller.await.unwrap());
    }
    let made = |reply: &&ReplayReply| matches!(reply, ReplayReply::New(_));
    assert_eq!(replies.iter().filter(made).count(), 1, "{replies:?}");
    let Some(ReplayReply::New(freeze)) = replies.iter().find(made) else { panic!() };
    let id = freeze.job.id;
    for reply in replies.iter().filter(|reply| !made(reply)) {
        assert!([ReplayReply::Running(id), ReplayReply::Repeat(id)].contains(reply), "{reply:?}");
    }
    let cap = freeze.job.origin.cap.unwrap();
    assert_eq!((cap.most, cap.spent, cap.resumed), (10, 0, 0));
    assert_eq!((freeze.job.origin.parent, freeze.job.origin.source), (Some(parent), Source::Failed));
    assert_eq!(freeze.job.event, event("evt"));
    assert_eq!(freeze.job.origin.key.as_deref(), Some("key-evt"));
    let shown = view(&store, id).await;
    assert_eq!((shown.kind, shown.parent, shown.kin.max_attempts), (FanoutKind::Replay, Some(parent), Some(10)));
    // The next one when that has ended; the same request stays the same replay.
    store.freeze_step(whole(boot, freeze, &[], &[])).await.unwrap();
    settled(&store, id).await;
    let named = replayed(&store, boot, replay(parent, Some("next"))).await;
    assert_ne!(named.job.id, id);
    assert_eq!(store.replay(boot, replay(parent, Some("next"))).await.unwrap(), ReplayReply::Repeat(named.job.id));
}

pub async fn only_what_has_ended_and_stands_is_replayed(store: Shared) {
    let boot = instance(&store).await;
    assert_eq!(store.replay(boot, replay(FanoutId(i64::MAX), None)).await.unwrap(), ReplayReply::Unknown);
    let (parent, _) = ended(&store, boot, "goal", &[Transient]).await;
    let open = frozen(&store, boot, "open", &[1]).await;
    assert_eq!(store.replay(boot, replay(open, None)).await.unwrap(), ReplayReply::Open(FanoutState::Sending));
    let running = replayed(&store, boot, replay(parent, None)).await.job.id;
    // A correction stops the replay of what it corrects, too.
    let (freeze, stopped) = corrects(&store, boot, correction("off", "goal", CorrectionMode::Retract)).await;
    assert_eq!(stopped, [running]);
    assert_eq!(store.replay(boot, replay(parent, None)).await.unwrap(), ReplayReply::Superseded(freeze.job.id));
}

pub async fn a_replay_is_for_those_that_failed_and_were_not_reached_since(store: Shared) {
    let boot = instance(&store).await;
    let how = [Delivered, Transient, Expired, TokenDead, Unconfirmed, Internal, Transient];
    let (parent, keys) = ended(&store, boot, "evt", &how).await;
    store.delete_device(device_id("evt-6")).await.unwrap();
    let at = |places: &[usize]| places.iter().map(|i| keys[*i]).collect::<Vec<_>>();
    assert_eq!(failed(&store, parent, Source::Failed).await, at(&[1, 2, 5]));
    assert_eq!(failed(&store, parent, Source::FailedOrUnconfirmed).await, at(&[1, 2, 4, 5]));
    let freeze = replayed(&store, boot, replay(parent, None)).await;
    store.freeze_step(whole(boot, &freeze, &at(&[1, 2, 5]), &[3])).await.unwrap();
    let sent = claim(&store, boot, 1).await.pop().unwrap();
    store.flush(outcomes(&Hold::from(&sent), &[(0, Delivered), (1, Transient), (2, Transient)])).await.unwrap();
    settled(&store, freeze.job.id).await;
    assert_eq!(failed(&store, parent, Source::Failed).await, at(&[2, 5]), "one was reached meanwhile");
    assert_eq!(failed(&store, freeze.job.id, Source::Failed).await, at(&[2, 5]), "a replay of the replay");
    // The replay of the replay is answered with 500 by one, and delivers to the other: both parents know.
    let second = replayed(&store, boot, replay(freeze.job.id, None)).await;
    let running = store.replay(boot, replay(parent, None)).await.unwrap();
    assert_eq!(running, ReplayReply::Running(second.job.id), "of one message one at a time");
    store.freeze_step(whole(boot, &second, &at(&[2, 5]), &[2])).await.unwrap();
    let hold = Hold::from(&claim(&store, boot, 1).await.pop().unwrap());
    let mut answered = outcomes(&hold, &[(0, Transient), (1, Delivered)]);
    answered.chunks[0].maybe.set(0);
    store.flush(answered).await.unwrap();
    settled(&store, second.job.id).await;
    for of in [parent, freeze.job.id, second.job.id] {
        assert_eq!(failed(&store, of, Source::Failed).await, at(&[2]), "{of}");
    }
    // A correction reaches whom the replay has reached.
    let (off, _) = corrects(&store, boot, correction("off", "evt", CorrectionMode::Retract)).await;
    assert_eq!(saw(&store, off.job.id).await, at(&[0, 1, 2, 5]));
}

pub async fn what_was_set_aside_ends_with_its_replay(store: Shared) {
    let boot = instance(&store).await;
    let id = frozen(&store, boot, "evt", &[2]).await;
    for _ in 0..MAX_TAKEOVERS {
        let dead = instance(&store).await;
        assert_eq!(claim(&store, dead, 1).await.len(), 1);
        lapse(&store, dead).await;
        store.heartbeat(boot, 60_000).await.unwrap();
    }
    assert_eq!(view(&store, id).await.state, FanoutState::SetAside);
    let keys: Vec<DeviceKey> = reached(&store, id).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(failed(&store, id, Source::Failed).await, keys, "as a dry run counts them");
    let freeze = replayed(&store, boot, replay(id, None)).await;
    assert_eq!(settled(&store, id).await.tally.count(Internal), 2);
    assert_eq!(failed(&store, id, Source::Failed).await, keys);
    assert_eq!(view(&store, id).await.state, FanoutState::Done);
    assert_eq!(freeze.job.origin.parent, Some(id));
}

fn attempts(attempts: u64) -> PartCounters {
    PartCounters { attempts, ..PartCounters::default() }
}

fn throttled(fanout: FanoutId, resumed: i32) -> Pause {
    Pause { fanout, reason: PauseReason::Throttle, resumed }
}

pub async fn a_budget_is_that_of_all_instances_and_pauses_until_it_is_resumed(store: Shared) {
    let (boot, other) = (instance(&store).await, instance(&store).await);
    let (parent, keys) = ended(&store, boot, "evt", &[Transient, Transient]).await;
    let freeze = replayed(&store, boot, replay(parent, None)).await;
    let id = freeze.job.id;
    store.freeze_step(whole(boot, &freeze, &keys, &[1, 1])).await.unwrap();
    assert_eq!(store.put_parts(boot, vec![(id, attempts(6)), (parent, attempts(99))]).await.unwrap(), []);
    assert_eq!(store.put_parts(other, vec![(id, attempts(3))]).await.unwrap(), []);
    assert_eq!(store.job(id).await.unwrap().unwrap().origin.cap.unwrap().spent, 9);
    assert_eq!(store.put_parts(other, vec![(id, attempts(4))]).await.unwrap(), [(id, 0)]);
    assert_eq!(store.put_parts(boot, vec![(id, attempts(6))]).await.unwrap(), [(id, 0)], "who asks next hears of it");
    let paused = view(&store, id).await;
    assert_eq!((paused.state, paused.kin.paused), (FanoutState::Paused, Some(PauseReason::Budget)));
    assert_eq!(claim(&store, boot, 9).await, [], "nobody takes more of it");
    assert_eq!(store.settle(id).await.unwrap(), SettleReply::Open, "neither done nor failed");
    let query = fanfare::store::FanoutQuery { state: Some(FanoutState::Paused), limit: 9, ..Default::default() };
    assert_eq!(store.fanouts(query).await.unwrap(), [paused]);

    assert_eq!(store.resume(id, 5).await.unwrap(), ResumeReply::Resumed);
    assert_eq!(store.resume(id, 5).await.unwrap(), ResumeReply::NotPaused(FanoutState::Sending));
    assert_eq!(store.resume(FanoutId(i64::MAX), 5).await.unwrap(), ResumeReply::Unknown);
    let cap = store.job(id).await.unwrap().unwrap().origin.cap.unwrap();
    assert_eq!((cap.most, cap.spent, cap.resumed), (15, 10, 1));
    let chunk = claim(&store, boot, 1).await.pop().unwrap();
    store.pause(vec![throttled(id, 0)]).await.unwrap();
    assert_eq!(view(&store, id).await.kin.paused, None, "decided on before it was resumed");
    store.pause(vec![throttled(id, 1), throttled(parent, 0)]).await.unwrap();
    assert_eq!(view(&store, id).await.kin.paused, Some(PauseReason::Throttle));
    assert_eq!(view(&store, parent).await.kin.paused, None, "it has ended, and has no cap");
    assert_eq!(store.put_parts(boot, vec![(id, attempts(7))]).await.unwrap(), [(id, 1)]);
    // What is in hand when it pauses ends as it ends, and a paused one can be cancelled.
    store.flush(delivered(&chunk)).await.unwrap();
    store.cancel(id).await.unwrap();
    let tally = settled(&store, id).await.tally;
    assert_eq!((tally.delivered(), tally.count(Cancelled)), (1, 1));
}

pub async fn nothing_of_a_paused_fanout_is_in_hand_as_it_is_frozen_and_whoever_asks_hears_of_it(store: Shared) {
    let boot = instance(&store).await;
    let (parent, keys) = ended(&store, boot, "evt", &[Transient; 4]).await;
    let freeze = replayed(&store, boot, replay(parent, None)).await;
    let id = freeze.job.id;
    let paused = async || store.job(id).await.unwrap().unwrap().origin.cap.unwrap().paused;
    let step = |at: usize, last: bool| {
        let mut step = whole(boot, &freeze, &keys[at..=at], &[1]);
        (step.first_chunk, step.claim_first, step.last) = (at as i32, 1, last);
        step.from = if at == 0 { freeze.cursor } else { keys[at - 1] };
        step
    };
    let claimed = async |step| match store.freeze_step(step).await.unwrap() {
        FreezeReply::Written(claimed) => claimed.len(),
        FreezeReply::Lost => panic!("it is ours"),
    };
    assert_eq!((claimed(step(0, false)).await, paused().await), (1, false));
    store.pause(vec![throttled(id, 0)]).await.unwrap();
    assert_eq!((claimed(step(1, false)).await, paused().await), (0, true));
    assert_eq!(claimed(step(1, false)).await, 0, "the same step again");
    assert_eq!(store.resume(id, 1).await.unwrap(), ResumeReply::Resumed);
    assert_eq!((claimed(step(2, false)).await, paused().await), (1, false));
    store.pause(vec![throttled(id, 1)]).await.unwrap();
    assert_eq!(claimed(step(3, true)).await, 0);
    assert_eq!(store.owned(boot).await.unwrap().len(), 2, "what was in hand before");
    store.resume(id, 1).await.unwrap();
    assert_eq!(claim(&store, boot, 9).await.len(), 2, "the others are open, and nobody lost them");
}

pub async fn a_paused_fanout_is_claimed_again_past_its_deadline(store: Shared) {
    let boot = instance(&store).await;
    let (parent, keys) = ended(&store, boot, "evt", &[Transient]).await;
    let deadline_ms = store.now_ms().await.unwrap() + 300;
    let freeze = replayed(&store, boot, NewReplay { deadline_ms, ..replay(parent, None) }).await;
    store.freeze_step(whole(boot, &freeze, &keys, &[1])).await.unwrap();
    store.pause(vec![throttled(freeze.job.id, 0)]).await.unwrap();
    soon("its end as expired", async {
        while claim(&store, boot, 1).await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(store.now_ms().await.unwrap() >= deadline_ms, "not before");
}
