//! Owns the freeze's arithmetic: several ordered lists of followers, read in pages, become one ordered list in which
//! each device stands once.
//! Must never know: where pages come from, or what becomes of the list.

use std::collections::VecDeque;

use super::ids::DeviceKey;

/// The ordered union of one list per subject, while it is being read.
///
/// [`Merge::take`] emits a key only when no subject can still bring a smaller one. What it emitted is therefore
/// complete up to its last key, and a new merge that starts after that key goes on without a gap or a repeat.
#[derive(Debug, Clone)]
pub struct Merge {
    lists: Vec<List>,
}

#[derive(Debug, Clone)]
struct List {
    buffer: VecDeque<DeviceKey>,
    read_to: DeviceKey,
    exhausted: bool,
}

/// A page that would break the order of the list: the store answered something else than was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// A key not above the one before it.
    #[error("follower page of subject {subject} is out of order: {key} after {before}", key = .key.0, before = .before.0)]
    OutOfOrder {
        /// Position of the subject.
        subject: usize,
        /// The key before.
        before: DeviceKey,
        /// The key at fault.
        key: DeviceKey,
    },
    /// A page for a subject the merge does not have, or for one that had ended.
    #[error("follower page of subject {0} was not asked for")]
    NotAsked(usize),
}

impl Merge {
    /// A merge of as many lists as there are subjects, from behind `after`.
    #[must_use]
    pub fn new(subjects: usize, after: DeviceKey) -> Self {
        let list = List { buffer: VecDeque::new(), read_to: after, exhausted: false };
        Self { lists: vec![list; subjects] }
    }

    /// The first subject whose next page must be read before anything more can be emitted, and the key to read after.
    #[must_use]
    pub fn needs(&self) -> Option<(usize, DeviceKey)> {
        self.lists.iter().enumerate().find(|(_, l)| l.starved()).map(|(i, l)| (i, l.read_to))
    }

    /// Adds the next page of one subject. `exhausted`: no page follows; an empty page says so by itself.
    ///
    /// # Errors
    /// [`PageError`] when the page does not go on upwards from where the subject was read to; nothing of it is kept.
    pub fn feed(&mut self, subject: usize, page: Vec<DeviceKey>, exhausted: bool) -> Result<(), PageError> {
        let list = self.lists.get_mut(subject).filter(|l| !l.exhausted).ok_or(PageError::NotAsked(subject))?;
        let mut before = list.read_to;
        for &key in &page {
            if key <= before {
                return Err(PageError::OutOfOrder { subject, before, key });
            }
            before = key;
        }
        list.read_to = before;
        list.exhausted = exhausted || page.is_empty();
        list.buffer.extend(page);
        Ok(())
    }

    /// Up to `max` of the next keys, ascending, each once. Fewer when a page is needed, or at the end.
    pub fn take(&mut self, max: usize) -> Vec<DeviceKey> {
        let mut keys = Vec::new();
        while keys.len() < max && self.needs().is_none() {
            let Some(key) = self.lists.iter().filter_map(|l| l.buffer.front().copied()).min() else { break };
            for list in self.lists.iter_mut().filter(|l| l.buffer.front() == Some(&key)) {
                list.buffer.pop_front();
            }
            keys.push(key);
        }
        keys
    }

    /// Whether every list has ended and all of it was taken.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.lists.iter().all(|l| l.exhausted && l.buffer.is_empty())
    }
}

