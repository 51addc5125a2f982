//! Owns the append-only log of send requests, and per message and token how often it was tried and accepted.
//! Must never know: why an answer was chosen.
//!
//! Memory: 48 bytes a request, and for each first delivery to a token about 150 bytes and the token itself; a
//! million deliveries to as many tokens of 150 bytes took 350 MB. Nothing is ever dropped: a log with gaps could not
//! be an oracle.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answer::AnswerId;

/// One send request, as the log gives it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// From 1, without gaps.
    pub seq: u64,
    /// Arrival, nanoseconds since the emulator started, monotonic.
    pub t_ns: u64,
    /// From the path.
    pub project: String,
    /// Device token (or fid, topic, condition) in full: this is a test tool.
    pub token: String,
    /// Name of the answer given.
    pub answer: String,
    /// HTTP status of the answer; 0 = none was sent.
    pub status: u16,
    /// The provider took the message, whatever became of the answer; not so with `validate_only`.
    pub accepted: bool,
    /// From 1, in order of connecting.
    pub connection: u32,
    /// From 1: the how-manieth request with this message for this token.
    pub attempt: u32,
    /// Hash of the message without target and TTL.
    pub content: u64,
    /// Collapse key, of whichever platform has one.
    pub collapse_key: Option<String>,
    /// TTL, seconds.
    pub ttl_s: Option<u32>,
}

/// What goes into the log about one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) t_ns: u64,
    pub(super) project: &'a str,
    pub(super) token: &'a str,
    pub(super) content: u64,
    pub(super) collapse_key: Option<&'a str>,
    pub(super) ttl_s: Option<u32>,
    pub(super) connection: u32,
    pub(super) attempt: u32,
    pub(super) answer: AnswerId,
    pub(super) accepted: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    t_ns: u64,
    content: u64,
    project: u32,
    token: u32,
    collapse_key: Option<NameId>,
    ttl_s: u32,
    connection: u32,
    attempt: u32,
    answer: AnswerId,
    accepted: bool,
}

/// An index into [`Names`] plus one, so that an absent name needs no extra bytes.
type NameId = std::num::NonZeroU32;

/// No TTL in the request.
const NO_TTL: u32 = u32::MAX;

/// The log.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
    names: Names,
    /// By token and content: attempts, and how many of them were accepted.
    sent: Shards<(u32, u64), (u32, u32)>,
    /// By token.
    accepted: Vec<bool>,
    distinct_accepted: usize,
}

impl Log {
    /// Number of entries, which is the `seq` of the last.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tokens with at least one accepted message.
    pub(super) fn distinct_accepted(&self) -> usize {
        self.distinct_accepted
    }

    /// Counts one more attempt of this message to this token; the number of it, from 1.
    pub(super) fn attempt(&mut self, token: &str, content: u64) -> u32 {
        let token = self.names.id(token);
        let (attempts, _) = self.sent.of(index(token)).entry((token, content)).or_default();
        *attempts += 1;
        *attempts
    }

    /// Appends; true when the same message was accepted for this token before, so that this is a duplicate.
    pub(super) fn push(&mut self, line: &Line<'_>) -> bool {
        let token = self.names.id(line.token);
        let project = self.names.id(line.project);
        let collapse_key = line.collapse_key.map(|key| self.names.id(key)).and_then(|id| NameId::new(id + 1));
        self.entries.push(Entry {
            t_ns: line.t_ns,
            content: line.content,
            project,
            token,
            collapse_key,
            ttl_s: line.ttl_s.unwrap_or(NO_TTL),
            connection: line.connection,
            attempt: line.attempt,
            answer: line.answer,
            accepted: line.accepted,
        });
        if !line.accepted {
            return false;
        }
        self.mark_accepted(index(token));
        let (_, accepted) = self.sent.of(index(token)).entry((token, line.content)).or_default();
        *accepted += 1;
        *accepted > 1
    }

    fn mark_accepted(&mut self, token: usize) {
        if self.accepted.len() <= token {
            self.accepted.resize(token + 1, false);
        }
        self.distinct_accepted += usize::from(!self.accepted[token]);
        self.accepted[token] = true;
    }

    /// Up to `most` entries after `seq`.
    pub(super) fn after(&self, seq: u64, most: usize) -> impl Iterator<Item = LogEntry> {
        let from = usize::try_from(seq).unwrap_or(usize::MAX);
        self.entries.iter().enumerate().skip(from).take(most).map(|(at, entry)| self.entry(at, entry))
    }

