//! Owns what happens to a request before anybody looks at it: connections, the limit on requests in flight, quotas.
//! Must never know: what is asked for, JSON, keys, or the database.

mod activity;
pub mod cap;
pub mod gate;
mod listener;
pub mod metrics;
pub mod quota;
mod seats;
pub mod shedding;
pub mod typical;
mod unread;

pub use cap::Cap;
pub use gate::{Gate, Pass, Places, Pool};
pub use listener::{Cut, Limits, serve};
pub use metrics::DoorMetrics;
pub use quota::Quota;
pub use shedding::{Reason, Shedding};
pub use typical::Typical;
