//! Owns how devices get in and out: what a registration must look like, what may be followed, import and export of many.
//! Must never know: HTTP, SQL, or how a device is sent to.

mod csv;
mod export;
mod follows;
mod import;
mod lines;
mod register;
mod row;

pub use csv::fields;
pub use export::Export;
pub use follows::{FollowsDraft, MAX_FOLLOWS, show_follows};
pub use import::{Import, Stopped, Verdict};
pub use lines::MAX_LINE_BYTES;
pub use register::{DeviceDraft, MAX_ADDRESS_BYTES, UNREACHABLE, address_hash};

use crate::domain::event::FieldError;

fn fault(field: impl Into<String>, problem: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), problem: problem.into() }
}
