//! What becomes of events when more arrive than fit: a real service over a real PostgreSQL whose commits take 20 ms more.
//!
//! `cargo bench --bench ingest [-- --quick] [--seconds N] [--plot FILE.svg]` finds out how many events fit, then offers 1 to
//! 50 times as many, whatever the service answers; the same with callers who come back at once, with a database that stands
//! still, and without the gate. Each for 10 s, or as long as is said: about three minutes in all. It starts a PostgreSQL of its
//! own. Where `taskset` is there the service has a core, and generator and database have the other one. Beside each load at
//! 10 and 50 times stands the same of a server that does nothing but refuse (`bare.rs`): the floor of the method.
//!
//! Exits with 1 unless, at 10 and 50 times: what is accepted in time is nine tenths of what fits, the 99th percentile of
//! accepted is under twice the quiet one + 25 ms ("in time" is that too), that of refusals under 5 ms, `/livez` and `/readyz`
//! say yes within 50 ms, the memory is flat, and every post is answered 200, 202 or 503 within 10 s; and nothing that was
//! accepted is missing in the database at the end.
//!
//! `-- --knee` looks for the number of places from which on more of them only make everybody wait, and prints what to set
//! `api.max_in_flight` to. `-- --import [--rows N]` imports a million devices, or as many as two minutes are enough for, beside
//! a trickle of events, whose 99th percentile may double.
//!
//! `--quick` takes half a minute, of a debug build too, and judges what does not depend on how fast that is: at ten times what
//! fits four fifths of it are accepted (half, of callers who come back at once), health says yes each time it is asked, every
//! post is answered, some are refused, and nothing accepted is missing. What fits and what is accepted are measured one after
//! the other, so that a machine with something else to do may have changed in between: up to three tries, of which each has
//! to keep what was accepted.

#![allow(missing_docs, clippy::unwrap_used)]

mod bare;
mod caller;
mod import;
mod load;
mod plot;
mod service;

use std::process::ExitCode;
use std::time::Duration;

use sqlx::Executor;
use tokio_util::sync::CancellationToken;

use load::{Load, Offer, Rate, Times, offer, told};
use service::own_postgres::OwnPostgres;
use service::{AT_ONCE, Service, Target, Wanted};

/// The default: what the service works out itself.
const WORKED_OUT: u32 = 0;
/// As good as no gate.
const NO_GATE: u32 = 65_536;

#[derive(Clone, Copy)]
struct Plan {
    commit: Duration,
    /// How long each load is offered.
    lasts: Duration,
    multiples: &'static [f64],
    places: &'static [u32],
    quick: bool,
}

const FULL: Plan = Plan {
    commit: Duration::from_millis(20),
    lasts: Duration::from_secs(10),
    multiples: &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0],
    places: &[4, 6, 8, 10, 12, 16, 24, 32, 64],
    quick: false,
};
const QUICK: Plan = Plan {
    commit: Duration::from_millis(150),
    lasts: Duration::from_secs(3),
    multiples: &[1.0, 10.0],
    places: &[4, 10, 32],
    quick: true,
};

/// How often the quick form looks, at most.
const TRIES: u32 = 3;

impl Plan {
    async fn service(self, places: u32, server: &OwnPostgres) -> Service {
        Service::start(Wanted { commit: self.commit, places }, server).await
    }

    fn offer(self, rate: Rate, in_time: Duration) -> Offer {
        Offer { rate, lasts: self.lasts, stop: CancellationToken::new(), stubborn: false, in_time }
    }
}

/// What all loads are measured by.
struct Measure {
    plan: Plan,
    /// Events per second that fit.
    fits: f64,
    in_time: Duration,
    wrong: Vec<String>,
}

impl Measure {
    /// Events of a quarter of the places, one after the other; then of as many as there are connections, without a pause.
    async fn of(plan: Plan, target: &Target, ids: &mut Vec<u64>) -> Self {
        let quiet = offer(target, plan.offer(Rate::Closed(2), Duration::MAX), "quiet: 2 callers").await;
        told(&quiet);
        let callers = AT_ONCE as usize;
        let full = offer(target, plan.offer(Rate::Closed(callers), Duration::MAX), format!("{callers} callers")).await;
        told(&full);
        ids.extend(quiet.ids);
        ids.extend(full.ids);
        let in_time = 2 * quiet.accepted_in.p99 + Duration::from_millis(25);
        println!("{:.0} events/s fit; in time is within {in_time:?}", full.accepted);
        Self { plan, fits: full.accepted, in_time, wrong: Vec::new() }
    }

