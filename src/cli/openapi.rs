//! Owns `fanfare openapi`.
//! Must never know: what the document says.

use super::{Failure, print};
use crate::api;

/// Prints the document that a service answers at `/openapi.json`.
///
/// # Errors
/// [`Failure::Runtime`] when stdout cannot be written.
pub fn run() -> Result<(), Failure> {
    print(&api::openapi::document())
}
