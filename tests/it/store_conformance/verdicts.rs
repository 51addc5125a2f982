//! Verdicts against devices: what they hold for, and when they are withheld because there are too many.

use fanfare::domain::batch::FailureRecord;
use fanfare::domain::ids::{BootId, UserId};
use fanfare::domain::outcome::Outcome::{self, Delivered, Expired, TokenDead, TokenForeign, TokenInvalid};
use fanfare::domain::recipient::DeviceState::{self, Live, Suspended, Tombstoned};
use fanfare::domain::recipient::Platform;
use fanfare::domain::tally::PartCounters;
use fanfare::store::{ImportRow, Ruling, Settled};

use super::world::*;

/// A settled fan-out in which the first devices got these outcomes and the others were delivered.
async fn found(store: &Shared, boot: BootId, id: &str, n: usize, against: usize) -> Settled {
    let (fanout, chunk) = one_chunk(store, boot, id, n).await;
    store.put_parts(boot, vec![(fanout, accepted((n - against) as u64))]).await.unwrap();
    let outcome = |i| if i < against { TokenDead } else { Delivered };
    let all: Vec<(usize, Outcome)> = (0..n).map(|i| (i, outcome(i))).collect();
    store.flush(outcomes(&Hold::from(&chunk), &all)).await.unwrap();
    settle(store, fanout).await
}

pub async fn a_device_that_changed_between_send_and_settle_is_not_judged(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 9).await;
    let mut dead: Vec<(usize, Outcome)> = (0..7).map(|i| (i, TokenDead)).collect();
    dead.extend([(7, TokenInvalid), (8, Delivered)]);
    store.flush(outcomes(&Hold::from(&chunk), &dead)).await.unwrap();

    // 0: another token. 1: another user. 2: another locale, which is another text. 3: its token went to another device.
    store.put_device(device("evt-0", "rotated")).await.unwrap();
    let mut of_bob = device("evt-1", "token-evt-1");
    of_bob.user = UserId::parse("bob").unwrap();
    store.put_device(of_bob).await.unwrap();
    let mut web = device("evt-2", "token-evt-2");
    web.platform = Platform::Web;
    store.put_device(web).await.unwrap();
    store.put_device(device("heir", "token-evt-3")).await.unwrap();
    // 4: rotated there and back: the token is the one that was sent to, but the row has lived on since.
    store.put_device(device("evt-4", "elsewhere")).await.unwrap();
    store.put_device(device("evt-4", "token-evt-4")).await.unwrap();
    // 5: imported with another token. 6: registered again with all the same, which says nothing about the verdict.
    let row = ImportRow { line: 1, device: device("evt-5", "imported"), follows: None, state: None };
    store.import(vec![row], false).await.unwrap();
    store.put_device(device("evt-6", "token-evt-6")).await.unwrap();
    // 7: another token for one that was found invalid.
    store.put_device(device("evt-7", "valid")).await.unwrap();

    assert_eq!(settle(&store, id).await.judged, 1);
    for live in ["evt-0", "evt-1", "evt-2", "heir", "evt-4", "evt-5", "evt-7", "evt-8"] {
        assert_eq!(state_of(&store, live).await, Live, "{live}");
    }
    assert_eq!(store.device(device_id("evt-3")).await.unwrap(), None);
    assert_eq!(state_of(&store, "evt-6").await, Tombstoned);
}

pub async fn a_judged_device_comes_back_by_registering_with_the_same_or_another_token(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 7).await;
    let verdicts = [TokenInvalid, TokenForeign, TokenDead, TokenInvalid, TokenForeign, TokenDead, Delivered];
    let all: Vec<(usize, Outcome)> = verdicts.into_iter().enumerate().collect();
    store.flush(outcomes(&Hold::from(&chunk), &all)).await.unwrap();
    assert_eq!(settle(&store, id).await.judged, 6);
    let name = |i: usize| format!("evt-{i}");
    let judged: [DeviceState; 6] = [Suspended, Suspended, Tombstoned, Suspended, Suspended, Tombstoned];
    for (i, state) in judged.iter().enumerate() {
        assert_eq!(state_of(&store, &name(i)).await, *state);
    }

    // An import may be old: it wakes nobody unless it is asked to, whichever token it brings.
    for (i, token) in [(0, "token-evt-0"), (1, "imported")] {
        let row = ImportRow { line: 1, device: device(&name(i), token), follows: None, state: None };
        let done = store.import(vec![row], false).await.unwrap();
        assert_eq!((done.updated, done.revived, done.rejected[0].code), (0, 0, "suspended"));
        assert_eq!(state_of(&store, &name(i)).await, Suspended);
    }
    // Its app wakes it: with the same token, since FCM may have been wrong, or with another one.
    for i in 0..6 {
        let token = if i < 3 { format!("token-evt-{i}") } else { format!("fresh-{i}") };
        assert!(store.put_device(device(&name(i), &token)).await.unwrap().revived);
        assert_eq!(state_of(&store, &name(i)).await, Live);
    }
    assert_eq!(page(&store, "match:evt", GOAL).await, chunk.keys, "and they are followers again");
}

