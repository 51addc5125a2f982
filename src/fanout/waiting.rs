//! Owns what becomes of chunks in which everybody left waits: which of them stay in hand, when the others come back, and
//! that nobody forgets what held them.
//! Must never know: when a credential is probed, or what an answer says of it.
//!
//! A whole platform of a large fan-out may wait for its credential, or a good part of it for a `Retry-After` or the budget of
//! retries. In hand they would keep everybody else out of it, so they are handed back until later. Of those who wait for a
//! credential a few chunks stay, which it is probed with; when it serves again, the others are called back at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::batch::PutOff;
use crate::domain::ids::{ChunkRef, FanoutId};
use crate::domain::recipient::Platform;

use super::MOST_OPEN;
use super::decide::Delivery;
use super::dispatch::Dispatcher;
use super::gates::Spell;
use super::hand::{Chunk, HandKey, Spot};

/// Between two looks at who waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// So many chunks stay in hand for each platform: enough to probe with, and to begin with when it is served again.
const KEPT: usize = 8;
/// A chunk is away for this long, ms, unless it is called back. It bounds what the death of this instance may cost.
const AWAY_MS: i64 = 20_000;
/// And for so much longer for each that is away already, ms: claiming them only to put them off again would hold up others.
const APART_MS: i64 = 20;

/// So long after the deadline of a chunk nobody waits for it to come back, ms.
const FORGOTTEN_MS: i64 = 60_000;

const PLATFORMS: usize = Platform::ALL.len();

/// Platforms, each in its place of [`Platform::ALL`].
type Platforms = [bool; PLATFORMS];

/// Somebody who had an attempt here: what is remembered of it, and when the next is due.
pub(super) type Tried = (u16, Delivery, Instant);

/// A chunk that was handed back until later.
#[derive(Debug)]
struct Away {
    epoch: i32,
    deadline_ms: i64,
    /// Whose credential serving again calls it back.
    waits: Platforms,
    tried: Vec<Tried>,
}

/// Chunks that were handed back until later.
#[derive(Debug, Default)]
pub struct Waiting {
    away: BTreeMap<ChunkRef, Away>,
    looked: Option<Instant>,
    spells: [Spell; PLATFORMS],
}

impl Waiting {
    fn due(&mut self, now: Instant) -> bool {
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// A chunk is in hand again; who of it had an attempt here before.
    pub(super) fn returns(&mut self, chunk: ChunkRef) -> Vec<Tried> {
        self.away.remove(&chunk).map(|away| away.tried).unwrap_or_default()
    }

    /// A fan-out is settled.
    pub(super) fn settled(&mut self, fanout: FanoutId) {
        self.away.retain(|chunk, _| chunk.fanout != fanout);
    }

    /// Forgets chunks that another instance has ended: they would have come back by now.
    pub(super) fn forget(&mut self, now_ms: i64) {
        self.away.retain(|_, away| away.deadline_ms + FORGOTTEN_MS > now_ms);
    }

    /// Whether chunks of a fan-out are away.
    pub(super) fn has(&self, fanout: FanoutId) -> bool {
        self.away.keys().any(|chunk| chunk.fanout == fanout)
    }

    /// Takes out those that wait for one of these platforms. Those that are over come back by themselves, and are awaited.
    fn take(&mut self, of: Platforms, now_ms: i64) -> Vec<(ChunkRef, i32)> {
        let mut taken = Vec::new();
        self.away.retain(|chunk, away| {
            let stays = away.deadline_ms <= now_ms || !(0..PLATFORMS).any(|p| of[p] && away.waits[p]);
            if !stays {
                taken.push((*chunk, away.epoch));
            }
            stays
        });
        taken
    }

    fn until(&self, now_ms: i64) -> i64 {
        now_ms + AWAY_MS + APART_MS * i64::try_from(self.away.len()).unwrap_or(0)
    }
}

impl Dispatcher {
    /// Hands back chunks in which everybody waits: all but a few of those who wait for a credential, and of the others as
    /// many as memory wants.
    pub(super) fn put_off(&mut self) {
        if self.gates.draining || !self.waiting.due(self.now) {
            return;
        }
        self.put_off_held();
        self.put_off_tried();
    }

    /// Of those who wait for the credential of a platform those stay whose deadline is the last: when it comes, nobody is
    /// left who is away.
    fn put_off_held(&mut self) {
        let mut held: Vec<(HandKey, &Chunk, Platforms)> =
            self.hand.iter().map(|(key, chunk)| (key, chunk, platforms(chunk))).filter(|(.., p)| any(p)).collect();
        held.sort_by_key(|(_, chunk, _)| Reverse(chunk.job.deadline_ms));
        let mut kept = [0; PLATFORMS];
        let mut back = Vec::new();
        for (key, chunk, waits) in held {
            let of = || (0..PLATFORMS).filter(|p| waits[*p]);
            if chunk.at_rest() && chunk.deliveries.is_empty() && of().all(|p| kept[p] >= KEPT) {
                back.push((key, Away::new(key, chunk, waits)));
            } else {
                of().for_each(|p| kept[p] += 1);
            }
        }
        let until_ms = self.waiting.until(self.wiring.clock.now_ms());
        self.hand_back_until_later(back.into_iter().map(|(key, away)| (key, until_ms, away)).collect());
        let mut missing = Platforms::default();
        for p in Platform::ALL {
            missing[*p as usize] = kept[*p as usize] == 0 && self.gates.platform_refused(*p);
        }
        self.recall(missing);
    }

