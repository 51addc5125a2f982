//! Owns what the cases need to say in one word: events, followers, frozen fan-outs, flushes, lapsed leases.
//! Must never know: which engine it speaks to.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use fanfare::domain::batch::FailureRecord;
pub use fanfare::domain::batch::RestOutcome;
use fanfare::domain::batch::{ChunkFlush, ClaimedChunk, Class, FlushBatch, OutcomeRecord};
use fanfare::domain::bitmap::Bitmap;
use fanfare::domain::event::Event;
use fanfare::domain::ids::{BootId, ChunkRef, DeviceId, DeviceKey, EventId, FanoutId, MatchId, UserId};
use fanfare::domain::outcome::{Cause, Outcome};
use fanfare::domain::recipient::{Address, Device, DeviceState, Follows, KindMask, Locale, Platform};
use fanfare::domain::tally::{PartCounters, Tally};
use fanfare::store::{
    Accepted, ClaimRequest, FollowerPage, FreezeJob, FreezeReply, FreezeStep, ImportRow, NewFanout, Open, SettleReply,
    Settled, Store,
};

/// The store under test.
pub type Shared = Arc<dyn Store>;

/// The kind all test events have.
pub const GOAL: KindMask = KindMask::only(1);

pub fn event(id: &str) -> Event {
    Event {
        id: EventId::parse(id).unwrap(),
        kind: "goal".to_owned(),
        match_id: MatchId::parse("4711").unwrap(),
        occurred_ms: 1_700_000_000_000,
        subjects: vec![format!("match:{id}")],
        fields: BTreeMap::from([("player".to_owned(), "Saka \u{1f600} \"7\"".to_owned())]),
        data: BTreeMap::new(),
        useful_for_s: 120,
        supersedes: None,
    }
}

pub fn posted(id: &str, class: Class, content: u8) -> NewFanout {
    let (shown, collapse_key) = (vec!["player".to_owned()], format!("key-{id}"));
    NewFanout {
        event: event(id),
        content_hash: [content; 32],
        collapse_key,
        shown,
        class,
        deadline_ms: 4_000_000_000_000,
    }
}

pub fn device(id: &str, token: &str) -> Device {
    Device {
        id: DeviceId::parse(id).unwrap(),
        user: UserId::parse("user").unwrap(),
        address: Address::Token(token.to_owned()),
        platform: Platform::Android,
        locale: Locale::parse("de").unwrap(),
    }
}

pub fn device_id(id: &str) -> DeviceId {
    DeviceId::parse(id).unwrap()
}

pub fn following(subject: &str, mask: KindMask) -> Follows {
    Follows { subjects: vec![(subject.to_owned(), mask)], muted: KindMask::NONE }
}

/// A fresh instance with a lease of a minute.
pub async fn instance(store: &Shared) -> BootId {
    let boot = BootId::fresh();
    store.heartbeat(boot, 60_000).await.unwrap();
    boot
}

