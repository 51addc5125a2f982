//! Owns the log subscriber: one JSON object per line for machines, text for a person at a terminal.
//! Must never know: what is logged.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One JSON object per line: `timestamp` (UTC), `level`, `target`, `message`, and the event's fields beside them.
    Json,
    /// For people.
    Text,
}

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// No such format.
    #[error("log format {0:?} is not one of auto, json, text")]
    Format(String),
    /// The filter is not in the syntax of `RUST_LOG`.
    #[error("log filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The process has a subscriber already.
    #[error("logs are set up twice")]
    Twice,
}

impl FromStr for Format {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "auto" => Ok(Self::Auto),
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(TelemetryError::Format(other.to_owned())),
        }
    }
}

/// Sends every event of this process that passes `filter` (syntax of `RUST_LOG`) to stdout.
///
/// # Errors
/// A format or filter that cannot be read; a second call.
pub fn init(format: &str, filter: &str) -> Result<(), TelemetryError> {
    let terminal = io::stdout().is_terminal();
    let json = match format.parse()? {
        Format::Auto => !terminal,
        format => format == Format::Json,
    };
    let subscriber = subscriber(json, terminal, filter, io::stdout)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::Twice)
}

type Boxed = Box<dyn Subscriber + Send + Sync>;

fn subscriber<W>(json: bool, terminal: bool, filter: &str, writer: W) -> Result<Boxed, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(filter)?;
    // https://no-color.org: any value that is not empty.
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour).with_writer(writer);
    if !json {
        return Ok(Box::new(lines.finish()));
    }
    // Spans are left out: an event says everything itself, so that a line is understood alone.
    Ok(Box::new(lines.json().flatten_event(true).with_current_span(false).with_span_list(false).finish()))
}

/// Whether a fault that comes again and again was told already: one line when it begins, one when it is over.
#[derive(Debug, Default)]
pub struct Outage(bool);

impl Outage {
    /// It failed; `true` when that is news.
    pub const fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    /// It failed, and has not worked since.
    pub const fn is_on(&self) -> bool {
        self.0
    }

    /// It worked; `true` when that is news.
    pub const fn over(&mut self) -> bool {
        std::mem::replace(&mut self.0, false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(json: bool, filter: &str, log: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(json, false, filter, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn one_event() {
        let _request = tracing::info_span!("request", hidden = 1).entered();
        tracing::info!(target: "fanfare::fanout", recipients = 3, duration_ms = 1.5, kind = "goal", "fan-out finished");
    }

    #[test]
    fn a_json_line_is_one_object_with_the_fields_beside_the_message() {
        let line = written(true, "info", one_event);
        assert_eq!(line.matches('\n').count(), 1);
        let line: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        let timestamp = line["timestamp"].as_str().unwrap();
        let parsed = time::OffsetDateTime::parse(timestamp, &time::format_description::well_known::Rfc3339).unwrap();
        assert!(parsed.offset().is_utc(), "{timestamp}");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["target"], "fanfare::fanout");
        assert_eq!(line["message"], "fan-out finished");
        assert_eq!(line["recipients"], 3);
        assert_eq!(line["duration_ms"], 1.5);
        assert_eq!(line["kind"], "goal");
        assert_eq!(line.len(), 7, "nothing else: {line:?}");
    }

    #[test]
    fn a_text_line_has_no_escape_codes_off_a_terminal() {
        let line = written(false, "info", one_event);
        assert!(line.contains("INFO") && line.contains("fan-out finished") && line.contains("recipients=3"), "{line}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }

    #[test]
    fn the_filter_works_per_target() {
        assert_eq!(written(true, "warn", one_event), "");
        assert_ne!(written(true, "warn,fanfare::fanout=info", one_event), "");
    }

    #[test]
    fn a_format_or_filter_that_means_nothing_is_refused() {
        assert!(matches!("xml".parse::<Format>(), Err(TelemetryError::Format(_))));
        assert!(matches!(init("json", "fanfare=loud"), Err(TelemetryError::Filter(_))));
    }
}
