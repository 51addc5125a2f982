//! Owns what becomes of chunks in which everybody left waits for the credential of their platform: which of them stay in
//! hand, when the others come back, and that nobody forgets what held them.
//! Must never know: when a credential is probed, or what an answer says of it.
//!
//! A whole platform of a large fan-out may wait. In hand they would keep everybody else out of it, so all but a few chunks
//! are handed back until later. Those few are what the credential is probed with; when it serves again, the others are
//! called back at once.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::batch::PutOff;
use crate::domain::ids::{ChunkRef, FanoutId};
use crate::domain::recipient::Platform;

use super::dispatch::Dispatcher;
use super::gates::Spell;
use super::hand::{Chunk, HandKey};

/// Between two looks at who waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// So many chunks stay in hand for each platform: enough to probe with, and to begin with when it is served again.
const KEPT: usize = 8;
/// A chunk is away for this long, ms, unless it is called back. It bounds what the death of this instance may cost.
const AWAY_MS: i64 = 20_000;
/// And for so much longer for each that is away already, ms: claiming them only to put them off again would hold up others.
const APART_MS: i64 = 20;

const PLATFORMS: usize = Platform::ALL.len();

/// Platforms, each in its place of [`Platform::ALL`].
type Platforms = [bool; PLATFORMS];

/// Chunks that were handed back until later.
#[derive(Debug, Default)]
pub struct Waiting {
    away: BTreeMap<ChunkRef, (i32, Platforms)>,
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

    /// A chunk is in hand again.
    pub(super) fn returns(&mut self, chunk: ChunkRef) {
        self.away.remove(&chunk);
    }

    /// Forgets the chunks of fan-outs that are not wanted any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(FanoutId) -> bool) {
        self.away.retain(|chunk, _| wanted(chunk.fanout));
    }

    /// Whether chunks of a fan-out are away.
    pub(super) fn has(&self, fanout: FanoutId) -> bool {
        self.away.keys().any(|chunk| chunk.fanout == fanout)
    }

    /// Takes out those that wait for one of these platforms.
    fn take(&mut self, of: Platforms) -> Vec<(ChunkRef, i32)> {
        let mut taken = Vec::new();
        self.away.retain(|chunk, (epoch, waits)| {
            let stays = !(0..PLATFORMS).any(|p| of[p] && waits[p]);
            if !stays {
                taken.push((*chunk, *epoch));
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
    /// Hands back all but a few chunks in which everybody waits for the credential of their platform. Those whose deadline
    /// is the last stay: when it comes, nobody is left who is away.
    pub(super) fn put_off(&mut self) {
        if self.gates.draining || !self.waiting.due(self.now) {
            return;
        }
        let mut held: Vec<(HandKey, &Chunk, Platforms)> =
            self.hand.iter().map(|(key, chunk)| (key, chunk, platforms(chunk))).filter(|(.., p)| any(p)).collect();
        held.sort_by_key(|(_, chunk, _)| Reverse(chunk.job.deadline_ms));
        let mut kept = [0; PLATFORMS];
        let mut back = Vec::new();
        for (key, chunk, waits) in held {
            let of = || (0..PLATFORMS).filter(|p| waits[*p]);
            if chunk.at_rest() && of().all(|p| kept[p] >= KEPT) {
                back.push((key, chunk.job.deadline_ms, waits));
            } else {
                of().for_each(|p| kept[p] += 1);
            }
        }
        self.hand_back_until_later(back);
        let mut missing = Platforms::default();
        for p in Platform::ALL {
            missing[*p as usize] = kept[*p as usize] == 0 && self.gates.platform_refused(*p);
        }
        self.recall(missing);
    }

    fn hand_back_until_later(&mut self, back: Vec<(HandKey, i64, Platforms)>) {
        let now_ms = self.wiring.clock.now_ms();
        let mut rounds: BTreeMap<i64, Vec<(ChunkRef, i32)>> = BTreeMap::new();
        let until = self.waiting.until(now_ms);
        for (key, deadline_ms, waits) in back {
            self.hand.remove(key);
            self.waiting.away.insert(key.chunk, (key.epoch, waits));
            rounds.entry(until.min(deadline_ms)).or_default().push((key.chunk, key.epoch));
        }
        for (not_before_ms, chunks) in rounds {
            let away = self.waiting.away.len();
            tracing::debug!(target: "fanfare::fanout", chunks = chunks.len(), away, not_before_ms, "chunks that wait for a credential are put off");
            self.outbox.put_off(PutOff { not_before_ms, chunks }, self.now);
        }
    }

    /// Lets those be claimed again that are away for one of these platforms.
    fn recall(&mut self, of: Platforms) {
        let chunks = self.waiting.take(of);
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
            let holds = anybody && self.gates.platform_refused(*platform);
            self.waiting.spells[*platform as usize].note(holds, now_ms);
        }
    }

    /// The deadline of a chunk has come: those without an attempt whom the credential of their platform held then end as
    /// that, though they may have been away, or not been looked at yet. Whether all of them do.
    pub(super) fn held_by_platform(&mut self, key: HandKey, deadline_ms: i64) -> bool {
        let held = self.waiting.spells.map(|spell| spell.held_at(deadline_ms));
        self.hand.get_mut(key).is_some_and(|chunk| any(&held) && chunk.hold(|p| held[p as usize]))
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
