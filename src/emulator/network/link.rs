//! Owns one connection below HTTP: which frames pass, which are dropped, which are put in, and how it ends. Pure: bytes
//! in, bytes out.
//! Must never know: sockets, paths, and what a request says.
//!
//! HEADERS are dropped only when no later stream will be let through: the compression of headers has a memory, and a
//! server that misses one block misreads those after it. That is why a single refused stream is an answer of the
//! server above, and not done here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::faults::{Faults, GoAway};
use super::frame::{self, Cutter, Head, PREFACE, kind};
use super::terms::Terms;

/// What a connection is below HTTP from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fate {
    /// Bytes go both ways.
    #[default]
    Open,
    /// The socket is open, and nothing comes or goes any more: what the client sends is thrown away.
    Silent,
    /// Ends as soon as what is due to the client has been sent.
    Fin,
    /// Ends at once with a TCP RST.
    Rst,
}

/// What happened below HTTP, on all connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Streams that were dropped: above the last one of a GOAWAY.
    pub(crate) unprocessed: AtomicU64,
    pub(crate) goaways: AtomicU64,
    /// Streams opened above the limit that the client had acknowledged.
    pub(crate) overruns: AtomicU64,
    pub(crate) pings_ignored: AtomicU64,
}

fn one_more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug, PartialEq, Eq, Default)]
enum Speaks {
    /// Not known yet; as many bytes of the preface have been seen.
    #[default]
    Unknown,
    Http1,
    Http2,
}

/// The end that was announced, or is about to be.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    last: u32,
    code: u32,
    words: &'static str,
    /// Streams to leave unprocessed before it is announced.
    still: u32,
    announced: bool,
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(super) faults: Faults,
    pub(super) fate: Fate,
    /// Of the task that moves the bytes.
    pub(super) waker: Option<Waker>,
    /// Due to the client.
    pub(super) out: Vec<u8>,
    counts: Arc<Counts>,
    speaks: Speaks,
    preface: usize,
    up: Cutter,
    down: Cutter,
    terms: Terms,
    seen: u32,
    processed: u32,
    streams: u32,
    open: BTreeSet<u32>,
    /// Open streams whose answer has begun with early hints.
    hinted: BTreeSet<u32>,
    leaving: Option<Leaving>,
}

impl Link {
    pub(super) fn new(faults: Faults, fate: Fate, counts: Arc<Counts>) -> Self {
        Self { faults, fate, counts, ..Self::default() }
    }

    /// What the client sent; what of it the server above gets is appended to `to_server`.
    pub(super) fn client_sent(&mut self, bytes: &[u8], to_server: &mut Vec<u8>) {
        let bytes = self.greet(bytes, to_server);
        if self.speaks != Speaks::Http2 {
            return to_server.extend_from_slice(bytes);
        }
        self.up.feed(bytes);
        while let Some((head, at)) = self.up.next() {
            // Streams that come after the end are still counted.
            if self.passes_up(head, at.len()) && self.fate == Fate::Open {
                to_server.extend_from_slice(self.up.bytes(at));
            }
        }
        self.leave_when_idle();
    }

    /// What the server above sent; what the client gets is appended to `self.out`.
    pub(super) fn server_sent(&mut self, bytes: &[u8]) {
        if self.fate != Fate::Open {
            return;
        }
        if self.speaks != Speaks::Http2 {
            return self.out.extend_from_slice(bytes);
        }
        self.down.feed(bytes);
        while let Some((head, at)) = self.down.next() {
            if head.kind == kind::SETTINGS && !head.first_flag() {
                self.terms.announce(self.down.bytes(at.clone()), &self.faults);
            }
            if self.faults.early_hints && head.kind == kind::HEADERS && self.hinted.insert(head.stream) {
                self.out.extend_from_slice(&frame::early_hints(head.stream));
            }
            self.out.extend_from_slice(self.down.bytes(at));
            if head.ends_stream() {
                self.open.remove(&head.stream);
                self.hinted.remove(&head.stream);
            }
        }
        self.leave_when_idle();
    }

    /// What the client sent after the end: only counted.
    pub(super) fn too_late(&mut self, bytes: &[u8]) {
        if self.leaving.is_some() && self.fate == Fate::Fin {
            self.client_sent(bytes, &mut Vec::new());
        }
    }

    /// Other faults from now on.
    pub(super) fn change(&mut self, faults: &Faults) {
        let told = if self.fate == Fate::Open { self.terms.change(&self.faults, faults) } else { None };
        self.out.extend(told.into_iter().flatten());
        self.faults = faults.clone();
        self.wake();
    }

