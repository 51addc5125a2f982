//! Owns tests of those who wait: who stays in hand, who goes back, who comes back when.
//! Must never know: how the dispatcher is set up.

use super::*;

#[tokio::test(start_paused = true)]
async fn of_a_platform_that_waits_eight_chunks_stay_in_hand_and_all_come_back_when_it_is_served() {
    let mut bench = Bench::new();
    let job = bench.job(1, 120, None);
    bench.refuse(Platform::Ios);
    for no in 0..40 {
        bench.take(&job, no, 1, &[Platform::Ios]);
    }
    // Another platform's are no part of it.
    bench.take(&job, 90, 1, &[Platform::Web]);
    assert_eq!(bench.look().len(), 6, "those of the other platform can be launched");
    assert_eq!(bench.in_hand().len(), 9);
    let out = bench.sent();
    assert_eq!((put_off(&out).len(), out.released.len(), out.recalled.len()), (32, 0, 0));
    let away = bench.started_ms + 20_000..=job.deadline_ms;
    assert!(out.put_off.iter().all(|p| away.contains(&p.not_before_ms)), "{:?}", out.put_off);
    assert!(out.outcomes.is_empty() && out.ends.is_empty() && bench.d.exposure.used() == 0, "nobody ends by it");

    // Looked at again in vain, claimed again under another epoch, put off again.
    assert_eq!((bench.look().len(), put_off(&bench.sent())), (0, Vec::new()));
    let again = put_off(&out)[0];
    bench.take(&job, again, 2, &[Platform::Ios]);
    bench.look();
    assert_eq!(put_off(&bench.sent()), [again]);

    bench.d.gates.note(Credit::Worked, Platform::Ios, bench.d.now);
    bench.d.call_back(Platform::Ios);
    let mut back = bench.sent().recalled;
    back.sort_unstable();
    assert_eq!(back.len(), 32);
    assert!(back.iter().all(|(chunk, epoch)| *epoch == if chunk.no == again { 2 } else { 1 }));
    bench.d.wake_delayed();
    assert_eq!(bench.look().len(), 48, "and those in hand can be launched at once");
    assert!(bench.sent().recalled.is_empty(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_chunk_in_which_one_has_more_to_wait_for_or_to_do_stays_in_hand() {
    let mut bench = Bench::new();
    let job = bench.job(1, 120, None);
    bench.refuse(Platform::Ios);
    for no in 0..20 {
        bench.take(&job, no, 1, &[Platform::Ios, Platform::Android]);
    }
    let picked = bench.picked();
    assert_eq!(picked.len(), 60, "half of each");
    for spot in &picked {
        bench.d.bind(*spot, 1);
    }
    bench.look();
    assert_eq!((bench.in_hand().len(), put_off(&bench.sent())), (20, Vec::new()), "somebody is in flight");
    for spot in picked.iter().filter(|spot| spot.key.chunk.no != 17) {
        bench.d.hand.get_mut(spot.key).unwrap().flying -= 1;
        bench.d.finish(*spot, Outcome::Delivered, Cause::None);
    }
    for spot in picked.iter().filter(|spot| spot.key.chunk.no == 17) {
        bench.d.hand.get_mut(spot.key).unwrap().flying -= 1;
        bench.d.delay(*spot, bench.d.now + Duration::from_secs(60));
    }
    bench.look();
    assert_eq!(bench.in_hand().iter().filter(|(_, no)| *no == 17).count(), 1, "a Retry-After is remembered here only");
    let out = bench.sent();
    assert_eq!((put_off(&out).len(), out.outcomes.len()), (11, 57), "outcomes go before the chunk they are of");
    assert!(bench.d.exposure.used() > 0, "which is on its way still");
}

#[tokio::test(start_paused = true)]
async fn somebody_to_probe_with_is_in_hand_as_long_as_anybody_waits() {
    let mut bench = Bench::new();
    let (soon, late) = (bench.job(1, 60, None), bench.job(2, 120, None));
    bench.refuse(Platform::Ios);
    for no in 0..20 {
        bench.take(&late, 100 + no, 1, &[Platform::Ios]);
        bench.take(&soon, no, 1, &[Platform::Ios]);
    }
    bench.look();
    assert!(bench.in_hand().iter().all(|(fanout, _)| *fanout == late.id), "those stay who wait longest");
    assert_eq!(bench.sent().recalled, []);
    // All that is in hand is cancelled.
    bench.d.receive(ToSender::Cancelled(late.id));
    bench.look();
    assert_eq!((bench.in_hand(), bench.sent().recalled.len()), (Vec::new(), 32));
    bench.take(&soon, 3, 2, &[Platform::Ios]);
    let now = bench.d.now;
    let due = bench.d.gates.platform_shut(Platform::Ios, now).unwrap();
    bench.look();
    assert_eq!((bench.in_hand(), bench.sent().recalled.len()), (vec![(soon.id, 3)], 0));
    bench.d.now = due;
    bench.d.wake_delayed();
    assert_eq!(bench.d.pick().map(|spot| spot.key.chunk.no), Some(3), "the probe");
}

/// A fifth of all fail at first, and are told to wait, or their retry is over the budget.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_their_retry_leave_room_for_others_and_go_on_where_they_were() {
    let mut bench = Bench::new();
    let job = bench.job(1, 120, None);
    let wait = Duration::from_secs(40);
    for no in 0..110 {
        bench.receive(claimed(&job, (no, 1), 500, &[Platform::Android]), &job);
        for spot in bench.picked() {
            let failed = Delivery { attempts: 1, retry_due: true, maybe: spot.ordinal == 7, ..Delivery::default() };
            bench.d.hand.get_mut(spot.key).unwrap().deliveries.insert(spot.ordinal, failed);
            bench.d.delay(spot, bench.d.now + wait);
        }
    }
    assert_eq!(bench.look().len(), 0);
    assert_eq!(bench.d.hand.open(), MOST_OPEN / 2);
    let out = bench.sent();
    assert_eq!(put_off(&out), (100..110).collect::<Vec<_>>(), "the least urgent");
    let asked_ms = bench.started_ms + 39_000;
    assert!(out.put_off.iter().all(|p| p.not_before_ms > asked_ms), "never sooner than asked for: {:?}", out.put_off);
    assert_eq!(bench.d.delayed.len(), MOST_OPEN / 2);

    // It comes back, and somebody has ended meanwhile whose answer was on its way.
    let mut again = claimed(&job, (105, 2), 500, &[Platform::Android]);
    again.done.set(3);
    bench.receive(again, &job);
    assert_eq!(bench.picked().len(), 0, "nobody is asked sooner here either");
    bench.d.now += wait;
    bench.d.wake_delayed();
    let back: Vec<Spot> =
        bench.d.hand.iter().filter(|(key, _)| key.chunk.no == 105).map(|(key, _)| Spot { key, ordinal: 7 }).collect();
    assert_eq!(back.len(), 1);
    let delivery = bench.d.delivery(back[0]).unwrap();
    assert!(delivery.attempts == 1 && delivery.retry_due && delivery.maybe, "{delivery:?}");
    let chunk = bench.d.hand.get(back[0].key).unwrap();
    assert_eq!((chunk.launchable(), chunk.deliveries.len(), chunk.open()), (499, 499, 499));
    // Nobody calls back what waits for a time: another instance would take it for leave to ask at once.
    bench.d.receive(ToSender::Drain);
    assert_eq!(bench.sent().recalled, []);
}

#[tokio::test(start_paused = true)]
async fn who_was_put_off_ends_as_what_held_them_and_together() {
    let mut bench = Bench::new();
    let (job, other) = (bench.job(1, 0, None), bench.job(2, 120, None));
    bench.refuse(Platform::Ios);
    bench.take(&other, 0, 1, &[Platform::Ios]);
    bench.d.note_platforms(job.deadline_ms - 1);
    bench.d.note_platforms(job.deadline_ms + 1);
    // Claimed after the deadline: away until then, or never in hand before.
    bench.take(&job, 0, 2, &[Platform::Ios]);
    bench.take(&job, 1, 1, &[Platform::Ios, Platform::Web]);
    bench.d.expire();
    let out = bench.sent();
    let rest = |no: i32| out.ends.iter().find(|end| end.chunk.no == no).unwrap().rest;
    assert_eq!(rest(0), Some(RestOutcome { outcome: Outcome::Credential, cause: Cause::None }));
    assert_eq!(rest(1), Some(RestOutcome { outcome: Outcome::Expired, cause: Cause::Queue }), "web was not refused");
    let ended: Vec<(i32, Outcome)> = out.outcomes.iter().map(|r| (r.chunk.no, r.outcome)).collect();
    assert_eq!(ended, [(1, Outcome::Credential); 3], "a row each only where they do not end alike");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ends_leaves_nobody_waiting_for_it() {
    let mut bench = Bench::new();
    let job = bench.job(1, 120, None);
    bench.refuse(Platform::Web);
    for no in 0..12 {
        bench.take(&job, no, 1, &[Platform::Web]);
    }
    bench.look();
    assert_eq!(put_off(&bench.sent()).len(), 4);
    bench.d.receive(ToSender::Drain);
    let out = bench.sent();
    assert_eq!((out.released.len(), out.recalled.len(), bench.in_hand().len()), (8, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn news_of_a_pause_counts_though_it_comes_with_a_chunk_that_is_in_hand_already() {
    let mut bench = Bench::new();
    let cap = |paused| Some(Cap { most: 100, spent: 0, resumed: 0, paused });
    let (job, other) = (bench.job(1, 120, cap(false)), bench.job(2, 120, None));
    bench.take(&other, 0, 1, &[Platform::Web]);
    bench.take(&job, 0, 1, &[Platform::Web]);
    bench.take(&job, 1, 1, &[Platform::Web]);
    let flying = bench.d.pick().unwrap();
    assert_eq!(flying.key.chunk.fanout, job.id);
    bench.d.bind(flying, 1);
    // The same chunk as everything that is ours is looked up after a lost answer; its job was read just now.
    bench.take(&bench.job(1, 120, cap(true)), 1, 1, &[Platform::Web]);
    assert_eq!(bench.sent().released, [(ChunkRef { fanout: job.id, no: 1 }, 1)]);
    let spots = bench.picked();
    assert!(spots.iter().all(|spot| spot.key.chunk.fanout == other.id) && spots.len() == 6, "{spots:?}");
    // What is in flight ends as it ends, and its chunk goes back then.
    bench.d.hand.get_mut(flying.key).unwrap().flying -= 1;
    bench.d.finish(flying, Outcome::Delivered, Cause::None);
    bench.d.close_if_over(flying.key);
    let out = bench.sent();
    assert_eq!((out.outcomes.len(), out.released), (1, vec![(ChunkRef { fanout: job.id, no: 0 }, 1)]));
    assert_eq!(out.paused, [], "whoever paused it has written it down");
    bench.take(&bench.job(1, 120, cap(true)), 2, 1, &[Platform::Web]);
    assert_eq!(bench.sent().released, [(ChunkRef { fanout: job.id, no: 2 }, 1)], "one more of it goes back at once");
}
