//! Owns the log events of this test process, as data. One subscriber for all tests, because the services under test
//! log from threads and tasks of their own; a test finds its events by a field only it knows, such as a fan-out id.
//! Must never know: what any event means.

use std::fmt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Longest wait for an event. Generous: it only decides how long a broken test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its level.
    pub level: Level,
    /// `fanfare::<room>`.
    pub target: String,
    /// Its message.
    pub message: String,
    /// Its fields, without the message.
    pub fields: Map<String, Value>,
}

impl Event {
    /// Whether it has this target and this field as text: how a test finds its own.
    pub fn is(&self, target: &str, field: &str, value: &str) -> bool {
        self.target == target && self.fields.get(field).and_then(Value::as_str) == Some(value)
    }

    /// A field that is a whole number; fails the test when it is not.
    pub fn number(&self, field: &str) -> u64 {
        self.fields.get(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {field:?} in {self:?}"))
    }
}

/// The events of this process from INFO up, from the first call of [`logs`] on.
#[derive(Debug)]
pub struct Logs {
    events: Mutex<Vec<Event>>,
    count: watch::Sender<usize>,
}

/// Starts recording, once per process. Call it before the service starts.
pub fn logs() -> &'static Logs {
    static LOGS: OnceLock<&'static Logs> = OnceLock::new();
    LOGS.get_or_init(|| {
        let logs: &'static Logs = Box::leak(Box::new(Logs { events: Mutex::default(), count: watch::Sender::new(0) }));
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(logs))
            .expect("this is the only global subscriber of the test process");
        logs
    })
}

impl Logs {
    /// The events so far that `wanted` wants.
    pub fn find(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events.lock().unwrap().iter().filter(|event| wanted(event)).cloned().collect()
    }

    /// Waits until there are `n` events that `wanted` wants; fails the test after a minute. Not for a paused clock.
    pub async fn wait_for(&self, n: usize, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        // Subscribed before the first look, so that no event falls between the two.
        let mut count = self.count.subscribe();
        let enough = async {
            loop {
                let found = self.find(&wanted);
                if found.len() >= n {
                    return found;
                }
                count.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, enough).await {
            Ok(found) => found,
            Err(_) => panic!("{} events of {n} within {PATIENCE:?}", self.find(&wanted).len()),
        }
    }
}

impl<S: Subscriber> Layer<S> for &'static Logs {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("fanfare")
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let message = match fields.0.remove("message") {
            Some(Value::String(message)) => message,
            _ => String::new(),
        };
        let event = Event { level: *metadata.level(), target: metadata.target().to_owned(), message, fields: fields.0 };
        self.events.lock().unwrap().push(event);
        self.count.send_modify(|count| *count += 1);
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), Value::String(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

#[tokio::test]
async fn events_of_other_threads_are_recorded_and_told_apart_by_a_field() {
    let logs = logs();
    for (fanout_id, recipients) in [("logs-test-a", 3_u64), ("logs-test-b", 5)] {
        std::thread::spawn(move || {
            tracing::debug!(target: "fanfare::fanout", fanout_id, "not recorded");
            tracing::info!(target: "fanfare::fanout", fanout_id, recipients, ratio = 0.5, kind = %"goal", "fan-out finished");
        });
    }
    let mine = |event: &Event| event.is("fanfare::fanout", "fanout_id", "logs-test-b");
    let found = logs.wait_for(1, mine).await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].level, found[0].message.as_str()), (Level::INFO, "fan-out finished"));
    assert_eq!((found[0].number("recipients"), &found[0].fields["ratio"]), (5, &Value::from(0.5)));
    assert_eq!(found[0].fields["kind"], "goal");
    assert_eq!(logs.find(mine), found);
}
