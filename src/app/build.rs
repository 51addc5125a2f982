//! Owns building: every room from the configuration, channel by channel. Reads top to bottom as the way of a goal.
//! Must never know: how the parts are run and drained.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::bridge::{self, Watched};
use super::credentials::{self, Access};
use super::open::{CONNECT_TIMEOUT, Inputs, ceiling_settings, open_store, unavailable};
use super::{App, BuildError, Workers, limits};
use crate::api::{self, Keys};
use crate::ceiling::{Ceiling, GrantRun};
use crate::clock::DbClock;
use crate::config::{Config, Engine};
use crate::domain::catalogue::LiveCatalogue;
use crate::domain::ids::BootId;
use crate::fanout::claim::{Claimer, Doubt, EverySecond};
use crate::fanout::flight::Slots;
use crate::fanout::freeze::Freezer;
use crate::fanout::lease::Lease;
use crate::fanout::totals::Totals;
use crate::fanout::wiring::{Pacing, Wiring};
use crate::fanout::{Hands, ToSender, sender};
use crate::fcm::connections::Settings as FcmSettings;
use crate::fcm::http::TokenHttp;
use crate::fcm::oauth::Tokens;
use crate::ledger::flush::Flusher;
use crate::ledger::judgement::Judgements;
use crate::ledger::metrics::LedgerMetrics;
use crate::ledger::retention::Retention;
use crate::ledger::settle::Settler;
use crate::metrics::Metrics;
use crate::store::Store;

/// Freezes handed over in process; more are found by the freezer's own look into the database.
const HANDOVER: usize = 1024;

impl App {
    /// Builds everything and binds both listeners. SQLite is migrated here; Postgres must be (`fanfare migrate`).
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        let base = Base::open(&config).await?;
        let (to_sender, inbox) = mpsc::unbounded_channel();
        let (live, live_seen) = watch::channel(1);
        let (trouble, trouble_seen) = watch::channel(None);
        let clock = Arc::new(DbClock::from_wall());
        let lease = Lease { boot: base.boot, clock: Arc::clone(&clock), sender: to_sender.clone(), live, trouble };
        lease.beat(&base.store).await.map_err(unavailable)?;

        let stop = CancellationToken::new();
        let (ceiling, grants) =
            Ceiling::start(ceiling_settings(&config, &base.access.project), live_seen.clone(), stop.clone());
        let tokens = base.tokens(&ceiling);
        let mut metrics = Metrics::new();
        let hands = Arc::new(Hands::new(config.fcm.slots, Totals::register(&mut metrics)));
        let judgements = Judgements::register(&mut metrics);
        let watched = Watched {
            judgements: judgements.clone(),
            ceiling: ceiling.clone(),
            token: tokens.subscribe(),
            hands: Arc::clone(&hands),
            live: live_seen,
            trouble: trouble_seen,
            draining: CancellationToken::new(),
        };
        let ledger = LedgerMetrics::register(&mut metrics);
        let measured = api::Measured::register(&mut metrics);
        let live = watched.live.clone();
        let quotas = limits::quotas(&config, &base.access.project)?;
        let ops_state = bridge::ops(metrics, watched.clone());

        let wires = Wires { to_sender, clock, tokens, watched };
        let ends = Ends { inbox, grants, stop, lease, ledger, judgements };
        let (workers, handover, settled, [cancelled, complete]) = base.workers(&config, wires.clone(), ends)?;
        let api = bind(config.api.listen, "api.listen").await?;
        let ops = bind(config.ops.listen, "ops.listen").await?;
        let addrs = (local(&api)?, local(&ops)?);
        let state = api::State {
            store: Arc::clone(&base.store),
            fits: bridge::fits(),
            catalogue: base.catalogue,
            ceiling: bridge::ceiling_answer(ceiling),
            handover,
            settled,
            cancelled,
            complete,
            clock: wires.clock,
            boot: base.boot,
            keys: Arc::new(base.keys),
            load: hands.load(),
            draining: wires.watched.draining,
            quotas,
            live,
            measured,
            limits: limits::of_api(&config),
            keep_ms: i64::from(config.retention.keep_days) * 86_400_000,
        };
        let limits = limits::of_listener(&config, &state.measured);
        let grace = Duration::from_millis(config.drain.grace_ms);
        let (store, boot, tokens) = (base.store, base.boot, wires.tokens);
        Ok(Self { api, ops, addrs, limits, state, ops_state, store, boot, tokens, workers, grace })
    }
}

/// What ties the rooms together.
#[derive(Clone)]
struct Wires {
    to_sender: mpsc::UnboundedSender<ToSender>,
    clock: Arc<DbClock>,
    tokens: Tokens,
    watched: Watched,
}

/// What only one worker may have.
struct Ends {
    inbox: mpsc::UnboundedReceiver<ToSender>,
    grants: mpsc::Receiver<GrantRun>,
    stop: CancellationToken,
    lease: Lease,
    ledger: LedgerMetrics,
    judgements: Judgements,
}

type Built = (
    Workers,
    mpsc::Sender<crate::store::FreezeJob>,
    broadcast::Sender<crate::domain::ids::FanoutId>,
    [Arc<dyn Fn(crate::domain::ids::FanoutId) + Send + Sync>; 2],
);

/// What must be there before anything can be wired.
struct Base {
    store: Arc<dyn Store>,
    catalogue: LiveCatalogue,
    keys: Keys,
    access: Access,
    http: TokenHttp,
    ca_pem: Option<Vec<u8>>,
    boot: BootId,
}

