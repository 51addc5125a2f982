//! Owns the checks of what is written down: configuration, event types, API keys, the shape of the quota.
//! Must never know: files, or any server.

use super::{Finding, Trouble};
use crate::config::Fault;

/// Every fault of the configuration, or how many settings it has and how many were given.
#[must_use]
pub fn configuration(faults: &[Fault], (all, given): (usize, usize)) -> Vec<Finding> {
    let name = "configuration";
    let fault = |fault: &Fault| {
        let found = format!("{} ({}): {}", fault.key, fault.origin, fault.fault);
        Finding::fail(name, Trouble::Config, found, fault.fix.clone())
    };
    if faults.is_empty() {
        return vec![Finding::ok(name, format!("{all} settings, {given} of them given, the others defaults"))];
    }
    faults.iter().map(fault).collect()
}

/// The event types that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Types {
    /// How many.
    pub types: usize,
    /// The file; empty = built in.
    pub file: String,
}

/// The event types, or why they cannot be used.
#[must_use]
pub fn types(read: &Result<Types, String>) -> Finding {
    let name = "types";
    match read {
        Ok(Types { types, file }) if file.is_empty() => Finding::ok(name, format!("{types} event types, built in")),
        Ok(Types { types, file }) => Finding::ok(name, format!("{types} event types from {file}")),
        Err(fault) => {
            let fix = "mend the file, or leave types.file empty for the built-in types";
            Finding::fail(name, Trouble::Config, fault.clone(), fix)
        }
    }
}

/// API keys by name with their scopes, or why they cannot be read.
#[must_use]
pub fn keys(read: &Result<Vec<(String, Vec<&'static str>)>, String>) -> Finding {
    let name = "keys";
    let keys = match read {
        Ok(keys) => keys,
        Err(fault) => {
            let fix = "copy the entry as `fanfare key` printed it";
            return Finding::fail(name, Trouble::Config, format!("api.keys: {fault}"), fix);
        }
    };
    let listed: Vec<String> = keys.iter().map(|(name, scopes)| format!("{name} ({})", scopes.join("+"))).collect();
    let found = format!("{} API keys: {}", keys.len(), listed.join(", "));
    if keys.iter().any(|(_, scopes)| scopes.contains(&"events")) {
        return Finding::ok(name, found);
    }
    let fix = "add one with `fanfare key --name backend --scopes events`";
    Finding::warn(name, format!("{found}; none may post events"), fix)
}

/// Whether the most that one minute can see fits into the quota.
#[must_use]
pub fn quota(rate_per_s: f64, burst: f64, per_minute: u64) -> Finding {
    let most = burst + 60.0 * rate_per_s;
    let share = 100.0 * most / per_minute as f64;
    let found = format!(
        "burst {burst:.0} + 60 x {rate_per_s} requests/s = {most:.0} requests/min at most, {share:.1} % of the quota of \
         {per_minute}"
    );
    if most <= per_minute as f64 {
        return Finding::ok("quota", found);
    }
    let fix = "lower ceiling.rate_per_s, or raise ceiling.quota_per_minute to what Google granted the project";
    Finding::fail("quota", Trouble::Config, found, fix)
}