/// Awaits what must come, so that a test of something that never comes fails instead of hanging.
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, event).await.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// Lets the lease of an instance run out, by the database's own clock.
pub async fn lapse(store: &Shared, boot: BootId) {
    let until = store.heartbeat(boot, 1).await.unwrap().now_ms + 1;
    let over = async {
        while store.now_ms().await.unwrap() <= until {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the lease", over).await;
}

/// Registers `n` followers of `match:{id}`, devices `{id}-0` and so on.
pub async fn followers(store: &Shared, id: &str, n: usize) -> Vec<DeviceKey> {
    let row = |i: usize| ImportRow {
        line: i as u64 + 1,
        device: device(&format!("{id}-{i}"), &format!("token-{id}-{i}")),
        follows: Some(following(&format!("match:{id}"), KindMask::ALL)),
        state: None,
    };
    let rows: Vec<ImportRow> = (0..n).map(row).collect();
    for batch in rows.chunks(1000) {
        let done = store.import(batch.to_vec(), false).await.unwrap();
        assert_eq!((done.imported, done.rejected.len()), (batch.len() as u64, 0));
    }
    page(store, &format!("match:{id}"), GOAL).await
}

pub async fn page(store: &Shared, subject: &str, kinds: KindMask) -> Vec<DeviceKey> {
    let page = FollowerPage { subject: subject.to_owned(), kinds, after: DeviceKey(0), limit: 10_000 };
    store.follower_page(page).await.unwrap()
}

pub async fn accept(store: &Shared, boot: BootId, id: &str, class: Class) -> FreezeJob {
    match store.accept(boot, posted(id, class, 1)).await.unwrap() {
        Accepted::New(job) => job,
        other => panic!("{id} was posted once: {other:?}"),
    }
}

/// A step that writes `keys` as chunks of these sizes and ends the freeze.
pub fn whole(boot: BootId, job: &FreezeJob, keys: &[DeviceKey], sizes: &[usize]) -> FreezeStep {
    let mut rest = keys;
    let mut chunks = Vec::new();
    for size in sizes {
        let (chunk, tail) = rest.split_at(*size);
        chunks.push(chunk.to_vec());
        rest = tail;
    }
    FreezeStep {
        boot,
        fanout: job.job.id,
        epoch: job.epoch,
        from: job.cursor,
        ranks: (0..sizes.len() as i64).collect(),
        chunks,
        first_chunk: job.next_chunk,
        claim_first: 0,
        never_saw: None,
        last: true,
    }
}

/// An accepted and frozen fan-out with chunks of these sizes, none claimed.
pub async fn frozen(store: &Shared, boot: BootId, id: &str, sizes: &[usize]) -> FanoutId {
    let keys = followers(store, id, sizes.iter().sum()).await;
    let job = accept(store, boot, id, Class::Urgent).await;
    let reply = store.freeze_step(whole(boot, &job, &keys, sizes)).await.unwrap();
    assert_eq!(reply, FreezeReply::Written(vec![]));
    job.job.id
}

pub async fn claim(store: &Shared, boot: BootId, want: u32) -> Vec<ClaimedChunk> {
    store.claim(ClaimRequest { boot, want, of: Open::All }).await.unwrap()
}

/// A frozen fan-out of one chunk, claimed.
pub async fn one_chunk(store: &Shared, boot: BootId, id: &str, n: usize) -> (FanoutId, ClaimedChunk) {
    let fanout = frozen(store, boot, id, &[n]).await;
    let chunk = claim(store, boot, 1).await.pop().expect("one chunk is open");
    (fanout, chunk)
}

/// Counters that say for how many Android devices FCM accepted the message.
pub fn accepted(n: u64) -> PartCounters {
    PartCounters { accepted: [n, 0, 0], ..PartCounters::default() }
}

/// A settled fan-out of which every Android device, and there were `n`, was accepted.
pub async fn healthy(store: &Shared, boot: BootId, id: &str, n: usize) {
    let (fanout, chunk) = one_chunk(store, boot, id, n).await;
    store.put_parts(boot, vec![(fanout, accepted(n as u64))]).await.unwrap();
    store.flush(delivered(&chunk)).await.unwrap();
    settle(store, fanout).await;
}

/// Settles what is complete.
pub async fn settle(store: &Shared, id: FanoutId) -> Settled {
    match store.settle(id).await.unwrap() {
        SettleReply::Settled(settled) => *settled,
        other => panic!("{id} is complete: {other:?}"),
    }
}

pub async fn state_of(store: &Shared, id: &str) -> DeviceState {
    store.device(device_id(id)).await.unwrap().unwrap().state
}

pub fn bits(len: usize, set: impl IntoIterator<Item = usize>) -> Bitmap {
    let mut map = Bitmap::new(len);
    for i in set {
        map.set(i);
    }
    map
}

/// What a chunk is known by when it is flushed.
#[derive(Debug, Clone)]
pub struct Hold {
    pub chunk: ChunkRef,
    pub epoch: i32,
    pub keys: Vec<DeviceKey>,
    pub versions: Vec<i64>,
}

impl From<&ClaimedChunk> for Hold {
    fn from(c: &ClaimedChunk) -> Self {
        let versions = c.recipients.iter().map(|r| r.as_ref().map_or(0, |r| r.version)).collect();
        Self { chunk: c.chunk, epoch: c.epoch, keys: c.keys.clone(), versions }
    }
}

/// The flush of these outcomes by ordinal.
pub fn outcomes(hold: &Hold, found: &[(usize, Outcome)]) -> FlushBatch {
    let n = hold.keys.len();
    let ok = |(_, outcome): &&(usize, Outcome)| *outcome == Outcome::Delivered;
    let flush = ChunkFlush {
        chunk: hold.chunk,
        epoch: hold.epoch,
        done: bits(n, found.iter().map(|(i, _)| *i)),
        ok: bits(n, found.iter().filter(ok).map(|(i, _)| *i)),
        maybe: Bitmap::new(n),
        rest: None,
    };
    let failures = found.iter().filter(|found| !ok(found)).map(|(i, outcome)| failure(hold, *i, *outcome)).collect();
    FlushBatch { chunks: vec![flush], failures }
}

fn failure(hold: &Hold, ordinal: usize, outcome: Outcome) -> OutcomeRecord {
    OutcomeRecord {
        chunk: hold.chunk,
        ordinal: ordinal as u16,
        key: hold.keys[ordinal],
        outcome,
        maybe: false,
        failure: Some(FailureRecord {
            cause: Cause::None,
            status: 404,
            text: "as\0 tested".to_owned(),
            attempts: 1,
            variant: "goal/de/android".to_owned(),
            device_version: hold.versions[ordinal],
        }),
    }
}

/// All recipients of a chunk delivered.
pub fn delivered(chunk: &ClaimedChunk) -> FlushBatch {
    let all: Vec<(usize, Outcome)> = (0..chunk.keys.len()).map(|i| (i, Outcome::Delivered)).collect();
    outcomes(&Hold::from(chunk), &all)
}

/// The end of a chunk for all without an outcome.
pub fn rest(hold: &Hold, outcome: Outcome) -> FlushBatch {
    let mut batch = outcomes(hold, &[]);
    batch.chunks[0].rest = Some(RestOutcome { outcome, cause: Cause::Queue });
    batch
}

pub async fn tally(store: &Shared, id: FanoutId) -> Tally {
    store.fanout(id).await.unwrap().expect("the fan-out is there").tally
}

/// delivered, failed, pending
pub async fn counts(store: &Shared, id: FanoutId) -> (u64, u64, u64) {
    let tally = tally(store, id).await;
    (tally.delivered(), tally.failed(), tally.pending())
}
