//! Owns what one attempt came to.
//! Must never know: who is told, or what follows from it.

use std::time::{Duration, SystemTime};

use super::broken::Broken;
use super::classify::{Classified, classify, classify_cut};
use super::connections::ConnectionId;
use super::http::{Answer, Ending, Wire};
use crate::domain::outcome::{Failure, Verdict};
use crate::domain::retry::parse_retry_after;

/// One attempt, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// What it means.
    pub verdict: Verdict,
    /// HTTP status; 0 = no answer.
    pub status: u16,
    /// For people, sanitised, at most 256 bytes.
    pub text: String,
    /// The connection it used, so that a retry can take another.
    pub connection: ConnectionId,
    /// From launch to the end of the answer.
    pub took: Duration,
    /// The device may have been reached: everything the provider did not provably refuse or never see.
    pub maybe: bool,
}

impl Attempted {
    /// Judges what came of a request. `now` is the wall clock, used where the peer names no time of its own.
    #[must_use]
    pub fn judge(wire: &Wire, connection: ConnectionId, took: Duration, now: SystemTime) -> Self {
        let (status, Classified { verdict, text }) = match wire {
            Wire::Broken(broken) => (0, Classified { verdict: of_broken(*broken), text: broken.as_str().to_owned() }),
            Wire::Answer(answer) => (answer.status, of_answer(answer, now)),
        };
        let maybe = maybe_reached(verdict, status, wire);
        Self { verdict, status, text, connection, took, maybe }
    }
}

const fn of_broken(broken: Broken) -> Verdict {
    match broken {
        Broken::Unprocessed => Verdict::Unprocessed,
        Broken::NoStream => Verdict::Unopened,
        // None of these reached the provider's application, so its count must not be expected to hold them.
        Broken::Connect | Broken::Tls | Broken::NotHttp2 | Broken::ResetBeforeProcessing => Verdict::Unsent,
        Broken::ResetAfterSending | Broken::Timeout => Verdict::Failed(Failure::Unconfirmed, None),
        Broken::Protocol => Verdict::Failed(Failure::Protocol, None),
    }
}

fn of_answer(answer: &Answer, now: SystemTime) -> Classified {
    // A date in Retry-After is the peer's; its own clock reads it right even when ours is wrong.
    let now = answer.date.as_deref().and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    let retry_after = answer.retry_after.as_deref();
    let status = answer.status;
    let ended = match answer.ending {
        Ending::Whole => return classify(status, retry_after, &answer.body, now),
        Ending::TooLong => "body too long",
        Ending::Cut => "body cut off",
        Ending::TimedOut => "body without end",
    };
    let verdict = match classify_cut(status, retry_after.and_then(|raw| parse_retry_after(raw, now))) {
        Verdict::Failed(Failure::Protocol, wait) if answer.ending == Ending::TimedOut => {
            Verdict::Failed(Failure::Unconfirmed, wait)
        }
        verdict => verdict,
    };
    Classified { verdict, text: format!("{status} {ended}, {} bytes read", answer.body.len()) }
}

/// 503 has been answered for messages that were delivered (firebase-admin-node issue 1248), so a 5xx is a maybe.
const fn maybe_reached(verdict: Verdict, status: u16, wire: &Wire) -> bool {
    match verdict {
        Verdict::Accepted => true,
        Verdict::Failed(..) => matches!(wire, Wire::Broken(_)) || matches!(status, 200..=299 | 500..=599),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(wire: &Wire) -> Attempted {
        Attempted::judge(wire, ConnectionId(1), Duration::ZERO, SystemTime::UNIX_EPOCH)
    }

    fn answer(status: u16, ending: Ending) -> Wire {
        Wire::Answer(Answer { status, retry_after: None, date: None, body: br#"{"name":"x"}"#.to_vec(), ending })
    }

    #[test]
    fn what_is_provably_unsent_is_no_maybe_and_everything_else_is() {
        use Broken::{
            Connect, NoStream, NotHttp2, Protocol, ResetAfterSending, ResetBeforeProcessing, Timeout, Tls, Unprocessed,
        };
        let unconfirmed = Verdict::Failed(Failure::Unconfirmed, None);
        for (broken, verdict, maybe) in [
            (Connect, Verdict::Unsent, false),
            (Tls, Verdict::Unsent, false),
            (NotHttp2, Verdict::Unsent, false),
            (NoStream, Verdict::Unopened, false),
            (ResetBeforeProcessing, Verdict::Unsent, false),
            (Unprocessed, Verdict::Unprocessed, false),
            (ResetAfterSending, unconfirmed, true),
            (Timeout, unconfirmed, true),
            (Protocol, Verdict::Failed(Failure::Protocol, None), true),
        ] {
            let judged = judge(&Wire::Broken(broken));
            assert_eq!((judged.verdict, judged.maybe, judged.status), (verdict, maybe, 0), "{broken:?}");
        }
        for (status, maybe) in [(200, true), (500, true), (503, true), (404, false), (429, false), (401, false)] {
            assert_eq!(judge(&answer(status, Ending::Whole)).maybe, maybe, "{status}");
        }
    }

    #[test]
    fn a_body_that_does_not_end_well_proves_nothing_but_its_status() {
        for ending in [Ending::TooLong, Ending::Cut, Ending::TimedOut] {
            let failure = if ending == Ending::TimedOut { Failure::Unconfirmed } else { Failure::Protocol };
            assert_eq!(judge(&answer(200, ending)).verdict, Verdict::Failed(failure, None), "{ending:?}");
            assert_eq!(judge(&answer(404, ending)).verdict, Verdict::Failed(failure, None), "{ending:?}");
            assert_eq!(judge(&answer(429, ending)).verdict, Verdict::Throttled(None), "{ending:?}");
            assert_eq!(judge(&answer(503, ending)).verdict, Verdict::Failed(Failure::Transient, None), "{ending:?}");
            assert!(judge(&answer(200, ending)).maybe, "{ending:?}");
        }
    }

    #[test]
    fn a_date_in_retry_after_is_read_by_the_peers_clock() {
        let theirs = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let wire = Wire::Answer(Answer {
            status: 429,
            retry_after: Some(httpdate::fmt_http_date(theirs + Duration::from_secs(20))),
            date: Some(httpdate::fmt_http_date(theirs)),
            body: Vec::new(),
            ending: Ending::Whole,
        });
        let ours = theirs + Duration::from_secs(600);
        let judged = Attempted::judge(&wire, ConnectionId(1), Duration::ZERO, ours);
        assert_eq!(judged.verdict, Verdict::Throttled(Some(Duration::from_secs(20))));
    }
}
