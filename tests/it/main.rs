//! The one integration-test binary: real servers, real sockets, real processes. `tests/run` starts what it needs.

// A test that tells one story from start to end may be long, and what its helpers cannot do fails it; production code
// may do neither.
#![allow(clippy::too_many_lines, clippy::unwrap_used)]

mod harness;

mod api;
mod boundaries;
mod bulk;
mod cancel;
mod ceiling;
mod chaos;
mod cli;
mod connections;
mod credentials;
mod deadlines;
mod demo;
mod deriving;
mod devices;
mod doctor;
mod emulator;
mod end_to_end;
mod explain;
mod faults;
mod fcm_client;
mod hostile;
mod ingest;
mod layering;
mod lease;
mod many;
mod oauth;
mod openapi;
mod outage;
mod packaging;
#[cfg(feature = "mutants")]
mod panics;
mod payload;
mod plan;
mod pruning;
mod refused;
mod retention;
mod shadow;
mod soak;
mod sqlite_life;
mod stats;
mod stopping;
mod store_conformance;
mod store_plans;
mod sweep;
mod types;
