//! Owns what moved between two soaks: every number that both have, side by side, when it changed enough to be told.
//! Must never know: files, or whether a change is good.

use std::collections::BTreeMap;

use super::report::Report;

/// Change of a number that is told, as a share of the larger of the two.
const TOLD: f64 = 0.05;

/// What moved, one line each; says so when nothing did, and what makes the two hard to compare.
#[must_use]
pub fn moved(old: &Report, new: &Report) -> String {
    let mut text = String::new();
    for (what, before, after) in setups(old, new) {
        text.push_str(&format!("not the same {what}: {before} before, {after} now\n"));
    }
    for new in &new.invariants {
        let before = old.invariants.iter().find(|i| i.name == new.name);
        if let Some(before) = before.filter(|i| i.state != new.state) {
            text.push_str(&format!("{:<34} {} -> {}\n", new.name, before.state.as_str(), new.state.as_str()));
        }
    }
    let (before, after) = (numbers(old), numbers(new));
    for (name, now) in &after {
        let was = before.get(name).copied().unwrap_or(0.0);
        if (now - was).abs() > TOLD * now.abs().max(was.abs()) {
            let change = if was == 0.0 { String::new() } else { format!("  {:+.0} %", (now / was - 1.0) * 100.0) };
            text.push_str(&format!("{name:<34} {} -> {}{change}\n", plain(was), plain(*now)));
        }
    }
    if text.is_empty() { "nothing moved by more than 5 %\n".to_owned() } else { text }
}

fn plain(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.2}") }
}

fn setups(old: &Report, new: &Report) -> Vec<(&'static str, String, String)> {
    let (a, b) = (&old.setup, &new.setup);
    let all = [
        ("version", a.version.clone(), b.version.clone()),
        ("seed", a.seed.to_string(), b.seed.to_string()),
        ("length", format!("{:.0} s", a.seconds), format!("{:.0} s", b.seconds)),
        ("faults", a.faults.clone(), b.faults.clone()),
        ("ceiling", a.rate.to_string(), b.rate.to_string()),
        ("instances", a.instances.to_string(), b.instances.to_string()),
        ("database", a.database.clone(), b.database.clone()),
        ("Redis", a.redis.clone(), b.redis.clone()),
    ];
    all.into_iter().filter(|(_, before, after)| before != after).collect()
}

/// Every number of a report by a name.
fn numbers(r: &Report) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for i in &r.invariants {
        all.extend(i.numbers.iter().map(|(name, n)| (format!("{}.{name}", i.name), *n)));
    }
    let f = super::verdict::f;
    all.extend(r.outcomes.iter().map(|(name, n)| (format!("outcome.{name}"), f(*n))));
    for (kind, told) in &r.freshness {
        all.insert(format!("behind_pitch.{kind}.p50_ms"), f(told.p50_ms));
        all.insert(format!("behind_pitch.{kind}.p99_ms"), f(told.p99_ms));
    }
    let t = &r.totals;
    let named = [
        ("retried", t.retried),
        ("throttled", t.throttled),
        ("stalled", t.stalled),
        ("slowest_send_ms", t.slowest_send_ms),
        ("too_late", t.too_late),
        ("stall_episodes", r.stalls.episodes),
    ];
    all.extend(named.map(|(name, n)| (format!("total.{name}"), f(n))));
    all
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::super::verdict::State;
    use super::*;

    #[test]
    fn two_runs_of_the_same_kind_differ_by_what_moved_alone() {
        let (old, mut new) = (report(), report());
        assert_eq!(moved(&old, &new), "nothing moved by more than 5 %\n");
        new.totals.retried = 3;
        new.invariants[0].state = State::Violated;
        let told = moved(&old, &new);
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(told.contains("conservation") && told.contains("ok -> VIOLATED"), "{told}");
        assert!(told.contains("total.retried") && told.contains("1 -> 3  +200 %"), "{told}");
    }

    #[test]
    fn what_makes_them_hard_to_compare_is_said_first() {
        let (old, mut new) = (report(), report());
        new.setup.seed = 8;
        assert!(moved(&old, &new).starts_with("not the same seed: 7 before, 8 now\n"));
    }

    #[test]
    fn what_was_not_there_before_is_told_without_a_share() {
        let (old, mut new) = (report(), report());
        new.outcomes.insert("unconfirmed".into(), 4);
        assert_eq!(moved(&old, &new), format!("{:<34} 0 -> 4\n", "outcome.unconfirmed"));
    }
}
