//! Fanfare takes one match event over HTTP and puts a push notification on every follower's phone through FCM
//! HTTP v1: within seconds, never above the quota, no recipient lost, no false report.
//!
//! The map, in the order one goal takes (a room imports only from lower floors; `tests/it/layering.rs` checks it):
//!
//! 1. [`door`] lets a request in or sheds it; [`api`] authenticates it, parses it and answers 202 once
//!    [`store`] has committed event and fan-out.
//! 2. [`fanout`] freezes the followers into chunks, claims chunks, and delivers: gate, slot, stream, grant, attempt.
//! 3. [`ceiling`] gives the grants, [`fcm`] makes the attempt and says what the answer means, [`breaker`] is the gate.
//! 4. [`ledger`] flushes outcomes, settles the tally and writes the line.
//!
//! [`inspect`] answers why a device got nothing, [`capacity`] what a Saturday will need.
//!
//! [`domain`] holds what all of them mean by their words, [`wire`] the JSON of the API, [`emulator`] a stand-in for
//! FCM that shares no code with the rest. [`app`] wires everything; `main.rs` is the door to [`cli`].

// A test that tells one story from start to end may be long; production code may not (clippy.toml).
#![cfg_attr(test, allow(clippy::too_many_lines))]

pub mod api;
pub mod app;
pub mod breaker;
pub mod capacity;
pub mod ceiling;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod demo;
pub mod devices;
pub mod domain;
pub mod door;
pub mod emulator;
pub mod fanout;
pub mod fcm;
pub mod inspect;
pub mod ledger;
pub mod metrics;
pub mod mutant;
pub mod shutdown;
pub mod soak;
pub mod store;
pub mod telemetry;
pub mod wire;
