//! Owns the answers to operators' questions about what was done and why.
//! Must never know: SQL, HTTP, or how anything is sent.

mod absence;
mod explain;
mod outcomes;

pub use explain::explain;