pub async fn small_fanouts_that_find_everybody_dead_are_withheld_together(store: Shared) {
    let boot = instance(&store).await;
    healthy(&store, boot, "well", 50).await;
    // Whatever the size: below it, at it and above it a fan-out alone would be told to leap.
    for (name, size, rounds) in [("nines", 9, 12), ("nineteens", 19, 5), ("forties", 40, 3)] {
        let mut judged = 0;
        for round in 0..rounds {
            judged += found(&store, boot, &format!("{name}-{round}"), size, size).await.judged;
        }
        assert!(judged <= 28, "{judged} devices judged in bites of {size}");
        let last = found(&store, boot, &format!("{name}-last"), size, size).await;
        assert_eq!((last.judged, last.withheld[0].ruling), (0, Ruling::Leap));
        assert_eq!(state_of(&store, &format!("{name}-last-0")).await, Live);
    }
    // Nothing is lost for ever: once the provider is well again they are judged as they are found.
    let few = found(&store, boot, "few", 20, 1).await;
    assert_eq!(few.judged, 0, "twenty answers say too little after that");
    assert_eq!(found(&store, boot, "many", 490, 10).await.judged, 10);
    assert_eq!(state_of(&store, "many-0").await, Tombstoned);
}

pub async fn a_leap_is_measured_by_what_the_fleet_has_seen(store: Shared) {
    let boot = instance(&store).await;
    // No measure yet: the absolute limit.
    assert_eq!(found(&store, boot, "first", 100, 25).await.judged, 25);
    for round in 0..4 {
        healthy(&store, boot, &format!("well-{round}"), 490).await;
    }
    let leap = found(&store, boot, "leap", 100, 25).await;
    assert_eq!(leap.judged, 0, "a quarter dead is a leap for a fleet that has seen one in eighty");
    let withheld = leap.withheld[0];
    assert_eq!((withheld.platform, withheld.ruling), (Platform::Android, Ruling::Leap));
    assert_eq!((withheld.against, withheld.answered, withheld.allowed_percent), (25, 100, 10));
    assert_eq!(leap.view.tally.count(TokenDead), 25, "what was found is said all the same");
    assert_eq!(state_of(&store, "leap-0").await, Live);
}

pub async fn one_platform_that_leaps_keeps_no_other_from_being_judged(store: Shared) {
    let boot = instance(&store).await;
    let (id, chunk) = one_chunk(&store, boot, "evt", 130).await;
    // The first 40 are iOS, and all of them dead; of the others 2.
    let mut batch = outcomes(
        &Hold::from(&chunk),
        &(0..130).map(|i| (i, if i < 42 { TokenDead } else { Delivered })).collect::<Vec<_>>(),
    );
    for record in &mut batch.failures {
        let variant = if record.ordinal < 40 { "goal/de/ios" } else { "goal/de/android" };
        record.failure = record.failure.take().map(|row| FailureRecord { variant: variant.to_owned(), ..row });
    }
    for i in 0..40 {
        let mut ios = device(&format!("evt-{i}"), &format!("token-evt-{i}"));
        ios.platform = Platform::Ios;
        store.put_device(ios).await.unwrap();
    }
    // The versions as they were at the send: the devices were iOS all along.
    for record in &mut batch.failures {
        record.failure = record.failure.take().map(|row| FailureRecord {
            device_version: if record.ordinal < 40 { 2 } else { row.device_version },
            ..row
        });
    }
    store.put_parts(boot, vec![(id, PartCounters { accepted: [88, 0, 0], ..PartCounters::default() })]).await.unwrap();
    store.flush(batch).await.unwrap();
    let settled = settle(&store, id).await;
    assert_eq!(settled.judged, 2, "Android is well");
    assert_eq!((settled.withheld.len(), settled.withheld[0].platform), (1, Platform::Ios));
    assert_eq!((state_of(&store, "evt-0").await, state_of(&store, "evt-41").await), (Live, Tombstoned));
}

pub async fn a_fanout_of_which_nobody_answered_learns_nothing(store: Shared) {
    let boot = instance(&store).await;
    // 60 of 200 were asked and are dead: a share of all recipients would call that 30 %.
    let (id, chunk) = one_chunk(&store, boot, "late", 200).await;
    let dead: Vec<(usize, Outcome)> = (0..60).map(|i| (i, TokenDead)).collect();
    store.flush(outcomes(&Hold::from(&chunk), &dead)).await.unwrap();
    store.flush(rest(&Hold::from(&chunk), Expired)).await.unwrap();
    let settled = settle(&store, id).await;
    assert_eq!((settled.judged, settled.withheld[0].answered), (0, 60), "of those who were answered all are dead");

    let (id, chunk) = one_chunk(&store, boot, "nobody", 50).await;
    store.flush(rest(&Hold::from(&chunk), Expired)).await.unwrap();
    assert_eq!(settle(&store, id).await.withheld, vec![]);
}
