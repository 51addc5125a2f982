//! Owns what a list of fixtures will ask for: requests minute by minute on average, and one possible course of events.
//! Must never know: how requests are sent (`rush` does that), or where the fixtures come from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::fixtures::Fixture;
use super::habits::Habit;
use super::sample::Draw;

/// One event type as a season sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// 0 goes before 1, 1 before 2.
    pub urgency: u8,
    /// Seconds it stays useful.
    pub useful_for_s: f64,
    /// How often it happens, when, and who wants it.
    pub habit: Habit,
}

/// An event that happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// When, s since 1970.
    pub at_s: f64,
    /// Its place among the kinds.
    pub kind: usize,
    /// Who gets it.
    pub recipients: u64,
}

/// Requests expected in one hour, one for each recipient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hour {
    /// Its start, s since 1970.
    pub from_s: i64,
    /// Requests.
    pub requests: f64,
    /// Requests per second in its busiest minute.
    pub peak_minute_per_s: f64,
    /// The start of that, s since 1970.
    pub peak_minute_s: i64,
}

/// Requests expected, hour by hour; hours without any are left out.
#[must_use]
pub fn hours(fixtures: &[Fixture], kinds: &[Kind]) -> Vec<Hour> {
    let mut hours: BTreeMap<i64, Hour> = BTreeMap::new();
    for (minute, requests) in minutes(fixtures, kinds) {
        let from_s = minute.div_euclid(60) * 3_600;
        let empty = Hour { from_s, requests: 0.0, peak_minute_per_s: 0.0, peak_minute_s: minute * 60 };
        let hour = hours.entry(from_s).or_insert(empty);
        hour.requests += requests;
        if requests / 60.0 > hour.peak_minute_per_s {
            (hour.peak_minute_per_s, hour.peak_minute_s) = (requests / 60.0, minute * 60);
        }
    }
    hours.into_values().collect()
}

/// Requests expected, by minutes since 1970.
fn minutes(fixtures: &[Fixture], kinds: &[Kind]) -> BTreeMap<i64, f64> {
    let mut minutes = BTreeMap::new();
    for fixture in fixtures {
        let kick_off = fixture.kick_off.unix_timestamp().div_euclid(60);
        for Kind { habit, .. } in kinds.iter().filter(|kind| kind.habit.per_match > 0.0) {
            let each = fixture.followers as f64 * habit.reach * habit.per_match / f64::from(habit.to - habit.from + 1);
            for minute in habit.from..=habit.to {
                *minutes.entry(kick_off + i64::from(minute)).or_insert(0.0) += each;
            }
        }
    }
    minutes.retain(|_, requests| *requests > 0.0);
    minutes
}

/// One possible course of the whole list, in the order of time.
#[must_use]
pub fn course(fixtures: &[Fixture], kinds: &[Kind], draw: &mut Draw) -> Vec<Event> {
    let mut events = Vec::new();
    for fixture in fixtures {
        let kick_off = fixture.kick_off.unix_timestamp() as f64;
        for (kind, Kind { habit, .. }) in kinds.iter().enumerate() {
            let recipients = (fixture.followers as f64 * habit.reach).round() as u64;
            let minutes = f64::from(habit.to - habit.from + 1);
            for _ in 0..how_often(habit, draw) {
                let at_s = kick_off + 60.0 * (f64::from(habit.from) + minutes * draw.unit());
                events.push(Event { at_s, kind, recipients });
            }
        }
    }
    events.retain(|event| event.recipients > 0);
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    events
}

/// How often it happens in one match: as scheduled, or as often as gaps of random length fit.
fn how_often(habit: &Habit, draw: &mut Draw) -> u32 {
    if habit.scheduled || habit.per_match == 0.0 {
        return habit.per_match as u32;
    }
    let (mut times, mut at) = (0, draw.gap(habit.per_match));
    while at <= 1.0 {
        times += 1;
        at += draw.gap(habit.per_match);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::fixtures::parse;

    fn kind(per_match: f64, scheduled: bool, (from, to): (i32, i32), reach: f64) -> Kind {
        let habit = Habit { per_match, scheduled, from, to, reach };
        Kind { name: "goal".into(), urgency: 0, useful_for_s: 120.0, habit }
    }

    fn two_at_three() -> Vec<Fixture> {
        parse("kick_off,home,away,followers\n2026-12-05T15:00:00Z,a,b,6000\n2026-12-05T16:00:00+01:00,c,d,12000\n")
            .unwrap()
    }

    #[test]
    fn matches_at_the_same_time_add_up_in_the_minute_they_share() {
        let kinds = [kind(1.0, true, (0, 0), 0.5), kind(2.0, false, (30, 89), 0.1)];
        let hours = hours(&two_at_three(), &kinds);
        assert_eq!(hours.len(), 2);
        // 18,000 x 0.5 in the minute of the kick-off, 18,000 x 0.1 x 2 over 60 minutes.
        assert!((hours[0].requests - (9_000.0 + 1_800.0)).abs() < 1e-6, "{hours:?}");
        assert!(
            (hours[0].peak_minute_per_s - 150.0).abs() < 1e-9 && hours[0].peak_minute_s == hours[0].from_s,
            "{hours:?}"
        );
        assert!(
            (hours[1].requests - 1_800.0).abs() < 1e-6 && (hours[1].peak_minute_per_s - 1.0).abs() < 1e-9,
            "{hours:?}"
        );
        assert_eq!(hours[1].from_s - hours[0].from_s, 3_600);
    }

    #[test]
    fn a_course_has_the_mean_of_the_expectation_and_its_order() {
        let kinds = [kind(1.0, true, (0, 0), 0.5), kind(2.5, false, (-10, 89), 1.0)];
        let (fixtures, mut draw) = (two_at_three(), Draw::seeded(1));
        let expected: f64 = hours(&fixtures, &kinds).iter().map(|hour| hour.requests).sum();
        let mut drawn = 0.0;
        for _ in 0..2_000 {
            let course = course(&fixtures, &kinds, &mut draw);
            assert!(course.is_sorted_by(|a, b| a.at_s <= b.at_s));
            assert_eq!(course.iter().filter(|event| event.kind == 0).count(), 2, "as scheduled");
            drawn += course.iter().map(|event| event.recipients as f64).sum::<f64>() / 2_000.0;
        }
        assert!((drawn / expected - 1.0).abs() < 0.05, "{drawn} of {expected}");
    }

    #[test]
    fn nobody_and_never_are_left_out() {
        let kinds = [kind(0.0, false, (0, 9), 1.0), kind(5.0, false, (0, 9), 0.0)];
        assert!(hours(&two_at_three(), &kinds).is_empty());
        assert!(course(&two_at_three(), &kinds, &mut Draw::seeded(1)).is_empty());
    }
}