    /// Announces the end now.
    pub(super) fn go_away(&mut self, order: &GoAway) {
        if self.speaks == Speaks::Http2 && self.fate == Fate::Open {
            let last = order.last_stream.unwrap_or(self.processed);
            self.leave(Leaving { last, code: order.code, words: "", still: 0, announced: false });
            if order.close {
                self.meet(Fate::Fin);
            }
            // An idle connection ends right after it.
            self.leave_when_idle();
            self.wake();
        }
    }

    /// Another fate, unless it has ended already.
    pub(super) fn meet(&mut self, fate: Fate) {
        if !matches!(self.fate, Fate::Fin | Fate::Rst) && self.fate != fate {
            self.fate = fate;
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Recognises the preface, which passes as it is; the bytes after it.
    fn greet<'a>(&mut self, bytes: &'a [u8], to_server: &mut Vec<u8>) -> &'a [u8] {
        if self.speaks != Speaks::Unknown {
            return bytes;
        }
        let part = &PREFACE[self.preface..];
        let n = part.len().min(bytes.len());
        if bytes[..n] != part[..n] {
            self.speaks = Speaks::Http1;
            return bytes;
        }
        self.preface += n;
        to_server.extend_from_slice(&bytes[..n]);
        if self.preface == PREFACE.len() {
            self.speaks = Speaks::Http2;
        }
        &bytes[n..]
    }

    fn passes_up(&mut self, head: Head, length: usize) -> bool {
        match head.kind {
            kind::SETTINGS if head.first_flag() => return self.terms.acknowledged(),
            kind::PING if self.faults.ignore_pings && !head.first_flag() => {
                one_more(&self.counts.pings_ignored);
                return false;
            }
            kind::HEADERS if head.stream > self.seen => self.opened(head.stream),
            _ => {}
        }
        if self.fate != Fate::Open {
            return false;
        }
        if head.kind == kind::RST_STREAM {
            self.open.remove(&head.stream);
        }
        let dropped = head.stream > self.leaving.map_or(u32::MAX, |leaving| leaving.last);
        if dropped && head.kind == kind::DATA {
            // The client counts these bytes against the whole connection, on which other streams go on.
            let bytes = u32::try_from(length).unwrap_or(u32::MAX).saturating_sub(9);
            if bytes > 0 {
                self.out.extend_from_slice(&frame::window_update(bytes));
            }
        }
        !dropped
    }

    /// A stream that was not seen before.
    fn opened(&mut self, stream: u32) {
        self.seen = stream;
        if self.leaving.is_some_and(|leaving| stream > leaving.last) {
            return self.left_out();
        }
        if self.terms.most_streams().is_some_and(|most| self.open.len() >= most as usize) {
            one_more(&self.counts.overruns);
            // Code and words as FCM was seen to say it.
            let words = "exceeded_max_concurrent_streams";
            self.leave(Leaving { last: self.processed, code: 1, words, still: 0, announced: false });
            return self.left_out();
        }
        let silent_after = self.faults.black_hole_after;
        if silent_after > 0 && self.streams >= silent_after {
            return self.meet(Fate::Silent);
        }
        (self.processed, self.streams) = (stream, self.streams.saturating_add(1));
        self.open.insert(stream);
        if self.faults.goaway_every > 0 && self.streams >= self.faults.goaway_every {
            let still = self.faults.goaway_unprocessed;
            self.leave(Leaving { last: stream, code: 0, words: "", still, announced: false });
        }
    }

    fn left_out(&mut self) {
        one_more(&self.counts.unprocessed);
        let Some(leaving) = &mut self.leaving else { return };
        leaving.still = leaving.still.saturating_sub(1);
        let leaving = *leaving;
        self.leave(leaving);
    }

    /// Announces the end, unless more streams are to be left out first.
    fn leave(&mut self, leaving: Leaving) {
        let announce = leaving.still == 0 && !leaving.announced;
        self.leaving = Some(Leaving { announced: leaving.announced || announce, ..leaving });
        if announce {
            one_more(&self.counts.goaways);
            self.open.retain(|stream| *stream <= leaving.last);
            self.out.extend_from_slice(&frame::goaway(leaving.last, leaving.code, leaving.words));
        }
    }

    /// With everything answered: announces an end that somebody waits for, and ends what was announced.
    fn leave_when_idle(&mut self) {
        let Some(leaving) = self.leaving.filter(|_| self.open.is_empty()) else { return };
        if !leaving.announced && self.seen > leaving.last {
            self.leave(Leaving { still: 0, ..leaving });
        }
        // A last stream that is still to come says that the client may go on for a while.
        let over = self.leaving.is_some_and(|leaving| leaving.announced && leaving.last <= self.seen);
        if over {
            self.meet(Fate::Fin);
        }
    }
}
