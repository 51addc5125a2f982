//! Owns the guard over verdicts against devices (law 7): which platforms' verdicts of a settled fan-out are carried out,
//! by the fan-out's own share of dead devices and by what the whole fleet has seen of late. Pure.
//! Must never know: SQL, or which database remembers it.
//!
//! Three ways to lose a fleet's devices, and what stops each:
//! - one fan-out finds far too many dead: its own share leaps;
//! - many small fan-outs each find a few too many: what each finds beyond the share allowed adds up in `excess`, which
//!   only healthy answers bring down, and past [`DEAD_SHARE_MIN`] nobody is judged until they have;
//! - nobody of a platform is accepted at all: then nothing shows that the provider is well, however few they are.
//!
//! What is withheld is not lost: those devices stay live, are sent to again, and are judged by the next fan-out (or
//! sweep) that finds them dead and does not leap.

use serde::{Deserialize, Serialize};

use super::{DEAD_SHARE_LIMIT_PERCENT, DEAD_SHARE_MIN, StoreError};
use crate::domain::ids::FanoutId;
use crate::domain::outcome::Outcome;
use crate::domain::recipient::Platform;
use crate::domain::tally::{PartCounters, Tally};
use crate::mutant;

/// Answers the measure remembers: older ones fade as new ones come.
const WINDOW: u64 = 10_000;
/// Most that one fan-out adds to it, so that no single one sets the measure for those after it.
const WEIGHT: u64 = WINDOW / 4;
/// Answers below which the measure is none, and only the absolute limit holds.
const ENOUGH: u64 = 1_000;
/// A share up to this, in per cent, is never a leap: audiences differ.
const ALWAYS_ALLOWED_PERCENT: u64 = 10;
/// How many times the share seen of late is allowed.
const LEAP: u64 = 3;
/// `excess` never grows beyond this, in hundredths of a device: a long fault must not keep the guard shut long after it.
const MOST_EXCESS: i64 = 4_000;

/// What FCM said of one platform's devices in one fan-out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Accepted for so many.
    pub accepted: u64,
    /// Verdicts against the device.
    pub against: u64,
}

impl Answers {
    const fn answered(self) -> u64 {
        self.accepted + self.against
    }
}

/// What the fleet has seen of one platform: a row of `dead_share`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Answers of late, of fan-outs that were judged.
    pub answered: u64,
    /// Of them, against the device.
    pub against: u64,
    /// Found beyond the share allowed, in hundredths of a device.
    pub excess: i64,
}

/// Whether the verdicts are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// They are.
    Judged,
    /// Not: nobody was accepted, here or of late, so nothing shows that the provider is well.
    Unproven,
    /// Not: there are too many of them.
    Leap,
}

/// A platform whose devices a settle did not judge, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// The platform.
    pub platform: Platform,
    /// Why.
    pub ruling: Ruling,
    /// Verdicts against its devices.
    pub against: u64,
    /// Answers for or against its devices.
    pub answered: u64,
    /// Share that would have been allowed, in per cent.
    pub allowed_percent: u64,
}

/// A leap, as the fleet remembers it until something disproves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leap {
    /// The fan-out that leapt last.
    pub fanout: FanoutId,
    /// What was not carried out.
    pub withheld: Withheld,
}

impl Record {
    /// Share of dead devices that is no leap, in per cent.
    fn allowed_percent(&self) -> u64 {
        if self.answered < ENOUGH {
            return DEAD_SHARE_LIMIT_PERCENT;
        }
        (LEAP * 100 * self.against).div_ceil(self.answered).clamp(ALWAYS_ALLOWED_PERCENT, DEAD_SHARE_LIMIT_PERCENT)
    }

    /// What these answers are beyond the share allowed, or below it, in hundredths of a device.
    fn beyond(&self, answers: Answers) -> i64 {
        let hundredths = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        hundredths(answers.against.saturating_mul(100))
            .saturating_sub(hundredths(answers.answered().saturating_mul(self.allowed_percent())))
    }

