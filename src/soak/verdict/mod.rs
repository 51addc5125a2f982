//! Owns what must hold after a soak, each law by name, judged from what was seen and from nothing else.
//! Must never know: how it was seen, or how it is shown.

mod ceiling;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::faults::STALL_MS;
use super::observed::{Observed, Sample, Usage};
use crate::wire::Fanout;
use ceiling::ceiling;

/// How an invariant came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It held.
    Ok,
    /// It did not.
    Violated,
    /// The soak could not tell; `says` has the reason.
    NotJudged,
}

impl State {
    /// As in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Violated => "VIOLATED",
            Self::NotJudged => "not judged",
        }
    }
}

/// One invariant and its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invariant {
    /// `conservation`, `no_loss`, `duplicates`, `ceiling`, `ledger`, `pruning`, `rss`, `rest`, `lending`, `processes`.
    pub name: String,
    /// How it came out.
    pub state: State,
    /// What was measured against what, in a sentence.
    pub says: String,
    /// The numbers of that sentence, by name.
    pub numbers: BTreeMap<String, f64>,
}

/// Growth of resident memory that is none, MB a minute.
const FLAT: f64 = 1.0;
/// Shortest time from which a growth is told, ms.
const TELLING_MS: u64 = 60_000;
/// File descriptors and tasks more than before that are none: connections of a pool come and go.
const SLACK: u64 = 12;

/// How long after it could be lent a slot surely is, ms.
const LENT_MS: u64 = 300;
/// Looks at the requests in flight from which something can be told.
const LOOKS: u64 = 5;

/// Judges everything.
#[must_use]
pub fn judge(o: &Observed) -> Vec<Invariant> {
    vec![
        conservation(o),
        no_loss(o),
        duplicates(o),
        ceiling(o),
        ledger(o),
        pruning(o),
        rss(o),
        rest(o),
        lending(o),
        processes(o),
    ]
}

fn invariant(name: &str, held: bool, says: String, numbers: &[(&str, f64)]) -> Invariant {
    // To a thousandth: more is noise, and not every number reads back from JSON to its last bit.
    let numbers = numbers.iter().map(|(name, n)| ((*name).to_owned(), (n * 1000.0).round() / 1000.0)).collect();
    Invariant { name: name.to_owned(), state: if held { State::Ok } else { State::Violated }, says, numbers }
}

fn not_judged(name: &str, why: &str) -> Invariant {
    Invariant { name: name.to_owned(), state: State::NotJudged, says: why.to_owned(), numbers: BTreeMap::new() }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) const fn f(n: u64) -> f64 {
    n as f64
}

fn adds_up(f: &Fanout) -> bool {
    f.settled_at.is_some()
        && f.pending == 0
        && f.delivered + f.failed == f.recipients
        && f.outcomes.values().sum::<u64>() == f.recipients
}

/// Every recipient has exactly one outcome.
fn conservation(o: &Observed) -> Invariant {
    let wrong: Vec<&str> = o.fanouts.values().filter(|f| !adds_up(f)).map(|f| f.id.as_str()).collect();
    let sum = |n: fn(&Fanout) -> u64| o.fanouts.values().map(n).sum::<u64>();
    let (recipients, delivered, failed) = (sum(|f| f.recipients), sum(|f| f.delivered), sum(|f| f.failed));
    let mut says = format!(
        "{} fan-outs: {recipients} recipients = {delivered} delivered + {failed} failed; {} do not add up",
        o.fanouts.len(),
        wrong.len()
    );
    if !wrong.is_empty() {
        says.push_str(&format!(" or did not settle: {}", wrong[..wrong.len().min(5)].join(", ")));
    }
    let numbers =
        [("recipients", recipients), ("delivered", delivered), ("failed", failed), ("wrong", wrong.len() as u64)];
    invariant("conservation", wrong.is_empty(), says, &numbers.map(|(name, n)| (name, f(n))))
}

/// What may have arrived although nobody can say so.
const MAYBE: [&str; 8] =
    ["unconfirmed", "transient", "protocol", "expired", "cancelled", "credential", "internal", "gone"];