impl Base {
    async fn open(config: &Config) -> Result<Self, BuildError> {
        let Inputs { catalogue, keys, credentials, ca_pem, http } = Inputs::read(config)?;
        let catalogue = LiveCatalogue::new(catalogue);
        let access = credentials::access(config, credentials, &http).await?;
        let store = open_store(config).await?;
        if matches!(config.database.engine(), Some(Engine::Sqlite(_))) {
            store.migrate().await.map_err(unavailable)?;
        }
        store.ready().await.map_err(unavailable)?;
        Ok(Self { store, catalogue, keys, access, http, ca_pem, boot: BootId::fresh() })
    }

    /// Starts the access token's task; every request of it is charged to the ceiling.
    fn tokens(&self, ceiling: &Ceiling) -> Tokens {
        Tokens::start(self.access.source.clone(), self.http.clone(), ceiling.charger(), SystemTime::now)
    }

    fn workers(&self, config: &Config, wires: Wires, ends: Ends) -> Result<Built, BuildError> {
        let (outbound_tx, outbound) = mpsc::unbounded_channel();
        let (complete_tx, complete) = mpsc::unbounded_channel();
        let (handover, accepted) = mpsc::channel(HANDOVER);
        let settled = broadcast::Sender::new(1024);
        let cancelled = bridge::cancelled(wires.to_sender.clone(), complete_tx.downgrade());
        let told = [cancelled, bridge::complete(complete_tx.downgrade())];
        let wiring = Wiring {
            inbox: ends.inbox,
            grants: ends.grants,
            outbound: outbound_tx,
            tokens: wires.tokens.clone(),
            ceiling: wires.watched.ceiling.clone(),
            clock: Arc::clone(&wires.clock),
            catalogue: self.catalogue.clone(),
            hands: Arc::clone(&wires.watched.hands),
        };
        let sender = sender::start(
            fcm_settings(config, self.access.project.clone(), self.ca_pem.clone()),
            pacing(config),
            wiring,
        )
        .map_err(|e| BuildError::Config { what: e.to_string() })?;
        let workers = Workers {
            claimer: self.claimer(&wires),
            freezer: Freezer {
                store: Arc::clone(&self.store),
                boot: self.boot,
                catalogue: self.catalogue.clone(),
                hands: wires.watched.hands,
                sender: wires.to_sender.clone(),
                frozen: complete_tx.clone(),
                rate_per_s: config.ceiling.rate_per_s,
            },
            flusher: Flusher {
                store: Arc::clone(&self.store),
                boot: self.boot,
                threshold: config.fcm.unflushed(),
                exposure: config.fcm.exposure(),
                flushed: bridge::acknowledge(wires.to_sender.clone()),
                complete: complete_tx,
                metrics: ends.ledger,
            },
            settler: Settler {
                store: Arc::clone(&self.store),
                settled: bridge::announce(wires.to_sender.clone(), settled.clone()),
                judgements: ends.judgements,
            },
            retention: self.retention(config),
            lease: ends.lease,
            accepted,
            outbound,
            complete,
            sender,
            to_sender: wires.to_sender,
            ceiling: ends.stop,
        };
        Ok((workers, handover, settled, told))
    }

    fn claimer(&self, wires: &Wires) -> Claimer {
        Claimer {
            store: Arc::clone(&self.store),
            boot: self.boot,
            clock: Arc::clone(&wires.clock),
            hands: Arc::clone(&wires.watched.hands),
            sender: wires.to_sender.clone(),
            jobs: HashMap::new(),
            doubt: Doubt::default(),
            floor: EverySecond::default(),
            overdue: EverySecond::default(),
        }
    }

    fn retention(&self, config: &Config) -> Retention {
        let keep = Duration::from_secs(u64::from(config.retention.keep_days) * 86_400);
        Retention { store: Arc::clone(&self.store), boot: self.boot, keep }
    }
}

/// What connections to FCM need to know.
pub(super) fn fcm_settings(config: &Config, project_id: String, ca_pem: Option<Vec<u8>>) -> FcmSettings {
    let fcm = &config.fcm;
    FcmSettings {
        endpoint: fcm.endpoint.clone(),
        ca_pem,
        project_id,
        max_streams_total: fcm.slots + fcm.lent(),
        streams_per_connection: fcm.streams_per_connection,
        attempt_timeout: Duration::from_millis(fcm.attempt_timeout_ms),
        connect_timeout: CONNECT_TIMEOUT,
    }
}

fn pacing(config: &Config) -> Pacing {
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let fcm = &config.fcm;
    Pacing {
        slots: Slots {
            slots: size(fcm.slots),
            lent: size(fcm.lent()),
            stall_after: Duration::from_millis(fcm.stall_after_ms),
        },
        unflushed: size(fcm.unflushed()),
        retry_delay: Duration::from_millis(fcm.retry_delay_ms),
    }
}

async fn bind(addr: std::net::SocketAddr, key: &str) -> Result<TcpListener, BuildError> {
    TcpListener::bind(addr).await.map_err(|e| BuildError::Unavailable {
        what: format!("{key} {addr}: {e}; another process may use the port, choose another or 0 for a free one"),
    })
}

fn local(listener: &TcpListener) -> Result<std::net::SocketAddr, BuildError> {
    listener.local_addr().map_err(|e| BuildError::Unavailable { what: format!("no local address: {e}") })
}
