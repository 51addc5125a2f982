//! Owns what the dispatcher shows of itself: its wish to the ceiling, and its state to readiness, metrics and log.
//! Must never know: how anything is launched.

use crate::breaker::BreakerState;
use crate::domain::recipient::Platform;

use super::dispatch::{Block, Dispatcher};

/// The state shown last, so that a change is logged once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    breaker: BreakerState,
    refused: Refused,
}

impl Default for Shown {
    fn default() -> Self {
        Self { breaker: BreakerState::Closed, refused: Refused::default() }
    }
}

/// The credentials that are refused and serve nobody: the project's, and the key of each platform.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused(u8);

impl Refused {
    const PROJECT: u8 = 1;

    /// From what the gates say.
    #[must_use]
    pub fn new(project: bool, platform: impl Fn(Platform) -> bool) -> Self {
        let platforms = Platform::ALL.iter().filter(|p| platform(**p)).fold(0, |bits, p| bits | Self::bit(*p));
        Self(platforms | if project { Self::PROJECT } else { 0 })
    }

    /// From what [`Refused::bits`] gave.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// As one number.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    const fn bit(platform: Platform) -> u8 {
        2 << platform as u8
    }

    /// Every credential by name, and whether it is refused.
    pub fn each(self) -> impl Iterator<Item = (&'static str, bool)> {
        let platforms = Platform::ALL.iter().map(|p| (p.as_str(), Self::bit(*p)));
        std::iter::once(("project", Self::PROJECT)).chain(platforms).map(move |(name, bit)| (name, self.0 & bit != 0))
    }
}

impl Dispatcher {
    /// Tells the ceiling how many grants could be used on top of the stock.
    pub(super) fn want(&mut self) {
        let stuck = self.block == Block::Stream && self.flight.is_empty();
        let idle = stuck || matches!(self.block, Block::Gate(_) | Block::Nobody);
        // A little more than the free slots, so that the next one to be free finds its grant; much more would be
        // forfeited, and taken from the others.
        let free = self.flight.free().min(self.exposure.free()).min(self.connections.room());
        let free = free + (self.pacing.slots.slots / 8).max(2);
        let could = if idle { 0 } else { self.hand.launchable().min(free) as u64 };
        self.wiring.ceiling.want(could.saturating_sub(self.stock.len()));
    }

    /// Shows the state, and logs what changed of it.
    pub(super) fn show(&mut self) {
        let breaker = self.gates.breaker.state();
        let refused = Refused::new(self.gates.refused(), |p| self.gates.platform_refused(p));
        let was = std::mem::replace(&mut self.shown, Shown { breaker, refused });
        if breaker != was.breaker {
            tracing::warn!(target: "fanfare::fanout", from = was.breaker.as_str(), to = breaker.as_str(), "breaker changed");
        }
        for ((credential, now), (_, before)) in refused.each().zip(was.refused.each()) {
            match (before, now) {
                (false, true) => {
                    tracing::warn!(target: "fanfare::fanout", credential, "credential refused; it is probed until it serves somebody");
                }
                (true, false) => tracing::info!(target: "fanfare::fanout", credential, "credential works again"),
                _ => {}
            }
        }
        self.wiring.hands.show(&self.hand, self.flight.len(), (breaker, refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_credentials_are_told_by_name_and_survive_as_a_number() {
        let none: Vec<_> = Refused::default().each().collect();
        assert_eq!(none, [("project", false), ("android", false), ("ios", false), ("web", false)]);
        let some = Refused::new(true, |p| p == Platform::Ios);
        let named: Vec<_> = Refused::of_bits(some.bits()).each().filter(|(_, refused)| *refused).collect();
        assert_eq!(named, [("project", true), ("ios", true)]);
    }
}
