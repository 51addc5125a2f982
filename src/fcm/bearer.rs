//! Owns the access token as it is sent.
//! Must never know: where it comes from.

use std::fmt;

use http::HeaderValue;

/// An access token, ready for the `Authorization` header. Debug output never shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(HeaderValue);

impl Bearer {
    /// Takes an access token of visible ASCII (RFC 6750, 2.1 allows less); anything else could not be a header.
    #[must_use]
    pub fn new(access_token: &str) -> Option<Self> {
        let plain = !access_token.is_empty() && access_token.bytes().all(|b| b.is_ascii_graphic());
        if !plain {
            return None;
        }
        let mut value = HeaderValue::try_from(format!("Bearer {access_token}")).ok()?;
        // Keeps it out of the HTTP client's debug output and out of HTTP/2's header table.
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// The header value.
    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_token_never_shows_itself() {
        let bearer = Bearer::new("ya29.secret").unwrap();
        assert!(!format!("{bearer:?} {:?}", bearer.header()).contains("secret"));
    }

    #[test]
    fn what_is_not_a_header_is_refused() {
        for bad in ["", "a b", "a\r\nX: y", "a\0", "tökén"] {
            assert_eq!(Bearer::new(bad), None, "{bad:?}");
        }
    }
}
