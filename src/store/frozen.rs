//! Owns who of a frozen chunk counts for a fan-out derived from it: decided here once, for both databases.
//! Must never know: SQL, or what becomes of those who count.

use std::collections::{BTreeMap, HashSet};

use super::ChunkState;
use crate::domain::bitmap::Bitmap;
use crate::domain::derived::Source;
use crate::domain::ids::DeviceKey;
use crate::domain::outcome::Outcome;

/// Chunks read at once.
pub(crate) const CHUNKS_AT_ONCE: i32 = 20;

/// A chunk as it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frozen {
    /// Its number.
    pub no: i32,
    /// Recipients in frozen order.
    pub keys: Vec<DeviceKey>,
    /// Where it stands.
    pub state: ChunkState,
    /// It was lost by an owner that said nothing.
    pub unclean: bool,
    /// Who has an outcome.
    pub done: Bitmap,
    /// Of these, the delivered ones.
    pub ok: Bitmap,
    /// Whom an attempt may have reached.
    pub maybe: Bitmap,
    /// How those ended that have no bit.
    pub rest: Option<Outcome>,
    /// Failed recipients by position.
    pub failures: BTreeMap<usize, Outcome>,
}

impl Frozen {
    /// Every recipient after `after`, with whether an attempt reached it or may have. What is in flight of a chunk in
    /// somebody's hands only its owner knows, and what was of a lost one nobody: those without an outcome all may have.
    pub fn reached(&self, after: DeviceKey) -> impl Iterator<Item = (DeviceKey, bool)> + '_ {
        let unknown = self.unclean || self.state == ChunkState::Owned;
        let reached = move |i: usize| self.ok.get(i) || self.maybe.get(i) || (unknown && !self.done.get(i));
        self.keys.iter().enumerate().filter(move |(_, key)| **key > after).map(move |(i, key)| (*key, reached(i)))
    }

    /// Recipients after `after` whose outcome `source` takes.
    pub fn failed(&self, after: DeviceKey, source: Source) -> impl Iterator<Item = DeviceKey> + '_ {
        let taken = move |i: usize| self.outcome(i).is_some_and(|outcome| source.takes(outcome));
        self.keys.iter().enumerate().filter(move |(i, key)| **key > after && taken(*i)).map(|(_, key)| *key)
    }

    /// What this chunk of a later replay says of the recipient at a position.
    fn since(&self, i: usize, source: Source) -> Again {
        let unknown = self.unclean || self.state == ChunkState::Owned;
        match self.outcome(i) {
            Some(Outcome::Delivered) => Again::Reached,
            Some(outcome) if source.takes(outcome) => Again::Open,
            Some(Outcome::Unconfirmed) => Again::Unsure,
            // It ended as something else, after an attempt that may have reached it.
            Some(_) if self.maybe.get(i) && !source.takes(Outcome::Unconfirmed) => Again::Unsure,
            None if self.maybe.get(i) || unknown => Again::Unsure,
            _ => Again::Open,
        }
    }

    fn outcome(&self, i: usize) -> Option<Outcome> {
        match (self.ok.get(i), self.done.get(i), self.state) {
            (true, ..) => Some(Outcome::Delivered),
            (_, true, _) => self.failures.get(&i).copied(),
            (_, _, ChunkState::Closed) => self.rest,
            // Its chunk was given up; whoever asks is about to close it so.
            (_, _, ChunkState::SetAside) => Some(Outcome::Internal),
            _ => None,
        }
    }
}

enum Again {
    /// Nobody sends it again.
    Reached,
    /// It may have it, and is not to be sent it twice.
    Unsure,
    /// It still lacks it.
    Open,
}

/// What the replays since then say of recipients, heard in the order in which they were made: a delivery stands, of
/// everything else the last word counts.
#[derive(Debug, Default)]
pub(crate) struct Since {
    reached: HashSet<DeviceKey>,
    unsure: HashSet<DeviceKey>,
}

impl Since {
    /// Hears what a chunk of the next replay says of those after `after`, when `source` asks.
    pub fn hear(&mut self, chunk: &Frozen, after: DeviceKey, source: Source) {
        for (i, key) in chunk.keys.iter().enumerate().filter(|(_, key)| **key > after) {
            match chunk.since(i, source) {
                Again::Reached => self.reached.insert(*key),
                Again::Unsure => self.unsure.insert(*key),
                Again::Open => self.unsure.remove(key),
            };
        }
    }

