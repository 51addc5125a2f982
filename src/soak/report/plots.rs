//! Owns which plots there are and what each shows.
//! Must never know: how lines and bars become SVG, or the page around them.

use super::svg::{Chart, short};
use super::{Report, Series};
use crate::soak::verdict::f;

/// All of them, in the order of the page.
pub(super) fn all(r: &Report) -> Vec<String> {
    [rate, outcomes, freshness, latency, memory, modes].iter().map(|plot| plot(r)).collect()
}

/// Seconds the horizontal axis shows.
fn length(r: &Report) -> f64 {
    (f(r.series.requests.len() as u64) * r.series.step_s).max(r.setup.seconds)
}

fn over_time(r: &Report, y_max: f64) -> Chart {
    faulty(r, Chart::new(length(r), y_max))
}

/// With the faults behind what is drawn.
fn faulty(r: &Report, mut chart: Chart) -> Chart {
    for done in &r.faults {
        let title = format!("{}, {:.1} s to {:.1} s", done.fault, done.from_s, done.to_s);
        chart.span("fault", (done.from_s, done.to_s), &title);
    }
    chart
}

fn seconds(r: &Report) -> Vec<(f64, String)> {
    let end = length(r);
    (0..=6).map(|i| end * f64::from(i) / 6.0).map(|s| (s, format!("{s:.0} s"))).collect()
}

/// Requests against the ceiling, and the pace below it.
fn rate(r: &Report) -> String {
    let Series { step_s, requests, pace, .. } = &r.series;
    let most = requests.iter().copied().fold(r.setup.rate * 1.1, f64::max);
    let mut chart = over_time(r, most);
    let at = |i: usize| f(i as u64) * step_s;
    let points: Vec<_> = requests.iter().enumerate().map(|(i, n)| (at(i), *n)).collect();
    let paced: Vec<_> = pace.iter().enumerate().filter_map(|(i, p)| Some((at(i), (*p)?))).collect();
    chart.name("c1", "requests in the fullest second of each step");
    chart.name("c3", "pace");
    chart.name("limit", "ceiling, and 110 % of it");
    chart.name("fault", "fault");
    chart.line("c3", &paced);
    chart.line("c1", &points);
    chart.level("limit", r.setup.rate);
    chart.level("limit faint", r.setup.rate * 1.1);
    chart.finish("Requests per second against the ceiling", &seconds(r), true)
}

/// One colour each; whatever else there is shares the last.
fn class(outcome: &str) -> &'static str {
    match outcome {
        "delivered" => "c1",
        "expired" => "c2",
        "token_dead" | "token_invalid" | "token_foreign" | "gone" => "c3",
        "cancelled" => "c4",
        _ => "c5",
    }
}

const CLASSES: [(&str, &str); 5] = [
    ("c1", "delivered"),
    ("c2", "expired"),
    ("c3", "device gone or invalid"),
    ("c4", "cancelled"),
    ("c5", "any other failure"),
];

/// How recipients ended, by the time their fan-out was settled.
fn outcomes(r: &Report) -> String {
    let Series { step_s, outcomes, .. } = &r.series;
    let steps = outcomes.values().map(Vec::len).max().unwrap_or(0);
    let of = |class_of: &str, at: usize| -> u64 {
        outcomes.iter().filter(|(name, _)| class(name) == class_of).filter_map(|(_, counts)| counts.get(at)).sum()
    };
    let whole = |at: usize| CLASSES.iter().map(|(c, _)| of(c, at)).sum::<u64>();
    let most = (0..steps).map(whole).max().unwrap_or(1);
    let mut chart = over_time(r, f(most.max(1)));
    for (class, text) in CLASSES {
        chart.name(class, text);
    }
    for at in 0..steps {
        let (mut below, x) = (0, f(at as u64) * step_s);
        for (class, text) in CLASSES {
            let n = of(class, at);
            if n > 0 {
                chart.bar(class, (x, x + step_s * 0.9), (f(below), f(below + n)), &format!("{text}: {n} at {x:.0} s"));
            }
            below += n;
        }
    }
    chart.finish("Outcomes, when their fan-out was settled", &seconds(r), true)
}