/// Every accepted event has a fan-out that ended, to everyone who was to get it; and what it counts as delivered was.
fn no_loss(o: &Observed) -> Invariant {
    let stories = o.posted.iter().map(|p| p.story + 1).max().unwrap_or(0);
    let (mut told, mut maybe) = (vec![0_u64; stories], vec![0_u64; stories]);
    let (mut counted, mut missing, mut absent, mut refused) = (BTreeSet::new(), 0_u64, 0_u64, 0_u64);
    for post in &o.posted {
        refused += u64::from(post.refused.as_deref().is_some_and(|code| code != "event_too_late"));
        let Some(id) = &post.fanout else { continue };
        let Some(fanout) = o.fanouts.get(id) else {
            missing += 1;
            continue;
        };
        if let Some(expected) = post.expected {
            absent += expected.saturating_sub(post.bad).saturating_sub(fanout.recipients);
            absent += fanout.recipients.saturating_sub(expected);
        }
        if counted.insert(id) {
            told[post.story] += fanout.delivered;
            maybe[post.story] += MAYBE.iter().filter_map(|name| fanout.outcomes.get(*name)).sum::<u64>();
        }
    }
    let reached = |story: usize| o.seen.reached.get(story).copied().unwrap_or(0);
    let lost: u64 = (0..stories).map(|s| told[s].saturating_sub(reached(s))).sum();
    let uncounted: u64 = (0..stories).map(|s| reached(s).saturating_sub(told[s] + maybe[s])).sum();
    let accepted = o.posted.iter().filter(|p| p.fanout.is_some()).count() as u64;
    let strangers = o.seen.strangers;
    let says = format!(
        "{accepted} posts accepted, {missing} without a fan-out, {refused} refused for no good reason; of their \
         audiences {absent} are missing or too many; {lost} counted as delivered are not in the provider's log, \
         {uncounted} are in it and were not counted, {strangers} lines of it belong to no event"
    );
    let numbers = [
        ("accepted", accepted),
        ("missing_fanouts", missing),
        ("refused", refused),
        ("wrong_audience", absent),
        ("lost", lost),
        ("uncounted", uncounted),
        ("strangers", strangers),
    ];
    let held = missing + refused + absent + lost + uncounted + strangers == 0;
    invariant("no_loss", held, says, &numbers.map(|(name, n)| (name, f(n))))
}

/// Nobody gets a message twice but where a kill or a retry may do it.
fn duplicates(o: &Observed) -> Invariant {
    let retried: u64 = o.fanouts.values().map(|f| f.retried).sum();
    let interrupted = o.lines.values().map(|line| line.interrupted).max().unwrap_or(0);
    // A lease that was lost without a kill costs as much as one, and is no excuse for more than the kills there were.
    let bound = o.exposure * o.kills + retried;
    let says = format!(
        "{} duplicates, allowed {bound} = {} x {} kills + {retried} retried; at most {} messages to one device; \
         {interrupted} leases lost under one fan-out",
        o.seen.duplicates, o.exposure, o.kills, o.seen.most
    );
    let numbers = [("duplicates", o.seen.duplicates), ("allowed", bound), ("most", o.seen.most)];
    invariant("duplicates", o.seen.duplicates <= bound, says, &numbers.map(|(name, n)| (name, f(n))))
}

/// Attempts that left are the requests the provider counted; after a kill, a lower bound of them.
fn ledger(o: &Observed) -> Invariant {
    let left: u64 = o.fanouts.values().map(|f| f.attempts.saturating_sub(f.unsent).saturating_sub(f.unprocessed)).sum();
    let exact = o.fanouts.values().all(|f| f.ledger == "exact");
    let excused = exact || o.kills > 0;
    let held = excused && if exact { left == o.seen.requests } else { left <= o.seen.requests };
    let word = if exact { "exact" } else { "a lower bound" };
    let says = format!(
        "{left} attempts left as the service counts them ({word}, {} kills), {} requests as the provider does",
        o.kills, o.seen.requests
    );
    invariant("ledger", held, says, &[("attempts", f(left)), ("requests", f(o.seen.requests))])
}

/// A device is given up only when the provider itself said that it is gone.
fn pruning(o: &Observed) -> Invariant {
    let unproven = o.condemned.iter().filter(|token| !o.seen.proven.contains(*token)).count() as u64;
    let condemned = o.condemned.len() as u64;
    let says = format!(
        "{condemned} devices given up, {unproven} of them without the provider's word; it named {}",
        o.seen.proven.len()
    );
    invariant("pruning", unproven == 0, says, &[("condemned", f(condemned)), ("unproven", f(unproven))])
}

