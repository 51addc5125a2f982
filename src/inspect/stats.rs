//! Owns the totals of a window of time, and which of them can still change.
//! Must never know: SQL, HTTP, or how a number is shown.
//!
//! A fan-out belongs to the window it was accepted in. What is settled never changes again, so neither do the totals of
//! a window in which all is settled and into which nothing more can be accepted.

use std::collections::BTreeMap;

use crate::domain::batch::{Class, FanoutKind};
use crate::domain::ids::FanoutId;
use crate::domain::outcome::Outcome;
use crate::domain::tally::PartCounters;
use crate::store::{FanoutQuery, FanoutView, Store, StoreError};

/// Fan-outs that are counted at most: a window with more is to be asked for in parts.
pub const MOST_FANOUTS: usize = 100_000;

/// Fan-outs read at once.
const PAGE: u32 = 500;

/// What is being accepted may be committed so long after the time it says it was accepted at: the longest a call to the
/// database may take, and some.
const IN_FLIGHT_MS: i64 = 15_000;

/// The totals of some fan-outs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// How many.
    pub fanouts: u64,
    /// Of these, not settled.
    pub open: u64,
    /// Devices to be reached, as frozen so far.
    pub recipients: u64,
    /// By outcome; absent = 0.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Counters of all instances, merged.
    pub counters: PartCounters,
    /// From acceptance to settling, of those settled, ms, together.
    pub settled_ms: i64,
    /// Those whose counts are a lower bound, for an instance was lost.
    pub lower_bounds: u64,
}

impl Group {
    fn add(&mut self, view: &FanoutView) {
        self.fanouts += 1;
        self.recipients += view.tally.recipients();
        for outcome in Outcome::ALL {
            *self.outcomes.entry(*outcome).or_default() += view.tally.count(*outcome);
        }
        self.counters.merge(&view.counters);
        match view.settled_ms {
            Some(settled_ms) => self.settled_ms += (settled_ms - view.accepted_ms).max(0),
            None => self.open += 1,
        }
        self.lower_bounds += u64::from(view.interrupted > 0);
    }

    /// Accepted by FCM.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.outcomes.get(&Outcome::Delivered).copied().unwrap_or_default()
    }

    /// Any other outcome.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.outcomes.values().sum::<u64>() - self.delivered()
    }

    /// No outcome yet.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.recipients - self.delivered() - self.failed()
    }

    /// Mean time from acceptance to settling, ms; `None` when none is settled.
    #[must_use]
    pub fn mean_duration_ms(&self) -> Option<u64> {
        let settled = self.fanouts - self.open;
        (settled > 0).then(|| self.settled_ms.unsigned_abs() / settled)
    }
}

/// The totals of a window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// First time of the window, and the first after it; database ms.
    pub window: (i64, i64),
    /// Nothing accepted before this time can change any more, database ms.
    pub complete_through: i64,
    /// Everything sent.
    pub total: Group,
    /// By urgency.
    pub classes: BTreeMap<Class, Group>,
    /// By event type.
    pub types: BTreeMap<String, Group>,
    /// Sweeps, which ask and send nothing: in none of the others.
    pub sweeps: Group,
}

impl Stats {
    /// Whether no number of it can change any more.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.window.1 <= self.complete_through
    }

    fn add(&mut self, view: &FanoutView) {
        if view.kind == FanoutKind::Sweep {
            return self.sweeps.add(view);
        }
        self.total.add(view);
        self.classes.entry(view.class).or_default().add(view);
        self.types.entry(view.event_type.clone()).or_default().add(view);
    }
}

/// The time before which nothing can change, and database time.
///
/// # Errors
/// Those of the store.
pub async fn complete_through(store: &dyn Store) -> Result<(i64, i64), StoreError> {
    let (now_ms, open) = store.open_since().await?;
    let settled = now_ms - IN_FLIGHT_MS;
    Ok((open.map_or(settled, |oldest| oldest.min(settled)), now_ms))
}

/// The totals of what was accepted in a window; `None` when there are more than [`MOST_FANOUTS`]. `complete_through` is
/// to have been asked for before: what is settled in between is then counted, and said to be uncertain.
///
/// # Errors
/// Those of the store.
pub async fn stats(store: &dyn Store, window: (i64, i64), complete_through: i64) -> Result<Option<Stats>, StoreError> {
    let mut stats = Stats { window, complete_through, ..Stats::default() };
    let (mut before, mut seen): (Option<FanoutId>, usize) = (None, 0);
    loop {
        let query = FanoutQuery { state: None, before, accepted: Some(window), limit: PAGE };
        let page = store.fanouts(query).await?;
        page.iter().for_each(|view| stats.add(view));
        seen += page.len();
        if seen > MOST_FANOUTS {
            return Ok(None);
        }
        before = page.last().map(|view| view.id);
        if page.len() < PAGE as usize {
            return Ok(Some(stats));
        }
    }
}
