//! Owns when a recipient may be tried again, and how the provider's `Retry-After` is read.
//! Must never know: who waits, or what is being retried.

use std::time::Duration;

/// No pause the provider asks for is longer than this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Pause after a throttle that names no time
/// (FCM: "if no retry-after header is set, default to 60 seconds", firebase.google.com/docs/cloud-messaging/scale-fcm).
pub const DEFAULT_THROTTLE_PAUSE: Duration = Duration::from_secs(60);

/// No pause after a throttle is shorter. `Retry-After: 0`, a negative number and a date in the past do not mean "absent",
/// but whoever throttles and asks for no pause at all would be asked again at once, for ever.
pub const SHORTEST_THROTTLE_PAUSE: Duration = Duration::from_secs(1);

/// The pause after a throttle, given what its `Retry-After` was read as: never earlier than asked.
#[must_use]
pub fn throttle_pause(asked: Option<Duration>) -> Duration {
    asked.unwrap_or(DEFAULT_THROTTLE_PAUSE).clamp(SHORTEST_THROTTLE_PAUSE, MAX_RETRY_AFTER)
}

/// Reads a `Retry-After` value: seconds, a fraction of seconds, or an HTTP-date.
///
/// `now` is the wall clock the date is compared with. Never shorter than asked: a fraction rounds up to a millisecond.
/// A date in the past and a negative number read as zero; more than an hour reads as an hour; garbage and an empty
/// value read as `None`, which is the same as an absent header.
#[must_use]
pub fn parse_retry_after(raw: &str, now: std::time::SystemTime) -> Option<Duration> {
    let raw = raw.trim();
    if let Ok(seconds) = raw.parse::<f64>() {
        return from_seconds(seconds);
    }
    let date = httpdate::parse_http_date(raw).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO).min(MAX_RETRY_AFTER))
}

fn from_seconds(seconds: f64) -> Option<Duration> {
    if !seconds.is_finite() {
        return None;
    }
    let millis = (seconds.clamp(0.0, MAX_RETRY_AFTER.as_secs_f64()) * 1000.0).ceil();
    Some(Duration::from_secs_f64(millis / 1000.0).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::SystemTime;

    #[test]
    fn every_form_is_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let read = |raw: &str| parse_retry_after(raw, now);
        assert_eq!(read("20"), Some(Duration::from_secs(20)));
        assert_eq!(read(" 1.5 "), Some(Duration::from_millis(1500)));
        assert_eq!(read("0.0001"), Some(Duration::from_millis(1)));
        assert_eq!(read("-3"), Some(Duration::ZERO));
        assert_eq!(read("99999999999999999999"), Some(MAX_RETRY_AFTER));
        for garbage in ["", "soon", "NaN", "inf", "1s", "1,5", "0x10"] {
            assert_eq!(read(garbage), None, "{garbage:?}");
        }
        let date = httpdate::fmt_http_date(now + Duration::from_secs(30));
        assert_eq!(read(&date), Some(Duration::from_secs(30)));
        assert_eq!(read("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let far = httpdate::fmt_http_date(now + Duration::from_secs(400_000_000));
        assert_eq!(read(&far), Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn a_throttle_that_asks_for_no_pause_still_gets_one() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let pause = |raw: &str| throttle_pause(parse_retry_after(raw, now)).as_secs_f64();
        for none in ["0", "0.0", "-0", "-20", "0.2", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(pause(none), 1.0, "{none}");
        }
        assert_eq!(
            [pause("1.5"), pause("20"), pause("1e9"), pause("soon"), pause("")],
            [1.5, 20.0, 3600.0, 60.0, 60.0]
        );
        assert_eq!(throttle_pause(None), DEFAULT_THROTTLE_PAUSE);
    }

    proptest! {
        #[test]
        fn seconds_are_never_shortened(ms in 0_u64..3_600_000) {
            let raw = format!("{}.{:03}", ms / 1000, ms % 1000);
            let got = parse_retry_after(&raw, SystemTime::UNIX_EPOCH).unwrap();
            prop_assert!(got >= Duration::from_millis(ms) && got <= Duration::from_millis(ms + 1));
        }

        #[test]
        fn any_text_is_at_most_an_hour_or_nothing(raw in "\\PC{0,40}") {
            if let Some(d) = parse_retry_after(&raw, SystemTime::UNIX_EPOCH) {
                prop_assert!(d <= MAX_RETRY_AFTER);
            }
        }
    }
}