/// Resident memory does not grow over the last half.
fn rss(o: &Observed) -> Invariant {
    let mut by_pid: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
    for sample in o.samples.iter().filter(|s| s.at_ms >= o.length_ms / 2 && s.usage.rss_kb > 0) {
        by_pid.entry(sample.pid).or_default().push(sample);
    }
    let span = |samples: &Vec<&Sample>| samples.last().map_or(0, |s| s.at_ms) - samples.first().map_or(0, |s| s.at_ms);
    let slopes: Vec<f64> = by_pid.values().filter(|s| span(s) >= TELLING_MS).map(|s| slope(s)).collect();
    let Some(worst) = slopes.iter().copied().max_by(f64::total_cmp) else {
        return not_judged("rss", "no instance lived through a minute of the last half of the day");
    };
    let says = format!(
        "resident memory grew by {worst:.2} MB a minute at most over the last half, allowed {FLAT:.0}; {} instances",
        slopes.len()
    );
    invariant("rss", worst < FLAT, says, &[("mb_per_min", worst)])
}

/// Least squares, MB a minute.
fn slope(samples: &[&Sample]) -> f64 {
    let n = f(samples.len() as u64);
    let points = || samples.iter().map(|s| (f(s.at_ms) / 60_000.0, f(s.usage.rss_kb) / 1024.0));
    let (mx, my) = (points().map(|p| p.0).sum::<f64>() / n, points().map(|p| p.1).sum::<f64>() / n);
    let over: f64 = points().map(|(x, y)| (x - mx) * (y - my)).sum();
    over / points().map(|(x, _)| (x - mx).powi(2)).sum::<f64>().max(1e-9)
}

/// File descriptors and tasks are back to where they were.
fn rest(o: &Observed) -> Invariant {
    if o.rest.is_empty() {
        return not_judged("rest", "no instance was left after the day");
    }
    let more = |of: fn(&Usage) -> u64| o.rest.iter().map(|(a, b)| of(b).saturating_sub(of(a))).max().unwrap_or(0);
    let (fds, tasks) = (more(|u| u.fds), more(|u| u.tasks));
    let says = format!(
        "after the day at most {fds} file descriptors and {tasks} tasks more than before it, allowed {SLACK}; {} instances",
        o.rest.len()
    );
    invariant("rest", fds <= SLACK && tasks <= SLACK, says, &[("fds", f(fds)), ("tasks", f(tasks))])
}

/// While a few sends stall, their slots are lent to others.
fn lending(o: &Observed) -> Invariant {
    if o.stalled_ms.is_empty() || o.instances != 1 {
        return not_judged("lending", "no send was made to stall, or there were several instances");
    }
    let stalling = |at: u64, for_ms: u64| {
        o.stalled_ms.iter().filter(|ms| (**ms + for_ms..**ms + STALL_MS).contains(&at)).count() as u64
    };
    // When more than a quarter is old the provider is slow, and nothing is lent.
    let few = |at: u64| stalling(at, o.stall_after_ms + LENT_MS) > 0 && stalling(at, 0) * 4 <= o.slots;
    let looks: Vec<u64> = o.crowd.iter().filter(|(at, _)| few(*at)).map(|(_, n)| u64::from(*n)).collect();
    let full = looks.iter().filter(|n| **n >= o.slots).count() as u64;
    if full < LOOKS {
        return not_judged("lending", "the slots were never all in use while a few sends stalled");
    }
    let most = looks.iter().copied().max().unwrap_or(0);
    let says = format!(
        "while a few of {} sends stalled, at most {most} requests were in flight with {} slots, and all slots were in \
         use at {full} looks",
        o.stalled_ms.len(),
        o.slots
    );
    invariant("lending", most > o.slots, says, &[("in_flight", f(most)), ("slots", f(o.slots)), ("full", f(full))])
}

/// Every process and every fault did what it was told to.
fn processes(o: &Observed) -> Invariant {
    let mut says = format!("{} instances killed, {} asked to end, {} mishaps", o.kills, o.terminated, o.mishaps.len());
    if let Some(first) = o.mishaps.first() {
        says.push_str(&format!(", the first: {first}"));
    }
    invariant("processes", o.mishaps.is_empty(), says, &[("mishaps", f(o.mishaps.len() as u64))])
}

#[cfg(test)]
pub(super) mod tests;
