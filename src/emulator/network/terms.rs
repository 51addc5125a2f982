//! Owns the SETTINGS of one connection: what the client was told, and what of it it has acknowledged.
//! Must never know: streams.

use std::collections::VecDeque;

use super::faults::Faults;
use super::frame::{self, INITIAL_WINDOW, MAX_STREAMS};

/// A SETTINGS frame that the client has not acknowledged.
#[derive(Debug)]
struct Sent {
    /// Put in here; the server above must not see its acknowledgement.
    ours: bool,
    max_streams: Option<u32>,
}

/// What holds between client and server.
#[derive(Debug, Default)]
pub(super) struct Terms {
    pending: VecDeque<Sent>,
    greeted: bool,
    limit: Option<u32>,
}

impl Terms {
    /// The server's own SETTINGS: they pass, with what is in force here written over them.
    pub(super) fn announce(&mut self, settings: &mut [u8], faults: &Faults) {
        frame::set_parameter(settings, MAX_STREAMS, faults.max_streams);
        frame::set_parameter(settings, INITIAL_WINDOW, faults.initial_window);
        let max_streams = frame::parameter(settings, MAX_STREAMS);
        self.pending.push_back(Sent { ours: false, max_streams });
        self.greeted = true;
    }

    /// The frame that tells the client what is new. Before the server's own SETTINGS nothing may be sent; those will
    /// have the new values.
    pub(super) fn change(&mut self, old: &Faults, new: &Faults) -> Option<Vec<u8>> {
        let mut parameters = Vec::new();
        let max_streams = (new.max_streams != old.max_streams).then_some(new.max_streams);
        parameters.extend(max_streams.map(|value| (MAX_STREAMS, value)));
        if new.initial_window != old.initial_window {
            parameters.push((INITIAL_WINDOW, new.initial_window));
        }
        if !self.greeted || parameters.is_empty() {
            return None;
        }
        self.pending.push_back(Sent { ours: true, max_streams });
        Some(frame::settings(&parameters))
    }

    /// An acknowledgement: whether it is for the server above.
    pub(super) fn acknowledged(&mut self) -> bool {
        let Some(sent) = self.pending.pop_front() else { return true };
        self.limit = sent.max_streams.or(self.limit);
        !sent.ours
    }

    /// The most streams the client may have open: the acknowledged limit, or a higher one that is on its way. None
    /// before the first acknowledgement.
    pub(super) fn most_streams(&self) -> Option<u32> {
        let coming = self.pending.iter().filter_map(|sent| sent.max_streams);
        self.limit.map(|limit| coming.fold(limit, u32::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(max_streams: u32) -> Faults {
        Faults { max_streams, ..Faults::default() }
    }

    #[test]
    fn acknowledgements_belong_to_settings_in_the_order_they_were_sent() {
        let mut terms = Terms::default();
        assert_eq!(terms.change(&faults(100), &faults(7)), None, "not before the server's own");
        let mut own = frame::settings(&[(MAX_STREAMS, 5000)]);
        terms.announce(&mut own, &faults(7));
        assert_eq!(own, frame::settings(&[(MAX_STREAMS, 7)]));
        assert_eq!(terms.change(&faults(7), &faults(2)), Some(frame::settings(&[(MAX_STREAMS, 2)])));
        assert_eq!(terms.most_streams(), None, "nothing is acknowledged");
        assert!(terms.acknowledged(), "the server's own");
        assert_eq!(terms.most_streams(), Some(7), "the lower one is not acknowledged");
        assert!(!terms.acknowledged(), "ours");
        assert_eq!(terms.most_streams(), Some(2));
        terms.change(&faults(2), &faults(9));
        assert_eq!(terms.most_streams(), Some(9), "a higher one may be used before its acknowledgement is seen");
        assert!(!terms.acknowledged());
        assert!(terms.acknowledged(), "one too many is for the server above to complain about");
    }
}
