//! Owns the faults below HTTP of the whole emulator: which connections there are, what is in force for them, and
//! whether anybody is let in.
//! Must never know: requests and answers.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

mod faults;
mod frame;
mod link;
mod tap;
mod terms;

pub use faults::{Act, GoAway, Network};
pub(super) use link::Fate;
pub(super) use tap::{Socket, Tap};

use super::stats::Stats;
use faults::Faults;
use link::{Counts, Link};
use tap::lock;

/// A connection's handle on what happens below it; forgotten when dropped.
pub(super) struct Wire {
    /// From 1, in order of connecting.
    pub(super) number: u32,
    link: Arc<Mutex<Link>>,
    all: Arc<Wires>,
}

impl Wire {
    /// What HTTP is to be served on.
    pub(super) fn tap<I: Socket>(&self, io: I) -> Tap<I> {
        Tap::new(io, self.link.clone())
    }

    /// Ends the connection below the request that is being answered.
    pub(super) fn meet(&self, fate: Fate) {
        lock(&self.link).meet(fate);
    }

    /// Whether nothing may come from it, from its very start.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.link).fate == Fate::Silent
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.all.lock().links.remove(&self.number);
    }
}

#[derive(Default)]
struct Inner {
    faults: Faults,
    /// As it was started.
    calm: Faults,
    links: BTreeMap<u32, Arc<Mutex<Link>>>,
    muted_until: Option<Instant>,
}

/// All connections.
#[derive(Default)]
pub(super) struct Wires {
    inner: Mutex<Inner>,
    /// Until when nobody can connect.
    refusing_until: watch::Sender<Option<Instant>>,
    counts: Arc<Counts>,
}

impl Wires {
    /// With what is in force from the start.
    pub(super) fn new(max_streams: u32, start: &Network) -> Self {
        let calm = Faults::default().changed(&Network { max_streams: Some(max_streams), ..Network::default() });
        let calm = calm.changed(start);
        let wires = Self::default();
        let mut inner = wires.lock();
        (inner.faults, inner.calm) = (calm.clone(), calm);
        drop(inner);
        wires
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection.
    pub(super) fn connected(self: &Arc<Self>, number: u32) -> Wire {
        let mut inner = self.lock();
        let muted = inner.muted_until.is_some_and(|end| Instant::now() < end);
        let fate = if muted { Fate::Silent } else { Fate::Open };
        let link = Arc::new(Mutex::new(Link::new(inner.faults.clone(), fate, self.counts.clone())));
        inner.links.insert(number, link.clone());
        Wire { number, link, all: self.clone() }
    }

    /// Changes what is in force, then does what is to be done once. Every open connection has it when this returns.
    pub(super) fn change(&self, change: &Network) {
        let mut inner = self.lock();
        inner.faults = inner.faults.changed(change);
        for link in inner.links.values() {
            lock(link).change(&inner.faults);
        }
        if let Some(ms) = change.mute_ms {
            inner.muted_until = after(ms);
        }
        if let Some(ms) = change.refuse_ms {
            self.refusing_until.send_replace(after(ms));
        }
        for act in &change.now {
            let meant = inner.links.iter().filter(|(number, _)| act.connection().is_none_or(|one| one == **number));
            meant.for_each(|(_, link)| perform(act, &mut lock(link)));
        }
    }

    /// As it was started; silent connections end, for what they have missed is lost.
    pub(super) fn calm(&self) {
        let mut inner = self.lock();
        inner.faults = inner.calm.clone();
        inner.muted_until = None;
        self.refusing_until.send_replace(None);
        for link in inner.links.values() {
            let mut link = lock(link);
            link.change(&inner.faults);
            if link.fate == Fate::Silent {
                link.meet(Fate::Fin);
            }
        }
    }

    /// Waits until nobody may connect.
    pub(super) async fn refuses(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.refusing_until.subscribe().wait_for(|end| end.is_some_and(|end| Instant::now() < end)).await;
    }

    /// Waits until people may connect again.
    pub(super) async fn admits(&self) {
        let mut watched = self.refusing_until.subscribe();
        loop {
            let end = *watched.borrow_and_update();
            let Some(end) = end.filter(|end| Instant::now() < *end) else { return };
            tokio::select! {
                () = tokio::time::sleep_until(end) => {}
                _ = watched.changed() => {}
            }
        }
    }

    /// What is in force, for people.
    pub(super) fn in_force(&self) -> serde_json::Value {
        let inner = self.lock();
        let mut shown = serde_json::json!(inner.faults);
        shown["mute_ms"] = left(inner.muted_until).into();
        shown["refuse_ms"] = left(*self.refusing_until.borrow()).into();
        shown
    }

    /// Adds its counts.
    pub(super) fn count(&self, stats: Stats) -> Stats {
        let Counts { unprocessed, goaways, overruns, pings_ignored } = &*self.counts;
        Stats {
            unprocessed: unprocessed.load(Ordering::Relaxed),
            goaways: goaways.load(Ordering::Relaxed),
            overruns: overruns.load(Ordering::Relaxed),
            pings_ignored: pings_ignored.load(Ordering::Relaxed),
            ..stats
        }
    }

    /// Counts from zero.
    pub(super) fn reset(&self) {
        let Counts { unprocessed, goaways, overruns, pings_ignored } = &*self.counts;
        for count in [unprocessed, goaways, overruns, pings_ignored] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

fn perform(act: &Act, link: &mut Link) {
    match act {
        Act::Goaway(order) => link.go_away(order),
        Act::BlackHole { .. } => link.meet(Fate::Silent),
        Act::Fin { .. } => link.meet(Fate::Fin),
        Act::Rst { .. } => link.meet(Fate::Rst),
    }
}

/// The end of so many ms; none for 0, and the far future for more than a clock can hold.
fn after(ms: u64) -> Option<Instant> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    (ms > 0).then(|| Instant::now() + Duration::from_millis(ms).min(YEAR))
}

fn left(end: Option<Instant>) -> u64 {
    let left = end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

/// Reads and throws away until the client, or the fate of the connection, ends it.
pub(super) async fn sit_out<I: Socket>(tap: Tap<I>) -> io::Result<u64> {
    let mut tap = tap;
    tokio::io::copy(&mut tap, &mut tokio::io::sink()).await
}
