//! Owns the built-in answers: their names, and what each puts on the wire.
//! Must never know: how an answer is chosen, and what the product makes of it.
//!
//! Bodies follow what has been seen of FCM HTTP v1. Several rows differ only in the order or the presence of one
//! detail: that is the point of them.

use h2::Reason;

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
}

/// What goes over the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire {
    /// 200 with a message name: the only answer that counts as accepted.
    Accept,
    /// Google's error envelope: HTTP status, canonical status, text, details.
    Error(u16, &'static str, &'static str, &'static [Detail]),
    /// A status with a body that is not the envelope: content type, text.
    Raw(u16, &'static str, &'static str),
    /// A status with a text repeated that often: content type, text, times.
    Repeat(u16, &'static str, &'static str, usize),
    /// RST_STREAM; on HTTP/1.1 the connection closes without an answer.
    Reset(Reason),
    /// Nothing, until the client gives up.
    Hang,
    /// 200 and its header, then nothing.
    Stall,
    /// 200, its header, half a body, then RST_STREAM INTERNAL_ERROR.
    Cut,
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
}

/// A built-in answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) wire: Wire,
    pub(super) number: Number,
    pub(super) headers: &'static [(&'static str, &'static str)],
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
            Wire::Accept | Wire::Stall | Wire::Cut => 200,
            Wire::Error(status, ..) | Wire::Raw(status, ..) | Wire::Repeat(status, ..) => status,
            Wire::Reset(_) | Wire::Hang => 0,
        }
    }

    /// REFUSED_STREAM says that the request was not processed, so the provider does not count it either.
    pub(super) fn refused(&self) -> bool {
        matches!(self.wire, Wire::Reset(Reason::REFUSED_STREAM))
    }

    const fn number(mut self, number: Number) -> Self {
        self.number = number;
        self
    }

    const fn headers(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        self.headers = headers;
        self
    }
}

const fn row(name: &'static str, about: &'static str, wire: Wire) -> Answer {
    Answer { name, about, wire, number: Number::Nothing, headers: &[] }
}

/// Short names by status.
pub(super) const ALIASES: &[(&str, &str)] = &[("429", "quota"), ("500", "internal"), ("503", "unavailable")];

use Detail::{Apns, Fcm, Field, Info};
use Wire::{Accept, Cut, Error, Hang, Raw, Repeat, Reset, Stall};

const HTML: &str = "text/html; charset=UTF-8";
const JSON: &str = "application/json; charset=UTF-8";
const PAGE: &str = "<!DOCTYPE html>\n<html lang=en><title>Error</title><p><b>That\u{2019}s an error.</b></p></html>\n";
const BAD: &str = "INVALID_ARGUMENT";
const GONE: &str = "NOT_FOUND";
const DENIED: &str = "PERMISSION_DENIED";
const ANON: &str = "UNAUTHENTICATED";
const BUSY: &str = "RESOURCE_EXHAUSTED";
const DOWN: &str = "UNAVAILABLE";
const ASK: &str = "Request contains an invalid argument.";
const TOKEN: &str = "The registration token is not a valid FCM registration token";
const ENTITY: &str = "Requested entity was not found.";
const LOGIN: &str = "Request had invalid authentication credentials. Expected OAuth 2 access token.";
const SPENT: &str = "Quota exceeded for quota metric 'Sends' of service 'fcm.googleapis.com'.";
const AWAY: &str = "The service is currently unavailable.";

