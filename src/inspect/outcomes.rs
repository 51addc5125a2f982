//! Owns the words for how a recipient ended: what it means, and what to do about it.
//! Must never know: whom it is about.

use crate::domain::outcome::{Cause, Outcome};

/// What an outcome means, in a sentence.
pub(super) const fn meaning(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => {
            "FCM accepted the message. Whether the phone showed it is not known here: notifications may be off, or the \
             phone was not reached in time."
        }
        Outcome::TokenDead => "FCM says that the app is gone from the device (UNREGISTERED).",
        Outcome::TokenInvalid => "FCM cannot read the device token.",
        Outcome::TokenForeign => "The device token belongs to another Firebase project.",
        Outcome::Payload => "FCM refused the message itself, not the device.",
        Outcome::Credential => "FCM refused our credential, or that of the device's platform (APNs, web push).",
        Outcome::Transient => "FCM failed twice (5xx or no connection), while it served others in between.",
        Outcome::Unconfirmed => "It was sent, and no answer came: it may have arrived.",
        Outcome::Protocol => "What answered twice did not answer as FCM does.",
        Outcome::Expired => "Its usefulness ended before it could be delivered.",
        Outcome::Cancelled => "The fan-out was cancelled before it was delivered.",
        Outcome::Gone => "The device was gone when its turn came: no request was made.",
        Outcome::Internal => "A fault of the service on this recipient; the others went on.",
    }
}

/// What to do about it, when there is anything to do.
pub(super) const fn advice(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Delivered | Outcome::Gone | Outcome::Cancelled | Outcome::Expired => None,
        Outcome::TokenDead | Outcome::TokenInvalid => Some("nothing here: it comes back when the app registers again"),
        Outcome::TokenForeign => {
            Some("look at which project the app is built for; it comes back when it registers again")
        }
        Outcome::Payload => Some("mend the text of this variant, or the event's `data`; the provider's text says what"),
        Outcome::Credential => {
            Some("mend the key: `/readyz?verbose` of the service says what was refused; then replay")
        }
        Outcome::Transient => Some("look at FCM's status page if there are many"),
        Outcome::Unconfirmed => Some("do not post the event again for this device: it may have it"),
        Outcome::Protocol => Some("look for a proxy between the service and FCM"),
        Outcome::Internal => Some("look for an ERROR of this fan-out in the service's log"),
    }
}

/// What kept it, in a sentence, and where to look.
pub(super) const fn held_by(cause: Cause) -> Option<(&'static str, &'static str)> {
    match cause {
        Cause::None => None,
        Cause::Queue => Some(("Its turn had not come.", "compare recipients with the ceiling's rate and slots")),
        Cause::Hold => {
            Some(("Launches were held: the service drained, or had lost its lease.", "look at its restarts"))
        }
        Cause::Throttle => Some(("FCM throttled us.", "lower ceiling.rate_per_s, or ask Google for more quota")),
        Cause::Breaker => Some(("FCM was failing, and launches were held.", "look at FCM's status page")),
        Cause::Credential => Some(("Our credential was refused.", "`/readyz?verbose` of the service says what")),
        Cause::Transient => Some(("Its last attempt met a failure of FCM.", "look at FCM's status page")),
        Cause::Unconfirmed => Some(("Its last attempt had no answer.", "look at FCM's status page")),
        Cause::Protocol => Some(("Its last attempt was not answered as FCM does.", "look for a proxy before FCM")),
    }
}
