//! Several instances on one database: they share large and small fan-outs, take turns, and are replaced meanwhile.

use std::time::Duration;

use fanfare::emulator::Control;
use fanfare::wire::EventRequest;
use serde_json::Value;
use sqlx::{Connection, PgConnection};

use crate::harness::process::Process;
use crate::harness::service::{Caller, Database, World, goal};
use crate::harness::together::together;

/// Long enough that nothing expires.
const USEFUL_S: u32 = 600;

fn followers(run: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("ok-{run}-{i}")).collect()
}

async fn world(rate: u32) -> World {
    let mut world = World::new(Database::Postgres, true).await;
    world.emulate(Control { latency_ms: Some(30), ..Control::default() });
    world.set("CEILING__RATE_PER_S", rate);
    world.set("DATABASE__MAX_CONNECTIONS", 4);
    world
}

async fn post(caller: &Caller, event: &EventRequest) -> String {
    caller.client.post_event(event).await.unwrap().0.fanout_id
}

fn corner(match_id: &str) -> EventRequest {
    let mut event = goal(match_id, match_id, USEFUL_S);
    event.kind = "corner".to_owned();
    event.fields.insert("team".into(), "Arsenal".into());
    event
}

fn lines(all: &[&Process]) -> Vec<Value> {
    all.iter().flat_map(|process| process.said("fan-out finished")).collect()
}

/// When this fan-out's devices were reached, ns.
fn reached(world: &World, run: &str) -> Vec<u64> {
    let prefix = format!("ok-{run}-");
    let mine = |token: &str| token.starts_with(&prefix);
    world.emulator.log().iter().filter(|entry| entry.accepted && mine(&entry.token)).map(|entry| entry.t_ns).collect()
}

/// Everybody takes part in one large fan-out and many small ones, posted to each in turn; nobody is sent to twice.
async fn one_large_and_many_small() {
    let world = world(600).await;
    let mut instances = Vec::new();
    for _ in 0..4 {
        instances.push(world.spawn().await);
    }
    instances[0].follow("crowd", &followers("crowd", 4000)).await;
    for n in 0..12 {
        instances[0].follow(&format!("few-{n}"), &followers(&format!("few-{n}"), 40)).await;
    }
    let large = instances[0].goal("crowd", "crowd", USEFUL_S).await;
    world.emulator.logged(400).await;
    let mut small = Vec::new();
    for n in 0..12 {
        let run = format!("few-{n}");
        let before = reached(&world, "crowd").len();
        small.push((before, instances[n % 4].goal(&run, &run, USEFUL_S).await));
    }
    for (_, id) in &small {
        let fanout = instances[1].settled(id).await;
        assert_eq!((fanout.recipients, fanout.delivered), (40, 40), "{fanout:?}");
    }
    let fanout = instances[2].settled(&large).await;
    assert_eq!((fanout.recipients, fanout.delivered, fanout.attempts), (4000, 4000, 4000), "{fanout:?}");
    let stats = world.emulator.stats();
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (4480, 0), "{stats:?}");
    // In sends of the large one, not in seconds; and of most of them, for one may be held up by a busy machine. All small
    // ones together are 480 sends; behind what was in hand already they would wait for 1,500 and more.
    let large_at = reached(&world, "crowd");
    let waited = |(n, before): (usize, usize)| {
        let over = reached(&world, &format!("few-{n}")).into_iter().max().unwrap();
        large_at.iter().filter(|at| **at < over).count() - before
    };
    let mut waits: Vec<usize> = small.iter().map(|(before, _)| *before).enumerate().map(waited).collect();
    waits.sort_unstable();
    assert!(waits[6] < 1300, "the small ones waited for these of 4000 of the large one: {waits:?}");
    let all: Vec<&Process> = instances.iter().collect();
    let told = lines(&all);
    assert_eq!(told.len(), 13, "one line for each");
    let line = told.iter().find(|line| line["fanout_id"] == large.as_str()).unwrap();
    assert_eq!((line["instances"].as_u64(), line["interrupted"].as_u64()), (Some(4), Some(0)), "{line}");
}

