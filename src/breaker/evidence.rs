//! Owns the question whether a failure is news: of those who failed already, another one says nothing more about the
//! provider.
//! Must never know: how much evidence opens anything.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Somebody whose last failure is older than this fails anew: longer than a recipient waits between two attempts, unless
/// it is told to wait, and short enough that the next outage is no old story.
const REMEMBERED: Duration = Duration::from_secs(60);
/// So many who failed within that time are no handful of sick devices, and nobody beyond is remembered: a bound on memory.
const MOST: usize = 4096;
/// Between two looks for those who can be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// Who failed, and when last, since the breaker last changed its state and since they last succeeded.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    failed: HashMap<i64, Instant>,
    forgot: Option<Instant>,
}

impl Evidence {
    /// Notes a failure; whether it is the first of this one.
    pub(super) fn fails(&mut self, who: i64, now: Instant) -> bool {
        self.forget(now);
        let recent = |last: &Instant| now.saturating_duration_since(*last) < REMEMBERED;
        let known = self.failed.get(&who).is_some_and(recent);
        if known || self.failed.len() < MOST {
            self.failed.insert(who, now);
        }
        !known
    }

    /// Whoever succeeds is well, and fails for the first time the next time.
    pub(super) fn succeeds(&mut self, who: i64) {
        self.failed.remove(&who);
    }

    fn forget(&mut self, now: Instant) {
        if self.forgot.is_none_or(|last| now.saturating_duration_since(last) >= FORGET_EVERY) {
            self.forgot = Some(now);
            self.failed.retain(|_, last| now.saturating_duration_since(*last) < REMEMBERED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn somebody_fails_once_until_they_succeed_or_have_been_quiet_for_a_minute() {
        let t = Instant::now();
        let mut evidence = Evidence::default();
        let s = |seconds| t + Duration::from_secs(seconds);
        assert!(evidence.fails(1, t) && !evidence.fails(1, t) && evidence.fails(2, t));
        assert!(!evidence.fails(1, s(59)) && !evidence.fails(1, s(118)), "as long as it goes on failing");
        assert!(evidence.fails(2, s(118)), "quiet for longer");
        evidence.succeeds(1);
        assert!(evidence.fails(1, s(119)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_not_remembered_one_by_one() {
        let t = Instant::now();
        let mut evidence = Evidence::default();
        let most = i64::try_from(MOST).unwrap();
        assert!((0..most + 100).all(|who| evidence.fails(who, t)));
        assert_eq!(evidence.failed.len(), MOST);
        assert!(evidence.fails(most, t) && !evidence.fails(0, t));
        assert!(evidence.fails(most + 7, t + REMEMBERED) && evidence.failed.len() == 1);
    }
}
