//! Owns the checks of this machine: its clock beside those of the others, and how many files it may open.
//! Must never know: how a clock is read.

use super::{Finding, Trouble};

/// From here on somebody should look, ms: a deadline of a corner is 20 s.
const ODD_MS: u64 = 5_000;

/// From here on Google refuses an assertion, ms (its documentation asks for a "reasonable timeframe"; 5 minutes is what
/// is refused in practice).
const WRONG_MS: u64 = 300_000;

/// How far this machine is ahead of others, ms; none = not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clocks {
    /// Of the database server.
    pub database: Option<i64>,
    /// Of whoever gives access tokens, by its `Date`: right to half a second.
    pub token: Option<i64>,
    /// Of FCM, by its `Date`.
    pub fcm: Option<i64>,
}

/// This machine's clock beside the others.
#[must_use]
pub fn clocks(clocks: Clocks) -> Finding {
    let all = [("the database", clocks.database), ("the token endpoint", clocks.token), ("FCM", clocks.fcm)];
    let known: Vec<(&str, i64)> = all.into_iter().filter_map(|(who, ahead)| Some((who, ahead?))).collect();
    let words: Vec<String> = known.iter().map(|(who, ahead)| format!("{} {who}", apart(*ahead))).collect();
    let Some(worst) = known.iter().map(|(_, ahead)| ahead.unsigned_abs()).max() else {
        return Finding::unchecked("clock", "nobody told the time");
    };
    let found = format!("this machine is {}", words.join(", "));
    match worst {
        WRONG_MS.. => Finding::fail("clock", Trouble::Other, found, whose(clocks)),
        ODD_MS.. => Finding::warn("clock", found, whose(clocks)),
        _ => Finding::ok("clock", found),
    }
}

fn apart(ahead_ms: i64) -> String {
    let (s, word) = (ahead_ms.unsigned_abs() as f64 / 1e3, if ahead_ms < 0 { "behind" } else { "ahead of" });
    format!("{s:.1} s {word}")
}

/// Google's clocks are right: whoever differs from them has to be set.
fn whose(clocks: Clocks) -> &'static str {
    let google = clocks.token.or(clocks.fcm);
    if google.is_some_and(|ahead| ahead.unsigned_abs() < ODD_MS) {
        return "this machine agrees with Google: set the clock of the database server (chrony, systemd-timesyncd)";
    }
    "set this machine's clock (chrony, systemd-timesyncd; `timedatectl` shows whether it is synchronised)"
}

/// Files this process may have open, and what a service needs them for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// The soft limit; none = no limit.
    pub soft: Option<u64>,
    /// What it may be raised to; none = no limit.
    pub hard: Option<u64>,
    /// `api.max_connections`.
    pub api: u64,
    /// Connections to FCM, to the database and to Redis.
    pub others: u64,
}

/// Files that are open whatever is set: logs, listeners, the operations listener's connections, event queues.
const BESIDE: u64 = 64;

/// Whether enough files may be open.
#[must_use]
pub fn descriptors(d: Descriptors) -> Finding {
    let name = "open files";
    let least = d.others + BESIDE;
    let need = d.api + least;
    let limit = |n: Option<u64>| n.map_or("none".to_owned(), |n| n.to_string());
    let found = format!(
        "soft limit {} (hard {}); needed at most {need}: api.max_connections {}, {} to FCM, database and Redis, {BESIDE} \
         beside",
        limit(d.soft),
        limit(d.hard),
        d.api,
        d.others
    );
    let fix = format!("`ulimit -n {0}` before serve, or LimitNOFILE={0} in its unit", need.next_power_of_two());
    match d.soft {
        Some(soft) if soft < least => Finding::fail(name, Trouble::Other, found, fix),
        Some(soft) if soft < need => Finding::warn(name, found, format!("{fix}; or lower api.max_connections")),
        _ => Finding::ok(name, found),
    }
}
