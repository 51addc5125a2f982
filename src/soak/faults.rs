//! Owns which faults a soak has, when, and what the emulator is told for each. The same seed is the same faults.
//! Must never know: how a process or a Redis is made to fail.

use std::fmt;
use std::str::FromStr;

use super::dice::Dice;
use crate::emulator::{Control, Network, Rule};

/// Longer than what the stalls of a soak are counted from, 15 s, and shorter than an attempt may take.
pub const STALL_MS: u64 = 15_400;

/// Groups of device tokens that stall while that fault lasts.
const STALLED: [&str; 2] = ["ok-001-", "ok-251-"];

/// Whether this device token stalls in such a window.
#[must_use]
pub fn stalls(token: &str) -> bool {
    STALLED.iter().any(|prefix| token.starts_with(prefix))
}

/// A mix of faults, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// None.
    Calm,
    /// A few sends take 15.4 s.
    Stalls,
    /// 429 of the project and of devices.
    Throttled,
    /// 503, resets, GOAWAY.
    Flaky,
    /// Redis freezes and dies.
    RedisAway,
    /// Instances are stopped and killed.
    Restarts,
    /// All of these.
    All,
}

impl Mix {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("calm", Self::Calm),
        ("stalls", Self::Stalls),
        ("throttled", Self::Throttled),
        ("flaky", Self::Flaky),
        ("redis-away", Self::RedisAway),
        ("restarts", Self::Restarts),
        ("all", Self::All),
    ];

    fn faults(self) -> &'static [Fault] {
        use Fault::{
            Device429, Goaway, Kill, Project429, RedisFreeze, RedisKill, Reset, Stall, Terminate, Unavailable,
        };
        match self {
            Self::Calm => &[],
            Self::Stalls => &[Stall],
            Self::Throttled => &[Project429, Device429],
            Self::Flaky => &[Unavailable, Reset, Goaway],
            Self::RedisAway => &[RedisFreeze, RedisKill],
            Self::Restarts => &[Kill, Terminate],
            Self::All => {
                &[Stall, Project429, Device429, Unavailable, Reset, Goaway, RedisFreeze, RedisKill, Kill, Terminate]
            }
        }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, mix)| *mix);
        known.ok_or_else(|| format!("is none of {}", Self::NAMES.map(|(name, _)| name).join(", ")))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, mix)| mix == self).map_or("", |(name, _)| name))
    }
}

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// Two of five hundred groups of devices answer after 15.4 s: about what was seen where slots were lost to stalls.
    Stall,
    /// The project's quota is a third of the ceiling.
    Project429,
    /// Single devices are told to slow down.
    Device429,
    /// A few first attempts are answered 503.
    Unavailable,
    /// A few first attempts are reset, half of them after the message was taken.
    Reset,
    /// Connections are told to go away in the middle.
    Goaway,
    /// SIGSTOP of Redis, or silence of the proxy before it.
    RedisFreeze,
    /// kill -9 of Redis and an empty start, or cut connections.
    RedisKill,
    /// kill -9 of an instance, and another in its place.
    Kill,
    /// SIGTERM of an instance, and another in its place.
    Terminate,
}

impl Fault {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stall => "stalls",
            Self::Project429 => "project 429",
            Self::Device429 => "device 429",
            Self::Unavailable => "503",
            Self::Reset => "resets",
            Self::Goaway => "GOAWAY",
            Self::RedisFreeze => "Redis frozen",
            Self::RedisKill => "Redis killed",
            Self::Kill => "kill -9",
            Self::Terminate => "SIGTERM",
        }
    }

    const fn lane(self) -> usize {
        match self {
            Self::RedisFreeze | Self::RedisKill => 1,
            Self::Kill | Self::Terminate => 2,
            _ => 0,
        }
    }

    /// Whether it is Redis that is away.
    #[must_use]
    pub const fn is_redis(self) -> bool {
        self.lane() == 1
    }

    /// What the emulator is told when it begins; nothing when it is not the emulator's.
    #[must_use]
    pub fn control(self, rate: f64) -> Option<Control> {
        let rules = |rules: Vec<Rule>| Some(Control { rules, ..Control::default() });
        match self {
            Self::Stall => rules(STALLED.map(slow).to_vec()),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
            Self::Project429 => Some(Control {
                quota_per_s: Some(((rate / 3.0) as u32).max(1)),
                quota_retry_after: Some("2".to_owned()),
                ..Control::default()
            }),
            Self::Device429 => rules(vec![Rule { retry_after: Some(3), ..once("ok-02", "devicequota") }]),
            Self::Unavailable => rules(vec![once("ok-12", "unavailable"), once("ok-31", "internal")]),
            Self::Reset => rules(vec![once("ok-14", "reset"), once("ok-33", "lostrst")]),
            Self::Goaway => Some(Control {
                network: Network { goaway_every: Some(40), goaway_unprocessed: Some(2), ..Network::default() },
                ..Control::default()
            }),
            Self::RedisFreeze | Self::RedisKill | Self::Kill | Self::Terminate => None,
        }
    }
}

fn slow(prefix: &str) -> Rule {
    Rule { latency_ms: STALL_MS, ..once(prefix, "ok") }
}

fn once(prefix: &str, answer: &str) -> Rule {
    Rule { prefix: prefix.to_owned(), answer: answer.to_owned(), times: Some(1), ..Rule::default() }
}

