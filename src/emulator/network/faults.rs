//! Owns what can be wrong below HTTP: what is in force for every connection, and what is done to them once.
//! Must never know: how it is done.

use serde::{Deserialize, Serialize};

/// What hyper announces when nobody says otherwise, bytes.
const USUAL_WINDOW: u32 = 1 << 20;

/// A change of what is wrong below HTTP; what is absent stays as it is. Connections that are open get it too, unless a
/// field says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// SETTINGS_MAX_CONCURRENT_STREAMS. A stream above what the client has acknowledged ends the connection with
    /// GOAWAY PROTOCOL_ERROR `exceeded_max_concurrent_streams`.
    pub max_streams: Option<u32>,
    /// SETTINGS_INITIAL_WINDOW_SIZE, bytes: how much of a request body may come; at 0 none does.
    pub initial_window: Option<u32>,
    /// PING is not answered.
    pub ignore_pings: Option<bool>,
    /// `103 Early Hints` before every answer, HTTP/2 only.
    pub early_hints: Option<bool>,
    /// GOAWAY NO_ERROR with every so-many-th stream of a connection; 0 = never.
    pub goaway_every: Option<u32>,
    /// That GOAWAY comes so many streams later, and these are left unprocessed; it waits for them only while one that
    /// is processed has no answer.
    pub goaway_unprocessed: Option<u32>,
    /// A connection falls silent for good when a stream comes after so many; 0 = never.
    pub black_hole_after: Option<u32>,
    /// New connections are accepted, and then nothing, not even TLS, for so many ms; 0 = it ends now.
    pub mute_ms: Option<u64>,
    /// The listener is closed for so many ms; 0 = it opens now.
    pub refuse_ms: Option<u64>,
    /// Done once, in this order, after the rest.
    pub now: Vec<Act>,
}

/// Something done once to connections that are open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// GOAWAY. Streams above its last one that have not been passed on yet never will be; the connection ends when
    /// the others are answered.
    Goaway(GoAway),
    /// Open, but no frame in either direction any more; until the client gives up or all is calm.
    BlackHole {
        /// From 1, in order of connecting, as in the log; absent = all.
        #[serde(default)]
        connection: Option<u32>,
    },
    /// Ends with a TCP FIN, whatever is in flight.
    Fin {
        /// As above.
        #[serde(default)]
        connection: Option<u32>,
    },
    /// Ends with a TCP RST, whatever is in flight.
    Rst {
        /// As above.
        #[serde(default)]
        connection: Option<u32>,
    },
}

impl Act {
    /// The connection it is meant for; none = all.
    pub(super) fn connection(&self) -> Option<u32> {
        match self {
            Self::Goaway(order) => order.connection,
            Self::BlackHole { connection } | Self::Fin { connection } | Self::Rst { connection } => *connection,
        }
    }
}

/// How to say GOAWAY.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GoAway {
    /// As for the other acts.
    pub connection: Option<u32>,
    /// Error code of RFC 9113, section 7: 0 = NO_ERROR, 11 = ENHANCE_YOUR_CALM.
    pub code: u32,
    /// The last stream, absent = the last one that is processed, which is the truth. With a lower one the emulator
    /// lies: what it has processed stays processed, in the log too.
    pub last_stream: Option<u32>,
    /// Ends the connection at once, without answering what is in flight.
    pub close: bool,
}

/// What is in force for every connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Faults {
    pub(super) max_streams: u32,
    pub(super) initial_window: u32,
    pub(super) ignore_pings: bool,
    pub(super) early_hints: bool,
    pub(super) goaway_every: u32,
    pub(super) goaway_unprocessed: u32,
    pub(super) black_hole_after: u32,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            // As FCM.
            max_streams: 100,
            initial_window: USUAL_WINDOW,
            ignore_pings: false,
            early_hints: false,
            goaway_every: 0,
            goaway_unprocessed: 0,
            black_hole_after: 0,
        }
    }
}

impl Faults {
    pub(super) fn changed(&self, change: &Network) -> Self {
        Self {
            max_streams: change.max_streams.unwrap_or(self.max_streams),
            initial_window: change.initial_window.unwrap_or(self.initial_window),
            ignore_pings: change.ignore_pings.unwrap_or(self.ignore_pings),
            early_hints: change.early_hints.unwrap_or(self.early_hints),
            goaway_every: change.goaway_every.unwrap_or(self.goaway_every),
            goaway_unprocessed: change.goaway_unprocessed.unwrap_or(self.goaway_unprocessed),
            black_hole_after: change.black_hole_after.unwrap_or(self.black_hole_after),
        }
    }
}
