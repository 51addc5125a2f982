//! Owns the proof that every invariant can be violated: a healthy observation, and one lie at a time.
//! Must never know: how anything is observed.

use super::*;
use crate::soak::observed::{Line, Posted, Span};
use crate::soak::oracle::Seen;

/// A fan-out that ended well but for one dead device.
pub fn fanout(id: &str, recipients: u64, delivered: u64) -> Fanout {
    serde_json::from_value(serde_json::json!({
        "id": id, "event_id": "e", "type": "goal", "match_id": "m", "kind": "original", "state": "done",
        "recipients": recipients, "delivered": delivered, "failed": recipients - delivered, "pending": 0,
        "outcomes": {"delivered": delivered, "token_dead": recipients - delivered, "expired": 0, "unconfirmed": 0},
        "attempts": recipients + 1, "retried": 1, "throttled": 0, "unprocessed": 0, "unsent": 0, "reauthed": 0,
        "stalled": 0, "accepted_at": "2026-11-30T15:00:00Z", "deadline_at": "2026-11-30T15:02:00Z",
        "settled_at": "2026-11-30T15:00:01Z", "duration_ms": 1000, "slowest_send_ms": 40, "ledger": "exact",
        "ceiling": {"mode": "single", "rate": 100.0, "pace": 100.0}
    }))
    .unwrap()
}

/// A day with one goal for four devices, of which one is dead, and one 503.
pub fn observed() -> Observed {
    let usage = Usage { rss_kb: 50_000, fds: 20, tasks: 30 };
    let samples =
        (0..400).map(|i| Sample { at_ms: i * 500, pid: 7, usage, mode: "single".into(), pace: 100.0, seat: 0 });
    Observed {
        length_ms: 180_000,
        rate: 100.0,
        instances: 1,
        exposure: 64,
        posted: vec![Posted {
            kind: "goal".into(),
            fanout: Some("1".into()),
            expected: Some(4),
            bad: 1,
            ..Posted::default()
        }],
        fanouts: [("1".to_owned(), fanout("1", 4, 3))].into(),
        lines: [("1".to_owned(), Line { p50_send_ms: 20, p99_send_ms: 40, slowest_send_ms: 40, interrupted: 0 })]
            .into(),
        seen: Seen {
            requests: 5,
            accepted: 3,
            most: 1,
            reached: vec![3],
            first_ns: vec![vec![30_000_000, 31_000_000, 300_000_000]],
            times_ns: vec![1, 2, 3, 4, 300_000_000],
            answers: [("ok".to_owned(), 3), ("dead".to_owned(), 1), ("unavailable".to_owned(), 1)].into(),
            proven: ["dead-1".to_owned()].into(),
            ..Seen::default()
        },
        began_unix_ms: 1_796_050_800_000,
        condemned: vec!["dead-1".into()],
        samples: samples.collect(),
        rest: vec![(usage, usage)],
        slots: 8,
        stall_after_ms: 600,
        stalled_ms: vec![50_000],
        crowd: (0..100).map(|i| (51_000 + i * 100, 9)).collect(),
        ..Observed::default()
    }
}

/// The names of what does not hold.
fn violated(o: &Observed) -> Vec<String> {
    judge(o).into_iter().filter(|i| i.state == State::Violated).map(|i| i.name).collect()
}

/// What does not hold when this is done to a healthy observation.
fn after(lie: impl FnOnce(&mut Observed)) -> Vec<String> {
    let mut o = observed();
    lie(&mut o);
    violated(&o)
}

fn told(o: &mut Observed) -> &mut Fanout {
    o.fanouts.get_mut("1").unwrap()
}

#[test]
fn a_healthy_day_violates_nothing_and_everything_is_judged() {
    assert!(judge(&observed()).iter().all(|i| i.state == State::Ok), "{:#?}", judge(&observed()));
}

#[test]
fn a_recipient_without_an_outcome_or_with_two_violates_conservation() {
    assert_eq!(after(|o| told(o).pending = 1), ["conservation"]);
    assert_eq!(after(|o| *told(o).outcomes.get_mut("expired").unwrap() = 1), ["conservation"]);
    assert_eq!(after(|o| told(o).settled_at = None), ["conservation"]);
}

#[test]
fn whoever_was_not_reached_and_is_counted_as_delivered_is_lost() {
    assert_eq!(after(|o| o.seen.reached[0] = 2), ["no_loss"]);
    assert_eq!(after(|o| o.seen.reached[0] = 4), ["no_loss"], "nobody counted that one");
    assert_eq!(after(|o| o.seen.strangers = 1), ["no_loss"]);
}

#[test]
fn a_recipient_who_is_not_frozen_or_an_event_without_a_fan_out_is_lost() {
    assert_eq!(after(|o| o.posted[0].expected = Some(6)), ["no_loss"]);
    assert_eq!(after(|o| o.posted[0].expected = Some(3)), ["no_loss"], "who does not want it gets nothing");
    assert_eq!(after(|o| o.posted[0].expected = Some(5)), Vec::<String>::new(), "the bad one may be gone");
    assert_eq!(after(|o| o.posted[0].fanout = Some("2".into())), ["no_loss"]);
}

#[test]
fn an_event_that_is_refused_for_another_reason_than_lateness_is_lost() {
    let refused = |code: &str| Posted { story: 1, refused: Some(code.into()), ..Posted::default() };
    assert_eq!(after(|o| o.posted.push(refused("event_conflict"))), ["no_loss"]);
    assert_eq!(after(|o| o.posted.push(refused("event_too_late"))), Vec::<String>::new());
}

