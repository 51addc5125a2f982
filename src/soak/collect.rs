//! Owns what the instances log: the figures of each fan-out's line, what they complain of, and all of it in a file.
//! Must never know: what it should be.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use serde_json::Value;
use tokio::sync::mpsc;

use super::observed::Line;

/// What was logged.
#[derive(Debug, Default)]
pub struct Collected {
    /// By fan-out.
    pub lines: BTreeMap<String, Line>,
    /// Lines at WARN and ERROR by their text, and how often.
    pub complaints: BTreeMap<String, u64>,
}

impl Collected {
    /// Everything that comes, until nobody is left who logs; copied to `file`.
    pub async fn all(mut log: mpsc::UnboundedReceiver<Value>, mut file: File) -> Self {
        let mut collected = Self::default();
        while let Some(line) = log.recv().await {
            collected.note(&line);
            // The verdict does not depend on it.
            let _ = writeln!(file, "{line}");
        }
        collected
    }

    fn note(&mut self, line: &Value) {
        let message = line["message"].as_str().unwrap_or_default();
        if message == "fan-out finished" {
            let n = |name: &str| line[name].as_u64().unwrap_or(0);
            let told = Line {
                p50_send_ms: n("p50_send_ms"),
                p99_send_ms: n("p99_send_ms"),
                slowest_send_ms: n("slowest_send_ms"),
                interrupted: n("interrupted"),
            };
            self.lines.insert(line["fanout_id"].as_str().unwrap_or_default().to_owned(), told);
        } else if matches!(line["level"].as_str(), Some("WARN" | "ERROR")) || line.is_string() {
            let level = line["level"].as_str().unwrap_or("no JSON");
            let message = line.as_str().unwrap_or(message);
            *self.complaints.entry(format!("{level} {message}")).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn lines_and_complaints_are_told_apart_and_all_is_kept() {
        let (sender, log) = mpsc::unbounded_channel();
        sender
            .send(json!({"level": "INFO", "message": "fan-out finished", "fanout_id": "7", "p99_send_ms": 40}))
            .unwrap();
        for _ in 0..2 {
            sender.send(json!({"level": "WARN", "message": "flush failed"})).unwrap();
        }
        sender.send(json!({"level": "INFO", "message": "serving"})).unwrap();
        drop(sender);
        let file = tempfile::NamedTempFile::new().unwrap();
        let collected = Collected::all(log, file.reopen().unwrap()).await;
        assert_eq!(collected.lines["7"].p99_send_ms, 40);
        assert_eq!(collected.complaints, [("WARN flush failed".to_owned(), 2)].into());
        assert_eq!(std::fs::read_to_string(file.path()).unwrap().lines().count(), 4);
    }
}
