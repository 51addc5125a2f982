//! Corrections, the same news twice and replays, end to end: who got what is asked of the emulator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fanfare::client::{Client, ClientError};
use fanfare::emulator::{Control, LogEntry, Rule};
use fanfare::wire::{EventAccepted, EventRequest, Fanout, ReplayRequest, ResumeRequest, SupersedesRequest};

use super::harness::beside::Beside;
use super::harness::logs::{Event, logs};
use super::harness::service::{Caller, Database, World, device_id, goal};

fn tokens(run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{run}-{i}")).collect()
}

/// A goal of `match_id` that takes the place of `target`.
fn correction(id: &str, match_id: &str, target: &str, mode: &str) -> EventRequest {
    let mut event = goal(id, match_id, 120);
    event.supersedes = Some(SupersedesRequest { event_id: target.to_owned(), mode: mode.to_owned() });
    event
}

async fn post(service: &Caller, event: &EventRequest) -> EventAccepted {
    service.client.post_event(event).await.unwrap().0
}

/// What the provider accepted behind the first `from` requests, by device token.
fn accepted(world: &World, from: usize) -> BTreeMap<String, Vec<LogEntry>> {
    let mut by_token: BTreeMap<String, Vec<LogEntry>> = BTreeMap::new();
    for entry in world.emulator.log().into_iter().skip(from).filter(|entry| entry.accepted) {
        by_token.entry(entry.token.clone()).or_default().push(entry);
    }
    by_token
}

fn names(by_token: &BTreeMap<String, Vec<LogEntry>>) -> BTreeSet<&str> {
    by_token.keys().map(String::as_str).collect()
}

async fn line(id: &str) -> Event {
    let ours = |event: &Event| event.message == "fan-out finished" && event.is("fanfare::fanout", "event_id", id);
    let found = logs().wait_for(1, ours).await;
    assert_eq!(found.len(), 1, "one line of {id}");
    found[0].clone()
}

async fn refused(answer: Result<impl std::fmt::Debug, ClientError>, status: u16, code: &str) -> String {
    match answer {
        Err(ClientError::Refused(problem)) if (problem.status, problem.code.as_str()) == (status, code) => {
            format!("{} {:?}", problem.detail, problem.errors)
        }
        other => panic!("{status} {code}: {other:?}"),
    }
}

