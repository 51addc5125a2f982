//! Damage: a row this build cannot read stops what depends on it and nobody else.

use fanfare::domain::batch::{ClaimedChunk, Class};
use fanfare::domain::ids::ChunkRef;
use fanfare::domain::recipient::{DeviceState, Platform};
use fanfare::store::{FreezeReply, FreezeStep, ImportRow, PutDevice, SettleReply};
use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection};

use super::world::*;

/// A connection beside the store, to damage what it keeps. The tables are the same on both engines.
pub enum Hand {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Hand {
    async fn run(&mut self, sql: &str) {
        let query = AssertSqlSafe(sql.to_owned());
        let changed = match self {
            Self::Postgres(hand) => sqlx::query(query).execute(hand).await.map(|done| done.rows_affected()),
            Self::Sqlite(hand) => sqlx::query(query).execute(hand).await.map(|done| done.rows_affected()),
        };
        assert_ne!(changed.unwrap(), 0, "nothing was damaged: {sql}");
    }

    /// A bitmap that is too long.
    fn bits(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "B'0000000000000000'",
            Self::Sqlite(_) => "x'0000'",
        }
    }
}

fn numbers(chunks: &[ClaimedChunk]) -> Vec<i32> {
    chunks.iter().map(|c| c.chunk.no).collect()
}

pub async fn a_chunk_that_does_not_parse_neither_stays_owned_nor_stops_the_others(store: Shared, mut hand: Hand) {
    let boot = instance(&store).await;
    frozen(&store, boot, "evt", &[1; 6]).await;
    hand.run("UPDATE device SET platform = 9 WHERE id = 'evt-1'").await;
    hand.run("UPDATE device SET locale = '!' WHERE id = 'evt-2'").await;
    hand.run(&format!("UPDATE chunk SET done = {}, unclean = true WHERE chunk_no = 3", hand.bits())).await;
    hand.run("UPDATE chunk SET n = 9 WHERE chunk_no = 4").await;
    let readable = claim(&store, boot, 6).await;
    assert_eq!(numbers(&readable), [0, 5]);
    let holds: Vec<(ChunkRef, i32)> = readable.iter().map(|c| (c.chunk, c.epoch)).collect();
    let owned: Vec<(ChunkRef, i32)> = store.owned(boot).await.unwrap().iter().map(|c| (c.chunk, c.epoch)).collect();
    assert_eq!(owned, holds);
    assert_eq!(claim(&store, boot, 6).await, [], "left alone for a while");
    hand.run("UPDATE device SET platform = 1, locale = 'de'").await;
    hand.run("UPDATE chunk SET n = 1, done = ok, not_before_ms = 0").await;
    assert_eq!(numbers(&claim(&store, boot, 6).await), [1, 2, 3, 4]);
}

pub async fn a_freeze_step_hands_out_only_what_parses(store: Shared, mut hand: Hand) {
    let boot = instance(&store).await;
    let keys = followers(&store, "evt", 3).await;
    let job = accept(&store, boot, "evt", Class::Urgent).await;
    hand.run("UPDATE device SET platform = 9 WHERE id = 'evt-1'").await;
    let step = FreezeStep { claim_first: 3, ..whole(boot, &job, &keys, &[1; 3]) };
    for _ in 0..2 {
        let FreezeReply::Written(claimed) = store.freeze_step(step.clone()).await.unwrap() else {
            panic!("it is ours")
        };
        assert_eq!(numbers(&claimed), [0, 2], "the first time, and when it is repeated");
    }
    assert_eq!(store.owned(boot).await.unwrap().len(), 2);
    assert_eq!(tally(&store, job.job.id).await.recipients(), 3, "whoever is frozen is counted");
}

