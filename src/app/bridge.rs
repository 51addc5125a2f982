//! Owns the small adapters between rooms that must not know each other.
//! Must never know: anything an adapter could decide.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::api::{Fits, OpsState, Part, Parts};
use crate::breaker::BreakerState;
use crate::ceiling::Ceiling;
use crate::domain::batch::Flushed;
use crate::domain::catalogue::{Catalogue, MAX_COLLAPSE_KEY_BYTES};
use crate::domain::event::{Event, FieldError};
use crate::domain::ids::FanoutId;
use crate::domain::recipient::Platform;
use crate::fanout::{Hands, ToSender};
use crate::fcm::message::Template;
use crate::fcm::oauth::TokenState;
use crate::ledger::judgement::Judgements;
use crate::metrics::{Family, FloatGauge, Gauge, Metrics};
use crate::wire::CeilingAnswer;

/// Everything readiness and metrics look at.
#[derive(Clone)]
pub struct Watched {
    /// The ceiling.
    pub ceiling: Ceiling,
    /// The access token.
    pub token: watch::Receiver<TokenState>,
    /// The dispatcher's hands.
    pub hands: Arc<Hands>,
    /// What became of devices.
    pub judgements: Judgements,
    /// Live instances.
    pub live: watch::Receiver<u32>,
    /// Why the last heartbeat failed.
    pub trouble: watch::Receiver<Option<String>>,
    /// Cancelled when draining begins.
    pub draining: CancellationToken,
}

/// Tells the dispatcher what is on disk.
pub fn acknowledge(to_sender: mpsc::UnboundedSender<ToSender>) -> Box<dyn Fn(Flushed) + Send + Sync> {
    Box::new(move |flushed| {
        let outcomes = flushed.outcomes;
        if to_sender.send(ToSender::Flushed(flushed)).is_err() {
            tracing::debug!(target: "fanfare::app", outcomes, "the sender thread has ended");
        }
    })
}

/// Tells the dispatcher and waiting polls that a fan-out is settled.
pub fn announce(
    to_sender: mpsc::UnboundedSender<ToSender>,
    settled: broadcast::Sender<FanoutId>,
) -> Box<dyn Fn(FanoutId) + Send + Sync> {
    Box::new(move |id| {
        // Nobody polls, or the sender thread has ended: both are fine.
        let _ = settled.send(id);
        let _ = to_sender.send(ToSender::Settled(id));
    })
}

/// Tells the dispatcher that a fan-out is cancelled, and the settler that there may be nothing left of it. The settler
/// ends when nobody can tell it anything any more, so this does not keep it.
pub fn cancelled(
    to_sender: mpsc::UnboundedSender<ToSender>,
    complete: mpsc::WeakUnboundedSender<FanoutId>,
) -> Arc<dyn Fn(FanoutId) + Send + Sync> {
    Arc::new(move |id| {
        // While draining there is neither: the next start finds both in the store.
        let _ = to_sender.send(ToSender::Cancelled(id));
        if let Some(complete) = complete.upgrade() {
            let _ = complete.send(id);
        }
    })
}

/// Tells the settler that there may be nothing left of a fan-out.
pub fn complete(complete: mpsc::WeakUnboundedSender<FanoutId>) -> Arc<dyn Fn(FanoutId) + Send + Sync> {
    Arc::new(move |id| {
        if let Some(complete) = complete.upgrade() {
            let _ = complete.send(id);
        }
    })
}

/// Whether every variant of an event fits FCM's limit.
pub fn fits() -> Arc<Fits> {
    Arc::new(|catalogue: &Catalogue, event: &Event| {
        let Some(kind) = catalogue.get(&event.kind) else { return Ok(()) };
        // A correction goes by the key of what it corrects, which may be as long as any.
        let key = match event.supersedes {
            Some(_) => "k".repeat(MAX_COLLAPSE_KEY_BYTES),
            None => kind.collapse_key(event),
        };
        for locale in kind.texts.keys() {
            let text = kind.render(locale, event);
            for platform in Platform::ALL {
                if let Err(error) = Template::keyed(event, kind, &text, (*platform, &key)) {
                    return Err(FieldError { field: error.field().to_owned(), problem: error.to_string() });
                }
            }
        }
        Ok(())
    })
}

