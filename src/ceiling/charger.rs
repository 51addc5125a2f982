//! Owns leave for the OAuth call, which is charged like any other request (law 2) but has a lane of its own, so that
//! a busy or throttled sender never keeps a credential from being renewed.
//! Must never know: what a credential is.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::domain::charge::Charge;

/// Wait per request once the feeder has ended, which is when the process does: nobody counts any more, but a loop
/// of requests is still slowed down.
const UNCOUNTED: Duration = Duration::from_millis(100);

/// One question to the feeder: `Ok` = go then, `Err` = ask again then.
pub(super) type Question = oneshot::Sender<Result<Instant, Instant>>;

/// Asks the feeder.
#[derive(Debug, Clone)]
pub(super) struct Charger {
    questions: mpsc::Sender<Question>,
}

impl Charger {
    pub(super) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (questions, receiver) = mpsc::channel(8);
        (Self { questions }, receiver)
    }

    async fn ask(&self) -> Option<Result<Instant, Instant>> {
        let (question, answer) = oneshot::channel();
        self.questions.send(question).await.ok()?;
        answer.await.ok()
    }
}

#[async_trait]
impl Charge for Charger {
    async fn charge(&self) {
        loop {
            match self.ask().await {
                Some(Ok(then)) => return sleep_until(then).await,
                Some(Err(again)) => sleep_until(again).await,
                None => return sleep(UNCOUNTED).await,
            }
        }
    }
}
