//! Owns what happens to a recipient after an attempt: it ends, it is tried again, or it waits.
//! Pure: time and everything known come as arguments. Must never know: queues, gates, or who carries it out.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::outcome::{Cause, CredentialFault, Failure, Outcome, Verdict};
use crate::domain::retry::DEFAULT_THROTTLE_PAUSE;
use crate::fcm::connections::ConnectionId;
use crate::mutant;

/// First wait of a recipient that went back to pending: an outage is probed, not hammered.
pub const PENDING_DELAY: Duration = Duration::from_secs(1);
/// Longest wait of one that fails again and again, while too few fail for a breaker to open: as long as that stays open.
const LONGEST_PENDING: Duration = Duration::from_secs(10);

/// What is remembered of a recipient between its attempts.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// HTTP requests made for it here.
    pub attempts: u16,
    /// Of those, the ones that failed.
    pub failures: u16,
    /// Kind and time of the first failure.
    pub first_failure: Option<(Failure, Instant)>,
    /// Some attempt got no answer after it was sent.
    pub unconfirmed: bool,
    /// Some attempt may have reached the device.
    pub maybe: bool,
    /// It was resent after a refresh of the access token.
    pub reauthed: bool,
    /// When a credential was first refused for it.
    pub refused: Option<Instant>,
    /// Times it was resent because the provider had not processed it.
    pub resends: u16,
    /// What the last attempt would be kept as, should the deadline come next.
    pub cause: Option<Cause>,
    /// The next attempt is its one retry.
    pub retry_due: bool,
    /// The connection its last attempt failed on.
    pub avoid: Option<ConnectionId>,
    /// Last status, 0 = none.
    pub status: u16,
    /// Last sanitised text.
    pub text: String,
}

/// Everything known that bears on the decision.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// Now.
    pub now: Instant,
    /// When the provider last answered anybody meaningfully.
    pub last_meaningful: Option<Instant>,
    /// The provider may be failing everybody just now: what fails proves nothing.
    pub doubt: bool,
    /// The same variant was accepted for another device.
    pub variant_accepted: bool,
    /// The attempt was the probe of a half-open breaker.
    pub probe: bool,
    /// When somebody under the same credential was last served.
    pub credential_worked: Option<Instant>,
    /// Wait before the one retry.
    pub retry_delay: Duration,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It ended.
    Finish(Outcome),
    /// Its one retry, then.
    Retry(Instant),
    /// Not processed: again, the retry is not used.
    Resend(Instant),
    /// The access token was refused: again with another one.
    Reauth,
    /// No verdict: pending, not before then.
    Pending(Instant),
    /// About the device or about the message: kept until the variant shows which.
    Suspect,
}

/// Decides, after `delivery` took note of the attempt.
#[must_use]
pub fn decide(verdict: Verdict, delivery: &Delivery, facts: &Facts) -> Next {
    match verdict {
        Verdict::Accepted => Next::Finish(Outcome::Delivered),
        Verdict::TokenDead => Next::Finish(Outcome::TokenDead),
        Verdict::TokenInvalid => Next::Finish(Outcome::TokenInvalid),
        Verdict::TokenForeign => Next::Finish(Outcome::TokenForeign),
        Verdict::Payload => Next::Finish(Outcome::Payload),
        Verdict::TokenSuspect if facts.variant_accepted => Next::Finish(Outcome::TokenInvalid),
        Verdict::TokenSuspect => Next::Suspect,
        Verdict::Credential(CredentialFault::AccessToken) if !delivery.reauthed => Next::Reauth,
        // The evidence rule for credentials: it is the recipient's fault only if others were served since it was first
        // refused. A role that is missing for a moment, or for good, fails nobody before the deadline.
        Verdict::Credential(_) if delivery.refused.is_some_and(|first| facts.credential_worked > Some(first)) => {
            Next::Finish(Outcome::Credential)
        }
        Verdict::Credential(_) => Next::Pending(facts.now + PENDING_DELAY),
        // Behind the others: if two devices alone are throttled, they must not be the first to leave after the pause
        // they caused, and cause the next one.
        Verdict::Throttled(_) if mutant::on("throttle_prunes") => Next::Finish(Outcome::TokenDead),
        Verdict::Throttled(after) => Next::Pending(facts.now + after.unwrap_or(DEFAULT_THROTTLE_PAUSE) + PENDING_DELAY),
        Verdict::Unprocessed | Verdict::Unopened => Next::Resend(facts.now + resend_delay(delivery.resends)),
        Verdict::Unsent => failed(Failure::Transient, None, delivery, facts),
        Verdict::Failed(kind, after) => failed(kind, after, delivery, facts),
    }
}

