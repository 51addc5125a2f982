//! Owns the question whose throttle it is: one device's, or the whole project's.
//! Must never know: how a pause is carried out.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::DeviceKey;

/// Two distinct devices throttled within this time are the project (law 4).
const WINDOW: Duration = Duration::from_secs(1);

/// FCM's answer carries no structured scope, so the scope is read from who is throttled.
#[derive(Debug, Default)]
pub struct ThrottleScope {
    throttled: VecDeque<(Instant, DeviceKey)>,
    answers: VecDeque<Instant>,
}

impl ThrottleScope {
    /// Notes one answer of any kind.
    pub fn answered(&mut self, now: Instant) {
        self.answers.push_back(now);
        prune(&mut self.answers, now, |t| *t);
    }

    /// Notes a throttled answer; `true` when it is the project that is throttled.
    pub fn throttled(&mut self, key: DeviceKey, now: Instant) -> bool {
        prune(&mut self.throttled, now, |(t, _)| *t);
        let another = self.throttled.iter().any(|(_, k)| *k != key);
        self.throttled.push_back((now, key));
        let n = self.throttled.len();
        another || (n >= 2 && n * 100 >= self.answers.len())
    }
}

fn prune<T>(queue: &mut VecDeque<T>, now: Instant, time: impl Fn(&T) -> Instant) {
    while queue.front().is_some_and(|x| now.saturating_duration_since(time(x)) > WINDOW) {
        queue.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_device_alone_is_its_own_affair() {
        let t = Instant::now();
        let mut scope = ThrottleScope::default();
        for i in 0..1000 {
            scope.answered(t + Duration::from_micros(i));
        }
        assert!(!scope.throttled(DeviceKey(1), t + Duration::from_millis(2)));
        assert!(!scope.throttled(DeviceKey(1), t + Duration::from_millis(3)), "2 of 1,000 by one device");
    }

    #[tokio::test(start_paused = true)]
    async fn two_devices_within_a_second_are_the_project() {
        let t = Instant::now();
        let mut scope = ThrottleScope::default();
        assert!(!scope.throttled(DeviceKey(1), t));
        assert!(!scope.throttled(DeviceKey(2), t + Duration::from_millis(1_500)), "the first is forgotten");
        assert!(scope.throttled(DeviceKey(3), t + Duration::from_millis(1_600)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_per_cent_of_the_last_second_is_the_project() {
        let t = Instant::now();
        let mut scope = ThrottleScope::default();
        for i in 0..150 {
            scope.answered(t + Duration::from_micros(i));
        }
        assert!(!scope.throttled(DeviceKey(1), t + Duration::from_millis(2)));
        assert!(scope.throttled(DeviceKey(1), t + Duration::from_millis(3)), "2 of 150");
    }
}