    /// Whether the verdicts among these answers are carried out.
    pub(crate) fn rule(&self, answers: Answers) -> Ruling {
        let Answers { accepted, against } = answers;
        let own = against >= DEAD_SHARE_MIN && against * 100 > answers.answered() * self.allowed_percent();
        let pooled = self.excess.saturating_add(self.beyond(answers)) > (DEAD_SHARE_MIN * 100) as i64;
        if own || (pooled && !mutant::on("small_fanouts_unpooled")) {
            return Ruling::Leap;
        }
        if accepted == 0 && self.answered == self.against { Ruling::Unproven } else { Ruling::Judged }
    }

    /// The same for a sweep, which asks about devices nobody has heard of for long: its share of dead ones may honestly be
    /// high, so it goes by the absolute limit, or by what whoever asked for it takes for true. While the guard is shut
    /// for fan-outs it is so for sweeps, unless they say what to take for true.
    pub(crate) fn rule_sweep(&self, answers: Answers, accepted_percent: Option<u64>) -> Ruling {
        let limit = accepted_percent.unwrap_or(DEAD_SHARE_LIMIT_PERCENT);
        let own = answers.against >= DEAD_SHARE_MIN && answers.against * 100 > answers.answered() * limit;
        let shut = accepted_percent.is_none() && self.excess > (DEAD_SHARE_MIN * 100) as i64;
        match (own || shut, answers.accepted) {
            (true, _) => Ruling::Leap,
            (false, 0) => Ruling::Unproven,
            (false, _) => Ruling::Judged,
        }
    }

    /// The record after a fan-out. One that leapt adds to the excess only: a fault must not become the measure. One that
    /// proved nothing adds nothing: none of it was judged, and a single dead device that is sent to again and again
    /// would shut the guard for good.
    #[must_use]
    pub(crate) fn after(self, answers: Answers, ruling: Ruling) -> Self {
        if ruling == Ruling::Unproven {
            return self;
        }
        let excess = self.excess.saturating_add(self.beyond(answers)).clamp(0, MOST_EXCESS);
        if ruling != Ruling::Judged {
            return Self { excess, ..self };
        }
        let (answered, against) = scaled(answers.answered(), answers.against, WEIGHT);
        let (answered, against) = scaled(self.answered + answered, self.against + against, WINDOW);
        Self { answered, against, excess }
    }
}

/// Both numbers brought down so that the first is at most `most`, the share kept.
const fn scaled(answered: u64, against: u64, most: u64) -> (u64, u64) {
    if answered <= most { (answered, against) } else { (most, (against * most + answered / 2) / answered) }
}

/// One per platform, in the order of [`Platform::ALL`].
pub(crate) type ByPlatform<T> = [T; Platform::ALL.len()];

/// What FCM said of each platform, from the counters of all instances and the variants of the failure rows.
///
/// # Errors
/// [`StoreError::Corrupt`] for a variant that names no platform.
pub(crate) fn answers(
    tally: &Tally,
    counters: &PartCounters,
    against: &[(String, u64)],
) -> Result<ByPlatform<Answers>, StoreError> {
    let mut all = ByPlatform::<Answers>::default();
    for (variant, n) in against {
        all[index(platform_of(variant)?)].against += n;
    }
    let counted: u64 = counters.accepted.iter().sum();
    if counted * 2 < tally.delivered() {
        // Most were counted by an instance that knew of no platforms, or that died before it wrote its numbers: all
        // platforms are one. Where nobody was accepted there is nothing to miss, and each stands by itself.
        let against = all.iter().map(|one| one.against).sum();
        let verdicts = all.map(|one| one.against > 0);
        return Ok(
            verdicts.map(|any| if any { Answers { accepted: tally.delivered(), against } } else { Answers::default() })
        );
    }
    for (one, accepted) in all.iter_mut().zip(counters.accepted) {
        one.accepted = accepted.min(tally.delivered());
    }
    Ok(all)
}

