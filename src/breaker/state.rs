//! Owns the words of the breaker: what an attempt says of the provider, and the states as others see them.
//! Must never know: what leads from one state to the next.

use std::time::Duration;

/// What an attempt says about the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It answered with sense, whatever the answer meant for the recipient.
    Success,
    /// It did not.
    Failure,
    /// The attempt says nothing: throttled, cancelled, never left.
    Neutral,
}

/// Whether attempts may be launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Without limit.
    Closed,
    /// A few at once, after an outage.
    Ramping,
    /// Not at all.
    Open,
    /// One.
    HalfOpen,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Ramping, Self::Open, Self::HalfOpen];

    /// `closed`, `ramping`, `open` or `half_open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Ramping => "ramping",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    /// Whether launches are held, but for a probe.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Open | Self::HalfOpen)
    }
}

/// Why it opened last, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Failures that were counted; for a failed probe 1 of 1.
    pub failures: u32,
    /// Marks they were counted among.
    pub of: u32,
    /// Time until the next probe.
    pub wait: Duration,
}