    fn offer(&self, multiple: f64) -> Offer {
        self.plan.offer(Rate::Open(self.fits * multiple), self.in_time)
    }

    /// Offers that many times what fits, and judges it.
    async fn load(&mut self, target: &Target, multiple: f64, stubborn: bool, ids: &mut Vec<u64>) -> Load {
        let name = format!("{multiple} times{}", if stubborn { ", coming back at once" } else { "" });
        let mut load = offer(target, Offer { stubborn, ..self.offer(multiple) }, name).await;
        told(&load);
        if multiple >= 10.0 {
            self.judge(&load, if stubborn && self.plan.quick { 0.6 } else { 1.0 });
        }
        ids.append(&mut load.ids);
        load
    }

    /// `share` of the least that has to be accepted otherwise.
    fn judge(&mut self, load: &Load, share: f64) {
        let (limits, name) = (self.limits(load, share * self.fits), &load.name);
        self.wrong.extend(limits.into_iter().filter(|(kept, _)| !kept).map(|(_, what)| format!("{name}: {what}")));
    }

    fn limits(&self, load: &Load, fits: f64) -> Vec<(bool, String)> {
        let (least, accepted) = if self.plan.quick { (0.8 * fits, load.accepted) } else { (0.9 * fits, load.good) };
        let health = if self.plan.quick { Duration::MAX } else { Duration::from_millis(50) };
        let mut limits = vec![
            (accepted >= least, format!("accepted {accepted:.0}/s, less than {least:.0}/s")),
            (load.health < health, format!("health took {:?}", load.health)),
            (load.strange == 0, format!("{} posts were neither accepted nor refused", load.strange)),
        ];
        if !self.plan.quick {
            let (accepted, refused) = (load.accepted_in.p99, load.refused_in.p99);
            limits.extend([
                (accepted <= self.in_time, format!("accepted in {accepted:?}")),
                (refused < Duration::from_millis(5), format!("refused in {refused:?}")),
                (load.grown_kib < 32 << 10, format!("grew by {} KiB", load.grown_kib)),
            ]);
        }
        limits
    }
}

/// The same load for a server that only refuses, and how the service's refusals compare with that.
async fn beside_a_bare_one(bare: &Target, load: &Load, plan: Plan) {
    let rate = Rate::Open(load.offered);
    let floor = offer(bare, plan.offer(rate, Duration::MAX), format!("a bare server, {}", load.name)).await;
    told(&floor);
    let ratio = |ours: Duration, theirs: Duration| ours.as_secs_f64() / theirs.as_secs_f64();
    println!(
        "refused, as many times what a bare server takes: {:.2} in the median, {:.2} at the 99th percentile; once written {:.2} and {:.2}",
        ratio(load.refused_in.p50, floor.refused_in.p50),
        ratio(load.refused_in.p99, floor.refused_in.p99),
        ratio(load.refused_after.p50, floor.refused_after.p50),
        ratio(load.refused_after.p99, floor.refused_after.p99),
    );
}

/// What is wrong, and how many of the accepted events were lost.
async fn measure(plan: Plan, server: &OwnPostgres, plot: Option<String>) -> (Vec<String>, usize) {
    let service = plan.service(WORKED_OUT, server).await;
    let target = &service.target;
    let (bare, floor) = bare::start().await;
    let mut ids = Vec::new();
    let mut measure = Measure::of(plan, target, &mut ids).await;
    let mut with = Vec::new();
    let mut last = Load::default();
    for multiple in plan.multiples {
        last = measure.load(target, *multiple, false, &mut ids).await;
        with.push((*multiple, last.good / measure.fits));
        if *multiple == 10.0 || *multiple == 50.0 {
            beside_a_bare_one(&floor, &last, plan).await;
        }
    }
    let storm = measure.load(target, 10.0, true, &mut ids).await;
    ids.extend(stalled(&mut measure, &service).await.ids);
    let lost = service.lost(&ids).await;
    let share = last.good / measure.fits * 100.0;
    println!(
        "at {}: {:.0} events/s accepted in time of {:.0}/s that fit, {share:.0} % (90 % wanted); refused within {:?} in the median, \
         {:?} at the 99th percentile (5 ms wanted)",
        last.name, last.good, measure.fits, last.refused_in.p50, last.refused_in.p99
    );
    println!("{} events were accepted, {lost} of them are missing in the database", ids.len());
    drop((service, bare));

    if !plan.quick {
        let without = without_a_gate(&measure, server).await;
        if let Some(path) = plot {
            std::fs::write(&path, plot::svg(measure.fits, &with, &without)).unwrap();
        }
    }
    let mut wrong = measure.wrong;
    if storm.accepted == 0.0 || storm.sent <= storm.accepted {
        wrong.push("nothing was accepted, or nothing refused".to_owned());
    }
    if lost > 0 {
        wrong.push(format!("{lost} accepted events are lost"));
    }
    (wrong, lost)
}

