//! Owns what the demo sends to: an emulator of its own, or what it was pointed to, and the credentials for either.
//! Must never know: what is sent.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::DemoError;
use crate::emulator::{Control, Emulator, EmulatorError, Settings};

/// Latency of the demo's own emulator, ms: what FCM takes near its data centres is of this order.
const LATENCY_MS: (u64, u64) = (20, 50);

/// Longest wait for an emulator's key.
const PATIENCE: Duration = Duration::from_secs(5);

/// More than any key; an answer that does not end must not fill the memory.
const LARGEST_KEY: u64 = 64 * 1024;

/// The FCM the demo sends to.
pub struct Provider {
    /// Base URL.
    pub endpoint: String,
    /// The demo's own.
    pub emulator: Option<Emulator>,
}

impl Provider {
    /// What `--fcm-endpoint` names, else an emulator on a free port.
    ///
    /// # Errors
    /// [`DemoError::Part`] when the emulator does not start.
    pub fn choose(endpoint: Option<&str>) -> Result<Self, DemoError> {
        if let Some(endpoint) = endpoint {
            return Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), emulator: None });
        }
        let part = |e: EmulatorError| DemoError::Part(format!("the built-in emulator does not start: {e}"));
        let emulator = Emulator::start(Settings::default()).map_err(part)?;
        let (least, most) = LATENCY_MS;
        let latency = Control { latency_ms: Some(least), jitter_ms: Some(most - least), ..Control::default() };
        emulator.control(&latency).map_err(part)?;
        Ok(Self { endpoint: emulator.endpoint().to_owned(), emulator: Some(emulator) })
    }

    /// In words.
    #[must_use]
    pub fn name(&self) -> String {
        let (least, most) = LATENCY_MS;
        match self.emulator {
            Some(_) => format!("{} (built-in emulator, {least} to {most} ms per answer)", self.endpoint),
            None => format!("{} (yours)", self.endpoint),
        }
    }

    /// A service-account key for it, when none is configured: an emulator gives one away.
    ///
    /// # Errors
    /// [`DemoError::Credentials`] says what is missing.
    pub async fn key(&self) -> Result<String, DemoError> {
        if let Some(emulator) = &self.emulator {
            return Ok(emulator.key_json());
        }
        let missing = |why: String| DemoError::Credentials { endpoint: self.endpoint.clone(), why };
        // Only an emulator is spoken to in the clear.
        let Some(authority) = self.endpoint.strip_prefix("http://") else {
            return Err(missing("over https a key is not fetched".to_owned()));
        };
        let fetched = tokio::time::timeout(PATIENCE, fetch(authority, "/emulator/key.json")).await;
        fetched.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs()))).map_err(missing)
    }
}

/// One request of HTTP/1.0: the answer ends with the connection, so there is nothing to parse but the status.
async fn fetch(authority: &str, path: &str) -> Result<String, String> {
    let answer = async {
        let mut stream = TcpStream::connect(authority).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LARGEST_KEY).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = answer.await.map_err(|fault| format!("{path}: {fault}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{path}: the answer is not HTTP/1"))?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        status => Err(format!("{path}: status {}", status.unwrap_or("missing"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_running_emulator_gives_its_key_away() {
        let emulator = Emulator::start(Settings::default()).unwrap();
        let provider = Provider::choose(Some(&format!("{}/", emulator.endpoint()))).unwrap();
        assert_eq!(provider.key().await.unwrap(), emulator.key_json());
        emulator.stop().await;
    }

    #[tokio::test]
    async fn what_gives_no_key_is_named_with_what_to_do() {
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        for (endpoint, word) in [("https://fcm.googleapis.com", "https"), (&format!("http://{closed}"), "refused")] {
            let said = Provider::choose(Some(endpoint)).unwrap().key().await.unwrap_err().to_string();
            assert!(said.contains(endpoint) && said.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{said}");
            assert!(said.contains(word), "{said}");
        }
        let emulator = Emulator::start(Settings::default()).unwrap();
        let authority = emulator.endpoint().strip_prefix("http://").unwrap().to_owned();
        assert!(fetch(&authority, "/nowhere").await.unwrap_err().contains("status 404"));
        emulator.stop().await;
    }
}