/// One fault from a time to a time, ms into the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// What.
    pub fault: Fault,
    /// Begins.
    pub from_ms: u64,
    /// Ends; for what is over at once, the same.
    pub to_ms: u64,
}

/// The faults of a soak.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// In order of their beginning. Those of one kind of victim never overlap.
    pub windows: Vec<Window>,
    /// Asked for, and why there are none.
    pub absent: Vec<(Fault, &'static str)>,
}

/// What there is to be hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victims {
    /// Why there is no Redis that can be taken away, if there is none.
    pub no_redis: Option<&'static str>,
    /// Why no instance can be ended.
    pub no_process: Option<&'static str>,
}

/// Shortest and longest of each lane: how long a fault lasts, and the rest after it, ms.
const LASTS: [(u64, u64); 3] = [(2_500, 6_000), (4_000, 7_000), (0, 1)];
const RESTS: [(u64, u64); 3] = [(2_000, 6_000), (11_000, 16_000), (18_000, 30_000)];

impl Faults {
    /// Those of this seed for a day of this length.
    #[must_use]
    pub fn plan(seed: u64, mix: Mix, length_ms: u64, victims: Victims) -> Self {
        let mut plan = Self::default();
        let mut lanes: [Vec<Fault>; 3] = Default::default();
        for fault in mix.faults() {
            let absent = [None, victims.no_redis, victims.no_process][fault.lane()];
            match absent {
                Some(why) => plan.absent.push((*fault, why)),
                None => lanes[fault.lane()].push(*fault),
            }
        }
        for (lane, faults) in lanes.iter().enumerate() {
            let mut dice = Dice::new(seed, ["provider", "redis", "restarts"][lane]);
            plan.fill(&mut dice, lane, faults, length_ms);
        }
        plan.windows.sort_by_key(|window| (window.from_ms, window.fault));
        plan
    }

    /// Whether the emulator was told to stall some at this time, ms into the day.
    #[must_use]
    pub fn stalls_at(&self, ms: u64) -> bool {
        let mut stalls = self.windows.iter().filter(|w| w.fault == Fault::Stall);
        stalls.any(|w| (w.from_ms..=w.to_ms).contains(&ms))
    }

    /// One after the other, each kind in turn, and calm at both ends of the day. Instances are left alone in its last half, so
    /// that it can be told whether their memory grows.
    fn fill(&mut self, dice: &mut Dice, lane: usize, faults: &[Fault], length_ms: u64) {
        let end = if lane == 2 { length_ms / 2 } else { length_ms * 9 / 10 };
        let mut at = length_ms / 6 + dice.roll(0, length_ms / 12);
        for fault in faults.iter().cycle() {
            let lasts = dice.roll(LASTS[lane].0, LASTS[lane].1).min(length_ms / 4);
            if at + lasts > end {
                return;
            }
            self.windows.push(Window { fault: *fault, from_ms: at, to_ms: at + lasts });
            at += lasts + dice.roll(RESTS[lane].0, RESTS[lane].1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Victims = Victims { no_redis: None, no_process: None };

    #[test]
    fn the_same_seed_is_the_same_faults_and_calm_has_none() {
        let plan = |seed| Faults::plan(seed, Mix::All, 180_000, WHOLE);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        assert_eq!(Faults::plan(7, Mix::Calm, 180_000, WHOLE), Faults::default());
    }

    #[test]
    fn three_minutes_have_every_fault_and_none_overlaps_another_of_its_kind() {
        for seed in 0..50 {
            let plan = Faults::plan(seed, Mix::All, 180_000, WHOLE);
            for fault in Mix::All.faults() {
                assert!(plan.windows.iter().any(|w| w.fault == *fault), "{fault:?} is missing with seed {seed}");
            }
            for lane in 0..3 {
                let of_lane: Vec<&Window> = plan.windows.iter().filter(|w| w.fault.lane() == lane).collect();
                assert!(of_lane.windows(2).all(|pair| pair[0].to_ms < pair[1].from_ms), "{of_lane:?}");
            }
            assert!(plan.windows.iter().all(|w| w.from_ms >= 30_000 && w.to_ms <= 162_000));
            assert!(plan.windows.iter().all(|w| w.fault.lane() != 2 || w.to_ms <= 90_000));
        }
    }

    #[test]
    fn what_cannot_be_hit_is_named_and_not_planned() {
        let victims = Victims { no_redis: Some("no Redis"), ..WHOLE };
        let plan = Faults::plan(1, Mix::All, 180_000, victims);
        assert_eq!(plan.absent, [(Fault::RedisFreeze, "no Redis"), (Fault::RedisKill, "no Redis")]);
        assert!(!plan.windows.iter().any(|w| w.fault.is_redis()));
        assert!(Faults::plan(1, Mix::RedisAway, 180_000, victims).windows.is_empty());
    }

    #[test]
    fn a_name_reads_back_as_the_mix_it_names() {
        for (name, mix) in Mix::NAMES {
            assert_eq!((name.parse(), mix.to_string()), (Ok(mix), name.to_owned()));
        }
        assert!("stall".parse::<Mix>().unwrap_err().contains("stalls"));
    }

    #[tokio::test]
    async fn the_emulator_takes_every_order() {
        let emulator = crate::emulator::Emulator::start(crate::emulator::Settings::default()).unwrap();
        for fault in Mix::All.faults() {
            if let Some(control) = fault.control(300.0) {
                emulator.control(&control).unwrap();
            }
        }
        emulator.stop().await;
    }
}