    /// With the hands half full of all they may hold, chunks go back in which somebody had an attempt, the least urgent first:
    /// not before the last of them is due, so that nobody is asked again sooner than was asked for. What is known of them
    /// is kept here, for they mostly come back to this instance.
    fn put_off_tried(&mut self) {
        let mut open = self.hand.open();
        if open <= MOST_OPEN / 2 {
            return;
        }
        let tried = |chunk: &Chunk| chunk.at_rest() && !chunk.deliveries.is_empty();
        let resting: Vec<HandKey> = self.hand.iter().filter(|(_, chunk)| tried(chunk)).map(|(key, _)| key).collect();
        let mut going: BTreeMap<HandKey, HashMap<u16, Instant>> = BTreeMap::new();
        for key in resting.into_iter().rev() {
            if open <= MOST_OPEN / 2 {
                break;
            }
            open -= self.hand.get(key).map_or(0, Chunk::open);
            going.insert(key, HashMap::new());
        }
        self.delayed.retain(|Reverse((due, spot))| {
            let waits = going.get_mut(&spot.key).map(|due_of| due_of.insert(spot.ordinal, *due));
            waits.is_none()
        });
        let (now, now_ms) = (self.now, self.wiring.clock.now_ms());
        let until_ms = self.waiting.until(now_ms);
        let mut back = Vec::new();
        for (key, due_of) in going {
            let Some(chunk) = self.hand.get_mut(key) else { continue };
            let mut away = Away::new(key, chunk, Platforms::default());
            let due = |ordinal: &u16| due_of.get(ordinal).copied().unwrap_or(now);
            away.tried =
                chunk.deliveries.drain().map(|(ordinal, delivery)| (ordinal, delivery, due(&ordinal))).collect();
            let last = away.tried.iter().map(|(.., due)| due.saturating_duration_since(now)).max().unwrap_or_default();
            let last_ms = now_ms + i64::try_from(last.as_millis()).unwrap_or(i64::MAX / 2) + 1;
            back.push((key, until_ms.max(last_ms), away));
        }
        self.hand_back_until_later(back);
    }

    fn hand_back_until_later(&mut self, back: Vec<(HandKey, i64, Away)>) {
        let mut rounds: BTreeMap<i64, Vec<(ChunkRef, i32)>> = BTreeMap::new();
        for (key, until_ms, away) in back {
            self.hand.remove(key);
            rounds.entry(until_ms.min(away.deadline_ms)).or_default().push((key.chunk, key.epoch));
            self.waiting.away.insert(key.chunk, away);
        }
        for (not_before_ms, chunks) in rounds {
            let away = self.waiting.away.len();
            tracing::debug!(target: "fanfare::fanout", chunks = chunks.len(), away, not_before_ms, "chunks in which everybody waits are put off");
            self.outbox.put_off(PutOff { not_before_ms, chunks }, self.now);
        }
    }

    /// A chunk has come back: those who had an attempt here go on where they were.
    pub(super) fn resume(&mut self, key: HandKey, tried: Vec<Tried>) {
        for (ordinal, delivery, due) in tried {
            if self.hand.get_mut(key).is_some_and(|chunk| chunk.remember(ordinal, delivery)) {
                self.delay(Spot { key, ordinal }, due);
            }
        }
    }

    /// Lets those be claimed again that are away for one of these platforms.
    fn recall(&mut self, of: Platforms) {
        let chunks = self.waiting.take(of, self.wiring.clock.now_ms());
        if !chunks.is_empty() {
            tracing::debug!(target: "fanfare::fanout", chunks = chunks.len(), "chunks that were put off are called back");
            self.outbox.recall(chunks, self.now);
        }
    }

    /// A platform is served again.
    pub(super) fn recall_for(&mut self, platform: Platform) {
        let mut of = Platforms::default();
        of[platform as usize] = true;
        self.recall(of);
    }

    /// This instance ends: nobody waits for it to call them back.
    pub(super) fn recall_all(&mut self) {
        self.recall([true; PLATFORMS]);
    }

    /// Notes which platforms are held now.
    pub(super) fn note_platforms(&mut self, now_ms: i64) {
        let anybody = !self.hand.is_empty() || !self.waiting.away.is_empty();
        for platform in Platform::ALL {
            let refused = self.gates.platform_refused(*platform);
            self.waiting.spells[*platform as usize].note(refused, anybody, now_ms);
        }
    }

    /// The deadline of a chunk has come: those without an attempt whom the credential of their platform held then end as
    /// that, though they may have been away, or not been looked at yet. Whether all of them do.
    pub(super) fn held_by_platform(&mut self, key: HandKey, deadline_ms: i64) -> bool {
        let held = self.waiting.spells.map(|spell| spell.held_at(deadline_ms));
        self.hand.get_mut(key).is_some_and(|chunk| any(&held) && chunk.hold(|p| held[p as usize]))
    }
}

impl Away {
    fn new(key: HandKey, chunk: &Chunk, waits: Platforms) -> Self {
        Self { epoch: key.epoch, deadline_ms: chunk.job.deadline_ms, waits, tried: Vec::new() }
    }
}

/// Those that somebody in a chunk waits for.
fn platforms(chunk: &Chunk) -> Platforms {
    let mut waits = Platforms::default();
    chunk.held_platforms().for_each(|p| waits[p as usize] = true);
    waits
}

fn any(platforms: &Platforms) -> bool {
    platforms.contains(&true)
}