/// Each instance is replaced while a large fan-out is sent: nobody answered is sent to again, and sending never stops
/// for long.
async fn rolling_restart() {
    let world = world(400).await;
    let mut instances = Vec::new();
    let mut gone = Vec::new();
    for _ in 0..3 {
        instances.push(world.spawn().await);
    }
    let n = 4000;
    instances[0].follow("rolling", &followers("rolling", n)).await;
    let id = instances[0].goal("rolling", "rolling", USEFUL_S).await;
    world.emulator.logged(300).await;
    for _ in 0..3 {
        let mut old = instances.remove(0);
        // The new one comes up first, as a rolling restart does.
        instances.push(world.spawn().await);
        old.terminate().await;
        assert_eq!(old.ended().await.code(), Some(0));
        gone.push(old);
    }
    let fanout = instances[0].settled(&id).await;
    assert_eq!((fanout.delivered, fanout.failed, fanout.ledger.as_str()), (n as u64, 0, "exact"), "{fanout:?}");
    let stats = world.emulator.stats();
    assert_eq!((stats.distinct_accepted, stats.duplicates_accepted), (n as u64, 0), "{stats:?}");
    let all: Vec<&Process> = instances.iter().chain(&gone).collect();
    let told = lines(&all);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0]["instances"].as_u64() >= Some(3), "{}", told[0]);
    let at = reached(&world, "rolling");
    let longest = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().map(Duration::from_nanos);
    let whole = Duration::from_nanos(at.last().unwrap() - at[0]);
    println!("rolling restart: {n} in {whole:?}, at most {longest:?} without a send");
    assert!(longest.unwrap() < whole / 3, "{longest:?} of {whole:?} without a send");
}

/// A goal for a few, posted in the middle of a corner for many, is over while most of the corner is still to be sent.
async fn a_goal_beside_a_corner() {
    let world = world(300).await;
    let first = world.spawn().await;
    let second = world.spawn().await;
    first.follow("corner", &followers("corner", 3000)).await;
    first.follow("scored", &followers("scored", 100)).await;
    let large = post(&first, &corner("corner")).await;
    world.emulator.logged(300).await;
    let small = second.goal("scored", "scored", USEFUL_S).await;
    let fanout = second.settled(&small).await;
    let before = reached(&world, "corner").len();
    assert_eq!(fanout.delivered, 100);
    println!("a goal beside a corner: over after {} ms, with {before} of 3000 of the corner sent", fanout.duration_ms);
    assert!(before < 2000, "the goal did not wait: {before} of the corner were sent by then");
    assert_eq!(first.settled(&large).await.delivered, 3000);
}

/// Line-ups are worth an hour and may wait, but not for as long as there is something urgent.
async fn bulk_among_goals() {
    let world = world(300).await;
    let service = world.spawn().await;
    service.follow("goals", &followers("goals", 3000)).await;
    service.follow("lineups", &followers("lineups", 60)).await;
    let goals = service.goal("goals", "goals", USEFUL_S).await;
    world.emulator.logged(100).await;
    let mut event = goal("lineups", "lineups", USEFUL_S);
    event.kind = "lineups".to_owned();
    let bulk = post(&service, &event).await;
    assert_eq!(service.settled(&bulk).await.delivered, 60);
    assert_eq!(service.settled(&goals).await.delivered, 3000);
    let (goals, bulk) = (reached(&world, "goals"), reached(&world, "lineups"));
    let while_goals = bulk.iter().filter(|t| **t < *goals.last().unwrap()).count();
    assert!(while_goals >= 20, "{while_goals} of 60 were sent while there were goals");
    let during = goals.iter().filter(|t| (bulk[0]..bulk[19]).contains(*t)).count();
    assert!(during >= 19 * 10, "one in twenty, not more: {during} goals beside 20 line-ups");
}

/// A process may have died between settling and writing: the line is written again, and says so.
async fn a_line_nobody_marked() {
    let world = world(600).await;
    let service = world.spawn().await;
    service.follow("marked", &followers("marked", 10)).await;
    let id = service.goal("marked", "marked", USEFUL_S).await;
    service.settled(&id).await;
    assert_eq!(service.line(&id).await["repeated"], false);
    let mut database = PgConnection::connect(&world.settings["FANFARE__DATABASE__URL"]).await.unwrap();
    let unmark = "UPDATE fanout SET reported_ms = NULL, settled_ms = settled_ms - 60000";
    sqlx::query(unmark).execute(&mut database).await.unwrap();
    let again = service.says(2, |line| line["message"] == "fan-out finished" && line["fanout_id"] == id.as_str()).await;
    assert_eq!((again["repeated"].as_bool(), again["delivered"].as_u64()), (Some(true), Some(10)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_instances_share_all_work_and_take_turns() {
    together(vec![
        ("one large and many small", Box::pin(one_large_and_many_small())),
        ("rolling restart", Box::pin(rolling_restart())),
        ("a goal beside a corner", Box::pin(a_goal_beside_a_corner())),
        ("bulk among goals", Box::pin(bulk_among_goals())),
        ("a line nobody marked", Box::pin(a_line_nobody_marked())),
    ])
    .await;
}