impl List {
    fn starved(&self) -> bool {
        self.buffer.is_empty() && !self.exhausted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn keys(raw: &[i64]) -> Vec<DeviceKey> {
        raw.iter().copied().map(DeviceKey).collect()
    }

    #[test]
    fn nothing_is_emitted_above_what_every_subject_has_shown() {
        let mut merge = Merge::new(2, DeviceKey(0));
        merge.feed(0, keys(&[1, 5, 9]), false).unwrap();
        assert_eq!(merge.needs(), Some((1, DeviceKey(0))));
        assert_eq!(merge.take(10), []);
        merge.feed(1, keys(&[2, 5]), false).unwrap();
        assert_eq!(merge.take(10), keys(&[1, 2, 5]));
        assert_eq!(merge.needs(), Some((1, DeviceKey(5))));
        merge.feed(1, vec![], false).unwrap();
        assert_eq!(merge.take(10), keys(&[9]));
        assert!(!merge.finished());
        assert_eq!(merge.needs(), Some((0, DeviceKey(9))));
        merge.feed(0, vec![], true).unwrap();
        assert!(merge.finished());
        assert_eq!(merge.needs(), None);
    }

    #[test]
    fn a_page_that_breaks_the_order_is_refused_whole() {
        let mut merge = Merge::new(1, DeviceKey(4));
        let fault =
            |before, key| Err(PageError::OutOfOrder { subject: 0, before: DeviceKey(before), key: DeviceKey(key) });
        assert_eq!(merge.feed(0, keys(&[4]), false), fault(4, 4));
        assert_eq!(merge.feed(0, keys(&[6, 5]), false), fault(6, 5));
        assert_eq!(merge.needs(), Some((0, DeviceKey(4))));
        assert_eq!(merge.feed(1, keys(&[6]), false), Err(PageError::NotAsked(1)));
        merge.feed(0, keys(&[6]), true).unwrap();
        assert_eq!(merge.feed(0, keys(&[7]), true), Err(PageError::NotAsked(0)));
    }

    #[test]
    fn no_subject_is_finished_at_once() {
        assert!(Merge::new(0, DeviceKey(0)).finished());
    }

    /// Answers as a store does: a page ends the list when it is shorter than asked, or says nothing of the end.
    fn page(list: &BTreeSet<i64>, after: DeviceKey, limit: usize) -> (Vec<DeviceKey>, bool) {
        let page: Vec<_> = list.range(after.0 + 1..).take(limit).copied().map(DeviceKey).collect();
        let exhausted = page.len() < limit;
        (page, exhausted)
    }

    /// Reads all lists to the end; `steps` gives page sizes, takes and the points at which the process "dies".
    fn freeze(lists: &[BTreeSet<i64>], steps: &[(usize, usize, bool)]) -> Vec<DeviceKey> {
        let mut emitted: Vec<DeviceKey> = Vec::new();
        let mut merge = Merge::new(lists.len(), DeviceKey(0));
        for (limit, max, dies) in steps.iter().cycle() {
            if *dies {
                merge = Merge::new(lists.len(), emitted.last().copied().unwrap_or(DeviceKey(0)));
            }
            // A whole round per step, so that a life too short to emit anything is not repeated for ever.
            while let Some((subject, after)) = merge.needs() {
                let (page, exhausted) = page(&lists[subject], after, *limit);
                merge.feed(subject, page, exhausted).unwrap();
            }
            let taken = merge.take(*max);
            assert!(taken.len() <= *max);
            emitted.extend(taken);
            if merge.finished() {
                return emitted;
            }
        }
        unreachable!("steps are never empty")
    }

    proptest! {
        #[test]
        fn each_follower_of_any_subject_stands_once_and_in_order_across_restarts(
            lists in proptest::collection::vec(proptest::collection::btree_set(1_i64..120, 0..80), 1..6),
            steps in proptest::collection::vec((1_usize..12, 1_usize..20, any::<bool>()), 1..12),
        ) {
            let union: BTreeSet<i64> = lists.iter().flatten().copied().collect();
            let want: Vec<_> = union.into_iter().map(DeviceKey).collect();
            prop_assert_eq!(freeze(&lists, &steps), want);
        }

        #[test]
        fn three_overlapping_subjects_give_each_device_once(
            a in proptest::collection::btree_set(1_i64..2_000, 0..900),
            b in proptest::collection::btree_set(1_i64..2_000, 0..900),
            c in proptest::collection::btree_set(1_i64..2_000, 0..900),
            limit in 1_usize..700,
        ) {
            let want: Vec<_> = a.iter().chain(&b).chain(&c).copied().collect::<BTreeSet<_>>().into_iter().map(DeviceKey).collect();
            prop_assert_eq!(freeze(&[a, b, c], &[(limit, 500, false)]), want);
        }
    }
}
