//! What becomes of differences.

use super::*;
use crate::domain::derived::Source;
use crate::domain::ids::DeviceKey;
use crate::domain::outcome::Outcome;
use crate::domain::recipient::{DeviceState, KindMask};
use crate::inspect::tests::{catalogue, facts, failure, place, with};
use crate::store::{Explained, FormerDevice, KnownDevice, Place};

fn why(group: Group, because: &str, certain: bool) -> Attribution {
    Attribution { group, because: because.to_owned(), certain, text: "So it is.".to_owned() }
}

#[test]
fn every_difference_is_counted_and_the_unexplained_are_named_up_to_a_bound() {
    let mut found = Comparison::default();
    found.count(Side::Absent, ("e1", "d1"), why(Group::Muted, "type_muted", true), 2);
    found.count(Side::Absent, ("e1", "d2"), why(Group::Muted, "type_muted", false), 2);
    found.count(Side::Extra, ("e1", "d3"), why(Group::Dead, "dead_since", true), 2);
    assert_eq!(found.absent["muted"]["type_muted"], Counts { certain: 1, likely: 1 });
    assert_eq!(found.extra["dead"]["dead_since"], Counts { certain: 1, likely: 0 });
    assert_eq!((found.unexplained, found.listed.len()), (0, 0));
    for device in ["x1", "x2", "x3"] {
        found.count(Side::Extra, ("e2", device), why(Group::Unexplained, "unexplained", false), 2);
    }
    assert_eq!((found.unexplained, found.listed.len()), (3, 2));
    assert_eq!((found.listed[1].device.as_str(), found.listed[1].side), ("x2", Side::Extra));
}

#[test]
fn a_clean_list_is_said_to_be_no_verdict_on_volume() {
    let coverage = Coverage { events: 3, largest: 812, devices_seen: 900, devices_live: 5000, ..Coverage::default() };
    let mut found = Comparison { coverage, ..Comparison::default() };
    let words = found.cannot_say().join("\n");
    assert!(words.contains("812 recipients, 3 events") && words.contains("no verdict on volume"), "{words}");
    assert!(words.contains("900 of 5000 live devices"), "{words}");
    assert_eq!(found.cannot_say().len(), 2, "what did not happen is not told");
    found.coverage.types_not_seen = ["corner".to_owned()].into();
    found.coverage.not_accepted = vec!["e9".to_owned()];
    found.coverage.freezing = vec!["e8".to_owned()];
    found.coverage.rows_of_other_events = 7;
    let words = found.cannot_say().join("\n");
    for part in ["did not occur: corner", "1 events were not accepted", "1 events have no complete", "7 rows of theirs"]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
}

/// A recipient whose device is changed so.
fn recipient(change: impl FnOnce(&mut KnownDevice)) -> Explained {
    Explained { place: Some(place()), ..with(change) }
}

#[test]
fn a_recipient_the_other_system_leaves_out_is_put_down_to_what_is_kept_of_it() {
    let accepted = facts().job.accepted_ms;
    let (before, after) = (accepted - 5_000, accepted + 5_000);
    let nothing = |known: &mut KnownDevice| known.view.follows.subjects = vec![("team:none".to_owned(), KindMask::ALL)];
    let dead = |known: &mut KnownDevice| (known.view.state, known.state_ms) = (DeviceState::Tombstoned, after);
    let judged = Place { done: true, failure: Some(failure(Outcome::TokenDead)), ..place() };
    let mut corrected = recipient(nothing);
    corrected.job.origin.source = Source::Audience;
    let former = |key| vec![FormerDevice { key, deleted_ms: after }];
    let gone = Explained { device: None, former: former(place().key), place: Some(place()), ..facts() };
    let again =
        Explained { former: former(DeviceKey(5)), place: Some(Place { key: DeviceKey(5), ..place() }), ..facts() };
    for (facts, theirs, group, because, certain) in [
        (recipient(|_| {}), None, Group::Unexplained, "unexplained", false),
        (recipient(|_| {}), Some(after), Group::Unexplained, "unexplained", false),
        (recipient(dead), Some(after), Group::Dead, "dead_since", true),
        (recipient(dead), Some(before), Group::Dead, "dead_since", false),
        (recipient(dead), None, Group::Dead, "dead_since", false),
        (Explained { place: Some(judged), ..facts() }, None, Group::Dead, "revived_since", false),
        (recipient(|_| {}), Some(before - 1), Group::TheirsStale, "registered_after_theirs", true),
        (recipient(|known| known.created_ms = 0), Some(before - 1), Group::TheirsStale, "followed_after_theirs", false),
        (recipient(nothing), None, Group::TheirsStale, "unfollowed_since", false),
        (corrected, None, Group::NotMeant, "saw_the_original", false),
        (gone.clone(), None, Group::TheirsStale, "deleted_since", false),
        (gone, Some(after), Group::TheirsStale, "deleted_since", true),
        (again, Some(after), Group::TheirsStale, "deleted_since", true),
        (Explained { device: None, place: Some(place()), ..facts() }, None, Group::Unexplained, "unexplained", false),
    ] {
        let told = extra(&facts, theirs, &catalogue());
        assert_eq!((told.group, told.because.as_str(), told.certain), (group, because, certain), "{told:?}");
        assert!(told.text.ends_with('.'), "{told:?}");
    }
}
