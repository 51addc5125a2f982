//! Owns what is asked and answered of fan-outs derived from others: how they stand to each other, replays, pauses.
//! Must never know: any statement, or which database it is.

use sqlx::FromRow;

use super::FreezeJob;
use crate::domain::batch::FanoutState;
use crate::domain::derived::{PauseReason, Source};
use crate::domain::ids::{DeviceKey, FanoutId};
use crate::domain::outcome::UnknownCode;

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

/// What the database says of a fan-out that is to be replayed.
#[derive(Debug, FromRow)]
pub(crate) struct ParentRow {
    state: i16,
    settled: bool,
    superseded_by: Option<i64>,
    /// The replay that the same request made before.
    same: Option<i64>,
    /// A replay of the same message that has not ended.
    running: Option<i64>,
    /// Whether any chunk of it is open or in somebody's hands.
    open: bool,
}

impl ParentRow {
    /// Why it is not replayed, if it is not. Decided here once, for both databases.
    ///
    /// # Errors
    /// A stored state that this build does not know.
    pub(crate) fn refusal(&self) -> Result<Option<ReplayReply>, UnknownCode> {
        let state = FanoutState::from_code(self.state)?;
        let aside = state == FanoutState::SetAside && !self.open;
        Ok(match (self.same, self.superseded_by, self.running) {
            (Some(same), ..) => Some(ReplayReply::Repeat(FanoutId(same))),
            (_, Some(by), _) => Some(ReplayReply::Superseded(FanoutId(by))),
            (.., Some(running)) => Some(ReplayReply::Running(FanoutId(running))),
            _ if !self.settled && !aside => Some(ReplayReply::Open(state)),
            _ => None,
        })
    }

    /// Whether what was set aside of it is to be given up first, so that it ends.
    pub(crate) const fn is_given_up(&self) -> bool {
        !self.settled
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settled() -> ParentRow {
        let state = FanoutState::Done.code();
        ParentRow { state, settled: true, superseded_by: None, same: None, running: None, open: false }
    }

    fn open(state: FanoutState, open: bool) -> ParentRow {
        ParentRow { state: state.code(), settled: false, open, ..settled() }
    }

    #[test]
    fn what_has_ended_or_was_set_aside_is_replayed() {
        assert_eq!(settled().refusal().unwrap(), None);
        assert!(!settled().is_given_up());
        let aside = open(FanoutState::SetAside, false);
        assert!(aside.refusal().unwrap().is_none() && aside.is_given_up());
        for row in
            [open(FanoutState::SetAside, true), open(FanoutState::Sending, true), open(FanoutState::Freezing, false)]
        {
            let state = FanoutState::from_code(row.state).unwrap();
            assert_eq!(row.refusal().unwrap(), Some(ReplayReply::Open(state)), "{row:?}");
        }
        assert!(ParentRow { state: 99, ..settled() }.refusal().is_err());
    }

    #[test]
    fn the_same_request_is_answered_before_anything_is_refused() {
        let all = ParentRow { same: Some(1), superseded_by: Some(2), running: Some(3), ..settled() };
        assert_eq!(all.refusal().unwrap(), Some(ReplayReply::Repeat(FanoutId(1))));
        let corrected = ParentRow { same: None, ..all };
        assert_eq!(corrected.refusal().unwrap(), Some(ReplayReply::Superseded(FanoutId(2))));
        let running = ParentRow { superseded_by: None, ..corrected };
        assert_eq!(running.refusal().unwrap(), Some(ReplayReply::Running(FanoutId(3))));
    }
}
