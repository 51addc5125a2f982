//! Owns how devices get in: what a registration must look like, what may be followed, and the import of many.
//! Must never know: HTTP, SQL, or how a device is sent to.

mod follows;
mod import;
mod lines;
mod register;

pub use follows::{FollowsDraft, MAX_FOLLOWS, show_follows};
pub use import::{Import, MAX_REJECTS_SHOWN, Stopped};
pub use lines::MAX_LINE_BYTES;
pub use register::{DeviceDraft, MAX_ADDRESS_BYTES, address_hash};

use crate::domain::event::FieldError;

fn fault(field: impl Into<String>, problem: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), problem: problem.into() }
}
