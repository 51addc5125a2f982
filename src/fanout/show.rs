//! Owns what the dispatcher shows of itself: its wish to the ceiling, and its state to readiness, metrics and log.
//! Must never know: how anything is launched.

use crate::breaker::{BreakerState, Opening};
use crate::domain::outcome::Verdict;
use crate::domain::recipient::Platform;
use crate::fcm::attempted::Attempted;

use super::dispatch::{Block, Dispatcher};
use super::fan::millis;

/// The state shown last, so that a change is logged once, and what its cause will be called.
#[derive(Debug)]
pub(super) struct Shown {
    breaker: BreakerState,
    refused: Refused,
    /// The last failure of the provider, by [`named`].
    pub(super) failure: String,
    /// The last refusal of a credential.
    pub(super) refusal: String,
}

impl Default for Shown {
    fn default() -> Self {
        let (failure, refusal) = (String::new(), String::new());
        Self { breaker: BreakerState::Closed, refused: Refused::default(), failure, refusal }
    }
}

/// What a provider answered, in one or two words of its own choice at most: the status, and the error's name if it is
/// written like one; without an answer, what broke. The rest of the text is the provider's, and stays with the recipient.
pub(super) fn named(answer: &Attempted) -> String {
    if answer.status == 0 {
        return answer.text.clone();
    }
    let name = answer
        .text
        .split([' ', ':'])
        .nth(1)
        .filter(|word| (3..=40).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
    let class = match answer.verdict {
        Verdict::Failed(failure, _) => failure.cause().as_str(),
        _ => "",
    };
    format!("{} {}", answer.status, name.unwrap_or(class)).trim_end().to_owned()
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
        let was = std::mem::replace(&mut self.shown.breaker, breaker);
        if breaker != was {
            self.tell_breaker(was, breaker);
        }
        let was = std::mem::replace(&mut self.shown.refused, refused);
        if refused != was {
            self.tell_credentials(was, refused);
        }
        self.wiring.hands.show(&self.hand, self.flight.len(), (breaker, refused));
    }

    fn tell_breaker(&self, from: BreakerState, to: BreakerState) {
        let (from, last) = (from.as_str(), self.shown.failure.as_str());
        match self.gates.breaker.opening().filter(|_| to == BreakerState::Open) {
            Some(Opening { failures, of, wait }) => {
                let retry_in_ms = millis(wait);
                tracing::warn!(target: "fanfare::fanout", from, to = to.as_str(), failures, of, last, retry_in_ms, "breaker changed");
            }
            None => tracing::warn!(target: "fanfare::fanout", from, to = to.as_str(), "breaker changed"),
        }
    }

    fn tell_credentials(&self, was: Refused, is: Refused) {
        for (((credential, now), (_, before)), gate) in is.each().zip(was.each()).zip(self.gates.credentials()) {
            match (before, now) {
                (false, true) => {
                    let (refusals, last) = (gate.refusals(), self.shown.refusal.as_str());
                    let retry_in_ms = millis(gate.wait(self.now));
                    tracing::warn!(target: "fanfare::fanout", credential, refusals, last, retry_in_ms, "credential refused; it is probed until it serves somebody");
                }
                (true, false) => tracing::info!(target: "fanfare::fanout", credential, "credential works again"),
                _ => {}
            }
        }
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

    #[test]
    fn a_cause_is_named_by_status_and_error_and_never_in_the_providers_words() {
        let answer = |status, text: &str, verdict| Attempted {
            verdict,
            status,
            text: text.to_owned(),
            connection: crate::fcm::connections::ConnectionId(1),
            took: std::time::Duration::ZERO,
            maybe: false,
        };
        let transient = Verdict::Failed(crate::domain::outcome::Failure::Transient, None);
        let cases = [
            (503, "503 UNAVAILABLE: The service is down, call 555", "503 UNAVAILABLE"),
            (403, "403 PERMISSION_DENIED IAM_PERMISSION_DENIED: secret", "403 PERMISSION_DENIED"),
            (502, "502 HTML or XML body, 19 bytes, sha256 85d12d6e", "502 HTML"),
            (500, "500 empty body", "500 transient"),
            (503, "503 Buy cheap tokens", "503 transient"),
            (0, "no connection", "no connection"),
        ];
        for (status, text, named_as) in cases {
            assert_eq!(named(&answer(status, text, transient)), named_as);
        }
    }
}
