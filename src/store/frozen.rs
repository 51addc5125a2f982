//! Owns who of a frozen chunk counts for a fan-out derived from it: decided here once, for both databases.
//! Must never know: SQL, or what becomes of those who count.

use std::collections::BTreeMap;

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
        let late = Frozen { ok: bits(&[0, 1]), ..chunk(ChunkState::Closed) };
        assert_eq!(failed(&late, Source::Failed), [13, 14, 15], "a delivery that was written later wins");
    }
}
