//! Owns the report of a soak: one document that says everything, which is the JSON, and from which the page and the
//! summary are made.
//! Must never know: how a soak is run.

mod freshness;
mod html;
mod markdown;
mod plots;
mod series;
mod svg;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::faults::Faults;
use super::observed::Observed;
use super::verdict::{Invariant, State, judge};
pub use freshness::{Freshness, Stalls};
pub use html::page;
pub use markdown::summary;
pub use series::{Band, Latency, Memory, Series};

/// Of the JSON. A field is added without a new number; none is renamed or removed without one.
pub const SCHEMA: u32 = 1;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Of Fanfare.
    pub version: String,
    /// Of day and faults.
    pub seed: u64,
    /// Length of the day, s.
    pub seconds: f64,
    /// Name of the mix.
    pub faults: String,
    /// Ceiling, requests per second.
    pub rate: f64,
    /// Instances of `serve`.
    pub instances: usize,
    /// `sqlite` or `postgres`.
    pub database: String,
    /// `none`, `own` or `given`.
    pub redis: String,
    /// Matches of the day.
    pub matches: usize,
    /// Devices that follow them.
    pub devices: u32,
    /// Devices that follow the largest.
    pub largest_audience: u32,
}

/// One fault as it was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Its name.
    pub fault: String,
    /// Seconds into the day.
    pub from_s: f64,
    /// The same.
    pub to_s: f64,
}

/// A fault that was asked for and could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Its name.
    pub fault: String,
    /// Why.
    pub why: String,
}

/// Sums over all fan-outs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Posts made, repeats and corrections among them.
    pub posts: u64,
    /// Posts refused because they came too late to be useful.
    pub too_late: u64,
    /// Fan-outs.
    pub fanouts: u64,
    /// Recipients.
    pub recipients: u64,
    /// Accepted by the provider.
    pub delivered: u64,
    /// Ended otherwise.
    pub failed: u64,
    /// HTTP requests.
    pub attempts: u64,
    /// Second attempts.
    pub retried: u64,
    /// Answers that said "slower".
    pub throttled: u64,
    /// Attempts over a second.
    pub stalled: u64,
    /// Slowest answered attempt, ms.
    pub slowest_send_ms: u64,
    /// Messages taken twice.
    pub duplicates: u64,
    /// kill -9 of instances.
    pub kills: u64,
    /// SIGTERM of instances.
    pub terminated: u64,
}

/// All there is to say about a soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was asked for.
    pub setup: Setup,
    /// No invariant was violated.
    pub passed: bool,
    /// Each law and how it came out.
    pub invariants: Vec<Invariant>,
    /// Faults in order.
    pub faults: Vec<Done>,
    /// Faults that do not apply here.
    pub absent: Vec<Absent>,
    /// Sums.
    pub totals: Totals,
    /// By outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// What the provider answered, by its name for it.
    pub answers: BTreeMap<String, u64>,
    /// How far behind the pitch, by event type.
    pub freshness: BTreeMap<String, Freshness>,
    /// Stall episodes.
    pub stalls: Stalls,
    /// Lines of the service at WARN and ERROR, and how often.
    pub complaints: BTreeMap<String, u64>,
    /// Everything over time.
    pub series: Series,
}

impl Report {
    /// Judges what was seen and sums it up.
    #[must_use]
    pub fn new(setup: Setup, faults: &Faults, o: &Observed) -> Self {
        let invariants = judge(o);
        let seconds = |ms: u64| super::verdict::f(ms) / 1000.0;
        let done = faults.windows.iter().map(|w| Done {
            fault: w.fault.name().to_owned(),
            from_s: seconds(w.from_ms),
            to_s: seconds(w.to_ms),
        });
        let absent = faults.absent.iter();
        let absent = absent.map(|(fault, why)| Absent { fault: fault.name().to_owned(), why: (*why).to_owned() });
        Self {
            schema: SCHEMA,
            setup,
            passed: invariants.iter().all(|i| i.state != State::Violated),
            invariants,
            faults: done.collect(),
            absent: absent.collect(),
            totals: totals(o),
            outcomes: outcomes(o),
            answers: o.seen.answers.clone(),
            freshness: freshness::by_type(o),
            stalls: freshness::stalls(o),
            complaints: o.complaints.clone(),
            series: Series::of(o),
        }
    }

