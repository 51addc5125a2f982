//! Every reason, from facts made for it. What real stores answer is tested in `tests/it`.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{REASONS, explain};
use crate::domain::batch::{Class, FanoutJob, FanoutState, RestOutcome};
use crate::domain::catalogue::{BUILT_IN, Catalogue};
use crate::domain::derived::{Origin, PauseReason, Source};
use crate::domain::event::Event;
use crate::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId, MatchId, UserId};
use crate::domain::outcome::{Cause, Outcome};
use crate::domain::recipient::{Address, Device, DeviceState, Follows, KindMask, Locale, Platform};
use crate::store::{ChunkState, DeviceView, Explained, FormerDevice, KeptFailure, KnownDevice, Place, StoreError};
use crate::wire::Explanation;

const ACCEPTED: i64 = 1_796_050_992_000;
const BEFORE: i64 = ACCEPTED - 5_000;
const AFTER: i64 = ACCEPTED + 5_000;
const KEY: DeviceKey = DeviceKey(7);

pub(super) fn catalogue() -> Catalogue {
    Catalogue::parse(BUILT_IN).unwrap()
}

fn goals() -> KindMask {
    KindMask::only(catalogue().types["goal"].bit)
}

pub(super) fn facts() -> Explained {
    let event = Event {
        id: EventId::parse("evt-1").unwrap(),
        kind: "goal".to_owned(),
        match_id: MatchId::parse("4711").unwrap(),
        occurred_ms: ACCEPTED,
        subjects: vec!["match:4711".to_owned(), "team:ars".to_owned()],
        fields: BTreeMap::new(),
        data: BTreeMap::new(),
        useful_for_s: 120,
        supersedes: None,
    };
    let job = FanoutJob {
        id: FanoutId(17),
        event,
        class: Class::Urgent,
        accepted_ms: ACCEPTED,
        deadline_ms: ACCEPTED + 120_000,
        origin: Origin::default(),
    };
    Explained {
        job,
        state: FanoutState::Sending,
        superseded_by: None,
        paused: None,
        cursor: DeviceKey(100),
        cut: false,
        now_ms: AFTER,
        device: Some(known(vec![("team:ars".to_owned(), KindMask::ALL)])),
        former: Vec::new(),
        place: None,
    }
}

pub(super) fn known(subjects: Vec<(String, KindMask)>) -> KnownDevice {
    let device = Device {
        id: DeviceId::parse("phone-1").unwrap(),
        user: UserId::parse("u1").unwrap(),
        address: Address::Token("secret".to_owned()),
        platform: Platform::Ios,
        locale: Locale::default(),
    };
    let follows = Follows { subjects, muted: KindMask::NONE };
    let view = DeviceView { key: KEY, device, follows, state: DeviceState::Live, version: 1, registered_ms: BEFORE };
    KnownDevice { view, created_ms: BEFORE, follows_ms: BEFORE, state_ms: 0 }
}

pub(super) fn place() -> Place {
    Place {
        key: KEY,
        chunk: ChunkRef { fanout: FanoutId(17), no: 3 },
        epoch: 1,
        state: ChunkState::Open,
        owner: None,
        not_before_ms: 0,
        done: false,
        ok: false,
        maybe: false,
        rest: None,
        failure: None,
    }
}

fn told(facts: &Explained) -> Explanation {
    explain(facts, &DeviceId::parse("phone-1").unwrap(), &catalogue()).unwrap()
}

fn of(place: Place) -> Explanation {
    told(&Explained { place: Some(place), ..facts() })
}

pub(super) fn with(change: impl FnOnce(&mut KnownDevice)) -> Explained {
    let mut facts = facts();
    change(facts.device.as_mut().unwrap());
    facts
}

pub(super) fn failure(outcome: Outcome) -> KeptFailure {
    KeptFailure {
        outcome,
        cause: Cause::None,
        status: 404,
        text: "not found".to_owned(),
        attempts: 2,
        variant: "goal/en/ios".to_owned(),
        device_version: 1,
        at_ms: AFTER,
    }
}

