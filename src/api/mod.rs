//! Owns the HTTP API: which calls there are, who may make them, how they are answered. The only room that knows axum.
//! Must never know: SQL, how a fan-out is sent, or where settings come from.
//!
//! A request passes, cheapest first: the gate, the key and its scope, the key's quota, the backlog, the body's size
//! and time, its JSON, its meaning, the database. Adding a call = one file here, one line in [`router`].

mod backlog;
mod body;
mod cancel;
mod ceiling;
mod deadline;
mod devices;
mod events;
mod explain;
mod export;
mod fanouts;
mod front;
mod guard;
mod import;
pub mod keys;
mod measured;
pub mod openapi;
mod ops;
mod path;
mod pools;
mod problem;
mod query;
mod replay;
mod request_id;
mod shown;
mod stats;
mod sweeps;
mod whole;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use backlog::MaxBacklog;
pub use front::Front;
pub use keys::{KeyError, Keys, Scope};
pub use measured::Measured;
pub use ops::{OpsState, Part, Parts, ops_router};
pub use problem::Code;

use crate::clock::DbClock;
use crate::domain::catalogue::{Catalogue, LiveCatalogue};
use crate::domain::event::{Event, FieldError};
use crate::domain::ids::{BootId, FanoutId};
use crate::domain::quota::SharedQuota;
use crate::door::{Cap, Gate, Places, Quota, Shedding};
use crate::store::{FreezeJob, Store};
use crate::wire::CeilingAnswer;
use backlog::Backlog;

/// Whether the message an event becomes is small enough, for every text it may be rendered with.
pub type Fits = dyn Fn(&Catalogue, &Event) -> Result<(), FieldError> + Send + Sync;

/// What the API needs of the rest.
#[derive(Clone)]
pub struct State {
    /// Where events, fan-outs and devices are kept.
    pub store: Arc<dyn Store>,
    /// The event types.
    pub catalogue: LiveCatalogue,
    /// Whether the event's message fits FCM's limit.
    pub fits: Arc<Fits>,
    /// Numbers in force.
    pub ceiling: Arc<dyn Fn() -> CeilingAnswer + Send + Sync>,
    /// Freezes accepted here, handed to the fan-out room. The 202 does not wait for it.
    pub handover: mpsc::Sender<FreezeJob>,
    /// Fan-outs settled by this instance: wakes those who wait for them.
    pub settled: broadcast::Sender<FanoutId>,
    /// Told of every fan-out cancelled or superseded here.
    pub cancelled: Arc<dyn Fn(FanoutId) + Send + Sync>,
    /// Told of a fan-out of which nothing may be left.
    pub complete: Arc<dyn Fn(FanoutId) + Send + Sync>,
    /// Database time.
    pub clock: Arc<DbClock>,
    /// This instance: the freezes of events accepted here are leased to it.
    pub boot: BootId,
    /// Who may call.
    pub keys: Arc<Keys>,
    /// Recipients waiting to be sent to, for `expected_start_ms`.
    pub load: Arc<AtomicU64>,
    /// Cancelled when draining begins: those who wait are answered at once.
    pub draining: CancellationToken,
    /// Where the fleet's quotas are kept; none = each instance has a share.
    pub quotas: Option<Arc<dyn SharedQuota>>,
    /// Live instances: they share the quotas.
    pub live: watch::Receiver<u32>,
    /// What is counted.
    pub measured: Measured,
    /// How much is let in.
    pub limits: Limits,
    /// A fan-out that was settled is kept for so long, ms.
    pub keep_ms: i64,
}

/// How much is let in.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests served at once, by kind.
    pub places: Places,
    /// Requests per second of one key; 0 = no quota.
    pub requests_per_s_per_key: u32,
    /// How much may be accepted and not sent yet.
    pub max_backlog: MaxBacklog,
}

/// Bodies that may come in slowly at once, each at most 64 KiB (256 KiB of follows).
const MAX_SLOW_BODIES: u32 = 256;

/// Long polls at once: each reads its fan-out again about once a second.
const MAX_POLLS: u32 = 500;

/// The state with what the API keeps itself.
struct Api {
    state: State,
    gate: Gate,
    polls: Cap,
    slow_bodies: Cap,
    shedding: Shedding,
    quota: Quota,
    backlog: Backlog,
}

/// The API, to be served by [`crate::door::serve`].
pub fn router(state: State) -> Front {
    let Limits { places, requests_per_s_per_key, max_backlog } = state.limits;
    let door = state.measured.door.clone();
    let api = Arc::new(Api {
        gate: Gate::new(places, door.clone()),
        polls: Cap::new(MAX_POLLS),
        slow_bodies: Cap::new(MAX_SLOW_BODIES),
        shedding: Shedding::new(&door),
        quota: Quota::new(requests_per_s_per_key),
        backlog: Backlog::new(max_backlog, state.measured.clone()),
        state,
    });
    let open_to = |scopes: &'static [Scope]| from_fn_with_state((Arc::clone(&api), scopes), guard::require);

    let events = Router::new().route("/v1/events", post(events::accept)).route_layer(open_to(&[Scope::Events]));
    let fanouts = Router::new()
        .route("/v1/fanouts", get(fanouts::list))
        .route("/v1/fanouts/{id}", get(fanouts::show))
        .route("/v1/fanouts/{id}/recipients/{device}", get(explain::show))
        .route_layer(open_to(&[Scope::Events, Scope::Ops]));
    let devices = Router::new()
        .route("/v1/devices/import", post(import::run))
        .route("/v1/devices/export", get(export::run))
        .route("/v1/devices/{id}", put(devices::register).get(devices::show).delete(devices::delete))
        .route("/v1/devices/{id}/follows", put(devices::follow))
        .route_layer(open_to(&[Scope::Devices]));
    let ops = Router::new()
        .route("/v1/ceiling", get(ceiling::show))
        .route("/v1/stats", get(stats::show))
        .route("/v1/fanouts/{id}/cancel", post(cancel::run))
        .route("/v1/sweeps", post(sweeps::begin))
        .route("/v1/sweeps/{id}", get(sweeps::show))
        .route("/v1/fanouts/{id}/replay", post(replay::run))
        .route("/v1/fanouts/{id}/resume", post(replay::resume))
        .route_layer(open_to(&[Scope::Ops]));

    let router = Router::new()
        .merge(events)
        .merge(fanouts)
        .merge(devices)
        .merge(ops)
        .route("/openapi.json", get(openapi::show).layer(Extension(openapi::Made::new())))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(from_fn_with_state(Arc::clone(&api), guard::enter))
        .layer(from_fn(request_id::tag))
        .with_state(Arc::clone(&api));
    Front::new(api, router)
}

#[cfg(test)]
mod tests;
