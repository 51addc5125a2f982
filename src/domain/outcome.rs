//! Owns how a delivery ends: the closed set of outcomes, the causes kept beside `expired`,
//! and what the answer to one attempt can mean.
//! Must never know: HTTP, bodies, or who decides when a retry is due.

use std::time::Duration;

/// A code read from the store that this build does not know. Never replaced by a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} code {code}")]
pub struct UnknownCode {
    /// The set the code should belong to.
    pub what: &'static str,
    /// The code that was read.
    pub code: i16,
}

macro_rules! coded_enum {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every member, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name used in logs, metrics and the API.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The number kept in the store; never reused for another meaning.
            #[must_use]
            pub const fn code(self) -> i16 {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Reads a stored number.
            ///
            /// # Errors
            /// [`UnknownCode`](crate::domain::outcome::UnknownCode) when no member has it: a newer build wrote it, or the row is damaged.
            pub const fn from_code(code: i16) -> Result<Self, $crate::domain::outcome::UnknownCode> {
                match code {
                    $($code => Ok(Self::$variant),)+
                    _ => Err($crate::domain::outcome::UnknownCode { what: $what, code }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use coded_enum;

coded_enum!(
    /// How one delivery ended. Exactly one per recipient.
    Outcome ("outcome") {
        /// FCM accepted the message: 200 with a `name`.
        Delivered = 1 "delivered",
        /// The device token is dead by FCM's own detail.
        TokenDead = 2 "token_dead",
        /// The device token is not one FCM can parse.
        TokenInvalid = 3 "token_invalid",
        /// The device token belongs to another sender.
        TokenForeign = 4 "token_foreign",
        /// FCM refused the message itself.
        Payload = 5 "payload",
        /// Our credentials, project or a platform's key were refused.
        Credential = 6 "credential",
        /// The provider failed twice: 5xx, connect or TLS failure, reset before processing.
        Transient = 7 "transient",
        /// Sent twice without an answer; may have been delivered.
        Unconfirmed = 8 "unconfirmed",
        /// An answer that means nothing, twice.
        Protocol = 9 "protocol",
        /// The deadline was reached first.
        Expired = 10 "expired",
        /// Superseded, or cancelled by an operator.
        Cancelled = 11 "cancelled",
        /// The device was deleted, tombstoned or suspended between freeze and send.
        Gone = 12 "gone",
        /// Our own fault on this recipient.
        Internal = 13 "internal",
    }
);

impl Outcome {
    /// Whether a replay is meant to reach this recipient again.
    #[must_use]
    pub const fn retryable(self) -> bool {
        matches!(
            self,
            Self::Credential | Self::Transient | Self::Unconfirmed | Self::Protocol | Self::Expired | Self::Internal
        )
    }

    /// Whether this outcome is a verdict against the device, carried out when the fan-out settles.
    #[must_use]
    pub const fn against_device(self) -> bool {
        matches!(self, Self::TokenDead | Self::TokenInvalid | Self::TokenForeign)
    }
}

coded_enum!(
    /// What kept a recipient from being reached before its deadline.
    Cause ("cause") {
        /// No cause beside the outcome itself.
        None = 0 "none",
        /// It waited for its turn.
        Queue = 1 "queue",
        /// Its fan-out was held on purpose.
        Hold = 2 "hold",
        /// The provider throttled us.
        Throttle = 3 "throttle",
        /// The breaker was open.
        Breaker = 4 "breaker",
        /// No usable credentials.
        Credential = 5 "credential",
        /// Its last attempt was `transient`.
        Transient = 6 "transient",
        /// Its last attempt was `unconfirmed`.
        Unconfirmed = 7 "unconfirmed",
        /// Its last attempt was `protocol`.
        Protocol = 8 "protocol",
    }
);

/// The three ways an attempt can fail without a verdict on device or payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// 5xx, connect or TLS failure, reset before processing.
    Transient,
    /// Sent, no answer; may have been delivered.
    Unconfirmed,
    /// An answer that means nothing.
    Protocol,
}

impl Failure {
    /// The outcome a second failure of this kind ends in.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Transient => Outcome::Transient,
            Self::Unconfirmed => Outcome::Unconfirmed,
            Self::Protocol => Outcome::Protocol,
        }
    }

    /// The cause kept when the deadline comes after this failure.
    #[must_use]
    pub const fn cause(self) -> Cause {
        match self {
            Self::Transient => Cause::Transient,
            Self::Unconfirmed => Cause::Unconfirmed,
            Self::Protocol => Cause::Protocol,
        }
    }
}

/// Which credential was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialFault {
    /// 401 on our access token: one shared refresh, then resend.
    AccessToken,
    /// 403 without FCM detail, or a JSON 404 without it: role, API or project id.
    Project,
    /// `THIRD_PARTY_AUTH_ERROR`: the APNs or web push key of this platform only.
    Platform,
}

/// What the answer to one attempt means. A closed set: a new member must be handled everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 200 with a string `name`.
    Accepted,
    /// `UNREGISTERED`, or `ApnsError` 410.
    TokenDead,
    /// 400 whose only field is the device token.
    TokenInvalid,
    /// 400 `INVALID_ARGUMENT` from FCM without any field: about the device only once the same
    /// variant was accepted for another device.
    TokenSuspect,
    /// `SENDER_ID_MISMATCH`.
    TokenForeign,
    /// Any other 400.
    Payload,
    /// A refused credential.
    Credential(CredentialFault),
    /// 429, or a quota reason under any status. `None`: the provider named no time.
    Throttled(Option<Duration>),
    /// A failure that may be retried once, not before the given time.
    Failed(Failure, Option<Duration>),
    /// The provider provably did not process it (`REFUSED_STREAM`, GOAWAY above the last stream).
    Unprocessed,
    /// The request provably never left: connect or TLS failure. Counts as [`Failure::Transient`].
    Unsent,
    /// It never left because the provider allowed no further stream. Says nothing of anybody; resent.
    Unopened,
}

impl Verdict {
    /// Whether the provider said something meaningful: the evidence that makes a failure final.
    #[must_use]
    pub const fn meaningful(self) -> bool {
        matches!(
            self,
            Self::Accepted
                | Self::TokenDead
                | Self::TokenInvalid
                | Self::TokenSuspect
                | Self::TokenForeign
                | Self::Payload
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_ones_are_errors() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::from_code(outcome.code()), Ok(*outcome));
        }
        for cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Ok(*cause));
        }
        assert_eq!(Outcome::from_code(0), Err(UnknownCode { what: "outcome", code: 0 }));
        assert_eq!(Outcome::from_code(14), Err(UnknownCode { what: "outcome", code: 14 }));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Outcome::ALL.iter().map(|o| o.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 13);
    }
}