/// Facts, and the reason and certainty they must be told with.
fn absences() -> Vec<(Explained, &'static str, bool)> {
    let other = KindMask::only(60);
    let dead = |at| move |known: &mut KnownDevice| (known.view.state, known.state_ms) = (DeviceState::Tombstoned, at);
    let follow = |subject: &str, mask| {
        let subjects = vec![(subject.to_owned(), mask)];
        move |known: &mut KnownDevice| known.view.follows.subjects = subjects
    };
    let former = |at| FormerDevice { key: DeviceKey(5), deleted_ms: at };
    let gone = |former| Explained { device: None, former, ..facts() };
    let unread = |state, cut| Explained { state, cut, cursor: DeviceKey(3), ..facts() };
    let derived = |source| {
        let mut facts = facts();
        facts.job.origin.source = source;
        facts
    };
    let mut again = with(|known| known.created_ms = AFTER);
    again.former = vec![former(AFTER)];
    vec![
        (with(follow("team:che", KindMask::ALL)), "no_follow", true),
        (with(follow("team:ars", other)), "type_not_wanted", true),
        (with(|known| known.view.follows.muted = goals()), "type_muted", true),
        (
            with(|known| {
                known.view.follows.muted = goals();
                known.follows_ms = AFTER;
            }),
            "type_muted",
            false,
        ),
        (with(|known| known.follows_ms = AFTER), "followed_later", false),
        (with(|known| known.created_ms = AFTER), "registered_later", true),
        (again, "registered_later", false),
        (with(dead(BEFORE)), "device_dead", true),
        (with(dead(AFTER)), "device_dead", false),
        (with(|known| known.state_ms = AFTER), "device_dead", true),
        (facts(), "unexplained", false),
        (gone(vec![]), "unknown_device", false),
        (gone(vec![former(BEFORE)]), "deleted", true),
        (gone(vec![former(AFTER)]), "deleted", false),
        (unread(FanoutState::Cancelled, true), "cancelled_before", true),
        (derived(Source::Reached), "not_derived", true),
        (derived(Source::Failed), "not_derived", true),
        (unread(FanoutState::Cancelled, false), "unexplained", false),
    ]
}

/// Places, and where they must be said to wait.
fn waits() -> Vec<(Explained, &'static str)> {
    let boot = BootId(Uuid::from_u128(9));
    let at = |state, owner| Explained { place: Some(Place { state, owner, ..place() }), ..facts() };
    let cancelled = Explained { state: FanoutState::Cancelled, ..at(ChunkState::Open, None) };
    vec![
        (at(ChunkState::Open, None), "waiting"),
        (Explained { now_ms: ACCEPTED + 130_000, ..at(ChunkState::Open, None) }, "waiting"),
        (at(ChunkState::Owned, Some((boot, true))), "in_hand"),
        (at(ChunkState::Owned, Some((boot, false))), "owner_lost"),
        (at(ChunkState::SetAside, None), "set_aside"),
        (cancelled, "ending"),
        (Explained { paused: Some(PauseReason::Budget), ..at(ChunkState::Open, None) }, "paused"),
        (Explained { state: FanoutState::Freezing, cursor: DeviceKey(3), ..facts() }, "freeze_not_reached"),
    ]
}

#[test]
fn who_is_no_recipient_is_told_why_and_how_sure_that_is() {
    for (facts, because, certain) in absences() {
        let told = told(&facts);
        let found = (told.answer.as_str(), told.because.as_str(), told.certain);
        assert_eq!(found, ("not_a_recipient", because, certain), "{told:?}");
        assert!(told.text.ends_with('.') && told.attempts.is_none(), "{told:?}");
    }
}

#[test]
fn who_waits_is_told_where() {
    for (facts, because) in waits() {
        let told = told(&facts);
        assert_eq!((told.answer.as_str(), told.because.as_str()), ("pending", because), "{told:?}");
        assert_eq!(told.instance.is_some(), ["in_hand", "owner_lost"].contains(&because), "{told:?}");
    }
}