/// Every built-in answer. The first six are also what the emulator gives by itself.
#[rustfmt::skip]
pub(super) const ANSWERS: &[Answer] = &[
    row("ok", "200 with a message name", Accept),
    row("no-credentials", "401 ErrorInfo CREDENTIALS_MISSING", Error(401, ANON, LOGIN, &[Info("CREDENTIALS_MISSING")])),
    row("unauthenticated", "401 ErrorInfo ACCESS_TOKEN_EXPIRED, by the emulator's own check", Error(401, ANON, LOGIN, &[Info("ACCESS_TOKEN_EXPIRED")])),
    row("wrong-project", "404 without details, by the emulator's own check", Error(404, GONE, ENTITY, &[])),
    row("bad-request", "400 for a body that the schema or the limits refuse", Error(400, BAD, ASK, &[Field("message")])),
    row("over-quota", "429 FcmError QUOTA_EXCEEDED by the emulator's own quota", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("slow", "`slow-N-`: 200 after N ms", Accept).number(Number::DelayMs),
    row("dead", "404 FcmError UNREGISTERED", Error(404, GONE, ENTITY, &[Fcm("UNREGISTERED")])),
    row("dead404apns", "404 ApnsError 410 before FcmError UNREGISTERED", Error(404, GONE, ENTITY, &[Apns(410, "Unregistered"), Fcm("UNREGISTERED")])),
    row("apnsgone", "400 FcmError INVALID_ARGUMENT with ApnsError 410", Error(400, BAD, "APNs device token is disabled.", &[Fcm(BAD), Apns(410, "Unregistered")])),
    row("invalid", "400 FcmError INVALID_ARGUMENT, the token named in the text only", Error(400, BAD, TOKEN, &[Fcm(BAD)])),
    row("invalid-field", "400 FcmError, then BadRequest message.token", Error(400, BAD, TOKEN, &[Fcm(BAD), Field("message.token")])),
    row("invalid-field-first", "400 BadRequest message.token, then FcmError", Error(400, BAD, TOKEN, &[Field("message.token"), Fcm(BAD)])),
    row("suspect", "400 FcmError INVALID_ARGUMENT that names nothing", Error(400, BAD, ASK, &[Fcm(BAD)])),
    row("foreign", "403 FcmError SENDER_ID_MISMATCH", Error(403, DENIED, "SenderId mismatch", &[Fcm("SENDER_ID_MISMATCH")])),
    row("payload", "400 FcmError INVALID_ARGUMENT with BadRequest message.android.ttl", Error(400, BAD, ASK, &[Fcm(BAD), Field("message.android.ttl")])),
    row("badjson", "400 BadRequest on a value of `data`, no FcmError", Error(400, BAD, "Invalid value at 'message.data[0].value' (TYPE_STRING), 12", &[Field("message.data[0].value")])),
    row("nodetails400", "400 without details", Error(400, BAD, ASK, &[])),
    row("iam", "403 without FcmError: the role is missing", Error(403, DENIED, "Permission 'cloudmessaging.messages.create' denied on resource '//cloudresourcemanager.googleapis.com/projects/p' (or it may not exist).", &[])),
    row("apidisabled", "403 without FcmError: the API is off", Error(403, DENIED, "Firebase Cloud Messaging API has not been used in project 1 before or it is disabled.", &[])),
    row("noproject", "404 without details", Error(404, GONE, ENTITY, &[])),
    row("thirdparty", "401 FcmError THIRD_PARTY_AUTH_ERROR with ApnsError 403", Error(401, ANON, "Request is missing required authentication credential. Expected OAuth 2 access token.", &[Fcm("THIRD_PARTY_AUTH_ERROR"), Apns(403, "InvalidProviderToken")])),
    row("expired401", "401 ErrorInfo ACCESS_TOKEN_EXPIRED", Error(401, ANON, LOGIN, &[Info("ACCESS_TOKEN_EXPIRED")])),
    row("bare401", "401 without details", Error(401, ANON, LOGIN, &[])),
    row("quota", "429 FcmError QUOTA_EXCEEDED; `quota-N-`: Retry-After N seconds", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("quotadate", "`quotadate-N-`: the same, Retry-After as the HTTP-date in N seconds", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryDate),
    row("quotahuge", "429, Retry-After 99999999999999999999", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "99999999999999999999")]),
    row("quotanegative", "429, Retry-After -5", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "-5")]),
    row("quotafraction", "429, Retry-After 1.5", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "1.5")]),
    row("quotagarbage", "429, Retry-After `soon`", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "soon")]),
    row("quotahtml", "429 with an HTML page", Raw(429, HTML, PAGE)).number(Number::RetryAfter),
    row("quota503", "503 whose FcmError is QUOTA_EXCEEDED", Error(503, DOWN, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("ratelimit403", "403 ErrorInfo RATE_LIMIT_EXCEEDED", Error(403, DENIED, SPENT, &[Info("RATE_LIMIT_EXCEEDED")])).number(Number::RetryAfter),
    row("unavailable", "503 FcmError UNAVAILABLE; `unavailable-N-`: Retry-After N seconds", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).number(Number::RetryAfter),
    row("internal", "500 FcmError INTERNAL", Error(500, "INTERNAL", "Internal error encountered.", &[Fcm("INTERNAL")])),
    row("unspecified", "500 FcmError UNSPECIFIED_ERROR", Error(500, "UNKNOWN", "Unknown Error.", &[Fcm("UNSPECIFIED_ERROR")])),
    row("unknowncode", "400 FcmError with an errorCode nobody knows", Error(400, BAD, ASK, &[Fcm("FLUX_CAPACITOR_EMPTY")])),
    row("barestring", "400 whose `error` is a string", Raw(400, JSON, "{\"error\":\"InvalidRegistration\"}")),
    row("html200", "200 with an HTML page", Raw(200, HTML, PAGE)),
    row("html401", "401 with an HTML page", Raw(401, HTML, PAGE)),
    row("html403", "403 with an HTML page", Raw(403, HTML, PAGE)),
    row("html404", "404 with an HTML page", Raw(404, HTML, PAGE)),
    row("html502", "502 with an HTML page", Raw(502, HTML, PAGE)),
    row("html503", "503 with an HTML page", Raw(503, HTML, PAGE)),
    row("html504", "504 with an HTML page", Raw(504, HTML, PAGE)),
    row("huge502", "502 with 1.2 MB of HTML", Repeat(502, HTML, "<p>sorry</p>", 100_000)),
    row("deep200", "200 with JSON 10,000 arrays deep", Repeat(200, JSON, "[", 10_000)),
    row("empty200", "200 with an empty body", Raw(200, JSON, "")),
    row("empty401", "401 with an empty body", Raw(401, JSON, "")),
    row("empty404", "404 with an empty body", Raw(404, JSON, "")),
    row("empty500", "500 with an empty body", Raw(500, JSON, "")),
    row("empty503", "503 with an empty body", Raw(503, JSON, "")),
    row("noname200", "200 with `{}`", Raw(200, JSON, "{}")),
    row("nonstring200", "200 whose `name` is a number", Raw(200, JSON, "{\"name\":7}")),
    row("truncated", "200 with JSON cut in the middle", Raw(200, JSON, "{\"name\":\"projects/p/mess")),
    row("truncated404", "404 with an UNREGISTERED body cut in the middle", Raw(404, JSON, "{\"error\":{\"code\":404,\"status\":\"NOT_FOUND\",\"details\":[{\"errorCode\":\"UNREGISTERED\"")),
    row("redirect302", "302 to another path", Raw(302, HTML, PAGE)).headers(&[("location", "/v1/elsewhere")]),
    row("method405", "405 with an HTML page", Raw(405, HTML, PAGE)),
    row("oversize413", "413 with an HTML page", Raw(413, HTML, PAGE)),
    row("refused", "RST_STREAM REFUSED_STREAM: not processed", Reset(Reason::REFUSED_STREAM)),
    row("reset", "RST_STREAM INTERNAL_ERROR after the request was logged", Reset(Reason::INTERNAL_ERROR)),
    row("cancelled", "RST_STREAM CANCEL after the request was logged", Reset(Reason::CANCEL)),
    row("hang", "no answer, ever", Hang),
    row("stall", "200 and a header, then no body", Stall),
    row("cut", "200, half a body, then RST_STREAM INTERNAL_ERROR", Cut),
];

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
    fn the_table_in_the_module_doc_has_every_answer() {
        let doc = include_str!("mod.rs");
        for answer in ANSWERS {
            let line = format!("//! | `{}-` | {} |", answer.name, answer.about);
            assert!(doc.contains(&line), "missing in the module doc:\n{line}");
        }
    }
}