    /// Whether somebody is no recipient of the next replay.
    #[must_use]
    pub fn keeps_out(&self, key: DeviceKey) -> bool {
        self.reached.contains(&key) || self.unsure.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(set: &[usize]) -> Bitmap {
        let mut map = Bitmap::new(6);
        set.iter().for_each(|i| {
            map.set(*i);
        });
        map
    }

    /// 0 delivered, 1 transient, 2 unconfirmed and maybe, 3 tried without an answer, 4 and 5 not tried.
    fn chunk(state: ChunkState) -> Frozen {
        Frozen {
            no: 0,
            keys: (10..16).map(DeviceKey).collect(),
            state,
            unclean: false,
            done: bits(&[0, 1, 2]),
            ok: bits(&[0]),
            maybe: bits(&[2, 3]),
            rest: (state == ChunkState::Closed).then_some(Outcome::Expired),
            failures: BTreeMap::from([(1, Outcome::Transient), (2, Outcome::Unconfirmed)]),
        }
    }

    fn reached(chunk: &Frozen) -> Vec<i64> {
        chunk.reached(DeviceKey(0)).filter(|(_, reached)| *reached).map(|(key, _)| key.0).collect()
    }

    fn failed(chunk: &Frozen, source: Source) -> Vec<i64> {
        chunk.failed(DeviceKey(0), source).map(|key| key.0).collect()
    }

    #[test]
    fn whoever_may_have_been_reached_is_never_left_out() {
        assert_eq!(reached(&chunk(ChunkState::Closed)), [10, 12, 13]);
        assert_eq!(reached(&chunk(ChunkState::Open)), [10, 12, 13]);
        assert_eq!(reached(&chunk(ChunkState::Owned)), [10, 12, 13, 14, 15], "what is in flight only its owner knows");
        let lost = Frozen { unclean: true, ..chunk(ChunkState::Closed) };
        assert_eq!(reached(&lost), [10, 12, 13, 14, 15], "what was in flight nobody knows");
        assert_eq!(lost.reached(DeviceKey(13)).count(), 2, "after the key");
    }

    #[test]
    fn a_replay_is_for_those_who_failed_and_not_for_those_who_may_have_it() {
        assert_eq!(failed(&chunk(ChunkState::Closed), Source::Failed), [11, 13, 14, 15]);
        assert_eq!(failed(&chunk(ChunkState::Closed), Source::FailedOrUnconfirmed), [11, 12, 13, 14, 15]);
        assert_eq!(failed(&chunk(ChunkState::SetAside), Source::Failed), [11, 13, 14, 15], "maybe or not");
        assert_eq!(failed(&chunk(ChunkState::Owned), Source::Failed), [11]);
        let cancelled = Frozen { rest: Some(Outcome::Cancelled), ..chunk(ChunkState::Closed) };
        assert_eq!(failed(&cancelled, Source::Failed), [11], "what was cancelled is not tried again");
        let refused = Frozen { rest: Some(Outcome::Credential), ..chunk(ChunkState::Closed) };
        assert_eq!(failed(&refused, Source::Failed), [11, 13, 14, 15], "once the key works they can be reached");
        let late = Frozen { ok: bits(&[0, 1]), ..chunk(ChunkState::Closed) };
        assert_eq!(failed(&late, Source::Failed), [13, 14, 15], "a delivery that was written later wins");
    }

    fn kept_out(replays: &[&Frozen], source: Source) -> Vec<i64> {
        let mut since = Since::default();
        replays.iter().for_each(|chunk| since.hear(chunk, DeviceKey(0), source));
        (10..16).filter(|key| since.keeps_out(DeviceKey(*key))).collect()
    }

    #[test]
    fn the_last_replay_says_who_still_lacks_it_and_a_delivery_stands() {
        // As an attempt that was answered with 500 leaves it: transient, and maybe.
        let failed = Frozen { maybe: bits(&[1, 2, 3]), ..chunk(ChunkState::Closed) };
        assert_eq!(kept_out(&[&failed], Source::Failed), [10, 12]);
        assert_eq!(kept_out(&[&failed], Source::FailedOrUnconfirmed), [10]);
        let cancelled = Frozen { rest: Some(Outcome::Cancelled), ..failed.clone() };
        assert_eq!(kept_out(&[&cancelled], Source::Failed), [10, 12, 13], "stopped after it may have got it");
        assert_eq!(kept_out(&[&cancelled], Source::FailedOrUnconfirmed), [10]);
        assert_eq!(kept_out(&[&chunk(ChunkState::Owned)], Source::Failed), [10, 12, 13, 14, 15], "in hand");
        let failures = BTreeMap::from([(0, Outcome::Transient), (2, Outcome::Transient)]);
        let later = Frozen { ok: bits(&[]), done: bits(&[0, 2]), failures, ..failed.clone() };
        assert_eq!(kept_out(&[&failed, &later], Source::Failed), [10]);
        assert_eq!(kept_out(&[&later, &failed], Source::Failed), [10, 12]);
    }
}