/// A goal is disallowed while it is sent: whoever got it gets the correction, nobody else gets either.
async fn retracted_while_it_is_sent(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    world.emulate(Control { latency_ms: Some(40), jitter_ms: Some(20), ..Control::default() });
    let service = world.serve().await;
    service.follow(run, &tokens(run, 2000)).await;
    let (goal_id, off) = (format!("{run}-goal"), format!("{run}-off"));
    let original = service.goal(&goal_id, run, 120).await;
    world.emulator.logged(150).await;
    let told = post(&service, &correction(&off, run, &goal_id, "retract")).await;
    assert!(told.expected_start_ms >= 4_000, "it is held: {told:?}");
    let before = service.settled(&original).await;
    let first = accepted(&world, 0);
    let sent = world.emulator.log().len();
    assert_eq!((before.state.as_str(), before.superseded_by.as_deref()), ("cancelled", Some(told.fanout_id.as_str())));
    assert_eq!(before.outcomes["cancelled"] + before.delivered, before.recipients, "{before:#?}");
    assert!(before.delivered < before.recipients, "it was stopped in the middle");

    let after = service.settled(&told.fanout_id).await;
    let second = accepted(&world, sent);
    assert_eq!(names(&second), names(&first), "exactly those who got the goal");
    assert_eq!((after.kind.as_str(), after.parent.as_deref()), ("correction", Some(original.as_str())));
    assert_eq!((after.state.as_str(), after.delivered, after.recipients), ("done", before.delivered, before.delivered));
    assert_eq!(after.never_saw, Some(before.recipients - before.delivered), "{after:#?}");
    for (token, entries) in &second {
        assert_eq!(entries[0].collapse_key, first[token][0].collapse_key, "it replaces the goal on the phone");
        assert_ne!(entries[0].content, first[token][0].content);
    }
    let written = line(&off).await;
    assert_eq!(written.number("never_saw"), after.never_saw.unwrap());
    assert!(line(&goal_id).await.is("fanfare::fanout", "superseded_by", &told.fanout_id));
    let untold = (0..2000).find(|i| !first.contains_key(&format!("ok-{run}-{i}"))).unwrap();
    let why = service.client.explain(&told.fanout_id, &device_id(run, untold)).await.unwrap();
    assert_eq!(why.because, "not_derived", "{why:?}");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_retraction_reaches_exactly_those_who_got_the_goal() {
    tokio::join!(
        retracted_while_it_is_sent(Database::Sqlite, "retract-sqlite"),
        retracted_while_it_is_sent(Database::Postgres, "retract-pg"),
    );
}

/// What the VAR decides is another type, under another collapse key: the match's.
async fn corrected_by_another_type(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let service = world.serve().await;
    service.follow(run, &tokens(run, 6)).await;
    let named = |what: &str| format!("{run}-{what}");
    let goal = service.goal(&named("goal"), run, 120).await;
    assert_eq!(service.settled(&goal).await.delivered, 6);
    let mut decision = correction(&named("no"), run, &named("goal"), "retract");
    decision.kind = "var_decision".to_owned();
    decision.fields.insert("decision".to_owned(), "no goal".into());
    let mut off = correction(&named("off"), run, &named("no"), "replace");
    off.kind = "goal_disallowed".to_owned();
    off.fields.insert("team".to_owned(), "Arsenal".into());
    for event in [decision, off] {
        let correction = post(&service, &event).await.fanout_id;
        assert_eq!(service.settled(&correction).await.delivered, 6, "{}", event.id);
    }
    for (token, entries) in accepted(&world, 0) {
        let keys: BTreeSet<_> = entries.iter().map(|entry| entry.collapse_key.as_deref()).collect();
        let texts: BTreeSet<_> = entries.iter().map(|entry| entry.content).collect();
        assert_eq!((keys.len(), texts.len()), (1, 3), "each in the place of the one before: {token} {entries:#?}");
    }
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_correction_of_another_type_is_shown_in_the_place_of_what_it_corrects() {
    tokio::join!(
        corrected_by_another_type(Database::Sqlite, "var-sqlite"),
        corrected_by_another_type(Database::Postgres, "var-pg"),
    );
}

/// Goal, another scorer, no goal, another scorer after all; and the first goal again, which is no correction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flip_flop_collapses_into_its_last_state_and_the_same_goal_can_come_again() {
    let world = World::new(Database::Sqlite, false).await;
    let service = world.serve().await;
    service.follow("flip", &tokens("flip", 40)).await;
    let first = goal("flip-a", "flip", 300);
    let original = service.settled(&post(&service, &first).await.fanout_id).await;
    assert_eq!(original.delivered, 40);
    let sent = world.emulator.log().len();
    let mut held = Vec::new();
    for (id, target, mode) in
        [("flip-b", "flip-a", "replace"), ("flip-c", "flip-b", "retract"), ("flip-d", "flip-a", "replace")]
    {
        held.push(post(&service, &correction(id, "flip", target, mode)).await.fanout_id);
    }
    let last = service.settled(&held[2]).await;
    for (i, never) in held[..2].iter().enumerate() {
        let never = service.settled(never).await;
        assert_eq!((never.state.as_str(), never.attempts, never.recipients), ("cancelled", 0, 0));
        assert_eq!(never.superseded_by.as_deref(), Some(held[i + 1].as_str()));
    }
    assert_eq!((last.delivered, last.recipients, last.never_saw), (40, 40, Some(0)));
    let got = accepted(&world, sent);
    assert!(got.len() == 40 && got.values().all(|entries| entries.len() == 1), "once, and only the last state");
    let first_keys = accepted(&world, 0);
    for (token, entries) in &got {
        assert_eq!(entries[0].collapse_key, first_keys[token][0].collapse_key, "it replaces the goal on the phone");
    }
    // It is disallowed after all, and before anybody was told, the same goal is posted again under an id of its own.
    let off = post(&service, &correction("flip-off", "flip", "flip-d", "retract")).await;
    let again = EventRequest { id: "flip-again".into(), ..first.clone() };
    let again = post(&service, &again).await;
    assert_eq!(again.duplicate_of, None, "the first one is over");
    assert_eq!(service.settled(&again.fanout_id).await.delivered, 40);
    let off = service.settled(&off.fanout_id).await;
    assert_eq!(
        (off.attempts, off.superseded_by.as_deref()),
        (0, Some(again.fanout_id.as_str())),
        "the last state only"
    );
    // After a retraction that was sent it is news again.
    let off = post(&service, &correction("flip-off-again", "flip", "flip-again", "retract")).await;
    assert_eq!(service.settled(&off.fanout_id).await.delivered, 40);
    let third = post(&service, &EventRequest { id: "flip-third".into(), ..first }).await;
    assert_eq!(third.duplicate_of, None, "the first one is over");
    assert_eq!(service.settled(&third.fanout_id).await.delivered, 40);
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correction_that_comes_first_is_all_that_is_sent() {
    let world = World::new(Database::Postgres, false).await;
    let service = world.serve().await;
    service.follow("early", &tokens("early", 30)).await;
    let told = post(&service, &correction("early-off", "early", "early-goal", "replace")).await;
    let empty = post(&service, &correction("unseen-off", "early", "unseen-goal", "retract")).await;
    let original = post(&service, &goal("early-goal", "early", 120)).await;
    assert_eq!(original.superseded_by.as_deref(), Some(told.fanout_id.as_str()));
    let original = service.settled(&original.fanout_id).await;
    assert_eq!((original.state.as_str(), original.recipients, original.attempts), ("cancelled", 0, 0));
    assert!(line("early-goal").await.is("fanfare::fanout", "superseded_by", &told.fanout_id));
    let told = service.settled(&told.fanout_id).await;
    assert_eq!((told.delivered, told.never_saw, told.parent), (30, Some(30), None), "nobody saw the goal");
    assert_eq!(service.settled(&empty.fanout_id).await.recipients, 0, "a retraction of what nobody got");
    assert_eq!(world.emulator.stats().requests, 30);
    // What belongs to another match is named.
    let wrong = correction("wrong-match", "elsewhere", "early-goal", "retract");
    let why = refused(service.client.post_event(&wrong).await, 422, "invalid").await;
    assert!(why.contains("/supersedes/event_id") && why.contains("match early"), "{why}");
    service.stop().await.unwrap();
}

/// One instance is told; the other has chunks of the goal in hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_correction_at_one_instance_stops_the_other() {
    let mut world = World::new(Database::Postgres, false).await;
    world.emulate(Control { latency_ms: Some(300), ..Control::default() });
    world.set("DATABASE__MAX_CONNECTIONS", 4);
    let (one, other) = (world.spawn().await, world.spawn().await);
    one.follow("two", &tokens("two", 4000)).await;
    let original = one.goal("two-goal", "two", 120).await;
    world.emulator.logged(300).await;
    let off = post(&other, &correction("two-off", "two", "two-goal", "retract")).await;
    let before = one.settled(&original).await;
    let (first, sent) = (accepted(&world, 0), world.emulator.log().len());
    assert_eq!((before.state.as_str(), before.delivered), ("cancelled", first.len() as u64), "{before:#?}");
    assert!(before.delivered < 4000);
    world.emulate(Control { latency_ms: Some(0), ..Control::default() });
    let after = one.settled(&off.fanout_id).await;
    let second = accepted(&world, sent);
    assert!(names(&first).is_subset(&names(&second)), "whoever got the goal gets the correction");
    assert_eq!(after.delivered, second.len() as u64, "{after:#?}");
}

/// Between the 202 of a correction and its freeze the process dies.
async fn killed_in_the_hold(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let service = world.spawn().await;
    service.follow(run, &tokens(run, 20)).await;
    let (goal_id, off) = (format!("{run}-goal"), format!("{run}-off"));
    let original = service.goal(&goal_id, run, 120).await;
    assert_eq!(service.settled(&original).await.delivered, 20);
    let told = post(&service, &correction(&off, run, &goal_id, "retract")).await;
    service.kill().await;
    assert_eq!(world.emulator.stats().requests, 20, "it was held");
    let service = world.spawn().await;
    let after = service.settled(&told.fanout_id).await;
    assert_eq!((after.delivered, after.recipients, after.never_saw), (20, 20, Some(0)), "{after:#?}");
    assert_eq!(world.emulator.stats().requests, 40, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_in_the_hold_loses_no_correction() {
    tokio::join!(
        killed_in_the_hold(Database::Sqlite, "hold-kill"),
        killed_in_the_hold(Database::Postgres, "hold-kill-pg"),
    );
}

/// Between the 202 of a correction and its freeze the process is asked to stop. On PostgreSQL another one runs.
async fn stopped_in_the_hold(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    let mut service = world.spawn().await;
    service.follow(run, &tokens(run, 20)).await;
    let (goal_id, off) = (format!("{run}-goal"), format!("{run}-off"));
    let original = service.goal(&goal_id, run, 120).await;
    assert_eq!(service.settled(&original).await.delivered, 20);
    let other = if database == Database::Postgres { Some(world.spawn().await) } else { None };
    let begun = Instant::now();
    let told = post(&service, &correction(&off, run, &goal_id, "retract")).await;
    service.terminate().await;
    assert_eq!(service.ended().await.code(), Some(0));
    let next = match other {
        Some(other) => other,
        None => world.spawn().await,
    };
    world.emulator.logged(21).await;
    assert!(begun.elapsed() >= Duration::from_millis(4_900), "a stop does not shorten the hold: {:?}", begun.elapsed());
    let after = next.settled(&told.fanout_id).await;
    assert_eq!((after.delivered, after.recipients, after.never_saw), (20, 20, Some(0)), "{after:#?}");
    assert_eq!((after.ledger.as_str(), world.emulator.stats().requests), ("exact", 40), "each once: {after:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_in_the_hold_sends_the_correction_once_and_not_before_its_time() {
    tokio::join!(
        stopped_in_the_hold(Database::Sqlite, "hold-stop"),
        stopped_in_the_hold(Database::Postgres, "hold-stop-pg"),
    );
}

/// Posts an event until it is taken: many at once may be more than there are places, and whoever is told to come again does.
async fn taken(client: &Client, event: &EventRequest) -> (EventAccepted, bool) {
    let begun = Instant::now();
    loop {
        match client.post_event(event).await {
            Err(ClientError::Refused(problem)) if problem.retryable && begun.elapsed() < Duration::from_secs(60) => {}
            answer => return answer.unwrap(),
        }
    }
}

/// Goals and what corrects them cross each other on their way here, which of them comes first is left to the moment.
async fn posted_at_once(database: Database, run: &'static str) {
    const ROUNDS: usize = 24;
    let world = World::new(database, false).await;
    let service = world.serve().await;
    let name = |round: usize, what: &str| format!("{run}-{round}-{what}");
    let mut posts = Vec::new();
    for round in 0..ROUNDS {
        // Who follows what only the correction is about reads what everybody has to read in the end.
        for what in ["both", "later"] {
            service.follow(&name(round, what), &tokens(&name(round, what), 3)).await;
        }
        let original = goal(&name(round, "goal"), &name(round, "both"), 120);
        let mut off = correction(&name(round, "off"), &original.match_id, &original.id, "replace");
        off.subjects.push(format!("match:{}", name(round, "later")));
        let (one, other) = (service.client.clone(), service.client.clone());
        posts.push(async move {
            let first = round.is_multiple_of(2);
            let (early, late) = if first { (original, off) } else { (off, original) };
            let ((early, _), (late, _)) = tokio::join!(taken(&one, &early), taken(&other, &late));
            if first { (early, late) } else { (late, early) }
        });
    }
    let told = futures_util::future::join_all(posts).await;
    let mut original_first = 0;
    for (round, (original, off)) in told.iter().enumerate() {
        let (was, is) = (service.settled(&original.fanout_id).await, service.settled(&off.fanout_id).await);
        assert_eq!(was.superseded_by.as_ref(), Some(&off.fanout_id), "round {round}: {original:?}");
        assert_eq!((is.state.as_str(), is.superseded_by.as_ref(), is.delivered), ("done", None, 6), "round {round}");
        assert_eq!(is.never_saw, Some(6 - was.delivered), "round {round}: {was:#?}");
        original_first += usize::from(original.superseded_by.is_none());
    }
    let got = accepted(&world, 0);
    for round in 0..ROUNDS {
        for i in 0..3 {
            let both = &got[&format!("ok-{}-{i}", name(round, "both"))];
            let [only] = &got[&format!("ok-{}-{i}", name(round, "later"))][..] else { panic!("round {round}: once") };
            assert_eq!(both[both.len() - 1].content, only.content, "round {round}: the older text came last");
            assert!(both.len() <= 2 && both.iter().filter(|entry| entry.content == only.content).count() == 1);
        }
    }
    assert!(original_first > 0, "no goal was first, and nothing was tried");
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_goal_and_its_correction_at_once_end_with_the_correction() {
    tokio::join!(posted_at_once(Database::Sqlite, "cross-sqlite"), posted_at_once(Database::Postgres, "cross-pg"),);
}

/// Four owners of its only chunk die before they get anywhere; an operator has it tried again.
async fn set_aside_and_replayed(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    world.emulate(Control { latency_ms: Some(30_000), ..Control::default() });
    let mut service = world.spawn().await;
    service.follow(run, &tokens(run, 40)).await;
    let parent = service.goal(run, run, 600).await;
    for _ in 0..4 {
        world.emulator.logged(world.emulator.stats().requests + 1).await;
        service.kill().await;
        if database == Database::Postgres {
            // As if 15 s had passed: it is dead.
            let mut beside = Beside::open(&world).await;
            beside.change("UPDATE instance SET lease_until_ms = 0".to_owned()).await;
            beside.close().await;
        }
        service = world.spawn().await;
    }
    let aside = service.client.fanout(&parent, Duration::from_secs(50)).await.unwrap();
    assert_eq!((aside.state.as_str(), aside.pending, &aside.settled_at), ("set_aside", 40, &None), "{aside:#?}");
    world.emulate(Control { latency_ms: Some(0), ..Control::default() });
    let sent = world.emulator.log().len();
    let dry = ReplayRequest { dry_run: true, ..ReplayRequest::default() };
    assert_eq!(service.client.replay(&parent, &dry).await.unwrap().recipients, 40);
    let replay = service.client.replay(&parent, &ReplayRequest::default()).await.unwrap();
    let replayed = service.settled(&replay.fanout_id.unwrap()).await;
    assert_eq!((replayed.kind.as_str(), replayed.recipients, replayed.delivered), ("replay", 40, 40), "{replayed:#?}");
    let got = accepted(&world, sent);
    assert!(got.len() == 40 && got.values().all(|entries| entries.len() == 1), "each once");
    let ended = service.settled(&parent).await;
    assert_eq!((ended.state.as_str(), ended.outcomes["internal"], ended.delivered), ("done", 40, 0), "{ended:#?}");
    let again = service.client.replay(&parent, &dry).await.unwrap();
    assert_eq!(again.recipients, 0, "nobody lacks it any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_set_aside_is_delivered_by_its_replay() {
    tokio::join!(
        set_aside_and_replayed(Database::Sqlite, "aside-sqlite"),
        set_aside_and_replayed(Database::Postgres, "aside-pg"),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_news_under_twenty_ids_is_sent_once() {
    let world = World::new(Database::Postgres, false).await;
    let service = world.serve().await;
    service.follow("same", &tokens("same", 25)).await;
    let news = goal("same", "same", 120);
    let posts = (0..20).map(|i| {
        let (client, event) = (service.client.clone(), EventRequest { id: format!("same-{i}"), ..news.clone() });
        async move { taken(&client, &event).await }
    });
    let told = futures_util::future::join_all(posts).await;
    assert!(told.iter().all(|(_, repeat)| !repeat), "each is answered 202");
    let ids: BTreeSet<&str> = told.iter().map(|(answer, _)| answer.fanout_id.as_str()).collect();
    assert_eq!(ids.len(), 1, "{told:?}");
    let first: Vec<_> = told.iter().filter(|(answer, _)| answer.duplicate_of.is_none()).collect();
    let of: BTreeSet<_> = told.iter().filter_map(|(answer, _)| answer.duplicate_of.clone()).collect();
    assert_eq!((first.len(), of.len()), (1, 1));
    let fanout = service.settled(ids.first().unwrap()).await;
    assert_eq!(Some(&fanout.event_id), of.first());
    assert_eq!((fanout.delivered, world.emulator.stats().requests), (25, 25));
    service.stop().await.unwrap();
}

async fn shown(service: &Caller, id: &str) -> Fanout {
    service.client.fanout(id, Duration::ZERO).await.unwrap()
}

/// Everybody whose token begins so is answered so. The wait is long enough that the breaker does not see an outage in it.
fn failing(answer: &str, prefix: &str) -> Control {
    let rule = Rule { prefix: prefix.into(), answer: answer.into(), retry_after: Some(3), ..Rule::default() };
    Control { rules: vec![rule], ..Control::default() }
}

async fn replayed(database: Database, run: &'static str) {
    let world = World::new(database, false).await;
    world.emulate(failing("unavailable", &format!("ok-{run}-3")));
    let service = world.serve().await;
    // 3 and 30 to 35 fail, until it is too late for them.
    service.follow(run, &tokens(run, 36)).await;
    let parent = service.goal(run, run, 5).await;
    let settled = service.settled(&parent).await;
    assert_eq!((settled.delivered, settled.failed), (29, 7), "{settled:#?}");
    let replay = |more: ReplayRequest| {
        let (client, parent) = (service.client.clone(), parent.clone());
        async move { client.replay(&parent, &ReplayRequest { useful_for_s: Some(60), ..more }).await }
    };
    let dry = replay(ReplayRequest { dry_run: true, ..ReplayRequest::default() }).await.unwrap();
    assert_eq!((dry.recipients, dry.in_time, dry.max_attempts, dry.fanout_id), (7, true, 14, None));
    // While they still fail, the replay stops where its budget ends.
    let asked = ReplayRequest { max_attempts: Some(5), request_id: Some("first".into()), ..ReplayRequest::default() };
    let sent = world.emulator.log().len();
    world.emulate(Control { clear_rules: true, ..failing("unavailable", "") });
    let first = replay(asked.clone()).await.unwrap().fanout_id.unwrap();
    let paused = service.client.fanout(&first, Duration::from_secs(50)).await.unwrap();
    assert_eq!((paused.state.as_str(), paused.paused.as_deref()), ("paused", Some("budget")), "{paused:#?}");
    assert_eq!((paused.attempts, paused.delivered, paused.max_attempts), (5, 0, Some(5)), "failures spent it");
    assert_eq!(world.emulator.log().len() - sent, 5, "not one request more");
    assert_eq!(replay(asked.clone()).await.unwrap().fanout_id.as_ref(), Some(&first), "the same request");
    let why = refused(replay(ReplayRequest::default()).await, 409, "replay_running").await;
    assert!(why.contains(&first), "{why}");
    world.emulate(Control { clear_rules: true, ..Control::default() });
    let sent = world.emulator.log().len();
    let resumed = service.client.resume(&first, &ResumeRequest::default()).await.unwrap();
    assert_ne!(resumed.state, "paused");
    let done = service.settled(&first).await;
    let left = accepted(&world, sent);
    let want: BTreeSet<String> =
        (0..36).filter(|i| i.to_string().starts_with('3')).map(|i| format!("ok-{run}-{i}")).collect();
    // Who failed for good before the pause is for the next replay.
    let lost = done.outcomes["transient"];
    assert_eq!((done.kind.as_str(), done.recipients, done.delivered + lost), ("replay", 7, 7), "{done:#?}");
    assert!(names(&left).iter().all(|token| want.contains(*token)) && left.values().all(|entries| entries.len() == 1));
    let next = replay(ReplayRequest::default()).await.unwrap();
    assert_eq!(next.recipients, lost, "whom the first replay did not reach");
    service.settled(&next.fanout_id.unwrap()).await;
    let got = accepted(&world, sent);
    assert_eq!(names(&got), want.iter().map(String::as_str).collect(), "exactly those who were missed");
    assert!(got.values().all(|entries| entries.len() == 1), "each once");
    refused(service.client.resume(&first, &ResumeRequest::default()).await, 409, "fanout_not_paused").await;
    service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replay_delivers_exactly_what_was_missed_and_its_failures_spend_its_budget() {
    tokio::join!(replayed(Database::Sqlite, "replay"), replayed(Database::Postgres, "replay-pg"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_needs_time_and_an_end_and_stops_for_a_throttle() {
    let world = World::new(Database::Sqlite, false).await;
    world.emulate(failing("unavailable", "ok-late-"));
    let service = world.serve().await;
    service.follow("late", &tokens("late", 6)).await;
    let parent = service.goal("late-goal", "late", 5).await;
    refused(service.client.replay(&parent, &ReplayRequest::default()).await, 409, "fanout_open").await;
    let expired = service.settled(&parent).await;
    assert_eq!((expired.delivered, expired.outcomes["expired"]), (0, 6), "{expired:#?}");
    let why = refused(service.client.replay(&parent, &ReplayRequest::default()).await, 422, "invalid").await;
    assert!(why.contains("/useful_for_s") && why.contains("5 to 86400"), "{why}");
    world.emulate(Control { clear_rules: true, ..failing("quota", "") });
    let asked = ReplayRequest { useful_for_s: Some(60), ..ReplayRequest::default() };
    let replay = service.client.replay(&parent, &asked).await.unwrap();
    assert_eq!(replay.recipients, expired.recipients);
    let id = replay.fanout_id.unwrap();
    let paused = service.client.fanout(&id, Duration::from_secs(50)).await.unwrap();
    assert_eq!((paused.state.as_str(), paused.paused.as_deref()), ("paused", Some("throttle")), "{paused:#?}");
    assert!(paused.pending == paused.recipients && paused.throttled >= 2, "nobody has failed: {paused:#?}");
    world.emulate(Control { clear_rules: true, ..Control::default() });
    service.client.resume(&id, &ResumeRequest::default()).await.unwrap();
    assert_eq!(service.settled(&id).await.delivered, 6);
    assert_eq!(shown(&service, &parent).await.settled_at, expired.settled_at, "what is settled never changes");
    // What was corrected is not replayed.
    let off = post(&service, &correction("late-off", "late", "late-goal", "retract")).await;
    let why = refused(service.client.replay(&parent, &asked).await, 409, "fanout_superseded").await;
    assert!(why.contains(&off.fanout_id), "{why}");
    assert_eq!(service.settled(&off.fanout_id).await.delivered, 6, "those the replay has reached");
    service.stop().await.unwrap();
}
