//! Owns the project quota: so many requests per window, the whole of it back when the next window begins.
//! Must never know: what a request is.
//!
//! FCM documents its quota as a bucket that is refilled in full each minute; windows start with the emulator, so they
//! are not aligned to the clock, as Google's are not.

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
struct Window {
    length_s: u64,
    /// 0 = no limit.
    limit: u32,
    index: u64,
    used: u32,
}

/// Both windows.
#[derive(Debug)]
pub(super) struct Quota {
    second: Window,
    minute: Window,
}

impl Quota {
    /// Requests per second and per minute; 0 = no limit.
    pub(super) fn new(per_s: u32, per_minute: u32) -> Self {
        Self { second: Window::new(1, per_s), minute: Window::new(60, per_minute) }
    }

    /// The limits in force.
    pub(super) fn limits(&self) -> (u32, u32) {
        (self.second.limit, self.minute.limit)
    }

    /// Takes one at `t_ns`, or says in how many seconds there will be some.
    pub(super) fn take(&mut self, t_ns: u64) -> Result<(), u32> {
        let windows = [&mut self.minute, &mut self.second];
        for window in windows {
            window.roll(t_ns);
            if window.full() {
                return Err(window.rest_s(t_ns));
            }
        }
        self.minute.used += 1;
        self.second.used += 1;
        Ok(())
    }
}

impl Window {
    fn new(length_s: u64, limit: u32) -> Self {
        Self { length_s, limit, index: 0, used: 0 }
    }

    fn roll(&mut self, t_ns: u64) {
        let index = t_ns / (self.length_s * SECOND);
        if index != self.index {
            self.index = index;
            self.used = 0;
        }
    }

    fn full(&self) -> bool {
        self.limit > 0 && self.used >= self.limit
    }

    fn rest_s(&self, t_ns: u64) -> u32 {
        let end = (self.index + 1) * self.length_s * SECOND;
        u32::try_from((end - t_ns).div_ceil(SECOND)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_says_when_the_next_begins() {
        let mut quota = Quota::new(0, 2);
        let at = |s: f64| (s * 1e9) as u64;
        assert_eq!(quota.take(at(10.0)), Ok(()));
        assert_eq!(quota.take(at(11.0)), Ok(()));
        assert_eq!(quota.take(at(57.5)), Err(3));
        assert_eq!(quota.take(at(60.0)), Ok(()));
    }

    #[test]
    fn what_one_window_refuses_costs_nothing_in_the_other() {
        let mut quota = Quota::new(1, 3);
        let second = |s: u64| s * SECOND;
        assert_eq!(quota.take(second(0)), Ok(()));
        for _ in 0..10 {
            assert_eq!(quota.take(second(0)), Err(1));
        }
        assert_eq!([quota.take(second(1)), quota.take(second(2))], [Ok(()); 2]);
        assert_eq!(quota.take(second(3)), Err(57));
    }

    #[test]
    fn zero_is_no_limit() {
        let mut quota = Quota::new(0, 0);
        assert!((0..100_000).all(|_| quota.take(0).is_ok()));
    }
}