    /// The verdict in one line.
    #[must_use]
    pub fn headline(&self) -> String {
        let violated: Vec<&str> =
            self.invariants.iter().filter(|i| i.state == State::Violated).map(|i| i.name.as_str()).collect();
        let Setup { faults, seed, seconds, .. } = &self.setup;
        let told = if self.passed { "passed".to_owned() } else { format!("FAILED ({})", violated.join(", ")) };
        format!("soak {told}: {seconds:.0} s, faults {faults}, seed {seed}")
    }
}

fn totals(o: &Observed) -> Totals {
    let sum = |n: fn(&crate::wire::Fanout) -> u64| o.fanouts.values().map(n).sum::<u64>();
    Totals {
        posts: o.posted.len() as u64,
        too_late: o.posted.iter().filter(|p| p.refused.as_deref() == Some("event_too_late")).count() as u64,
        fanouts: o.fanouts.len() as u64,
        recipients: sum(|f| f.recipients),
        delivered: sum(|f| f.delivered),
        failed: sum(|f| f.failed),
        attempts: sum(|f| f.attempts),
        retried: sum(|f| f.retried),
        throttled: sum(|f| f.throttled),
        stalled: sum(|f| f.stalled),
        slowest_send_ms: o.fanouts.values().map(|f| f.slowest_send_ms).max().unwrap_or(0),
        duplicates: o.seen.duplicates,
        kills: o.kills,
        terminated: o.terminated,
    }
}

fn outcomes(o: &Observed) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, n) in o.fanouts.values().flat_map(|f| &f.outcomes).filter(|(_, n)| **n > 0) {
        *sums.entry(name.clone()).or_default() += n;
    }
    sums
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::soak::faults::{Fault, Mix, Victims, Window};
    use crate::soak::verdict::tests::observed;

    pub fn setup() -> Setup {
        Setup {
            version: "0.1.0".into(),
            seed: 7,
            seconds: 180.0,
            faults: Mix::All.to_string(),
            rate: 100.0,
            instances: 1,
            database: "sqlite".into(),
            redis: "none".into(),
            matches: 4,
            devices: 400,
            largest_audience: 200,
        }
    }

    /// Of a healthy day on SQLite with one fault.
    pub fn report() -> Report {
        let victims = Victims { no_redis: Some("no Redis"), no_process: None };
        let mut faults = Faults { windows: Vec::new(), ..Faults::plan(7, Mix::RedisAway, 180_000, victims) };
        faults.windows.push(Window { fault: Fault::Stall, from_ms: 30_000, to_ms: 34_000 });
        Report::new(setup(), &faults, &observed())
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let report = report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert_eq!((report.schema, report.passed), (SCHEMA, true));
    }

    #[test]
    fn one_violated_invariant_fails_the_whole_and_is_named() {
        let mut o = observed();
        o.seen.duplicates = 99;
        let report = Report::new(setup(), &Faults::default(), &o);
        assert!(
            !report.passed && report.headline().starts_with("soak FAILED (duplicates): 180 s"),
            "{}",
            report.headline()
        );
    }

    #[test]
    fn faults_that_do_not_apply_are_named_with_the_reason() {
        let report = report();
        assert_eq!(report.absent[0], Absent { fault: "Redis frozen".into(), why: "no Redis".into() });
        assert_eq!((report.faults[0].fault.as_str(), report.faults[0].from_s), ("stalls", 30.0));
        assert_eq!(report.totals.recipients, report.outcomes.values().sum::<u64>());
    }
}
