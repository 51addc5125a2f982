//! Owns the comparison of our recipients with another system's: why a device is on one list alone, what all of it comes
//! to, and what it cannot say.
//! Must never know: where either list comes from.

mod attribution;
mod comparison;
#[cfg(test)]
mod tests;

pub use attribution::{Attribution, Group, absent, extra, stranger};
pub use comparison::{Comparison, Counts, Coverage, Side, Unexplained};
