//! Owns the JSON of the API: its shapes, as sent and received by server and client alike, and how JSON is read.
//! Must never know: what the values mean; the rooms behind check them, the domain gives them meaning.

mod bulk;
mod device;
mod event;
mod explain;
mod fanout;
mod follow;
mod problem;
mod read;
mod replay;
mod stats;
mod sweep;
mod time;

pub use bulk::{Format, ImportAnswer, ImportLine, MAX_REJECTS_SHOWN, Reject};
pub use device::{DeviceAnswer, DeviceRegistered, DeviceRequest, FollowsRequest};
pub use event::{EventAccepted, EventRequest, SupersedesRequest};
pub use explain::{ExplainedDevice, Explanation};
pub use fanout::{CeilingAnswer, Fanout, FanoutCeiling, FanoutList};
pub use follow::FollowEntry;
pub use problem::{FieldProblem, Problem, QuotaLimit};
pub use read::{ReadError, read};
pub use replay::{ReplayAnswer, ReplayRequest, ResumeRequest};
pub use stats::{Stats, StatsGroup};
pub use sweep::{Sweep, SweepRequest};
pub use time::rfc3339;
