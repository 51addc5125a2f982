//! Owns the quota of the project and of each device: so many requests per window, the whole of it back when the next
//! window begins.
//! Must never know: what a request is.
//!
//! FCM documents its quota as a bucket that is refilled in full each minute; windows start with the emulator, so they
//! are not aligned to the clock, as Google's are not.

use std::collections::HashMap;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Requests per window; 0 = no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limits {
    /// Of the project.
    pub(super) per_s: u32,
    /// Of the project.
    pub(super) per_minute: u32,
    /// Of each device.
    pub(super) device_per_minute: u32,
}

impl Limits {
    /// Each by the name it is changed by.
    pub(super) fn named(self) -> [(&'static str, u32); 3] {
        [
            ("quota_per_s", self.per_s),
            ("quota_per_minute", self.per_minute),
            ("device_quota_per_minute", self.device_per_minute),
        ]
    }
}

/// Whose quota is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Project,
    Device,
}

#[derive(Debug)]
struct Window {
    length_s: u64,
    /// 0 = no limit.
    limit: u32,
    index: u64,
    used: u32,
}

/// All windows.
#[derive(Debug)]
pub(super) struct Quota {
    limits: Limits,
    second: Window,
    minute: Window,
    /// Of the minute `devices_in`: forgotten as a whole when it is over.
    devices: HashMap<String, u32>,
    devices_in: u64,
}

impl Quota {
    /// With nothing used.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            second: Window::new(1, limits.per_s),
            minute: Window::new(60, limits.per_minute),
            devices: HashMap::new(),
            devices_in: 0,
        }
    }

    /// The limits in force.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Takes one for this device at `t_ns`, or says whose quota is used up and in how many seconds there will be some.
    pub(super) fn take(&mut self, device: &str, t_ns: u64) -> Result<(), (Scope, u32)> {
        let windows = [&mut self.minute, &mut self.second];
        for window in windows {
            window.roll(t_ns);
            if window.full() {
                return Err((Scope::Project, window.rest_s(t_ns)));
            }
        }
        if self.limits.device_per_minute > 0 {
            self.take_device(device).map_err(|()| (Scope::Device, self.minute.rest_s(t_ns)))?;
        }
        self.minute.used += 1;
        self.second.used += 1;
        Ok(())
    }

    fn take_device(&mut self, device: &str) -> Result<(), ()> {
        if self.devices_in != self.minute.index {
            self.devices.clear();
            self.devices_in = self.minute.index;
        }
        let used = self.devices.entry(device.to_owned()).or_default();
        if *used >= self.limits.device_per_minute {
            return Err(());
        }
        *used += 1;
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

    fn project(per_s: u32, per_minute: u32) -> Quota {
        Quota::new(Limits { per_s, per_minute, device_per_minute: 0 })
    }

    fn full(rest_s: u32) -> Result<(), (Scope, u32)> {
        Err((Scope::Project, rest_s))
    }

    #[test]
    fn a_full_window_says_when_the_next_begins() {
        let mut quota = project(0, 2);
        let at = |s: f64| (s * 1e9) as u64;
        assert_eq!(quota.take("a", at(10.0)), Ok(()));
        assert_eq!(quota.take("b", at(11.0)), Ok(()));
        assert_eq!(quota.take("a", at(57.5)), full(3));
        assert_eq!(quota.take("a", at(60.0)), Ok(()));
    }

    #[test]
    fn what_one_window_refuses_costs_nothing_in_the_other() {
        let mut quota = project(1, 3);
        let second = |s: u64| s * SECOND;
        assert_eq!(quota.take("a", second(0)), Ok(()));
        for _ in 0..10 {
            assert_eq!(quota.take("a", second(0)), full(1));
        }
        assert_eq!([quota.take("a", second(1)), quota.take("a", second(2))], [Ok(()); 2]);
        assert_eq!(quota.take("a", second(3)), full(57));
    }

    #[test]
    fn a_device_that_has_had_enough_costs_the_others_nothing() {
        let mut quota = Quota::new(Limits { device_per_minute: 2, per_minute: 5, per_s: 0 });
        let takes = |quota: &mut Quota, s: u64| ["a", "a", "a", "b"].map(|device| quota.take(device, s * SECOND));
        let device = Err((Scope::Device, 20));
        assert_eq!(takes(&mut quota, 40), [Ok(()), Ok(()), device, Ok(())]);
        assert_eq!(
            takes(&mut quota, 41),
            [Err((Scope::Device, 19)), Err((Scope::Device, 19)), Err((Scope::Device, 19)), Ok(())]
        );
        assert_eq!(takes(&mut quota, 60), [Ok(()), Ok(()), Err((Scope::Device, 60)), Ok(())]);
    }

    #[test]
    fn zero_is_no_limit() {
        let mut quota = project(0, 0);
        assert!((0..100_000).all(|_| quota.take("a", 0).is_ok()));
    }
}