    fn entry(&self, at: usize, entry: &Entry) -> LogEntry {
        let answer = entry.answer.answer();
        LogEntry {
            seq: at as u64 + 1,
            t_ns: entry.t_ns,
            project: self.names.text(entry.project),
            token: self.names.text(entry.token),
            answer: answer.name.to_owned(),
            status: answer.status(),
            accepted: entry.accepted,
            connection: entry.connection,
            attempt: entry.attempt,
            content: entry.content,
            collapse_key: entry.collapse_key.map(|id| self.names.text(id.get() - 1)),
            ttl_s: (entry.ttl_s != NO_TTL).then_some(entry.ttl_s),
        }
    }
}

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// Each text once.
#[derive(Debug, Default)]
struct Names {
    ids: Shards<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Names {
    fn id(&mut self, text: &str) -> u32 {
        // Tokens of one project differ at their end; any choice is right, an even one is fast.
        let end = text.bytes().rev().take(4).fold(0usize, |sum, byte| sum * 31 + usize::from(byte));
        let ids = self.ids.of(end);
        if let Some(id) = ids.get(text) {
            return *id;
        }
        let id = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        ids.insert(text, id);
        id
    }

    fn text(&self, id: u32) -> String {
        self.texts.get(index(id)).map(|text| text.to_string()).unwrap_or_default()
    }
}

/// Appends a line to the log file: one small write into the page cache. False when it failed.
pub(super) fn append(file: &mut File, entry: &LogEntry) -> bool {
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    let written = file.write_all(&line);
    if let Err(error) = &written {
        tracing::error!(target: "fanfare::emulator", %error, seq = entry.seq, "log file not written");
    }
    written.is_ok()
}

/// A map in parts. A map that doubles moves all it has: with a million tokens in one map that was seconds of standing
/// still in a debug build, which a client sees as a provider that stalls.
#[derive(Debug)]
struct Shards<K, V>(Vec<HashMap<K, V>>);

impl<K, V> Shards<K, V> {
    const PARTS: usize = 256;

    fn of(&mut self, key: usize) -> &mut HashMap<K, V> {
        &mut self.0[key % Self::PARTS]
    }
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self((0..Self::PARTS).map(|_| HashMap::new()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(log: &mut Log, token: &str, content: u64, accepted: bool) -> (u32, bool) {
        let attempt = log.attempt(token, content);
        let line = Line {
            t_ns: 5,
            project: "p",
            token,
            content,
            collapse_key: (content == 1).then_some("k"),
            ttl_s: (content == 1).then_some(60),
            connection: 3,
            attempt,
            answer: AnswerId::OK,
            accepted,
        };
        (attempt, log.push(&line))
    }

    #[test]
    fn attempts_and_duplicates_are_counted_per_message_and_token() {
        let mut log = Log::default();
        assert_eq!(send(&mut log, "a", 1, false), (1, false));
        assert_eq!(send(&mut log, "a", 1, true), (2, false));
        assert_eq!(send(&mut log, "a", 1, true), (3, true));
        assert_eq!(send(&mut log, "a", 2, true), (1, false));
        assert_eq!(send(&mut log, "b", 1, true), (1, false));
        assert_eq!(log.distinct_accepted(), 2);
    }

    #[test]
    fn what_goes_in_comes_out_from_any_seq() {
        let mut log = Log::default();
        send(&mut log, "a", 1, true);
        send(&mut log, "b", 2, false);
        let all: Vec<LogEntry> = log.after(0, 10).collect();
        assert_eq!((all[0].seq, all[0].token.as_str(), all[0].accepted, all[0].ttl_s), (1, "a", true, Some(60)));
        assert_eq!((all[0].collapse_key.as_deref(), all[1].collapse_key.as_deref()), (Some("k"), None));
        assert_eq!((all[1].seq, all[1].token.as_str(), all[1].accepted, all[1].ttl_s), (2, "b", false, None));
        assert_eq!(log.after(1, 10).collect::<Vec<_>>(), all[1..]);
        assert_eq!(log.after(0, 1).collect::<Vec<_>>(), all[..1]);
        assert_eq!(log.after(u64::MAX, 10).count(), 0);
    }

    #[test]
    fn no_part_of_the_map_holds_much_of_it() {
        let mut names = Names::default();
        for n in 0..20_000 {
            assert_eq!(names.id(&format!("dGhpcyBpcyBhIHRva2Vu:APA91b-{n}")), n);
        }
        assert_eq!(names.id("dGhpcyBpcyBhIHRva2Vu:APA91b-7"), 7, "each text once");
        let largest = names.ids.0.iter().map(HashMap::len).max().unwrap();
        assert!(largest < 20_000 / 20, "{largest} of 20,000 in one part");
    }

    #[test]
    fn an_entry_is_as_small_as_the_module_says() {
        assert_eq!(size_of::<Entry>(), 48);
    }
}