/// Percentiles of each type on one logarithmic scale.
fn freshness(r: &Report) -> String {
    let types: Vec<_> = r.freshness.iter().collect();
    let log = |ms: u64| f(ms.max(10)).log10() - 1.0;
    let mut chart = Chart::rows(4.0, f(types.len() as u64));
    for (class, text) in [("c1", "median"), ("c3", "95th percentile"), ("c2", "99th percentile")] {
        chart.name(class, text);
    }
    let height = f(types.len().max(1) as u64);
    for (i, (kind, told)) in types.iter().enumerate() {
        let y = height - f(i as u64) - 0.9;
        for (class, ms) in [("c2", told.p99_ms), ("c3", told.p95_ms), ("c1", told.p50_ms)] {
            let title = format!("{kind}: median {} ms, 95 % {} ms, 99 % {} ms", told.p50_ms, told.p95_ms, told.p99_ms);
            chart.bar(class, (0.0, log(ms)), (y, y + 0.75), &title);
        }
        chart.text((log(told.p99_ms) + 0.03, y + 0.1), &format!("{kind} ({})", told.messages));
    }
    let ticks = [(0.0, "10 ms"), (1.0, "100 ms"), (2.0, "1 s"), (3.0, "10 s"), (4.0, "100 s")];
    chart.finish("Behind the pitch, by event type", &ticks.map(|(x, text)| (x, text.to_owned())), false)
}

/// Fan-outs by how long their sends took.
fn latency(r: &Report) -> String {
    let latency = &r.series.latency;
    let all =
        [("c1", "median", &latency.p50), ("c3", "99th percentile", &latency.p99), ("c2", "slowest", &latency.slowest)];
    let most = all.iter().flat_map(|(_, _, counts)| counts.iter()).max().copied().unwrap_or(1);
    let classes = latency.bounds_ms.len() + 1;
    let mut chart = Chart::new(f(classes as u64), f(most.max(1)));
    for (nth, (class, text, counts)) in all.iter().enumerate() {
        chart.name(class, &format!("{text} send of a fan-out"));
        for (at, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let x = f(at as u64) + 0.05 + 0.3 * f(nth as u64);
            let below = latency.bounds_ms.get(at).map_or("more".to_owned(), |ms| format!("{ms} ms or less"));
            chart.bar(class, (x, x + 0.28), (0.0, f(*n)), &format!("{text} {below}: {n} fan-outs"));
        }
    }
    let ticks =
        latency.bounds_ms.iter().enumerate().map(|(at, ms)| (f(at as u64) + 0.5, format!("≤{}", short(f(*ms)))));
    chart.finish("Send latency, ms: how many fan-outs", &ticks.collect::<Vec<_>>(), true)
}

const SEATS: [&str; 5] = ["c1", "c3", "c4", "c2", "c5"];

/// Resident memory of every process.
fn memory(r: &Report) -> String {
    let points = || r.series.memory.iter().flat_map(|m| &m.points);
    let most = points().map(|p| p.1).fold(1.0, f64::max);
    let mut chart = over_time(r, most);
    let mut named = Vec::new();
    for memory in &r.series.memory {
        let class = SEATS[memory.seat % SEATS.len()];
        if !named.contains(&memory.seat) {
            named.push(memory.seat);
            chart.name(class, &format!("instance {}", memory.seat + 1));
        }
        chart.line(class, &memory.points);
    }
    chart.finish("Resident memory, MB", &seconds(r), true)
}

/// Mode of the ceiling, one row for each instance.
fn modes(r: &Report) -> String {
    let rows = r.series.modes.iter().map(|band| band.seat + 1).max().unwrap_or(1) as u64;
    let mut chart = faulty(r, Chart::rows(length(r), 2.0 * f(rows)));
    let names = [("c1", "single"), ("c4", "shared"), ("c2", "split"), ("none", "no answer")];
    for (class, mode) in names {
        chart.name(class, mode);
    }
    for band in &r.series.modes {
        let class = names.iter().find(|(_, mode)| *mode == band.mode).map_or("none", |(class, _)| class);
        let row = f(rows - 1 - (band.seat as u64).min(rows - 1));
        let title = format!("instance {}: {}, {:.1} s to {:.1} s", band.seat + 1, band.mode, band.from_s, band.to_s);
        chart.bar(class, (band.from_s, band.to_s), (2.0 * row + 0.3, 2.0 * row + 1.7), &title);
    }
    chart.finish("Mode of the ceiling", &seconds(r), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::report::tests::report;

    #[test]
    fn every_plot_has_data() {
        for (plot, least) in all(&report()).iter().zip([2, 2, 3, 3, 1, 1]) {
            let drawn = plot.matches("<path class=\"line c").count() + plot.matches("<rect class=\"c").count();
            assert!(drawn >= least, "{drawn}: {plot}");
            assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
    }

    #[test]
    fn a_soak_in_which_nothing_happened_is_drawn_without_a_number_that_is_none() {
        let mut empty = report();
        (empty.series, empty.freshness) = (Series::default(), Default::default());
        for plot in all(&empty) {
            assert!(plot.contains("<svg") && !plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
    }
}
