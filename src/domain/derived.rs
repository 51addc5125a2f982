//! Owns what makes one fan-out follow from another: where its recipients come from, what its message replaces, what it
//! may spend, why it pauses.
//! Must never know: how any of it is stored or carried out.

use super::ids::{EventId, FanoutId};
use super::outcome::{Outcome, coded_enum};

coded_enum!(
    /// Where the recipients of a fan-out come from. Every list is in order of key, so that all are merged alike.
    Source ("source of recipients") {
        /// Whoever follows a subject of the event and wants its type.
        Followers = 0 "followers",
        /// Whoever got, or may have got, a fan-out of its family: what a retraction has to reach.
        Reached = 1 "reached",
        /// Both: the whole audience, and whoever has seen what is corrected although it is no follower now.
        Audience = 2 "audience",
        /// Whom its parent failed to reach.
        Failed = 3 "failed",
        /// The same, and whom its parent may have reached without being told.
        FailedOrUnconfirmed = 4 "failed_or_unconfirmed",
        /// Every live device after the key its freeze begins at: a sweep.
        Devices = 5 "devices",
    }
);

impl Source {
    /// Whether `outcome` of the parent makes a recipient. Nobody is one of a source that asks no outcomes.
    #[must_use]
    pub const fn takes(self, outcome: Outcome) -> bool {
        let failed = matches!(outcome, Outcome::Transient | Outcome::Protocol | Outcome::Expired | Outcome::Internal);
        match self {
            Self::Followers | Self::Reached | Self::Audience | Self::Devices => false,
            Self::Failed => failed,
            Self::FailedOrUnconfirmed => failed || matches!(outcome, Outcome::Unconfirmed),
        }
    }
}

coded_enum!(
    /// Why a capped fan-out was stopped before its end. Neither success nor failure: it goes on when it is resumed.
    PauseReason ("pause reason") {
        /// It has made as many attempts as it may.
        Budget = 1 "budget",
        /// The provider throttled the project.
        Throttle = 2 "throttle",
    }
);

/// A pause that an instance has decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// What is paused.
    pub fanout: FanoutId,
    /// Why.
    pub reason: PauseReason,
    /// How often it had been resumed, as far as was known: what was resumed since is not paused by this.
    pub resumed: i32,
}

/// How many HTTP requests a fan-out may make, failures included, and what is known of how many it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// Most attempts, all instances together.
    pub most: u64,
    /// Attempts of all instances when this was read.
    pub spent: u64,
    /// Times it was resumed: a pause that was noticed before belongs to an earlier one.
    pub resumed: i32,
    /// It is paused, and was not resumed since.
    pub paused: bool,
}

/// What a fan-out follows from; the default is an original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where its recipients come from.
    pub source: Source,
    /// The fan-out it derives from.
    pub parent: Option<FanoutId>,
    /// The event whose message it replaces on the phone; `None` = its own.
    pub root: Option<EventId>,
    /// The collapse key of the first message of its chain, which its own replaces; `None` = what its type makes of `root`.
    pub key: Option<String>,
    /// Most attempts; `None` = as many as it takes.
    pub cap: Option<Cap>,
}

impl Default for Origin {
    fn default() -> Self {
        Self { source: Source::Followers, parent: None, root: None, key: None, cap: None }
    }
}

/// Longest time the sending of a correction is held, ms: so that a flip-flop collapses into its last state.
pub const HOLD_MS: i64 = 5_000;

/// How long a correction is held. One that is useful only briefly keeps half of its time for sending.
#[must_use]
pub fn hold_ms(accepted_ms: i64, deadline_ms: i64) -> i64 {
    (deadline_ms.saturating_sub(accepted_ms) / 2).clamp(0, HOLD_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_takes_what_may_still_be_reached_and_what_is_unsure_only_when_asked() {
        let of = |source: Source| Outcome::ALL.iter().copied().filter(|o| source.takes(*o)).collect::<Vec<_>>();
        let failed = [Outcome::Transient, Outcome::Protocol, Outcome::Expired, Outcome::Internal];
        assert_eq!(of(Source::Failed), failed);
        assert_eq!(of(Source::FailedOrUnconfirmed).len(), 5);
        assert!(of(Source::FailedOrUnconfirmed).contains(&Outcome::Unconfirmed));
        for source in [Source::Followers, Source::Reached, Source::Audience, Source::Devices] {
            assert_eq!(of(source), []);
        }
        let retryable: Vec<_> = Outcome::ALL.iter().copied().filter(|o| o.retryable()).collect();
        assert_eq!(of(Source::FailedOrUnconfirmed), retryable, "what explain calls retryable");
    }

    #[test]
    fn a_hold_leaves_time_to_send() {
        assert_eq!(hold_ms(1_000, 121_000), HOLD_MS);
        assert_eq!(hold_ms(1_000, 7_000), 3_000);
        assert_eq!(hold_ms(7_000, 1_000), 0);
    }
}
