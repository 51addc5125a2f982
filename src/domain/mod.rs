//! Owns what things mean: ids, events, the catalogue, recipients, outcomes, tallies.
//! Must never know: I/O, async, a clock (time is always an argument), or any other room.

pub mod batch;
pub mod bitmap;
pub mod catalogue;
pub mod charge;
pub mod derived;
pub mod event;
pub mod ids;
pub mod merge;
pub mod outcome;
pub mod quota;
pub mod recipient;
pub mod retry;
pub mod span;
pub mod subject;
pub mod tally;
pub mod text;
