//! Owns what a built-in answer is: its name, what it puts on the wire, and whether the provider took the message.
//! Must never know: how an answer is chosen, and what the product makes of it.

use h2::Reason;

use super::table::{ALIASES, ANSWERS};

/// One entry of an error's `details`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Detail {
    /// FcmError with its `errorCode`.
    Fcm(&'static str),
    /// ApnsError with `statusCode` and `reason`.
    Apns(u16, &'static str),
    /// BadRequest with one violation of this field.
    Field(&'static str),
    /// ErrorInfo with its `reason`.
    Info(&'static str),
    /// QuotaFailure with one violation: its subject.
    Quota(&'static str),
    /// An entry of any type with an `errorCode`.
    Typed(&'static str, &'static str),
}

/// How a connection ends in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// TCP FIN.
    Fin,
    /// TCP RST.
    Rst,
}

/// What goes over the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire {
    /// 200 with a message name.
    Accept,
    /// The same, so many bytes a second as the number says, or one.
    Drip,
    /// The same, when all that is held is released.
    Held,
    /// Google's error envelope: HTTP status, canonical status, text, details.
    Error(u16, &'static str, &'static str, &'static [Detail]),
    /// A status with a body that is not the envelope: content type, bytes.
    Raw(u16, &'static str, &'static [u8]),
    /// A status with bytes repeated that often: content type, bytes, times.
    Repeat(u16, &'static str, &'static [u8], usize),
    /// RST_STREAM; on HTTP/1.1 the connection closes without an answer.
    Reset(Reason),
    /// RST_STREAM with the number as its code, or CANCEL.
    ResetBy,
    /// The connection ends.
    Sever(Cut),
    /// Nothing, until the client gives up.
    Hang,
    /// 200 and its header, then nothing.
    Stall,
    /// 200, its header, half a body, then RST_STREAM INTERNAL_ERROR.
    Cut,
    /// 200 and a body without end, as fast as it is taken.
    Endless,
}

/// What the number in `name-N-` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// Not a number: part of the token.
    Nothing,
    /// `Retry-After: N`.
    RetryAfter,
    /// `Retry-After` as the HTTP-date N seconds from now.
    RetryDate,
    /// Milliseconds of latency on top of the usual.
    DelayMs,
    /// Code of RST_STREAM.
    Code,
    /// Bytes per second.
    Speed,
}

/// A built-in answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) wire: Wire,
    pub(super) number: Number,
    pub(super) headers: &'static [(&'static str, &'static str)],
    /// The provider took the message, whatever the answer looks like.
    pub(super) taken: bool,
}

/// Row of [`ANSWERS`]: one byte, because the log keeps one per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerId(u8);

impl AnswerId {
    /// The default.
    pub(super) const OK: Self = Self(0);
    /// No bearer token.
    pub(super) const NO_CREDENTIALS: Self = Self(1);
    /// A bearer token that was not issued here, or is no longer good.
    pub(super) const UNAUTHENTICATED: Self = Self(2);
    /// Another project.
    pub(super) const WRONG_PROJECT: Self = Self(3);
    /// A body the schema or the limits refuse.
    pub(super) const BAD_REQUEST: Self = Self(4);
    /// Over the emulator's own quota.
    pub(super) const OVER_QUOTA: Self = Self(5);
    /// Over the emulator's own quota for one device.
    pub(super) const OVER_DEVICE_QUOTA: Self = Self(6);

    /// The answer of this name or alias.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, real)| real);
        let row = ANSWERS.iter().position(|a| a.name == name)?;
        u8::try_from(row).ok().map(Self)
    }

    /// Its row.
    pub(super) fn answer(self) -> &'static Answer {
        &ANSWERS[self.row()]
    }

    /// Its place in [`ANSWERS`].
    pub(super) fn row(self) -> usize {
        usize::from(self.0)
    }
}

impl Answer {
    /// HTTP status; 0 when there is none.
    pub(super) fn status(&self) -> u16 {
        match self.wire {
            Wire::Accept | Wire::Drip | Wire::Held | Wire::Stall | Wire::Cut | Wire::Endless => 200,
            Wire::Error(status, ..) | Wire::Raw(status, ..) | Wire::Repeat(status, ..) => status,
            Wire::Reset(_) | Wire::ResetBy | Wire::Sever(_) | Wire::Hang => 0,
        }
    }

    /// REFUSED_STREAM says that the request was not processed, so the provider does not count it either; unless it
    /// lies.
    pub(super) fn refused(&self, number: Option<u32>) -> bool {
        !self.taken && self.reset(number) == Some(Reason::REFUSED_STREAM)
    }

    /// What the stream is reset with instead of an answer.
    pub(super) fn reset(&self, number: Option<u32>) -> Option<Reason> {
        match self.wire {
            Wire::Reset(reason) => Some(reason),
            Wire::ResetBy => Some(number.map_or(Reason::CANCEL, Reason::from)),
            _ => None,
        }
    }

    pub(super) const fn number(mut self, number: Number) -> Self {
        self.number = number;
        self
    }

    pub(super) const fn headers(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        self.headers = headers;
        self
    }

    pub(super) const fn taken(mut self) -> Self {
        self.taken = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_the_rows_they_say() {
        let by_hand = [
            (AnswerId::OK, "ok"),
            (AnswerId::NO_CREDENTIALS, "no-credentials"),
            (AnswerId::UNAUTHENTICATED, "unauthenticated"),
            (AnswerId::WRONG_PROJECT, "wrong-project"),
            (AnswerId::BAD_REQUEST, "bad-request"),
            (AnswerId::OVER_QUOTA, "over-quota"),
            (AnswerId::OVER_DEVICE_QUOTA, "over-device-quota"),
        ];
        for (id, name) in by_hand {
            assert_eq!(id.answer().name, name);
        }
    }

    #[test]
    fn every_name_finds_its_own_row_and_one_byte_is_enough() {
        for (at, answer) in ANSWERS.iter().enumerate() {
            assert_eq!(AnswerId::named(answer.name).map(AnswerId::row), Some(at), "{}", answer.name);
        }
        for (alias, name) in ALIASES {
            assert_eq!(AnswerId::named(alias), AnswerId::named(name));
        }
        assert_eq!(AnswerId::named("no such answer"), None);
    }

    #[test]
    fn the_manual_has_every_answer() {
        let manual = std::fs::read_to_string("docs/EMULATOR.md").unwrap();
        for answer in ANSWERS {
            let line = format!("| `{}-` | {} |", answer.name, answer.about);
            assert!(manual.contains(&line), "missing in docs/EMULATOR.md:\n{line}");
        }
    }
}