#[test]
fn what_perhaps_arrived_is_neither_lost_nor_uncounted() {
    let unconfirmed = |o: &mut Observed| {
        let told = told(o);
        (told.delivered, told.failed) = (2, 2);
        told.outcomes =
            [("delivered".to_owned(), 2), ("unconfirmed".to_owned(), 1), ("token_dead".to_owned(), 1)].into();
    };
    assert_eq!(after(unconfirmed), Vec::<String>::new());
}

#[test]
fn more_duplicates_than_kills_and_retries_explain_violate_their_bound() {
    assert_eq!(after(|o| o.seen.duplicates = 1), Vec::<String>::new());
    assert_eq!(after(|o| o.seen.duplicates = 2), ["duplicates"]);
    let killed = |o: &mut Observed| (o.kills, o.seen.duplicates) = (1, 65);
    assert_eq!(after(killed), Vec::<String>::new());
}

/// So many requests within one second.
fn burst(n: u64) -> impl FnOnce(&mut Observed) {
    move |o| {
        o.seen.times_ns = (0..n).map(|i| 20_000_000_000 + i * 1_000_000).collect();
        o.seen.requests = 5;
    }
}

#[test]
fn a_second_over_the_ceiling_violates_it_wherever_it_begins() {
    assert_eq!(after(burst(110)), Vec::<String>::new());
    assert_eq!(after(burst(111)), ["ceiling"]);
}

#[test]
fn while_redis_is_away_from_some_the_others_may_use_all_and_no_more() {
    let away = |n, from_ms, to_ms| {
        move |o: &mut Observed| {
            burst(n)(o);
            (o.instances, o.away) = (2, vec![Span { from_ms, to_ms }]);
        }
    };
    assert_eq!(after(away(160, 15_000, 18_000)), Vec::<String>::new());
    assert_eq!(after(away(161, 15_000, 18_000)), ["ceiling"]);
    assert_eq!(after(away(111, 15_000, 25_000)), ["ceiling"], "all are cut off, and share");
}

#[test]
fn an_instance_that_left_redis_unasked_may_use_its_share_beside_the_others() {
    let left = |n| {
        move |o: &mut Observed| {
            burst(n)(o);
            o.instances = 2;
            o.samples.iter_mut().filter(|s| s.at_ms == 20_500).for_each(|s| s.mode = "split".into());
        }
    };
    assert_eq!(after(left(160)), Vec::<String>::new());
    assert_eq!(after(left(161)), ["ceiling"]);
}

#[test]
fn lateness_of_the_machine_explains_what_arrives_together_and_only_that() {
    let late = |at| {
        move |o: &mut Observed| {
            burst(120)(o);
            o.late = vec![(at, 60)];
        }
    };
    assert_eq!(after(late(20_500)), Vec::<String>::new());
    assert_eq!(after(late(30_000)), ["ceiling"]);
}

#[test]
fn an_attempt_more_or_less_than_the_provider_counted_violates_the_ledger() {
    assert_eq!(after(|o| told(o).attempts = 6), ["ledger"]);
    assert_eq!(after(|o| told(o).attempts = 4), ["ledger"]);
    assert_eq!(after(|o| told(o).ledger = "lower_bound".into()), ["ledger"], "nothing was killed");
    let killed = |attempts| {
        move |o: &mut Observed| {
            o.kills = 1;
            (told(o).ledger, told(o).attempts) = ("lower_bound".into(), attempts);
        }
    };
    assert_eq!(after(killed(4)), Vec::<String>::new());
    assert_eq!(after(killed(6)), ["ledger"], "a lower bound is not above");
}

#[test]
fn a_device_given_up_without_the_providers_word_violates_pruning() {
    assert_eq!(after(|o| o.condemned.push("ok-003-r1-3".into())), ["pruning"]);
}

#[test]
fn memory_that_grows_in_the_last_half_is_a_leak() {
    let grow = |from: u64, kb_per_sample: u64| {
        move |o: &mut Observed| {
            for (i, sample) in o.samples.iter_mut().enumerate().filter(|(i, _)| *i as u64 >= from) {
                sample.usage.rss_kb += i as u64 * kb_per_sample;
            }
        }
    };
    assert_eq!(after(grow(0, 10)), ["rss"], "1.2 MB a minute");
    assert_eq!(after(grow(0, 8)), Vec::<String>::new());
    let warm = |o: &mut Observed| o.samples[..150].iter_mut().for_each(|s| s.usage.rss_kb /= 2);
    assert_eq!(after(warm), Vec::<String>::new(), "what it takes to warm up is none");
    let short = judge(&Observed { samples: observed().samples[..200].to_vec(), ..observed() });
    assert!(short.iter().any(|i| i.name == "rss" && i.state == State::NotJudged));
}

#[test]
fn files_and_tasks_that_stay_open_are_seen() {
    assert_eq!(after(|o| o.rest[0].1.fds += SLACK + 1), ["rest"]);
    assert_eq!(after(|o| o.rest[0].1.tasks += SLACK + 1), ["rest"]);
    assert_eq!(after(|o| o.rest[0].1.fds = 3), Vec::<String>::new());
}

#[test]
fn an_instance_that_does_not_end_as_asked_is_seen() {
    assert_eq!(after(|o| o.mishaps.push("an instance ended with 101".into())), ["processes"]);
}

#[test]
fn slots_that_are_not_lent_while_a_few_sends_stall_are_seen() {
    let crowd = |n: u32, stalled: Vec<u64>| {
        move |o: &mut Observed| {
            o.crowd.iter_mut().for_each(|look| look.1 = n);
            o.stalled_ms = stalled;
        }
    };
    assert_eq!(after(crowd(8, vec![50_000])), ["lending"]);
    assert_eq!(after(crowd(7, vec![50_000])), Vec::<String>::new(), "nobody waited for a slot");
    assert_eq!(after(crowd(8, vec![50_000; 3])), Vec::<String>::new(), "that is a slow provider");
}