fn platform_of(variant: &str) -> Result<Platform, StoreError> {
    let name = variant.rsplit('/').next().unwrap_or_default();
    let found = Platform::ALL.iter().find(|platform| platform.as_str() == name);
    found
        .copied()
        .ok_or_else(|| StoreError::Corrupt(format!("a verdict is about a variant {variant:?} of no platform")))
}

/// Place of a platform in [`ByPlatform`].
pub(crate) const fn index(platform: Platform) -> usize {
    platform as usize
}

/// What a fan-out changes about what is known of a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lesson {
    /// The platform.
    pub platform: Platform,
    /// Its record from now on.
    pub record: Record,
    /// It leapt; `None` leaves the leap that is remembered, unless it is well.
    pub leap: Option<Leap>,
    /// Somebody of it was accepted, and it did not leap: no leap is to be remembered.
    pub well: bool,
}

impl Lesson {
    /// The leap as it is stored.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when it does not serialise, which is a fault of ours.
    pub(crate) fn stored_leap(&self) -> Result<Option<String>, StoreError> {
        let refuse = |_| StoreError::Statement("settle: a leap does not serialise".to_owned());
        self.leap.map(|leap| serde_json::to_string(&leap).map_err(refuse)).transpose()
    }
}

impl Leap {
    /// One that was stored.
    /// One that does not parse, a newer build's for instance, is told in the log: it must keep nothing from being settled.
    pub(crate) fn read_all(stored: &[String]) -> Vec<Self> {
        let read = |text: &String| {
            serde_json::from_str(text)
                .inspect_err(|error| tracing::warn!(target: "fanfare::store", %error, "a stored leap cannot be read"))
                .ok()
        };
        stored.iter().filter_map(read).collect()
    }
}

/// The rulings on one fan-out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rulings {
    answers: ByPlatform<Answers>,
    rulings: ByPlatform<Ruling>,
    allowed: ByPlatform<u64>,
    teaches: bool,
}

impl Rulings {
    /// Rules by what is known.
    pub(crate) fn new(answers: ByPlatform<Answers>, known: &ByPlatform<Record>) -> Self {
        let mut rulings = [Ruling::Judged; Platform::ALL.len()];
        for ((ruling, known), answers) in rulings.iter_mut().zip(known).zip(answers) {
            *ruling = known.rule(answers);
        }
        Self { answers, rulings, allowed: known.map(|known| known.allowed_percent()), teaches: true }
    }

    /// Rules on a sweep. It teaches nothing about what fan-outs find.
    pub(crate) fn of_sweep(
        answers: ByPlatform<Answers>,
        known: &ByPlatform<Record>,
        accepted_percent: Option<u64>,
    ) -> Self {
        let mut rulings = [Ruling::Judged; Platform::ALL.len()];
        for ((ruling, known), answers) in rulings.iter_mut().zip(known).zip(answers) {
            *ruling = known.rule_sweep(answers, accepted_percent);
        }
        let allowed = accepted_percent.unwrap_or(DEAD_SHARE_LIMIT_PERCENT);
        Self { answers, rulings, allowed: [allowed; Platform::ALL.len()], teaches: false }
    }

    /// Platforms whose verdicts are carried out, and of which there are any.
    pub(crate) fn judged(&self) -> impl Iterator<Item = Platform> {
        self.each().filter(|(_, answers, ruling)| answers.against > 0 && *ruling == Ruling::Judged).map(|(p, ..)| p)
    }

    /// Platforms whose verdicts are not.
    pub(crate) fn withheld(&self) -> Vec<Withheld> {
        let withheld = self.each().filter(|(_, answers, ruling)| answers.against > 0 && *ruling != Ruling::Judged);
        withheld.map(|(platform, answers, ruling)| self.tell(platform, answers, ruling)).collect()
    }

    const fn tell(&self, platform: Platform, answers: Answers, ruling: Ruling) -> Withheld {
        let (against, answered) = (answers.against, answers.answered());
        Withheld { platform, ruling, against, answered, allowed_percent: self.allowed[index(platform)] }
    }

