//! Owns what the token endpoint and the metadata server can be told to answer instead of doing their work.
//! Must never know: who asks.
//!
//! Refusals are worded as Google words them, because people search for those words.

use super::answer::AnswerId;

/// What goes over the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenWire {
    /// `error` and, unless empty, `error_description`, with this status.
    Refuse(u16, &'static str, &'static str),
    /// 200 with a good access token in place of `{token}` and its lifetime in place of `{life}`.
    Issue(&'static str),
    /// 200 with the token issued last and what is left of its lifetime, while there is any.
    Again,
}

/// What a call is answered with.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokenAnswer {
    /// It works.
    Works,
    /// One of the table below.
    Odd(TokenWire),
    /// An answer that sends can get too.
    Plain(AnswerId),
}

impl TokenAnswer {
    /// The answer of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        if name == "ok" {
            return Some(Self::Works);
        }
        let odd = TOKEN_ANSWERS.iter().find(|(odd, ..)| *odd == name).map(|(_, _, wire)| Self::Odd(*wire));
        odd.or_else(|| AnswerId::named(name).map(Self::Plain))
    }
}

use TokenWire::{Again, Issue, Refuse};

const LATE: &str = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim.";

/// Every answer that only these two give: name, meaning, wire.
#[rustfmt::skip]
pub(super) const TOKEN_ANSWERS: &[(&str, &str, TokenWire)] = &[
    ("grant-signature", "400 invalid_grant: the key is wrong or revoked", Refuse(400, "invalid_grant", "Invalid JWT Signature.")),
    ("grant-clock", "400 invalid_grant: the clock is wrong", Refuse(400, "invalid_grant", LATE)),
    ("grant-account", "400 invalid_grant: the account was deleted", Refuse(400, "invalid_grant", "Invalid grant: account not found")),
    ("grant-hostile", "400 invalid_grant with terminal colours, a device token, a URL and a path in its text", Refuse(400, "invalid_grant", super::table::HOSTILE)),
    ("grant-bare", "400 invalid_grant that says no more", Refuse(400, "invalid_grant", "")),
    ("client-disabled", "401 disabled_client", Refuse(401, "disabled_client", "The OAuth client was disabled.")),
    ("client-unauthorized", "401 unauthorized_client", Refuse(401, "unauthorized_client", "Client is unauthorized to retrieve access tokens using this method, or client not authorized for any of the scopes requested.")),
    ("scope-invalid", "400 invalid_scope", Refuse(400, "invalid_scope", "Invalid OAuth scope or ID token audience provided.")),
    ("failure-internal", "500 internal_failure", Refuse(500, "internal_failure", "")),
    ("failure-temporary", "503 temporarily_unavailable", Refuse(503, "temporarily_unavailable", "")),
    ("throttled", "429 rate_limit_exceeded", Refuse(429, "rate_limit_exceeded", "Too many requests.")),
    ("throttled403", "403 rate_limit_exceeded", Refuse(403, "rate_limit_exceeded", "Rate Limit Exceeded")),
    ("same-token", "the token issued last, with what is left of it", Again),
    ("expires-zero", "`expires_in` 0", Issue(r#"{"access_token":"{token}","expires_in":0,"token_type":"Bearer"}"#)),
    ("expires-negative", "`expires_in` -1", Issue(r#"{"access_token":"{token}","expires_in":-1,"token_type":"Bearer"}"#)),
    ("expires-huge", "`expires_in` 99999999999999999999", Issue(r#"{"access_token":"{token}","expires_in":99999999999999999999,"token_type":"Bearer"}"#)),
    ("expires-fraction", "`expires_in` 3599.5", Issue(r#"{"access_token":"{token}","expires_in":3599.5,"token_type":"Bearer"}"#)),
    ("expires-string", "`expires_in` as a string of digits", Issue(r#"{"access_token":"{token}","expires_in":"{life}","token_type":"Bearer"}"#)),
    ("expires-words", "`expires_in` \"soon\"", Issue(r#"{"access_token":"{token}","expires_in":"soon","token_type":"Bearer"}"#)),
    ("expires-null", "`expires_in` null", Issue(r#"{"access_token":"{token}","expires_in":null,"token_type":"Bearer"}"#)),
    ("expires-absent", "no `expires_in`", Issue(r#"{"access_token":"{token}","token_type":"Bearer"}"#)),
    ("type-mac", "`token_type` MAC", Issue(r#"{"access_token":"{token}","expires_in":{life},"token_type":"MAC"}"#)),
    ("type-lower", "`token_type` bearer", Issue(r#"{"access_token":"{token}","expires_in":{life},"token_type":"bearer"}"#)),
    ("type-absent", "no `token_type`", Issue(r#"{"access_token":"{token}","expires_in":{life}}"#)),
    ("token-absent", "no `access_token`", Issue(r#"{"expires_in":{life},"token_type":"Bearer"}"#)),
    ("token-empty", "`access_token` empty", Issue(r#"{"access_token":"","expires_in":{life},"token_type":"Bearer"}"#)),
    ("token-number", "`access_token` a number", Issue(r#"{"access_token":7,"expires_in":{life},"token_type":"Bearer"}"#)),
    ("token-newline", "`access_token` with a line break in it", Issue(r#"{"access_token":"{token}\r\nx-evil: 1","expires_in":{life},"token_type":"Bearer"}"#)),
    ("token-id", "an `id_token` instead of an access token", Issue(r#"{"id_token":"{token}"}"#)),
    ("token-plain", "the token itself, not JSON", Issue("{token}")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_hides_an_answer_that_sends_can_get() {
        for (name, ..) in TOKEN_ANSWERS {
            assert!(AnswerId::named(name).is_none(), "{name}");
            assert!(matches!(TokenAnswer::named(name), Some(TokenAnswer::Odd(_))), "{name}");
        }
        assert!(matches!(TokenAnswer::named("ok"), Some(TokenAnswer::Works)));
        assert!(matches!(TokenAnswer::named("html502"), Some(TokenAnswer::Plain(_))));
        assert!(TokenAnswer::named("sunshine").is_none());
    }

    #[test]
    fn the_manual_has_every_answer() {
        let manual = std::fs::read_to_string("docs/EMULATOR.md").unwrap();
        for (name, about, _) in TOKEN_ANSWERS {
            let line = format!("| `{name}` | {about} |");
            assert!(manual.contains(&line), "missing in docs/EMULATOR.md:\n{line}");
        }
    }
}
