//! Owns what `fanfare plan season` says to people.
//! Must never know: how any of the figures is worked out.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use super::Answer;
use crate::capacity::quota::{Shape, shape};
use crate::capacity::rush::Fate;
use crate::capacity::season::Hour;
use crate::cli::plan::table::{row, table};
use crate::cli::plan::unit::{digits, figure, given};

pub(super) fn text(answer: &Answer) -> String {
    let mut text = format!(
        "{} matches, {} followers of them in all, {:.0} requests expected: {:.1} for each follower.\n",
        answer.matches,
        answer.followers,
        answer.requests,
        answer.requests / (answer.followers as f64).max(1.0)
    );
    if let Some(peak) = peak(&answer.hours) {
        text.push_str(&format!(
            "The busiest minute is {}: {:.0} requests/s, averaged over it and over all courses of events;\none goal asks for all of its recipients at once.\n\n{}",
            clock(peak.peak_minute_s),
            peak.peak_minute_per_s,
            table(&day(&answer.hours, peak))
        ));
    }
    text.push_str(&format!("\n{}", table(&fates(answer))));
    text.push_str(&format!(
        "missed = not sent to while it was useful, by 40 simulated seasons, seed {} (± 99.9 %).\n\n",
        answer.seed
    ));
    let percent = given(100.0 * answer.missed_at_most);
    match (&answer.needed, &answer.config_patch) {
        (Some(needed), Some(patch)) => {
            let quota: Shape = shape(needed.rate_per_s, needed.quota_per_minute);
            let enough = if needed.quota_is_enough { "which there is" } else { "MORE than there is: ask Google" };
            text.push_str(&format!(
                "For at most {percent} % of any type missed: {} requests/s; it is {} that decides. The worst minute has {:.0}\nof a \
                 quota of {}, {enough}. {} instance(s) with {} slots each.\nThe settings, for `fanfare config check --config \
                 FILE`:\n\n{patch}",
                given(needed.rate_per_s),
                needed.decided_by,
                quota.most_per_min,
                quota.quota_per_min,
                needed.instances,
                needed.slots_each
            ));
        }
        _ => text.push_str(&format!("No rate up to 1000000/s keeps what is missed below {percent} %.\n")),
    }
    text
}

fn peak(hours: &[Hour]) -> Option<&Hour> {
    hours.iter().max_by(|a, b| a.peak_minute_per_s.total_cmp(&b.peak_minute_per_s))
}

/// The hours of the day with the busiest minute.
fn day(hours: &[Hour], peak: &Hour) -> Vec<Vec<String>> {
    let day = |hour: &Hour| hour.from_s.div_euclid(86_400);
    let mut rows = vec![row(&["hour (UTC)", "requests", "mean", "", "busiest minute", ""])];
    rows.extend(hours.iter().filter(|hour| day(hour) == day(peak)).map(|hour| {
        row(&[
            &clock(hour.from_s),
            &format!("{:.0}", hour.requests),
            &figure(hour.requests / 3_600.0),
            "/s",
            &figure(hour.peak_minute_per_s),
            "/s",
        ])
    }));
    rows
}

/// `2026-12-05 15:00`, in UTC.
fn clock(seconds: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(seconds).map(|at| at.to_offset(UtcOffset::UTC).format(&Rfc3339));
    at.ok().and_then(Result::ok).map_or_else(|| seconds.to_string(), |text| text.replace('T', " ").replace(":00Z", ""))
}

fn fates(answer: &Answer) -> Vec<Vec<String>> {
    let at = format!("missed at {}/s", given(answer.ceiling_per_s));
    let then = answer.needed.as_ref().map_or(String::new(), |needed| format!("at {}/s", given(needed.rate_per_s)));
    let mut rows = vec![row(&["type", "events", "recipients", &at, &then])];
    rows.extend(answer.at_ceiling.iter().enumerate().filter(|(_, fate)| fate.events > 0.0).map(|(i, fate)| {
        let missed = |fate: &Fate| match fate.missed.value {
            0.0 => "0 %".to_owned(),
            value => format!("{} ± {} %", figure(100.0 * value), digits(100.0 * fate.missed.within, 2)),
        };
        let then = answer.needed.as_ref().and_then(|needed| needed.at_rate.get(i)).map(missed).unwrap_or_default();
        row(&[&fate.name, &figure(fate.events), &format!("{:.0}", fate.recipients), &missed(fate), &then])
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_as_people_read_it() {
        assert_eq!(clock(1_765_000_800), "2025-12-06 06:00");
    }
}
