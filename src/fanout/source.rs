//! Owns what a freeze reads: one ordered list for each subject and each fan-out it derives from, merged into one list of
//! recipients.
//! Must never know: how recipients become chunks.

use std::collections::HashSet;

use crate::domain::bitmap::CHUNK_SIZE;
use crate::domain::derived::Source;
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::merge::Merge;
use crate::domain::recipient::KindMask;
use crate::store::{FollowerPage, FreezeJob, FrozenPage, Store, StoreError};

/// Rows read at once per list.
pub(super) const PAGE: u32 = 10_000;

/// One list, in order of key.
#[derive(Debug)]
enum List {
    /// Followers of a subject.
    Followers(String),
    /// Recipients of a fan-out that is corrected.
    Corrected(FanoutId),
    /// Whom a fan-out failed to reach.
    Failed(FanoutId, Source),
    /// Live devices, so many more.
    Devices(u64),
}

/// How many devices a sweep may still ask about: one attempt each. Every chunk before the last one is full.
fn left_to_ask(job: &FreezeJob) -> u64 {
    let most = job.job.origin.cap.map_or(u64::MAX, |cap| cap.most);
    most.saturating_sub(u64::try_from(job.next_chunk).unwrap_or(0) * CHUNK_SIZE as u64)
}

/// The recipients of one fan-out, while they are read.
#[derive(Debug)]
pub(super) struct Reading {
    lists: Vec<List>,
    kinds: KindMask,
    merge: Merge,
    /// Whether it corrects something: then lists hold also those who are only to be counted.
    corrects: bool,
    /// Read, not merged yet, and recipients.
    wanted: HashSet<DeviceKey>,
    /// Read, not merged yet, and sent what is corrected.
    saw: HashSet<DeviceKey>,
    /// Merged, and not sent what is corrected; in order.
    missed: Vec<DeviceKey>,
}

impl Reading {
    /// From where the freeze stands.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn begin(job: &FreezeJob, kinds: KindMask, store: &dyn Store) -> Result<Self, StoreError> {
        let (origin, id) = (&job.job.origin, job.job.id);
        let followers = || job.job.event.subjects.iter().cloned().map(List::Followers);
        let corrects = matches!(origin.source, Source::Reached | Source::Audience);
        let corrected = if corrects { store.kin(id).await? } else { Vec::new() };
        let corrected = corrected.into_iter().map(List::Corrected);
        let lists: Vec<List> = match origin.source {
            Source::Followers => followers().collect(),
            Source::Reached => corrected.collect(),
            Source::Audience => followers().chain(corrected).collect(),
            Source::Failed | Source::FailedOrUnconfirmed => {
                let orphan = || StoreError::Corrupt(format!("replay {id} has no parent"));
                vec![List::Failed(origin.parent.ok_or_else(orphan)?, origin.source)]
            }
            Source::Devices => vec![List::Devices(left_to_ask(job))],
        };
        let merge = Merge::new(lists.len(), job.cursor);
        let (wanted, saw, missed) = (HashSet::new(), HashSet::new(), Vec::new());
        Ok(Self { lists, kinds, merge, corrects, wanted, saw, missed })
    }

    /// Reads until something can be merged.
    ///
    /// # Errors
    /// Those of the store; [`StoreError::Corrupt`] when a page is out of order.
    pub(super) async fn fill(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        while let Some((list, after)) = self.merge.needs() {
            let keys = self.page(list, after, store).await?;
            let exhausted = keys.len() < PAGE as usize;
            self.merge.feed(list, keys, exhausted).map_err(|fault| StoreError::Corrupt(fault.to_string()))?;
        }
        Ok(())
    }

    async fn page(&mut self, list: usize, after: DeviceKey, store: &dyn Store) -> Result<Vec<DeviceKey>, StoreError> {
        let frozen = |of: FanoutId| FrozenPage { of, after, limit: PAGE };
        match &mut self.lists[list] {
            List::Followers(subject) => {
                let page = FollowerPage { subject: subject.clone(), kinds: self.kinds, after, limit: PAGE };
                let keys = store.follower_page(page).await?;
                if self.corrects {
                    self.wanted.extend(&keys);
                }
                Ok(keys)
            }
            List::Corrected(of) => {
                let page = store.reached_page(frozen(*of)).await?;
                let saw = page.iter().filter(|(_, reached)| *reached).map(|(key, _)| *key);
                self.saw.extend(saw.clone());
                self.wanted.extend(saw);
                Ok(page.into_iter().map(|(key, _)| key).collect())
            }
            List::Failed(of, source) => store.failed_page(frozen(*of), *source).await,
            List::Devices(left) => {
                let limit = u32::try_from(*left).map_or(PAGE, |left| left.min(PAGE));
                let keys = if limit == 0 { Vec::new() } else { store.live_page(after, limit).await? };
                *left -= keys.len() as u64;
                Ok(keys)
            }
        }
    }

    /// The next recipients, ascending, each once.
    pub(super) fn take(&mut self) -> Vec<DeviceKey> {
        let mut keys = self.merge.take(PAGE as usize);
        if self.corrects {
            self.missed.extend(keys.iter().filter(|key| !self.saw.remove(key)));
            keys.retain(|key| self.wanted.remove(key));
        }
        keys
    }

    /// Whether everything was taken.
    pub(super) fn finished(&self) -> bool {
        self.merge.finished()
    }

    /// How many up to and with a key were not sent what is corrected; each is told once. `None` when nothing is corrected.
    pub(super) fn never_saw(&mut self, up_to: DeviceKey) -> Option<u64> {
        let told = self.missed.partition_point(|key| *key <= up_to);
        self.missed.drain(..told);
        self.corrects.then_some(told as u64)
    }
}
