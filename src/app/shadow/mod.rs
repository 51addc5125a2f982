//! Owns gathering what `fanfare shadow` compares: recipients that were fixed here, another system's list, and what is kept
//! of each device that is on one alone. Nothing is written.
//! Must never know: why a device is on one list alone.

mod theirs;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use self::theirs::{Row, Who};
pub use self::theirs::{Theirs, events};
use super::{BuildError, open_catalogue, unavailable};
use crate::config::{Config, Engine};
use crate::devices::address_hash;
use crate::domain::batch::FanoutState;
use crate::domain::catalogue::Catalogue;
use crate::domain::ids::{DeviceId, DeviceKey, EventId, FanoutId};
use crate::domain::recipient::Address;
use crate::inspect::shadow::{Comparison, Side, absent, extra, stranger};
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{FrozenPage, Store, StoreError};

/// Devices read at once.
const PAGE: u32 = 5_000;
/// Tokens looked up at once.
const LOOK_UP: usize = 1_000;

/// What is compared.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Ids of events.
    pub events: Vec<String>,
    /// The other system's list.
    pub theirs: Theirs,
    /// Most differences that are named.
    pub list: usize,
}

/// Compares on the configured database, beside running services: an SQLite file is opened without its lock, to read.
///
/// # Errors
/// [`BuildError`] when the database or the event types cannot be read.
pub async fn compare(config: &Config, asked: Asked) -> Result<Comparison, BuildError> {
    let catalogue = open_catalogue(config)?;
    let store = open(config)?;
    store.ready().await.map_err(unavailable)?;
    let found = compare_in(&store, &catalogue, asked).await;
    store.close().await;
    found.map_err(unavailable)
}

fn open(config: &Config) -> Result<Arc<dyn Store>, BuildError> {
    let url = &config.database.url;
    match config.database.engine() {
        Some(Engine::Sqlite(path)) => Ok(Arc::new(SqliteStore::look(&path).map_err(unavailable)?)),
        // One connection reads; the pools of a service are not for this.
        _ => Ok(Arc::new(PostgresStore::connect_with(url, 2, 1).map_err(unavailable)?)),
    }
}

async fn compare_in(store: &Arc<dyn Store>, catalogue: &Catalogue, asked: Asked) -> Result<Comparison, StoreError> {
    let Asked { events, theirs: Theirs(mut theirs), list } = asked;
    let mut run = Run { store, catalogue, list, found: Comparison::default(), seen: HashSet::new() };
    for event in events {
        let rows = theirs.remove(&event).unwrap_or_default();
        run.event(&event, rows).await?;
    }
    let coverage = &mut run.found.coverage;
    coverage.rows_of_other_events = theirs.values().map(|rows| rows.len() as u64).sum();
    coverage.devices_seen = run.seen.len() as u64;
    coverage.devices_live = store.live_count(DeviceKey(0)).await?;
    coverage.types_not_seen = catalogue.types.keys().filter(|name| !coverage.types.contains(*name)).cloned().collect();
    Ok(run.found)
}

struct Run<'a> {
    store: &'a Arc<dyn Store>,
    catalogue: &'a Catalogue,
    list: usize,
    found: Comparison,
    /// Recipients of ours so far.
    seen: HashSet<DeviceId>,
}

impl Run<'_> {
    async fn event(&mut self, event: &str, rows: Vec<Row>) -> Result<(), StoreError> {
        let Some(fanout) = self.fanout(event).await? else { return Ok(()) };
        let ours = self.ours(fanout).await?;
        let list_ms = rows.iter().filter_map(|row| row.at_ms).max();
        let (theirs, strangers) = self.theirs(rows).await?;
        let coverage = &mut self.found.coverage;
        coverage.events += 1;
        coverage.largest = coverage.largest.max(ours.len() as u64);
        self.found.ours += ours.len() as u64;
        self.found.theirs += (theirs.len() + strangers.len()) as u64;
        self.found.both += theirs.intersection(&ours).count() as u64;
        for hash in strangers {
            self.found.count(Side::Absent, (event, &format!("token with SHA-256 {hash}")), stranger(), self.list);
        }
        for device in theirs.difference(&ours) {
            let facts = self.facts(fanout, device).await?;
            let why = absent(&facts, device, self.catalogue)?;
            self.found.count(Side::Absent, (event, device.as_str()), why, self.list);
        }
        for device in ours.difference(&theirs) {
            let facts = self.facts(fanout, device).await?;
            let why = extra(&facts, list_ms, self.catalogue);
            self.found.count(Side::Extra, (event, device.as_str()), why, self.list);
        }
        self.seen.extend(ours);
        Ok(())
    }

    /// The fan-out of an event whose recipients are fixed; else it is noted why there is none.
    async fn fanout(&mut self, event: &str) -> Result<Option<FanoutId>, StoreError> {
        let seen = match EventId::parse(event) {
            Ok(id) => self.store.seen(id).await?,
            Err(_) => None,
        };
        let view = match seen {
            Some((fanout, _)) => self.store.fanout(fanout).await?,
            None => None,
        };
        let coverage = &mut self.found.coverage;
        match view {
            None => coverage.not_accepted.push(event.to_owned()),
            Some(view) if view.state == FanoutState::Freezing => coverage.freezing.push(event.to_owned()),
            Some(view) => {
                coverage.types.insert(view.event_type);
                return Ok(Some(view.id));
            }
        }
        Ok(None)
    }

    /// Every recipient that was fixed.
    async fn ours(&self, of: FanoutId) -> Result<BTreeSet<DeviceId>, StoreError> {
        let mut found = BTreeSet::new();
        let mut after = DeviceKey(0);
        loop {
            let page = self.store.reached_page(FrozenPage { of, after, limit: PAGE }).await?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = *last;
            let keys = page.iter().map(|(key, _)| *key).collect();
            found.extend(self.store.device_ids(keys).await?.into_iter().map(|(_, id)| id));
        }
    }

    /// Their devices; and hashes of tokens that no device of ours has.
    async fn theirs(&self, rows: Vec<Row>) -> Result<(BTreeSet<DeviceId>, BTreeSet<String>), StoreError> {
        let (mut found, mut strangers) = (BTreeSet::new(), BTreeSet::new());
        let mut tokens = BTreeSet::new();
        for row in rows {
            match row.who {
                Who::Token(token) => drop(tokens.insert(token)),
                Who::Device(id) => match DeviceId::parse(&id) {
                    Ok(id) => drop(found.insert(id)),
                    Err(_) => drop(strangers.insert(address_hash(&Address::Token(id)))),
                },
            }
        }
        let tokens: Vec<String> = tokens.into_iter().collect();
        for part in tokens.chunks(LOOK_UP) {
            let holders: HashMap<String, DeviceId> = self.store.holders(part.to_vec()).await?.into_iter().collect();
            for token in part {
                match holders.get(token) {
                    Some(id) => drop(found.insert(id.clone())),
                    None => drop(strangers.insert(address_hash(&Address::Token(token.clone())))),
                }
            }
        }
        Ok((found, strangers))
    }

    async fn facts(&self, fanout: FanoutId, device: &DeviceId) -> Result<crate::store::Explained, StoreError> {
        let gone = || StoreError::Unavailable(format!("fan-out {fanout} was purged meanwhile"));
        self.store.explain(fanout, device.clone()).await?.ok_or_else(gone)
    }
}
