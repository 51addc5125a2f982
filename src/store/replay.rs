//! Owns what is asked and answered of fan-outs derived from others: how they stand to each other, replays, pauses.
//! Must never know: SQL.

use super::FreezeJob;
use crate::domain::batch::FanoutState;
use crate::domain::derived::{PauseReason, Source};
use crate::domain::ids::{DeviceKey, FanoutId};

/// How a fan-out stands to others, and what stopped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kin {
    /// The fan-out that took its place.
    pub superseded_by: Option<FanoutId>,
    /// Of a correction: how many of those fixed as an audience of what it corrects were not sent it, as far as is known.
    pub never_saw: Option<u64>,
    /// Why it waits to be resumed.
    pub paused: Option<PauseReason>,
    /// Most attempts.
    pub max_attempts: Option<u64>,
}

impl Kin {
    /// The state of a fan-out that is kept in `state`: a pause stands beside it, and counts while it is under way.
    #[must_use]
    pub const fn shown(&self, state: FanoutState) -> FanoutState {
        match (state, self.paused) {
            (FanoutState::Freezing | FanoutState::Sending | FanoutState::SetAside, Some(_)) => FanoutState::Paused,
            _ => state,
        }
    }
}

/// One page of what is frozen of a fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrozenPage {
    /// The fan-out.
    pub of: FanoutId,
    /// Exclusive lower bound.
    pub after: DeviceKey,
    /// Rows after which no further chunk is read.
    pub limit: u32,
}

/// A replay about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReplay {
    /// What it repeats.
    pub parent: FanoutId,
    /// What its caller calls it: the same name for the same parent is the same replay.
    pub request_id: Option<String>,
    /// Which failures it takes.
    pub source: Source,
    /// Its deadline, database ms.
    pub deadline_ms: i64,
    /// Most attempts.
    pub max_attempts: u64,
}

/// What became of a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayReply {
    /// Committed; the freeze is this instance's. Chunks of the parent that were set aside are closed as `internal`, so
    /// that it may be settled.
    New(Box<FreezeJob>),
    /// The same request made this one before.
    Repeat(FanoutId),
    /// This replay of the same fan-out has not ended.
    Running(FanoutId),
    /// This fan-out has taken its place.
    Superseded(FanoutId),
    /// It has not ended itself.
    Open(FanoutState),
    /// There is no such fan-out.
    Unknown,
}

/// What became of a call to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeReply {
    /// It goes on.
    Resumed,
    /// It was not paused: its state.
    NotPaused(FanoutState),
    /// There is no such fan-out.
    Unknown,
}
