//! Owns what happens to a request before anybody looks at it: connections, the limit on requests in flight, quotas.
//! Must never know: what is asked for, JSON, keys, or the database.

mod activity;
pub mod gate;
mod listener;
pub mod quota;

pub use gate::{Gate, Pass, Shed};
pub use listener::{Cut, Limits, serve};
pub use quota::Quota;