/// The evidence rule: the second failure is final only if the provider answered somebody meaningfully since the
/// first, and nothing says that it has stopped since, so that an outage fails nobody, not those either whose first failure
/// came just before it; a probe's failure is never final. Whoever goes back to pending without being a
/// probe waits longer each time: with few recipients no breaker opens, and nobody else would hold them back.
fn failed(kind: Failure, after: Option<Duration>, delivery: &Delivery, facts: &Facts) -> Next {
    let later = |least: Duration| Next::Pending(facts.now + after.unwrap_or_default().max(least));
    if facts.probe {
        return later(PENDING_DELAY);
    }
    match delivery.first_failure {
        None => Next::Retry(facts.now + after.unwrap_or_default().max(facts.retry_delay)),
        Some((_, first)) if !facts.doubt && facts.last_meaningful.is_some_and(|t| t > first) => {
            // Any attempt that may have been delivered makes the whole delivery unconfirmed: a replay must not
            // repeat it unasked.
            let outcome = if delivery.unconfirmed { Outcome::Unconfirmed } else { kind.outcome() };
            Next::Finish(outcome)
        }
        Some(_) => later(pending_delay(delivery.failures)),
    }
}

/// 1 s after the second failure, then 2, 4, 8 and 10; so many were `before` this one.
fn pending_delay(before: u16) -> Duration {
    (PENDING_DELAY * (1 << before.saturating_sub(1).min(4))).min(LONGEST_PENDING)
}

/// 0, then 5, 10, 20 ... 1,280 ms: a peer that refuses every stream is not hammered.
fn resend_delay(resends: u16) -> Duration {
    match resends {
        0 => Duration::ZERO,
        n => Duration::from_millis(5 << (n - 1).min(8)),
    }
}

/// The outcome of a recipient whose deadline came before a verdict, and the cause kept with it. One rule for all: its own
/// last attempt says why, else what held it then; when that is a refused credential, the outcome is `credential`.
#[must_use]
pub fn at_deadline(delivery: Option<&Delivery>, held: Cause) -> (Outcome, Cause) {
    let last = delivery.and_then(|d| d.cause);
    match delivery {
        Some(d) if d.unconfirmed => (Outcome::Unconfirmed, Cause::None),
        _ => match last.unwrap_or(held) {
            Cause::Credential => (Outcome::Credential, Cause::None),
            cause => (Outcome::Expired, cause),
        },
    }
}