/// The same loads, half as long each, for a service that lets everybody in.
async fn without_a_gate(measure: &Measure, server: &OwnPostgres) -> Vec<plot::Point> {
    let open = measure.plan.service(NO_GATE, server).await;
    let mut without = Vec::new();
    for multiple in measure.plan.multiples {
        let half_as_long = Offer { lasts: measure.plan.lasts / 2, ..measure.offer(*multiple) };
        let load = offer(&open.target, half_as_long, format!("{multiple} times, no gate")).await;
        told(&load);
        without.push((*multiple, load.good / measure.fits));
    }
    without
}

/// The quick form, again when it fails for what a busy machine may be to blame for.
async fn look(server: &OwnPostgres) -> Vec<String> {
    for _ in 1..TRIES {
        let (wrong, lost) = measure(QUICK, server, None).await;
        if wrong.is_empty() || lost > 0 {
            return wrong;
        }
        eprintln!("once more, because: {}", wrong.join("; "));
    }
    measure(QUICK, server, None).await.0
}

/// Ten times what fits, while nothing is committed at all.
async fn stalled(measure: &mut Measure, service: &Service) -> Load {
    let mut blocker = service.database.connection().await;
    blocker.execute("BEGIN; LOCK TABLE event IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let unblock = async {
        tokio::time::sleep(measure.plan.lasts).await;
        blocker.execute("ROLLBACK").await.unwrap();
    };
    let load = offer(&service.target, measure.offer(10.0), "10 times, database stalled");
    let (mut load, ()) = tokio::join!(load, unblock);
    told(&load);
    let ids = std::mem::take(&mut load.ids);
    // Nobody can be accepted in time here.
    measure.judge(&Load { accepted_in: Times::default(), ..load }, 0.0);
    Load { ids, ..Load::default() }
}

/// The fewest places with which as much is accepted in time as with any number, within a thirtieth.
async fn knee(plan: Plan, server: &OwnPostgres) -> Vec<String> {
    let first = plan.service(WORKED_OUT, server).await;
    let measure = Measure::of(plan, &first.target, &mut Vec::new()).await;
    drop(first);
    let mut seen = Vec::new();
    for places in plan.places {
        let service = plan.service(*places, server).await;
        let offer_of = Offer { lasts: plan.lasts / 2, ..measure.offer(2.0) };
        let load = offer(&service.target, offer_of, format!("{places} places, 2 times")).await;
        told(&load);
        seen.push((*places, load.good));
    }
    let best = seen.iter().map(|(_, good)| *good).fold(0.0, f64::max);
    let Some((places, _)) = seen.iter().find(|(_, good)| best > 0.0 && *good >= best * 29.0 / 30.0) else {
        return vec!["nothing was accepted in time".to_owned()];
    };
    println!(
        "api.max_in_flight = {places} for {AT_ONCE} connections: fewer places accept less, more only make everybody wait"
    );
    Vec::new()
}

#[tokio::main(flavor = "current_thread")]
async fn run(args: &[String]) -> Vec<String> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let given = |name: &str| args.iter().any(|arg| arg == name);
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned();
    let mut plan = if given("--quick") { QUICK } else { FULL };
    if let Some(seconds) = value("--seconds").and_then(|n| n.parse().ok()) {
        plan.lasts = Duration::from_secs(seconds);
    }
    if !service::pin_generator().await {
        eprintln!("no core of their own for service and generator: taskset is missing, or there is one core only");
    }
    let server = service::postgres().await;
    if given("--knee") {
        knee(plan, &server).await
    } else if given("--import") {
        let rows = value("--rows").and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
        import::measure(&server, rows, plan.lasts).await
    } else if plan.quick {
        look(&server).await
    } else {
        measure(plan, &server, value("--plot")).await.0
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|arg| arg == bare::ARGUMENT) {
        bare::serve();
        return ExitCode::SUCCESS;
    }
    let wrong = run(&args);
    wrong.iter().for_each(|what| eprintln!("{what}"));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
