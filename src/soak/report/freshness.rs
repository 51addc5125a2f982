//! Owns how far behind the pitch messages arrived, and how sends that stalled came in clusters.
//! Must never know: how it is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::observed::Observed;
use super::super::oracle::percentile;

/// A send that takes so long is a stall, ms.
const STALL_MS: u64 = 15_000;
/// Stalls that end nearer to each other are one episode, ms.
const APART_MS: i64 = 20_000;

/// From the event to the provider's acceptance, per device, ms. Corrected events are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freshness {
    /// Messages.
    pub messages: u64,
    /// Median.
    pub p50_ms: u64,
    /// 95th percentile.
    pub p95_ms: u64,
    /// 99th percentile.
    pub p99_ms: u64,
    /// The latest.
    pub max_ms: u64,
}

/// Episodes in which sends stalled for 15 s and more. Many slow sends of one moment are one thing that happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalls {
    /// Clusters.
    pub episodes: u64,
    /// Fan-outs that had such a send.
    pub fanouts: u64,
    /// The slowest, ms.
    pub slowest_ms: u64,
}

/// By event type.
pub(super) fn by_type(o: &Observed) -> BTreeMap<String, Freshness> {
    let mut late: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (story, post) in o.posted.iter().enumerate().filter(|(at, p)| p.story == *at && p.expected.is_some()) {
        let Some(first) = o.seen.first_ns.get(story) else { continue };
        let behind =
            first.iter().map(|ns| (ns.saturating_sub(o.began_ns) / 1_000_000).saturating_sub(post.occurred_ms));
        late.entry(post.kind.clone()).or_default().extend(behind);
    }
    late.retain(|_, late| !late.is_empty());
    late.into_iter().map(|(kind, late)| (kind, told(late))).collect()
}

fn told(mut late: Vec<u64>) -> Freshness {
    late.sort_unstable();
    let at = |per_mille| percentile(&late, per_mille);
    Freshness { messages: late.len() as u64, p50_ms: at(500), p95_ms: at(950), p99_ms: at(990), max_ms: at(1000) }
}

/// From what fan-outs say of their slowest send, and when they were settled.
pub(super) fn stalls(o: &Observed) -> Stalls {
    let stalled = o.fanouts.values().filter(|f| f.slowest_send_ms >= STALL_MS);
    let mut ends: Vec<(i64, u64)> =
        stalled.map(|f| (unix_ms(f.settled_at.as_deref()).unwrap_or(0), f.slowest_send_ms)).collect();
    ends.sort_unstable();
    let gaps = ends.windows(2).filter(|pair| pair[1].0 - pair[0].0 > APART_MS).count() as u64;
    Stalls {
        episodes: gaps + u64::from(!ends.is_empty()),
        fanouts: ends.len() as u64,
        slowest_ms: ends.iter().map(|(_, ms)| *ms).max().unwrap_or(0),
    }
}

/// RFC 3339 as Unix ms.
pub(super) fn unix_ms(text: Option<&str>) -> Option<i64> {
    let at = OffsetDateTime::parse(text?, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::verdict::tests::{fanout, observed};

    #[test]
    fn stalls_of_one_moment_are_one_episode() {
        let mut o = observed();
        for (i, (at, slowest)) in
            [("15:00:01", 15_400), ("15:00:09", 15_700), ("15:01:00", 15_400), ("15:00:05", 14_000)].iter().enumerate()
        {
            let mut told = fanout(&format!("s{i}"), 1, 1);
            told.settled_at = Some(format!("2026-11-30T{at}Z"));
            told.slowest_send_ms = *slowest;
            o.fanouts.insert(told.id.clone(), told);
        }
        assert_eq!(stalls(&o), Stalls { episodes: 2, fanouts: 3, slowest_ms: 15_700 });
        assert_eq!(stalls(&observed()), Stalls::default());
    }

    #[test]
    fn freshness_counts_from_the_event_and_not_from_its_acceptance() {
        let mut o = observed();
        o.began_ns = 1_000_000_000;
        o.posted[0].occurred_ms = 100;
        o.seen.first_ns[0] = vec![1_150_000_000, 1_300_000_000];
        let told = by_type(&o)["goal"];
        assert_eq!((told.messages, told.p50_ms, told.max_ms), (2, 50, 200));
        o.posted[0].expected = None;
        assert!(!by_type(&o).contains_key("goal"), "a corrected one is left out");
    }
}