pub async fn a_freeze_whose_event_does_not_parse_is_passed_over_and_never_leased(store: Shared, mut hand: Hand) {
    let (old, new) = (instance(&store).await, instance(&store).await);
    for id in ["a", "b", "c", "d"] {
        accept(&store, old, id, Class::Urgent).await;
    }
    store.leave(old).await.unwrap();
    hand.run("UPDATE event SET body = '#' || body WHERE event_id IN ('a', 'c')").await;
    let mut taken = Vec::new();
    for expected in [vec!["b"], vec!["d"], vec![]] {
        let jobs = store.take_freezes(new, taken.clone(), 1).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.job.event.id.as_str()).collect::<Vec<_>>(), expected);
        taken.extend(jobs.iter().map(|job| job.job.id));
    }
    hand.run("UPDATE event SET body = substr(body, 2) WHERE event_id IN ('a', 'c')").await;
    let mended = store.take_freezes(new, taken, 9).await.unwrap();
    let epochs: Vec<_> = mended.iter().map(|job| (job.job.event.id.as_str(), job.epoch)).collect();
    assert_eq!(epochs, [("a", 2), ("c", 2)], "taken now for the first time");
}

pub async fn a_lost_chunk_that_does_not_parse_stops_no_heartbeat(store: Shared, mut hand: Hand) {
    let (lost, heir) = (instance(&store).await, instance(&store).await);
    frozen(&store, lost, "evt", &[1, 1]).await;
    assert_eq!(claim(&store, lost, 2).await.len(), 2);
    hand.run(&format!("UPDATE chunk SET done = {} WHERE chunk_no = 0", hand.bits())).await;
    lapse(&store, lost).await;
    assert_eq!(store.heartbeat(heir, 60_000).await.unwrap().freed_chunks, 2);
    assert_eq!(numbers(&claim(&store, heir, 2).await), [1]);
}

pub async fn a_line_that_does_not_parse_stops_no_other(store: Shared, mut hand: Hand) {
    let boot = instance(&store).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let (id, chunk) = one_chunk(&store, boot, name, 1).await;
        store.flush(delivered(&chunk)).await.unwrap();
        ids.push(id);
    }
    for id in &ids[..2] {
        assert!(matches!(store.settle(*id).await.unwrap(), SettleReply::Settled(_)));
    }
    hand.run("UPDATE fanout SET settled = '#' WHERE event_id = 'a'").await;
    let swept = store.sweep(0).await.unwrap();
    assert_eq!(swept.unreported.iter().map(|settled| settled.view.id).collect::<Vec<_>>(), ids[1..2]);
    assert_eq!(swept.complete, ids[2..]);
}

pub async fn a_device_in_an_unknown_state_stops_no_import_and_may_register_again(store: Shared, mut hand: Hand) {
    for id in ["a", "b"] {
        store.put_device(device(id, id)).await.unwrap();
        store.put_follows(device_id(id), following("team:ars", GOAL)).await.unwrap();
    }
    hand.run("UPDATE device SET state = 8 WHERE id = 'a'").await;
    hand.run("UPDATE device SET platform = 9 WHERE id = 'b'").await;
    let row = |(line, id): (u64, &str)| ImportRow { line, device: device(id, id), follows: None, state: None };
    let done = store.import([(1, "a"), (2, "b"), (3, "c")].map(row).to_vec(), false).await.unwrap();
    assert_eq!((done.imported, done.updated), (1, 1), "an import mends what it writes over");
    assert_eq!(done.rejected.iter().map(|r| (r.line, r.code)).collect::<Vec<_>>(), [(1, "unreadable")]);
    let mended = store.device(device_id("b")).await.unwrap().unwrap();
    assert_eq!((mended.device.platform, mended.version), (Platform::Android, 2));
    let again = store.put_device(device("a", "a")).await.unwrap();
    assert_eq!(again, PutDevice { created: false, revived: true, moved_from: None });
    assert_eq!(store.device(device_id("a")).await.unwrap().unwrap().state, DeviceState::Live);
    assert_eq!(page(&store, "team:ars", GOAL).await.len(), 2);
}
