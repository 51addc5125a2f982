//! Owns what `fanfare doctor` makes of what was found: facts in, one finding for each check out.
//! Must never know: how the facts were gathered. Nothing secret is among them.

mod database;
mod finding;
mod fleet;
mod machine;
mod provider;
mod settings;
#[cfg(test)]
mod tests;

pub use database::{postgres, sqlite};
pub use finding::{Conclusion, Finding, Grade, Trouble, conclude};
pub use fleet::{Fleet, fleet};
pub use machine::{Clocks, Descriptors, clocks, descriptors};
pub use provider::{Account, Charged, Endpoint, charged, credentials, permission, streams, token};
pub use settings::{Types, configuration, keys, quota, types};
