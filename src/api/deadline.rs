//! Owns how long a caller will wait: `X-Request-Timeout-Ms`, counted from the arrival of the request here.
//! Must never know: what is asked for.
//!
//! The time is relative, so that no two clocks have to agree.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use super::problem::{Code, Refusal};

pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// Longest time that can be asked for, ms: an hour, more than anybody waits.
const LONGEST_MS: u64 = 3_600_000;

/// When the caller gives up; never, when it did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// Reads the header of a request that arrived at `arrived`.
    pub(super) fn read(headers: &HeaderMap, arrived: Instant) -> Result<Self, Refusal> {
        let mut given = headers.get_all(HEADER).iter();
        let Some(value) = given.next() else { return Ok(Self(None)) };
        let digits =
            value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()) && given.next().is_none());
        let ms = digits.and_then(|text| text.parse::<u64>().ok()).filter(|ms| *ms <= LONGEST_MS);
        let wrong = || format!("{HEADER} must be one whole number of ms, 0 to {LONGEST_MS}");
        let ms = ms.ok_or_else(|| Refusal::new(Code::BadRequest, wrong()))?;
        Ok(Self(Some(arrived + Duration::from_millis(ms))))
    }

    /// Refuses what will not be answered in time: less is left than `typical`, the time half of the requests take.
    pub(super) fn allows(self, typical: Duration, now: Instant) -> Result<(), Refusal> {
        let Some(left) = self.left(now).filter(|left| *left <= typical) else { return Ok(()) };
        let (left, typical) = (left.as_millis(), typical.as_micros().div_ceil(1000));
        let detail =
            format!("{left} ms are left of {HEADER}, and half of such requests take more than {typical} ms here");
        Err(Refusal::new(Code::OutOfTime, detail))
    }

    /// Whether any is left at `now`, or there is no limit.
    pub(super) fn has_time(self, now: Instant) -> bool {
        self.left(now).is_none_or(|left| !left.is_zero())
    }

    fn left(self, now: Instant) -> Option<Duration> {
        self.0.map(|by| by.saturating_duration_since(now))
    }

    /// The earlier of this and `other`.
    pub(super) fn or(self, other: Instant) -> Instant {
        self.0.map_or(other, |by| by.min(other))
    }

    /// Waits for `answer` as long as the caller does. What is under way goes on all the same.
    pub(super) async fn bound<T>(self, answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let Some(by) = self.0 else { return answer.await };
        let late = || Refusal::new(Code::OutOfTime, "it may have been kept or not; send the same request again");
        tokio::time::timeout_at(by, answer).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn read(values: &[&'static str], arrived: Instant) -> Result<Deadline, Refusal> {
        Deadline::read(&values.iter().map(|v| (HEADER, HeaderValue::from_static(v))).collect(), arrived)
    }

    #[test]
    fn only_one_whole_number_of_ms_is_a_time() {
        let now = Instant::now();
        assert_eq!(read(&[], now), Ok(Deadline(None)));
        assert_eq!(read(&["250"], now), Ok(Deadline(Some(now + Duration::from_millis(250)))));
        for wrong in
            [&["-1"][..], &["1.5"], &["+5"], &[""], &["1 "], &["3600001"], &["99999999999999999999"], &["1", "1"]]
        {
            assert!(read(wrong, now).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn less_time_than_half_of_the_requests_take_is_refused_at_once() {
        let now = Instant::now();
        let deadline = read(&["100"], now).unwrap();
        let typical = Duration::from_millis(40);
        assert!(deadline.allows(typical, now).is_ok());
        assert!(deadline.allows(typical, now + Duration::from_millis(59)).is_ok());
        assert!(deadline.allows(typical, now + Duration::from_millis(60)).is_err());
        assert!(deadline.allows(Duration::ZERO, now + Duration::from_millis(100)).is_err(), "no time at all");
        assert!(read(&[], now).unwrap().allows(Duration::MAX, now).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_its_caller() {
        let start = Instant::now();
        let deadline = read(&["100"], start).unwrap();
        assert_eq!(deadline.bound(async { Ok(7) }).await, Ok(7));
        assert!(deadline.bound(std::future::pending::<Result<(), _>>()).await.is_err());
        assert_eq!(start.elapsed(), Duration::from_millis(100));
    }
}
