//! Owns what the provider's log says: who got what and how often, how many requests in which second, how late.
//! Must never know: what the service says of itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::audience::is_proof;
use crate::emulator::LogEntry;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// The event a line of the log belongs to: an event and its corrections share a collapse key, so they are one story.
#[derive(Debug, Default)]
pub struct Keys(HashMap<String, usize>);

impl Keys {
    /// The collapse key of this event means this story.
    pub fn add(&mut self, event_id: &str, story: usize) {
        // On the web it travels as a hash, because a Topic has few letters.
        self.0.insert(topic(event_id), story);
        self.0.insert(event_id.to_owned(), story);
    }

    fn story(&self, entry: &LogEntry) -> Option<usize> {
        self.0.get(entry.collapse_key.as_deref()?).copied()
    }
}

fn topic(key: &str) -> String {
    Sha256::digest(key).iter().take(16).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Requests the provider counted, whatever it answered.
    pub requests: u64,
    /// Messages it took.
    pub accepted: u64,
    /// Messages it took again, for the same device.
    pub duplicates: u64,
    /// The most often one message was taken for one device.
    pub most: u64,
    /// Lines that belong to no event that was posted.
    pub strangers: u64,
    /// By story: different messages taken, each device's for itself.
    pub reached: Vec<u64>,
    /// By story: of each device's first message, when it was taken, ns of the log.
    pub first_ns: Vec<Vec<u64>>,
    /// Counted requests, ns of the log, in order.
    pub times_ns: Vec<u64>,
    /// By answer, how often.
    pub answers: BTreeMap<String, u64>,
    /// Device tokens of which the provider itself said that they are for nothing.
    pub proven: HashSet<String>,
}

impl Seen {
    /// Reads a log.
    #[must_use]
    pub fn read(log: &[LogEntry], keys: &Keys, stories: usize) -> Self {
        let mut seen = Self { reached: vec![0; stories], first_ns: vec![Vec::new(); stories], ..Self::default() };
        let mut taken: HashMap<(&str, u64), u64> = HashMap::new();
        let mut met: HashSet<(&str, usize)> = HashSet::new();
        for entry in log {
            *seen.answers.entry(entry.answer.clone()).or_default() += 1;
            // Answered that it was not processed: the provider counts no request.
            if entry.answer != "refused" {
                seen.requests += 1;
                seen.times_ns.push(entry.t_ns);
            }
            if is_proof(&entry.answer) {
                seen.proven.insert(entry.token.clone());
            }
            let story = keys.story(entry);
            seen.strangers += u64::from(story.is_none());
            let (Some(story), true) = (story, entry.accepted) else { continue };
            let times = taken.entry((&entry.token, entry.content)).or_default();
            *times += 1;
            seen.accepted += 1;
            seen.most = seen.most.max(*times);
            seen.duplicates += u64::from(*times > 1);
            seen.reached[story] += u64::from(*times == 1);
            if met.insert((&entry.token, story)) {
                seen.first_ns[story].push(entry.t_ns);
            }
        }
        seen
    }

    /// Requests in every second from `from_ns` on.
    #[must_use]
    pub fn per_second(&self, from_ns: u64) -> Vec<u64> {
        let mut counts = Vec::new();
        for t in self.times_ns.iter().filter_map(|t| t.checked_sub(from_ns)) {
            let second = usize::try_from(t / SECOND).unwrap_or(usize::MAX);
            if counts.len() <= second {
                counts.resize(second + 1, 0);
            }
            counts[second] += 1;
        }
        counts
    }

    /// The window of one second that exceeds what `allowed` it most, as it begins at a time: requests, what was allowed,
    /// when it began.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn worst_second(&self, allowed: impl Fn(u64) -> f64) -> Option<(u64, f64, u64)> {
        let mut until = 0;
        let windows = self.times_ns.iter().enumerate().map(|(i, from)| {
            while until < self.times_ns.len() && self.times_ns[until] < from + SECOND {
                until += 1;
            }
            ((until - i) as u64, allowed(*from), *from)
        });
        // Of equals the first.
        windows.max_by(|a, b| (a.0 as f64 / a.1).total_cmp(&(b.0 as f64 / b.1)).then(b.2.cmp(&a.2)))
    }
}

/// The value below which so many per mille lie.
#[must_use]
pub fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let at = (sorted.len() * per_mille).div_ceil(1000).saturating_sub(1);
    sorted.get(at).or(sorted.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ms: u64, token: &str, content: u64, answer: &str) -> LogEntry {
        LogEntry {
            seq: 0,
            t_ns: ms * 1_000_000,
            project: "p".into(),
            token: token.into(),
            answer: answer.into(),
            status: 200,
            accepted: matches!(answer, "ok" | "lostrst"),
            connection: 1,
            attempt: 1,
            content,
            collapse_key: Some(if content < 10 { "e1".into() } else { topic("e2") }),
            ttl_s: None,
        }
    }

    fn keys() -> Keys {
        let mut keys = Keys::default();
        keys.add("e1", 0);
        keys.add("e2", 1);
        keys
    }

    #[test]
    fn a_message_taken_twice_is_reached_once_and_a_duplicate() {
        let log = [
            entry(0, "a", 1, "lostrst"),
            entry(300, "a", 1, "ok"),
            entry(400, "b", 2, "unavailable"),
            entry(500, "b", 2, "ok"),
            entry(600, "a", 11, "ok"),
            entry(700, "c", 11, "dead"),
            entry(800, "c", 11, "refused"),
        ];
        let seen = Seen::read(&log, &keys(), 2);
        assert_eq!((seen.requests, seen.accepted, seen.duplicates, seen.most), (6, 4, 1, 2));
        assert_eq!((seen.reached.as_slice(), seen.strangers), (&[2, 1][..], 0));
        assert_eq!(seen.first_ns, [vec![0, 500_000_000], vec![600_000_000]]);
        assert!(seen.proven.contains("c") && seen.proven.len() == 1);
        assert_eq!(seen.answers["ok"], 3);
    }

    #[test]
    fn a_line_of_no_event_that_was_posted_is_a_stranger() {
        let mut foreign = entry(0, "a", 1, "ok");
        foreign.collapse_key = Some("e9".into());
        let seen = Seen::read(&[foreign, entry(1, "a", 1, "ok")], &keys(), 2);
        assert_eq!((seen.strangers, seen.accepted), (1, 1));
    }

    #[test]
    fn the_worst_second_is_not_a_whole_second_of_the_clock_and_is_held_against_its_own_bound() {
        let log: Vec<LogEntry> =
            [600, 700, 1500, 1599, 1600, 5_000, 5_100, 5_200].iter().map(|ms| entry(*ms, "a", 1, "ok")).collect();
        let seen = Seen::read(&log, &keys(), 2);
        assert_eq!(seen.worst_second(|_| 10.0), Some((4, 10.0, 600_000_000)));
        let law = |from: u64| if from > 4_000_000_000 { 2.0 } else { 10.0 };
        assert_eq!(seen.worst_second(law), Some((3, 2.0, 5_000_000_000)));
        assert_eq!(seen.per_second(600_000_000), [4, 1, 0, 0, 3]);
        assert_eq!(Seen::default().worst_second(|_| 1.0), None);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!([500, 990, 1000].map(|p| percentile(&sorted, p)), [50, 99, 100]);
        assert_eq!(percentile(&[], 500), 0);
    }
}
