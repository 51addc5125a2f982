//! Owns the law of the ceiling: what any second may hold, with Redis there, away from some, away from all.
//! Must never know: the other laws.

use super::super::observed::{Observed, Span};
use super::{Invariant, f, invariant, not_judged};

/// Most a second may hold of the ceiling.
const MARGIN: f64 = 1.10;
/// How long after Redis is back some of the instances may still be without it, ms: three pings and the longest dwell.
const RETURN_MS: u64 = 14_000;
/// How long after Redis went some of the instances may not have noticed, ms.
const NOTICED_MS: u64 = 1_500;

/// What a second that begins there may hold: the law, and that requests which leave on time arrive together where
/// nobody looked for a while (once for whoever sends and once for whoever counts).
fn allowed(o: &Observed, from_ns: u64) -> f64 {
    let from_ms = from_ns.saturating_sub(o.began_ns) / 1_000_000;
    // Once all have noticed that it is away, and until it is back, all are cut off.
    let noticed = |span: &Span| from_ms >= span.from_ms + NOTICED_MS && from_ms + 1_000 <= span.to_ms;
    let near = |span: &Span| from_ms + 1_000 >= span.from_ms && from_ms <= span.to_ms + RETURN_MS;
    // One that left it unasked, because the machine was busy, is cut off as well.
    let split = within(&o.samples, (from_ms.saturating_sub(1_500), from_ms + 2_500), |s| s.at_ms);
    let some = o.away.iter().any(near) || split.iter().any(|s| s.mode == "split");
    let away = some && !o.away.iter().any(noticed);
    let n = f(o.instances.max(1) as u64);
    // With p of N cut off these use p/N beside the whole of the others; with all of them cut off, nobody does.
    let apart = if away { (n - 1.0) / n } else { 0.0 };
    let late = within(&o.late, (from_ms.saturating_sub(300), from_ms + 1_300), |(at, _)| *at);
    let late = late.iter().map(|(_, late)| *late).max().unwrap_or(0);
    o.rate * (MARGIN + apart + 2.0 * f(late) / 1000.0)
}

/// Of what is in order of time, the part from a time to a time.
fn within<T>(all: &[T], (from, to): (u64, u64), at: impl Fn(&T) -> u64) -> &[T] {
    let (begin, end) = (all.partition_point(|x| at(x) < from), all.partition_point(|x| at(x) <= to));
    &all[begin..end]
}

/// Never more than the ceiling in any second.
pub(super) fn ceiling(o: &Observed) -> Invariant {
    let Some((held, most, from_ns)) = o.seen.worst_second(|from| allowed(o, from)) else {
        return not_judged("ceiling", "nothing was sent");
    };
    let at = f(from_ns.saturating_sub(o.began_ns) / 1_000_000) / 1e3;
    let most_seen = o.seen.worst_second(|_| 1.0).map_or(0, |worst| worst.0);
    let says = format!(
        "the second nearest to what it may hold has {held} requests of {most:.0} (ceiling {:.0}, {at:.1} s into the \
         day); the fullest has {most_seen}",
        o.rate
    );
    let numbers = [("worst", f(held)), ("allowed", most), ("at_s", at), ("fullest", f(most_seen))];
    invariant("ceiling", f(held) <= most, says, &numbers)
}