/// The outcome of a recipient whose fan-out was cancelled before a verdict: what was sent without an answer may have
/// arrived, and calling that cancelled would be a lie.
#[must_use]
pub fn at_cancel(delivery: Option<&Delivery>) -> (Outcome, Cause) {
    match delivery {
        Some(d) if d.unconfirmed => (Outcome::Unconfirmed, Cause::None),
        Some(d) => (Outcome::Cancelled, d.cause.unwrap_or(Cause::None)),
        None => (Outcome::Cancelled, Cause::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(now: Instant) -> Facts {
        Facts {
            now,
            last_meaningful: None,
            variant_accepted: false,
            doubt: false,
            probe: false,
            credential_worked: None,
            retry_delay: Duration::from_millis(250),
        }
    }

    const TRANSIENT: Verdict = Verdict::Failed(Failure::Transient, None);

    #[tokio::test(start_paused = true)]
    async fn a_first_failure_is_retried_once_and_never_earlier_than_asked() {
        let now = Instant::now();
        let fresh = Delivery::default();
        assert_eq!(decide(TRANSIENT, &fresh, &facts(now)), Next::Retry(now + Duration::from_millis(250)));
        let asked = Verdict::Failed(Failure::Transient, Some(Duration::from_secs(20)));
        assert_eq!(decide(asked, &fresh, &facts(now)), Next::Retry(now + Duration::from_secs(20)));
        let soon = Verdict::Failed(Failure::Transient, Some(Duration::from_millis(1)));
        assert_eq!(decide(soon, &fresh, &facts(now)), Next::Retry(now + Duration::from_millis(250)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_failure_is_final_only_with_evidence() {
        let first = Instant::now();
        let now = first + Duration::from_secs(1);
        let once = Delivery { first_failure: Some((Failure::Transient, first)), ..Delivery::default() };
        assert!(matches!(decide(TRANSIENT, &once, &facts(now)), Next::Pending(_)), "an outage fails nobody");
        let stale = Facts { last_meaningful: Some(first), ..facts(now) };
        assert!(
            matches!(decide(TRANSIENT, &once, &stale), Next::Pending(_)),
            "an answer before the first proves nothing"
        );
        let proven = Facts { last_meaningful: Some(now), ..facts(now) };
        assert_eq!(decide(TRANSIENT, &once, &proven), Next::Finish(Outcome::Transient));
        let begins = Facts { doubt: true, ..proven };
        assert!(matches!(decide(TRANSIENT, &once, &begins), Next::Pending(_)), "an outage began in between");
        let probe = Facts { probe: true, ..proven };
        assert!(matches!(decide(TRANSIENT, &once, &probe), Next::Pending(_)), "a probe is never final");
        let maybe = Delivery { unconfirmed: true, ..once };
        assert_eq!(decide(TRANSIENT, &maybe, &proven), Next::Finish(Outcome::Unconfirmed));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_few_recipients_asks_each_of_them_less_and_less() {
        let now = Instant::now();
        let failed = |failures, probe| {
            let first_failure = Some((Failure::Transient, now));
            // Those that were throttled, or not processed, count for nothing.
            let tried = Delivery { first_failure, failures, attempts: 40, ..Delivery::default() };
            match decide(TRANSIENT, &tried, &Facts { probe, ..facts(now) }) {
                Next::Pending(at) => (at - now).as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([1, 2, 3, 4, 5, 6, u16::MAX].map(|n| failed(n, false)), [1, 2, 4, 8, 10, 10, 10]);
        assert_eq!([0, 1, 40].map(|n| failed(n, true)), [1, 1, 1], "a probe is held by the breaker already");
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttle_is_neither_failure_nor_retry() {
        let now = Instant::now();
        let d = Delivery::default();
        let after = |seconds| Next::Pending(now + Duration::from_secs(seconds) + PENDING_DELAY);
        assert_eq!(decide(Verdict::Throttled(None), &d, &facts(now)), after(60));
        let asked = Verdict::Throttled(Some(Duration::from_secs(3)));
        assert_eq!(decide(asked, &d, &facts(now)), after(3), "behind those the pause held");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_token_is_judged_only_by_its_variant() {
        let now = Instant::now();
        let d = Delivery::default();
        assert_eq!(decide(Verdict::TokenSuspect, &d, &facts(now)), Next::Suspect);
        let accepted = Facts { variant_accepted: true, ..facts(now) };
        assert_eq!(decide(Verdict::TokenSuspect, &d, &accepted), Next::Finish(Outcome::TokenInvalid));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_access_token_is_refreshed_once_then_judged_by_its_neighbours() {
        let now = Instant::now();
        let refused = Verdict::Credential(CredentialFault::AccessToken);
        assert_eq!(decide(refused, &Delivery::default(), &facts(now)), Next::Reauth);
        let again = Delivery { reauthed: true, refused: Some(now), ..Delivery::default() };
        assert!(matches!(decide(refused, &again, &facts(now)), Next::Pending(_)));
        let before = Facts { credential_worked: Some(now), ..facts(now) };
        assert!(matches!(decide(refused, &again, &before), Next::Pending(_)), "it may have broken since");
        let since = Facts { credential_worked: Some(now + Duration::from_millis(1)), ..facts(now) };
        assert_eq!(decide(refused, &again, &since), Next::Finish(Outcome::Credential));
        let role = Verdict::Credential(CredentialFault::Project);
        assert!(
            matches!(decide(role, &Delivery::default(), &since), Next::Pending(_)),
            "a first refusal is never final"
        );
    }

    #[test]
    fn the_deadline_keeps_the_cause() {
        assert_eq!(at_deadline(None, Cause::Queue), (Outcome::Expired, Cause::Queue));
        assert_eq!(at_deadline(None, Cause::Credential), (Outcome::Credential, Cause::None));
        let failed = Delivery { cause: Some(Cause::Transient), ..Delivery::default() };
        assert_eq!(at_deadline(Some(&failed), Cause::Breaker), (Outcome::Expired, Cause::Transient));
        let sent = Delivery { unconfirmed: true, cause: Some(Cause::Transient), ..Delivery::default() };
        assert_eq!(at_deadline(Some(&sent), Cause::Queue), (Outcome::Unconfirmed, Cause::None));
    }

    #[test]
    fn whom_a_refused_credential_held_ends_as_that_with_an_attempt_or_without() {
        let credential = (Outcome::Credential, Cause::None);
        let had = |cause| Delivery { cause, ..Delivery::default() };
        assert_eq!(at_deadline(None, Cause::Credential), credential);
        for cause in [None, Some(Cause::Credential)] {
            assert_eq!(at_deadline(Some(&had(cause)), Cause::Credential), credential, "{cause:?}");
        }
        let other = (Outcome::Expired, Cause::Transient);
        assert_eq!(at_deadline(Some(&had(Some(Cause::Transient))), Cause::Credential), other, "its own last word");
        assert_eq!(at_deadline(Some(&had(Some(Cause::Credential))), Cause::Queue), credential, "its own last word");
        let sent = Delivery { unconfirmed: true, ..had(Some(Cause::Credential)) };
        assert_eq!(at_deadline(Some(&sent), Cause::Credential), (Outcome::Unconfirmed, Cause::None));
    }

    #[test]
    fn resends_back_off() {
        assert_eq!(resend_delay(0), Duration::ZERO);
        assert_eq!(resend_delay(1), Duration::from_millis(5));
        assert_eq!(resend_delay(400), Duration::from_millis(1280));
    }
}