    /// What the fan-out `of` changes about what is known, by platform; nothing for one it has nothing to say of. A sweep is no
    /// measure for what fan-outs find; that it was judged or leapt counts all the same.
    pub(crate) fn lessons(&self, of: FanoutId, known: &ByPlatform<Record>) -> Vec<Lesson> {
        let lesson = |(platform, answers, ruling): (Platform, Answers, Ruling)| {
            let was = known[index(platform)];
            let record = if self.teaches { was.after(answers, ruling) } else { was };
            let leapt = ruling == Ruling::Leap && answers.against > 0;
            let leap = leapt.then(|| Leap { fanout: of, withheld: self.tell(platform, answers, ruling) });
            let well = ruling != Ruling::Leap && answers.accepted > 0;
            (record != was || leapt || well).then_some(Lesson { platform, record, leap, well })
        };
        self.each().filter_map(lesson).collect()
    }

    fn each(&self) -> impl Iterator<Item = (Platform, Answers, Ruling)> {
        let all = Platform::ALL.iter().copied();
        all.zip(self.answers).zip(self.rulings).map(|((platform, answers), ruling)| (platform, answers, ruling))
    }
}

/// Whether so many devices belong to another sender that it looks like an app built with another project's file: at
/// least [`DEAD_SHARE_MIN`], and one in a hundred of those FCM spoke of.
#[must_use]
pub fn many_foreign(tally: &Tally) -> bool {
    let foreign = tally.count(Outcome::TokenForeign);
    let against: u64 = Outcome::ALL.iter().filter(|o| o.against_device()).map(|o| tally.count(*o)).sum();
    foreign >= DEAD_SHARE_MIN && foreign * 100 >= tally.delivered() + against
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(accepted: u64, against: u64) -> Answers {
        Answers { accepted, against }
    }

    /// A fleet that has seen `percent` of its devices dead of late.
    fn usual(percent: u64) -> Record {
        Record { answered: WINDOW, against: WINDOW * percent / 100, excess: 0 }
    }

    #[test]
    fn without_a_measure_only_the_absolute_limit_holds() {
        let new = Record::default();
        assert_eq!(new.rule(found(70, 30)), Ruling::Judged, "exactly the limit");
        assert_eq!(new.rule(found(69, 31)), Ruling::Leap);
        assert_eq!(new.rule(found(1, 19)), Ruling::Judged, "too few to tell");
        assert_eq!(new.rule(found(0, 25)), Ruling::Leap);
    }

    #[test]
    fn a_leap_is_measured_by_what_the_fleet_usually_sees() {
        assert_eq!(usual(1).rule(found(900, 100)), Ruling::Judged, "a tenth is never a leap");
        assert_eq!(usual(1).rule(found(890, 110)), Ruling::Leap);
        assert_eq!(usual(8).rule(found(760, 240)), Ruling::Judged, "three times what is usual");
        assert_eq!(usual(8).rule(found(750, 250)), Ruling::Leap);
        assert_eq!(usual(25).rule(found(690, 310)), Ruling::Leap, "and never above the absolute limit");
    }

    #[test]
    fn nobody_is_judged_while_nothing_shows_that_the_provider_is_well() {
        assert_eq!(Record::default().rule(found(0, 1)), Ruling::Unproven);
        let only_dead = Record { answered: 3, against: 3, excess: 0 };
        assert_eq!(only_dead.rule(found(0, 1)), Ruling::Unproven);
        assert_eq!(
            Record { answered: 4, ..only_dead }.rule(found(0, 1)),
            Ruling::Judged,
            "somebody was accepted of late"
        );
        assert_eq!(Record::default().rule(found(1, 1)), Ruling::Judged);
    }

    #[test]
    fn one_dead_device_of_a_platform_without_another_never_shuts_the_guard() {
        let mut record = Record::default();
        for _ in 0..1_000 {
            let ruling = record.rule(found(0, 1));
            assert_eq!(ruling, Ruling::Unproven);
            record = record.after(found(0, 1), ruling);
        }
        assert_eq!(record, Record::default());
        assert_eq!(record.rule(found(3, 1)), Ruling::Judged, "the first that is accepted beside it proves enough");
    }

    /// FCM calls everybody dead, and the fan-outs are small.
    fn lost_in_bites(mut record: Record, bite: u64) -> u64 {
        let mut lost = 0;
        for _ in 0..1_000 {
            let answers = found(0, bite);
            let ruling = record.rule(answers);
            lost += if ruling == Ruling::Judged { bite } else { 0 };
            record = record.after(answers, ruling);
        }
        lost
    }

    #[test]
    fn many_small_fanouts_cannot_prune_what_one_big_one_could_not() {
        for bite in [1, 5, 10, 19, 40] {
            for record in [Record { answered: 10, against: 0, excess: 0 }, usual(0), usual(1), usual(9)] {
                let lost = lost_in_bites(record, bite);
                assert!(lost <= 28, "{lost} devices in bites of {bite} after {record:?}");
            }
        }
    }

    #[test]
    fn healthy_answers_open_the_guard_again_and_a_fault_never_becomes_the_measure() {
        let mut record = usual(2);
        for _ in 0..50 {
            let ruling = record.rule(found(0, 1_000));
            assert_eq!(ruling, Ruling::Leap);
            record = record.after(found(0, 1_000), ruling);
        }
        assert_eq!((record.answered, record.against, record.excess), (WINDOW, 200, MOST_EXCESS));
        assert_eq!(record.rule(found(30, 1)), Ruling::Leap, "thirty say too little after that");
        assert_eq!(record.rule(found(490, 10)), Ruling::Judged, "five hundred say enough, their own dead included");
    }

    #[test]
    fn one_fanout_moves_the_measure_by_a_fifth_at_most() {
        let after = usual(0).after(found(700_000, 300_000), Ruling::Judged);
        assert_eq!((after.answered, after.against), (WINDOW, 600), "of a share of 30 %, a fifth");
    }

    #[test]
    fn a_platform_is_judged_by_itself() {
        let counters = PartCounters { accepted: [800, 0, 5], ..PartCounters::default() };
        let tally = Tally::new(905, [(Outcome::Delivered, 805), (Outcome::TokenDead, 100)]).unwrap();
        let rows = [("goal/en/ios".to_owned(), 90), ("goal/tr/android".to_owned(), 9), ("goal/en/web".to_owned(), 1)];
        let answers = answers(&tally, &counters, &rows).unwrap();
        assert_eq!(answers, [found(800, 9), found(0, 90), found(5, 1)]);
        let rulings = Rulings::new(answers, &ByPlatform::default());
        assert_eq!(rulings.judged().collect::<Vec<_>>(), [Platform::Android, Platform::Web]);
        let withheld = rulings.withheld();
        assert_eq!(withheld.len(), 1);
        assert_eq!((withheld[0].platform, withheld[0].against, withheld[0].answered), (Platform::Ios, 90, 90));
    }

    #[test]
    fn a_leap_is_remembered_until_its_platform_is_judged_again() {
        let lessons = |accepted: u64, against: u64, known: Record| {
            let rulings = Rulings::new([found(accepted, against), found(0, 0), found(0, 1)], &[known, known, known]);
            rulings.lessons(FanoutId(7), &[known; 3])
        };
        let leapt = lessons(10, 90, Record::default());
        let [android] = leapt[..] else { panic!("nothing is known of the others: {leapt:?}") };
        assert_eq!((android.platform, android.well, android.record.excess), (Platform::Android, false, MOST_EXCESS));
        let leap = android.leap.unwrap();
        assert_eq!((leap.fanout, leap.withheld.against, leap.withheld.answered), (FanoutId(7), 90, 100));
        let stored = android.stored_leap().unwrap().unwrap();
        // A newer build's is left out, and keeps nothing else out.
        assert_eq!(Leap::read_all(&["{}".to_owned(), stored]), [leap]);
        // Healthy answers while the guard is shut bring the excess down, and say nothing of a leap.
        let shut = lessons(30, 0, android.record);
        assert!(shut.iter().any(|l| l.platform == Platform::Android && l.leap.is_none() && !l.well), "{shut:?}");
        let well = lessons(300, 1, android.record);
        assert!(well.iter().any(|l| l.platform == Platform::Android && l.leap.is_none() && l.well), "{well:?}");
        // A sweep is no measure, and its leap is one.
        let answers = [found(10, 90), found(0, 0), found(5, 0)];
        let swept =
            Rulings::of_sweep(answers, &ByPlatform::default(), None).lessons(FanoutId(8), &ByPlatform::default());
        assert!(swept.iter().all(|lesson| lesson.record == Record::default()), "{swept:?}");
        assert_eq!(
            swept.iter().map(|l| (l.leap.is_some(), l.well)).collect::<Vec<_>>(),
            [(true, false), (false, true)]
        );
    }

    #[test]
    fn without_counters_by_platform_all_are_one() {
        let tally = Tally::new(100, [(Outcome::Delivered, 60), (Outcome::TokenDead, 40)]).unwrap();
        let rows = [("goal/en/ios".to_owned(), 35), ("goal/en/web".to_owned(), 5)];
        let answers = answers(&tally, &PartCounters::default(), &rows).unwrap();
        assert_eq!(answers, [found(0, 0), found(60, 40), found(60, 40)]);
        let strange = [("goal/en/fridge".to_owned(), 1)];
        assert!(matches!(super::answers(&tally, &PartCounters::default(), &strange), Err(StoreError::Corrupt(_))));
    }

    #[test]
    fn platforms_are_one_only_while_most_of_those_accepted_are_of_no_platform_known() {
        let rows = [("goal/en/ios".to_owned(), 15), ("goal/en/web".to_owned(), 1)];
        let nobody = Tally::new(16, [(Outcome::TokenDead, 16)]).unwrap();
        let apart = answers(&nobody, &PartCounters::default(), &rows).unwrap();
        assert_eq!(apart, [found(0, 0), found(0, 15), found(0, 1)], "nobody was accepted, so nothing is missing");
        let tally = Tally::new(116, [(Outcome::Delivered, 100), (Outcome::TokenDead, 16)]).unwrap();
        let counted = |accepted| PartCounters { accepted, ..PartCounters::default() };
        let few = answers(&tally, &counted([9, 40, 0]), &rows).unwrap();
        assert_eq!(few, [found(0, 0), found(100, 16), found(100, 16)], "half of them were lost with an instance");
        let most = answers(&tally, &counted([10, 40, 0]), &rows).unwrap();
        assert_eq!(most, [found(10, 0), found(40, 15), found(0, 1)]);
    }

    #[test]
    fn many_foreign_devices_are_told_from_a_few() {
        let foreign = |n| Tally::new(10_000, [(Outcome::Delivered, 9_000), (Outcome::TokenForeign, n)]).unwrap();
        assert!(!many_foreign(&foreign(19)));
        assert!(!many_foreign(&foreign(90)));
        assert!(many_foreign(&foreign(100)));
    }

    proptest! {
        /// Whatever is found, in whatever order: what is judged beyond the share ever allowed stays below the minimum.
        #[test]
        fn judged_devices_beyond_the_absolute_limit_are_never_many(
            fanouts in prop::collection::vec((0_u64..200, 0_u64..60), 1..200),
        ) {
            let mut record = Record::default();
            let (mut beyond, mut worst) = (0_i64, 0_i64);
            for (accepted, against) in fanouts {
                let answers = found(accepted, against);
                let ruling = record.rule(answers);
                record = record.after(answers, ruling);
                if ruling == Ruling::Judged {
                    let limit = DEAD_SHARE_LIMIT_PERCENT * (accepted + against);
                    beyond = (beyond + 100 * against as i64 - limit as i64).max(0);
                    worst = worst.max(beyond);
                }
                prop_assert!(record.answered <= WINDOW && record.against <= record.answered);
            }
            prop_assert!(worst <= 100 * DEAD_SHARE_MIN as i64, "{} hundredths", worst);
        }
    }
}
