//! Owns how a time is written in the API: RFC 3339, UTC.
//! Must never know: what happened then.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Milliseconds since the epoch as text; `None` for what is no time of a four-digit year.
#[must_use]
pub fn rfc3339(ms: i64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()?;
    at.format(&Rfc3339).ok()
}
