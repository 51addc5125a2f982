//! Owns the answers to operators' questions about what was done and why.
//! Must never know: SQL, HTTP, or how anything is sent.

mod absence;
pub mod doctor;
mod explain;
mod outcomes;
pub mod shadow;
pub mod stats;
#[cfg(test)]
mod tests;

pub use explain::explain;

/// Every reason an explanation gives beside the outcomes, which are reasons too. The names are stable.
pub const REASONS: &[&str] = &[
    "waiting",
    "paused",
    "in_hand",
    "owner_lost",
    "set_aside",
    "ending",
    "freeze_not_reached",
    "no_follow",
    "type_not_wanted",
    "type_muted",
    "followed_later",
    "registered_later",
    "device_dead",
    "deleted",
    "unknown_device",
    "cancelled_before",
    "not_derived",
    "unexplained",
];