#[test]
fn every_reason_there_is_has_a_case_here() {
    let absent = absences().into_iter().map(|(_, because, _)| because);
    let found: BTreeSet<&str> = absent.chain(waits().into_iter().map(|(_, because)| because)).collect();
    assert_eq!(found, REASONS.iter().copied().collect());
}

#[test]
fn every_outcome_is_told_with_its_row_or_with_its_chunk() {
    for outcome in Outcome::ALL.iter().copied().filter(|outcome| *outcome != Outcome::Delivered) {
        let row = of(Place { done: true, failure: Some(failure(outcome)), ..place() });
        assert_eq!((row.answer.as_str(), row.because.as_str()), ("failed", outcome.as_str()));
        assert_eq!((row.attempts, row.status, row.retryable), (Some(2), Some(404), Some(outcome.retryable())));
        let rest = RestOutcome { outcome, cause: Cause::Throttle };
        let bulk = of(Place { state: ChunkState::Closed, rest: Some(rest), ..place() });
        assert_eq!((bulk.because.as_str(), bulk.cause.as_deref()), (outcome.as_str(), Some("throttle")));
        assert_eq!((bulk.attempts, bulk.may_have_arrived), (Some(0), Some(false)));
    }
    let delivered = of(Place { done: true, ok: true, ..place() });
    assert_eq!((delivered.answer.as_str(), delivered.because.as_str()), ("delivered", "delivered"));
    assert_eq!((delivered.attempts, delivered.may_have_arrived, delivered.certain), (None, None, true));
}

#[test]
fn attempts_of_an_earlier_owner_are_not_said_to_be_none() {
    let rest = Some(RestOutcome { outcome: Outcome::Cancelled, cause: Cause::None });
    let ended = Place { state: ChunkState::Closed, rest, ..place() };
    assert_eq!(of(Place { epoch: 2, ..ended.clone() }).attempts, None);
    let maybe = of(Place { maybe: true, ..ended });
    assert_eq!((maybe.attempts, maybe.may_have_arrived), (None, Some(true)));
    assert!(maybe.text.contains("may have reached"), "{}", maybe.text);
}

#[test]
fn who_was_gone_is_told_how() {
    let gone = Some(Place { done: true, failure: Some(failure(Outcome::Gone)), ..place() });
    let former = vec![FormerDevice { key: KEY, deleted_ms: AFTER }];
    let deleted = told(&Explained { device: None, former, place: gone.clone(), ..facts() });
    assert!(deleted.text.contains("deleted at"), "{}", deleted.text);
    assert_eq!(deleted.device.unwrap().state, "deleted");
    let mut dead = with(|known| (known.view.state, known.state_ms) = (DeviceState::Suspended, AFTER));
    dead.place = gone.clone();
    assert!(told(&dead).text.contains("is suspended since"), "{}", told(&dead).text);
    assert!(told(&Explained { place: gone, ..facts() }).text.contains("registered again"));
}

#[test]
fn what_contradicts_itself_is_corruption_and_never_an_answer() {
    for broken in [
        Place { done: true, ..place() },
        Place { state: ChunkState::Closed, ..place() },
        Place { done: true, failure: Some(KeptFailure { at_ms: i64::MAX, ..failure(Outcome::Payload) }), ..place() },
    ] {
        let facts = Explained { place: Some(broken), ..facts() };
        let told = explain(&facts, &DeviceId::parse("phone-1").unwrap(), &catalogue());
        assert!(matches!(told, Err(StoreError::Corrupt(_))), "{told:?}");
    }
}

#[test]
fn nothing_of_the_address_is_told() {
    assert!(!serde_json::to_string(&told(&facts())).unwrap().contains("secret"));
}

#[test]
fn what_was_superseded_is_not_said_to_be_cancelled() {
    let rest = Some(RestOutcome { outcome: Outcome::Cancelled, cause: Cause::None });
    let ended = Place { state: ChunkState::Closed, rest, ..place() };
    let facts = Explained { superseded_by: Some(FanoutId(18)), place: Some(ended), ..facts() };
    let told = told(&facts);
    assert_eq!(told.because, "cancelled");
    assert!(told.text.contains("Fan-out 18 corrects this one"), "{told:?}");
}