/// `GET /v1/ceiling`.
pub fn ceiling_answer(ceiling: Ceiling) -> Arc<dyn Fn() -> CeilingAnswer + Send + Sync> {
    Arc::new(move || {
        let s = ceiling.snapshot();
        CeilingAnswer {
            mode: s.mode.as_str().to_owned(),
            rate: s.rate,
            pace: s.pace,
            share: s.share,
            used_per_s: s.used_per_s,
            waiting: s.waiting,
            used: s.used,
            forfeited: s.forfeited,
            held_ms: millis(s.held_for),
            throttled_ms: millis(s.throttled_for),
            paused_for_ms: millis(s.paused_for),
            reason: s.reason,
        }
    })
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// What the operations listener tells.
pub fn ops(mut metrics: Metrics, watched: Watched) -> OpsState {
    let gauges = Gauges::register(&mut metrics);
    let seen = watched.clone();
    OpsState {
        parts: Arc::new(move || parts(&watched)),
        metrics: Arc::new(move || {
            gauges.refresh(&seen);
            metrics.render()
        }),
    }
}

/// Whether events are taken hangs on the database and the drain alone; the rest decides when they are sent.
fn parts(w: &Watched) -> Parts {
    let database = match &*w.trouble.borrow() {
        None => Part::Well(format!("heartbeat accepted, {} live instances", *w.live.borrow())),
        Some(error) => Part::Failed(error.clone()),
    };
    let s = w.ceiling.snapshot();
    let ceiling = format!("{}, pace {}/s of {}/s {}", s.mode.as_str(), s.pace, s.rate, s.reason).trim_end().to_owned();
    // It says why only when the rate is not kept where it should be.
    let ceiling = if s.reason.is_empty() { Part::Well(ceiling) } else { Part::Degraded(ceiling) };
    let breaker = w.hands.breaker().to_owned();
    let breaker = if breaker == BreakerState::Closed.as_str() { Part::Well(breaker) } else { Part::Degraded(breaker) };
    let draining = w.draining.is_cancelled();
    let drain = if draining { Part::Failed("draining".to_owned()) } else { Part::Well("taking events".to_owned()) };
    vec![
        ("database".to_owned(), database),
        ("credentials".to_owned(), credentials(w)),
        ("ceiling".to_owned(), ceiling),
        ("breaker".to_owned(), breaker),
        ("devices".to_owned(), Part::Well(w.judgements.standing())),
        ("drain".to_owned(), drain),
    ]
}

fn credentials(w: &Watched) -> Part {
    let refused: Vec<&str> = w.hands.refused().each().filter(|(_, refused)| *refused).map(|(name, _)| name).collect();
    match &*w.token.borrow() {
        TokenState::Ready { generation, .. } if refused.is_empty() => Part::Well(format!("access token {generation}")),
        TokenState::Ready { generation, .. } => {
            Part::Degraded(format!("access token {generation}, refused: {}", refused.join(" ")))
        }
        // What is accepted meanwhile is sent when there is one.
        TokenState::Waiting => Part::Degraded("access token is being asked for".to_owned()),
        TokenState::Unavailable { reason } | TokenState::Refused { reason } => Part::Degraded(reason.clone()),
    }
}

/// Gauges read at the time of the scrape.
struct Gauges {
    rate: FloatGauge,
    pace: FloatGauge,
    share: FloatGauge,
    used: Gauge,
    forfeited: Gauge,
    waiting: Gauge,
    held: FloatGauge,
    throttled: FloatGauge,
    paused: FloatGauge,
    live: Gauge,
    launchable: Gauge,
    in_flight: Gauge,
    breaker_open: Gauge,
    breaker: Family<Label, Gauge>,
    refused: Family<Label, Gauge>,
    tasks: Gauge,
}

type Label = [(&'static str, &'static str); 1];

impl Gauges {
    fn register(m: &mut Metrics) -> Self {
        Self {
            rate: m.float_gauge("ceiling_rate_per_second", "Configured ceiling of the fleet."),
            pace: m.float_gauge("ceiling_pace_per_second", "Pace of the fleet now."),
            share: m.float_gauge("ceiling_share_per_second", "What this instance may use now."),
            used: m.gauge("grants_used", "Grants used since start: HTTP requests to FCM."),
            forfeited: m.gauge("grants_forfeited", "Grants forfeited since start: they came too late to use."),
            waiting: m.gauge("grants_waiting", "Grants that could be used at once."),
            held: m.float_gauge("ceiling_held_seconds", "Time since start in which our own ceiling had no grant left."),
            throttled: m.float_gauge("ceiling_throttled_seconds", "Time since start in a pause of the provider."),
            paused: m.float_gauge("ceiling_paused_seconds", "Pause still to wait."),
            live: m.gauge("live_instances", "Instances whose lease is running."),
            launchable: m.gauge("launchable_recipients", "Recipients in hand that can be launched now."),
            in_flight: m.gauge("attempts_in_flight", "HTTP requests to FCM without an answer yet."),
            breaker_open: m.gauge("breaker_open", "1 while the breaker holds launches."),
            breaker: m.gauges("breaker_state", "1 for the state the breaker is in."),
            refused: m.gauges("credential_refused", "1 while this credential is refused and serves nobody."),
            tasks: m.gauge("tasks", "Tasks of the runtime of API, freeze and ledger; what grows for ever leaks."),
        }
    }

    fn refresh(&self, w: &Watched) {
        let s = w.ceiling.snapshot();
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.rate.set(s.rate);
        self.pace.set(s.pace);
        self.share.set(s.share);
        self.used.set(whole(s.used));
        self.forfeited.set(whole(s.forfeited));
        self.waiting.set(whole(s.waiting));
        self.held.set(s.held_for.as_secs_f64());
        self.throttled.set(s.throttled_for.as_secs_f64());
        self.paused.set(s.paused_for.as_secs_f64());
        self.live.set(i64::from(*w.live.borrow()));
        self.tasks.set(whole(tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64));
        self.launchable.set(whole(w.hands.launchable() as u64));
        self.in_flight.set(whole(w.hands.in_flight() as u64));
        self.breaker_open.set(i64::from(w.hands.breaker() != "closed"));
        for state in BreakerState::ALL {
            self.breaker
                .get_or_create(&[("state", state.as_str())])
                .set(i64::from(w.hands.breaker() == state.as_str()));
        }
        for (name, refused) in w.hands.refused().each() {
            self.refused.get_or_create(&[("credential", name)]).set(i64::from(refused));
        }
    }
}
